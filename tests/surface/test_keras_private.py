"""The private names of Keras that we depend on, one test for each.

If one fails under a new Keras, that name has moved: `CONTRIBUTING.md` says
where it is used.
"""

import inspect

import keras
import numpy as np
from keras.src.backend.jax import trainer as jax_trainer
from keras.src.models import functional

from keras_parallel.graph import _keras as graph_keras
from keras_parallel.strategies import _keras


def trained_model():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    before = set(vars(model))
    model.compile("sgd", "mse", metrics=["mae"])
    x, y = np.ones((4, 3)), np.ones((4, 1))
    model.fit(x, y, verbose=0, validation_data=(x, y))
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    return model, before


def test_the_list_of_trainer_attributes_is_complete():
    model, before = trained_model()
    runtime = {"_jax_state", "_jax_state_synced"}
    set_by_training = set(vars(model)) - before
    assert set_by_training <= _keras.TRAINER_ATTRIBUTES | runtime
    trainer_only = type("Probe", (jax_trainer.JAXTrainer,), {})
    probe = trainer_only.__new__(trainer_only)
    jax_trainer.JAXTrainer.__init__(probe)
    assert set(vars(probe)) <= _keras.TRAINER_ATTRIBUTES | runtime


def test_auto_compiles_what_all_layers_support():
    inputs = keras.Input((4, 4, 3))
    for layer in (keras.layers.RandomZoom(0.1), keras.layers.Dense(1)):
        model = keras.Model(inputs, layer(inputs))
        model.compile("sgd", "mse")
        assert model.jit_compile == _keras.supports_jit(model)


def test_fit_reads_the_state_through_get_jax_state():
    for method in ("fit", "evaluate", "predict", "train_on_batch"):
        source = inspect.getsource(getattr(jax_trainer.JAXTrainer, method))
        assert "self._get_jax_state(" in source
        assert "self.jax_state_sync()" in source
    assert set(
        inspect.signature(jax_trainer.JAXTrainer._get_jax_state).parameters
    ) == {
        "self",
        "trainable_variables",
        "non_trainable_variables",
        "optimizer_variables",
        "metrics_variables",
        "purge_model_variables",
    }


def test_a_step_takes_the_state_and_an_iterator():
    for kind in ("train", "test", "predict"):
        source = inspect.getsource(
            getattr(jax_trainer.JAXTrainer, f"make_{kind}_function")
        )
        assert f"self.{kind}_function = step_function" in source
    source = inspect.getsource(jax_trainer.JAXTrainer._make_function)
    assert "def iterator_step(state, iterator):" in source


def test_keras_looks_ahead_in_a_generator_of_numpy_batches():
    method = jax_trainer.JAXEpochIterator._one_batch_ahead_iterator
    assert list(inspect.signature(method).parameters)[1] == "numpy_iterator"
    assert inspect.isgeneratorfunction(method)
    source = inspect.getsource(jax_trainer.JAXEpochIterator._get_iterator)
    assert "return self._one_batch_ahead_iterator(iterator)" in source


def test_keras_shuffles_a_dataset_right_after_its_number_of_batches():
    from keras.src.trainers.data_adapters import py_dataset_adapter

    adapter = py_dataset_adapter.PyDatasetAdapter
    source = inspect.getsource(adapter._finite_generator)
    assert (
        """
        indices = range(self.py_dataset.num_batches)
        if self.shuffle:
            indices = list(indices)
            random.shuffle(indices)

        for i in indices:
            yield self._standardize_batch(self.py_dataset[i])
"""
        in source
    )


def test_keras_keeps_batches_of_one_epoch_for_the_next():
    """If not any more, `_feeding` may leave threads to Keras."""
    from keras.src.trainers.data_adapters import py_dataset_adapter

    enqueuer = py_dataset_adapter.PyDatasetEnqueuer
    assert "ready_queue.put(inputs)" in inspect.getsource(enqueuer.stop)


def test_a_variable_holds_its_array_in_value():
    variable = keras.Variable(np.ones(3))
    assert variable._value is variable.value
    assert _keras.layout_of(variable) is None


def test_a_variable_may_be_of_a_class_below_its_own_for_a_while():
    """And whether its value is that of a scope, one private name tells."""
    from keras.src.backend.common.stateless_scope import in_stateless_scope

    from keras_parallel.engines.jax import _apart

    variable = keras.Variable(np.ones(3))
    _apart.keep_apart(variable, next(iter(variable.value.devices())))
    assert type(variable) is not keras.Variable
    assert variable.value is variable._value
    assert type(variable) is keras.Variable
    assert not in_stateless_scope()
    with keras.StatelessScope():
        assert in_stateless_scope()


def test_an_optimizer_knows_what_it_trains():
    model, _ = trained_model()
    trained = _keras.trained_by(model.optimizer)
    assert trained == model.trainable_variables != []


def test_a_model_knows_its_layers_and_the_means_of_its_losses():
    model, _ = trained_model()
    layers = _keras.layers_of(keras.Sequential([model]))
    assert {*model.layers} < {*layers}
    tracker, *others = model.metrics
    assert _keras.is_loss_tracker(model, tracker)
    assert not any(_keras.is_loss_tracker(model, m) for m in others)


