"""Where Keras 3 has what Keras 2 had.

Tables only. `tests/migrate/test_names.py` holds each line against the Keras
that is installed.
"""

# Spellings of Keras inside TensorFlow.
TENSORFLOW_ROOTS = (
    "tensorflow.compat.v1.keras",
    "tensorflow.contrib.keras",
    "tensorflow.python.keras",
    "tensorflow.keras",
)

# A module that is gone -> the one that has its names.
MODULES = {
    "keras.backend.tensorflow_backend": "keras.backend",
    "keras.layers.advanced_activations": "keras.layers",
    "keras.layers.convolutional": "keras.layers",
    "keras.layers.convolutional_recurrent": "keras.layers",
    "keras.layers.core": "keras.layers",
    "keras.layers.embeddings": "keras.layers",
    "keras.layers.merge": "keras.layers",
    "keras.layers.noise": "keras.layers",
    "keras.layers.normalization": "keras.layers",
    "keras.layers.pooling": "keras.layers",
    "keras.layers.recurrent": "keras.layers",
    "keras.layers.wrappers": "keras.layers",
    "keras.objectives": "keras.losses",
    "keras.utils.data_utils": "keras.utils",
    "keras.utils.generic_utils": "keras.utils",
    "keras.utils.io_utils": "keras.utils",
    "keras.utils.layer_utils": "keras.utils",
    "keras.utils.multi_gpu_utils": "keras.utils",
    "keras.utils.np_utils": "keras.utils",
    "keras.utils.training_utils": "keras.utils",
    "keras.utils.vis_utils": "keras.utils",
}

# A name of Keras 2 -> the same thing under its name in Keras 3.
NAMES = {
    "keras.constraints.maxnorm": "keras.constraints.max_norm",
    "keras.constraints.nonneg": "keras.constraints.non_neg",
    "keras.constraints.unitnorm": "keras.constraints.unit_norm",
    "keras.engine.Input": "keras.layers.Input",
    "keras.engine.InputSpec": "keras.layers.InputSpec",
    "keras.engine.Layer": "keras.layers.Layer",
    "keras.engine.Model": "keras.models.Model",
    "keras.engine.topology.Input": "keras.layers.Input",
    "keras.engine.topology.InputSpec": "keras.layers.InputSpec",
    "keras.engine.topology.Layer": "keras.layers.Layer",
    "keras.engine.training.Model": "keras.models.Model",
    "keras.layers.CuDNNGRU": "keras.layers.GRU",
    "keras.layers.CuDNNLSTM": "keras.layers.LSTM",
    "keras.layers.Deconvolution2D": "keras.layers.Conv2DTranspose",
    "keras.losses.cosine_proximity": "keras.losses.cosine_similarity",
    "keras.losses.logcosh": "keras.losses.log_cosh",
    "keras.optimizers.adadelta": "keras.optimizers.Adadelta",
    "keras.optimizers.adagrad": "keras.optimizers.Adagrad",
    "keras.optimizers.adam": "keras.optimizers.Adam",
    "keras.optimizers.adamax": "keras.optimizers.Adamax",
    "keras.optimizers.nadam": "keras.optimizers.Nadam",
    "keras.optimizers.rmsprop": "keras.optimizers.RMSprop",
    "keras.optimizers.sgd": "keras.optimizers.SGD",
    # It can still be had under the old name too.
    "keras.utils.Sequence": "keras.utils.PyDataset",
}

# A function of `keras.backend` that is gone -> the one that is called the
# same way. Where arguments differ, `rules/backend.py` has a rule.
BACKEND = {
    **{
        name: f"keras.ops.{name}"
        for name in (
            *("abs", "all", "any", "arange", "argmax", "argmin"),
            *("binary_crossentropy", "cast", "categorical_crossentropy"),
            *("clip", "concatenate", "cos", "dot", "elu", "equal", "exp"),
            *("expand_dims", "greater", "greater_equal", "less", "less_equal"),
            *("log", "logsumexp", "max", "maximum"),
            *("mean", "min", "minimum", "ndim", "not_equal", "ones_like"),
            *("prod", "relu", "reshape", "round", "shape", "sigmoid"),
            *("sign", "sin", "softmax", "softplus", "softsign"),
            *("sparse_categorical_crossentropy", "sqrt", "square"),
            *("squeeze", "stack", "std", "sum", "tanh", "tile"),
            *("transpose", "var", "zeros_like"),
        )
    },
    "permute_dimensions": "keras.ops.transpose",
    "pow": "keras.ops.power",
    "random_normal": "keras.random.normal",
    "random_uniform": "keras.random.uniform",
    "stop_gradient": "keras.ops.stop_gradient",
}
NAMES.update({f"keras.backend.{old}": new for old, new in BACKEND.items()})
# Short names, of `keras.losses` and `keras.metrics` alike.
NAMES.update(
    {
        f"keras.{module}.{short}": f"keras.{module}.{long}"
        for old, long in {
            "mse": "mean_squared_error",
            "mae": "mean_absolute_error",
            "mape": "mean_absolute_percentage_error",
            "msle": "mean_squared_logarithmic_error",
            "kld": "kl_divergence",
            "kullback_leibler_divergence": "kl_divergence",
        }.items()
        for short in dict.fromkeys([old, old.upper() if len(old) < 5 else old])
        for module in ("losses", "metrics")
    }
)

