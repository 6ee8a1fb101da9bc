"""What crosses in a compiled step, as the engine reads it."""


def collectives_of_step(parallel, x, y=None, sample_weight=None):
    """The collectives of the training step, those in loops at each step.

    The model is trained on the batch once, so that all its state is there.
    """
    parallel.train_on_batch(x, y, sample_weight)
    batch = (x, y, sample_weight)
    replicas = parallel._keras_parallel.replicas
    return list(replicas.program(parallel, "train", batch).collectives)