def test_a_model_knows_whether_its_losses_are_built():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert not _keras.losses_are_built(model)
    assert _keras.loss_trackers(model) == [model._loss_tracker]
    model, _ = trained_model()
    assert _keras.losses_are_built(model)


def test_metrics_that_learn_their_shape_are_known():
    for metric in (keras.metrics.R2Score(), keras.metrics.F1Score()):
        assert _keras.learns_shape(metric)
        metric.update_state(np.eye(2), np.eye(2))
        assert not _keras.learns_shape(metric)
    assert not _keras.learns_shape(keras.metrics.AUC())


def test_metrics_that_are_not_built_are_known():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mse"])
    metrics = next(m for m in model.metrics if m.name == "compile_metrics")
    assert metrics.metrics == []
    assert _keras.metrics_to_build(metrics) == [["mae"], ["mse"]]


def test_a_layer_tracks_through_its_tracker():
    layer = keras.layers.Dense(1)
    assert layer._tracker.track(3) == 3


def test_layers_drop_through_one_function():
    from keras.src.backend import random

    called = []
    dropout = random.dropout
    random.dropout = lambda x, *args, **kwargs: called.append(1) or x
    try:
        keras.layers.Dropout(0.5)(np.ones((2, 3)), training=True)
        keras.layers.GRU(2, dropout=0.5)(np.ones((2, 3, 4)), training=True)
    finally:
        random.dropout = dropout
    assert len(called) == 2


def test_where_keras_catches_every_exception():
    """If this fails, `engines/_interrupts.py` can do without it."""
    from keras.src.utils import python_utils

    from keras_parallel.engines._interrupts import WAITS_FOR_LOGS

    function = getattr(python_utils, WAITS_FOR_LOGS)

    class Loss:
        def __float__(self):
            raise KeyboardInterrupt

    function({"loss": Loss()})


def test_the_global_seed_generator_is_the_one_that_is_put_back():
    keras.random.normal(())
    seeds = _keras.global_seed_generator()
    before = seeds.state.numpy()
    keras.random.normal(())
    assert (seeds.state.numpy() != before).any()
    _keras.forget_global_seed_generator()
    assert _keras.global_seed_generator() is None


def test_what_keras_keeps_for_the_process_is_put_back():
    before = _keras.global_attributes()
    assert before["object_name_uids"] is not None
    with keras.StatelessScope(initialize_variables=False):
        keras.layers.Dense(1).build((1, 1))
    assert _keras.global_attributes()["uninitialized_variables"]
    keras.random.uniform((1,))
    assert _keras.global_attributes()["global_seed_generator"] is not None
    _keras.set_global_attributes(before)
    assert _keras.global_attributes() == before
    _keras.global_attributes()["uninitialized_variables"].clear()


def test_a_graph_asks_for_the_function_of_each_call_in_order():
    """`graph/_keras.py`."""
    inputs = keras.Input((3,))
    shared = keras.layers.Dense(3)
    x = keras.layers.add([shared(inputs), shared(shared(inputs))])
    model = keras.Model(inputs, keras.Sequential([shared])(x))
    asked = []

    def function_of(operation):
        asked.append(operation)
        return operation

    model._run_through_graph([np.ones((2, 3))], function_of)
    nodes = graph_keras.nodes_of(graph_keras.graph_of(model))
    assert [node.operation for node in nodes] == asked
    assert len(asked) == 5
    inner = graph_keras.graph_of(asked[-1])
    assert [node.operation for node in graph_keras.nodes_of(inner)] == [shared]


def test_a_part_of_a_graph_is_cloned_by_one_function():
    """`graph/_keras.py`."""
    source = inspect.getsource(functional.Functional.__init__)
    assert "clone_graph_nodes(inputs, outputs)" in source
    source = inspect.getsource(functional.clone_graph_nodes)
    assert "find_nodes_by_inputs_and_outputs(inputs, outputs)" in source


def test_a_function_for_several_steps_is_made_of_one_for_one_step():
    """`engines/jax/_stages.py`."""
    source = inspect.getsource(jax_trainer.JAXTrainer._make_function)
    assert "step_function(state, data)" in source
    for kind in ("train", "test", "predict"):
        made = getattr(jax_trainer.JAXTrainer, f"make_{kind}_function")
        assert "self._make_function(" in inspect.getsource(made)


def test_slots_stand_in_lists_beside_the_variables_they_belong_to():
    """`owners_of_slots` in `strategies/_keras.py`."""
    model, _ = trained_model()
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(gradient_accumulation_steps=2, use_ema=True)
    )
    optimizer.build(model.trainable_variables)
    owners = _keras.owners_of_slots(optimizer)
    inner = optimizer.inner_optimizer
    for slot in optimizer.variables:
        owner = owners.get(id(slot))
        assert (owner is None) == (slot.shape == ())
        if owner is not None:
            assert owner.path.replace("/", "_") in slot.path.replace("/", "_")
    assert len(owners) == 4 * len(inner._trainable_variables)