# What is still in `keras.backend`.
BACKEND_KEPT = frozenset(
    {
        *("backend", "clear_session", "epsilon", "floatx", "get_uid"),
        *("image_data_format", "is_float_dtype", "is_int_dtype"),
        *("is_keras_tensor", "result_type", "set_epsilon", "set_floatx"),
        *("set_image_data_format", "standardize_dtype"),
    }
)

# The same loss, where it is named by a string.
LOSS_STRINGS = {
    "cosine_proximity": "cosine_similarity",
    "kullback_leibler_divergence": "kl_divergence",
    "logcosh": "log_cosh",
}

# Gone without a successor that a rule could write -> what to use.
GONE = {
    "keras.backend.function": (
        "Build a `keras.Model` of the same inputs and outputs and call it."
    ),
    "keras.backend.get_session": "There is no session; remove it.",
    "keras.backend.gradients": (
        "Use the gradients of your backend, `jax.grad` on JAX."
    ),
    "keras.backend.hard_sigmoid": (
        "`keras.ops.hard_sigmoid` is another function: that of Keras 2 is "
        "`keras.ops.clip(0.2 * x + 0.5, 0, 1)`."
    ),
    "keras.backend.image_dim_ordering": (
        "Use `keras.backend.image_data_format()`; 'tf' is 'channels_last' "
        "there, and 'th' is 'channels_first'."
    ),
    "keras.backend.learning_phase": (
        "A layer gets `training` as an argument of `call`."
    ),
    "keras.backend.set_image_dim_ordering": (
        "Use `keras.backend.set_image_data_format('channels_last')` for "
        "'tf', 'channels_first' for 'th'."
    ),
    "keras.backend.set_learning_phase": (
        "Pass `training=True` or `training=False` where you call the model."
    ),
    "keras.backend.switch": "Use `keras.ops.where`.",
    "keras.backend.variable": "Use `keras.Variable`.",
    "keras.layers.AtrousConvolution1D": (
        "Use `keras.layers.Conv1D` with `dilation_rate=`."
    ),
    "keras.layers.AtrousConvolution2D": (
        "Use `keras.layers.Conv2D` with `dilation_rate=`."
    ),
    "keras.layers.ConvRecurrent2D": "Use `keras.layers.ConvLSTM2D`.",
    "keras.layers.Deconvolution3D": "Use `keras.layers.Conv3DTranspose`.",
    "keras.layers.Highway": "Write it as a layer of your own.",
    "keras.layers.LocallyConnected1D": "Write it as a layer of your own.",
    "keras.layers.LocallyConnected2D": "Write it as a layer of your own.",
    "keras.layers.MaxoutDense": "Write it as a layer of your own.",
    "keras.layers.Merge": (
        "Build the model from `keras.Input` with "
        "`keras.layers.concatenate([a, b])` or another of its kind."
    ),
    "keras.layers.ParametricSoftplus": "Write it as a layer of your own.",
    "keras.layers.Recurrent": "Use `keras.layers.RNN` with a cell.",
    "keras.layers.SReLU": "Write it as a layer of your own.",
    "keras.layers.ThresholdedReLU": (
        "Use `keras.layers.Lambda` with `keras.ops.where`."
    ),
    "keras.layers.TimeDistributedDense": (
        "Use `keras.layers.TimeDistributed(keras.layers.Dense(...))`."
    ),
    "keras.models.model_from_yaml": "Use `keras.models.model_from_json`.",
    "keras.preprocessing.image.ImageDataGenerator": (
        "Use `keras.utils.image_dataset_from_directory`, or a "
        "`keras.utils.PyDataset`, with preprocessing layers such as "
        "`keras.layers.RandomFlip`."
    ),
    "keras.preprocessing.sequence.TimeseriesGenerator": (
        "Use `keras.utils.timeseries_dataset_from_array`."
    ),
    "keras.preprocessing.sequence.skipgrams": "Write it with NumPy.",
    "keras.preprocessing.text.Tokenizer": (
        "Use `keras.layers.TextVectorization`."
    ),
    "keras.preprocessing.text.one_hot": (
        "Use `keras.layers.TextVectorization`."
    ),
    "keras.preprocessing.text.text_to_word_sequence": (
        "Use `keras.layers.TextVectorization`."
    ),
    "keras.utils.HDF5Matrix": "Read the file with h5py.",
    "keras.utils.print_summary": "Use `model.summary()`.",
    "keras.wrappers.scikit_learn.KerasClassifier": (
        "Use `keras.wrappers.SKLearnClassifier`."
    ),
    "keras.wrappers.scikit_learn.KerasRegressor": (
        "Use `keras.wrappers.SKLearnRegressor`."
    ),
}

# Modules of which nothing is left; the names that moved are in NAMES.
GONE_MODULES = {
    "keras.applications.keras_modules_injection": "Remove it.",
    "keras.engine": "Use the name from `keras.layers` or `keras.models`.",
    "keras.legacy": "Use what it stood for in Keras 2.",
    "keras.preprocessing.text": "Use `keras.layers.TextVectorization`.",
    "keras.wrappers.scikit_learn": (
        "Use `keras.wrappers.SKLearnClassifier` and its kin."
    ),
}

MULTI_GPU_MODEL = "keras.utils.multi_gpu_model"

# Parts of TensorFlow that feed and log; they work beside any backend.
TENSORFLOW_BESIDE = (
    "tensorflow.__version__",
    "tensorflow.bool",
    "tensorflow.compat.v1.logging",
    "tensorflow.config",
    "tensorflow.data",
    "tensorflow.float32",
    "tensorflow.get_logger",
    "tensorflow.int32",
    "tensorflow.int64",
    "tensorflow.io",
    "tensorflow.logging",
    "tensorflow.string",
    "tensorflow.uint8",
)

_ONLY_KERAS_3 = (
    "keras.Operation",
    "keras.Variable",
    "keras.config",
    "keras.distribution",
    "keras.ops",
    "keras.random",
    "keras.saving",
    "keras.tree",
    "keras.utils.PyDataset",
    "keras_parallel",
)


def is_keras(name: str) -> bool:
    """Whether a dotted name is one of Keras."""
    return name.partition(".")[0] == "keras"


def is_keras_3(name: str) -> bool:
    """Whether a dotted name is one that only Keras 3 has."""
    return any(
        name == new or name.startswith(new + ".") for new in _ONLY_KERAS_3
    )


def plain(name: str) -> str:
    """The name without the way through `keras.backend.tf`, TensorFlow."""
    way = "keras.backend.tf"
    if name == way or name.startswith(way + "."):
        return "tensorflow" + name.removeprefix(way)
    return name


def old_name(qualified: str) -> str:
    """The name under `keras`, in the module that still exists."""
    for root in TENSORFLOW_ROOTS:
        if qualified == root or qualified.startswith(root + "."):
            qualified = "keras" + qualified.removeprefix(root)
    if qualified in GONE or qualified in NAMES:
        return qualified
    for module, home in MODULES.items():
        if qualified.startswith(module + "."):
            return home + qualified.removeprefix(module)
    return qualified


def new_name(qualified: str) -> str:
    """The name of the same thing in Keras 3."""
    old = old_name(qualified)
    return NAMES.get(old, old)


def gone(qualified: str) -> str | None:
    """What to use instead of a name that Keras 3 removed, if it did."""
    old = old_name(qualified)
    if old in GONE:
        return GONE[old]
    if old in NAMES or old == MULTI_GPU_MODEL:
        return None
    for module, instead in GONE_MODULES.items():
        if old == module or old.startswith(module + "."):
            return instead
    name = old.removeprefix("keras.backend.").partition(".")[0]
    if old.startswith("keras.backend.") and name not in BACKEND_KEPT:
        return f"See whether `keras.ops` has {name!r} under another name."
    return None
