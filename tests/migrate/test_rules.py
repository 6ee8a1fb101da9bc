"""How names are followed, what stays, and where a rule stops."""

import textwrap

import pytest

from keras_parallel.migrate._rewrite import migrate


def text_of(source, notes=0):
    source = textwrap.dedent(source).lstrip("\n")
    done = migrate(source)
    assert len(done.notes) == notes, done.notes
    assert migrate(done.text).text == done.text
    return done.text


def unchanged(source, notes=0):
    source = textwrap.dedent(source).lstrip("\n")
    assert text_of(source, notes) == source


# ---- names


@pytest.mark.parametrize(
    ("imported", "used"),
    [
        ("import keras.utils as ku", "ku.multi_gpu_model"),
        ("import keras.utils.training_utils as t", "t.multi_gpu_model"),
        ("from keras import utils", "utils.multi_gpu_model"),
        ("from keras.utils import training_utils", None),
        ("import tensorflow.keras.utils as ku", "ku.multi_gpu_model"),
        ("import tensorflow as tf", "tf.keras.utils.multi_gpu_model"),
        ("import keras.utils", "keras.utils.multi_gpu_model"),
    ],
)
def test_the_call_is_found_under_any_import(imported, used):
    used = used or "training_utils.multi_gpu_model"
    text = text_of(f"{imported}\nparallel = {used}(model, 2)\n")
    assert "from keras_parallel import multi_gpu_model\n" in text
    assert "\nparallel = multi_gpu_model(model, 2)\n" in text
    assert imported not in text or imported == "import keras.utils"


def test_an_alias_stays():
    text = text_of(
        """
        from keras.utils import multi_gpu_model as mgm, to_categorical

        parallel = mgm(model, gpus=2)
        """
    )
    assert text == (
        "from keras_parallel import multi_gpu_model as mgm\n\n"
        "from keras.utils import to_categorical\n\n"
        "parallel = mgm(model, gpus=2)\n"
    )


def test_two_names_for_it():
    text = text_of(
        """
        from keras.utils import multi_gpu_model
        from keras.utils import multi_gpu_model as mgm

        mgm(multi_gpu_model, 2)
        """
    )
    assert (
        "from keras_parallel import multi_gpu_model, multi_gpu_model as mgm\n"
        in text
    )


def test_an_import_in_a_function_moves_to_the_top():
    text = text_of(
        """
        #!/usr/bin/env python
        import numpy


        def main():
            from keras.utils import multi_gpu_model
            return multi_gpu_model(build(), 2)
        """
    )
    assert text.startswith(
        "#!/usr/bin/env python\nfrom keras_parallel import multi_gpu_model\n\n"
        "import numpy\n"
    )
    assert "    return multi_gpu_model(build(), 2)\n" in text
    assert "keras.utils" not in text


def test_an_import_that_was_all_of_a_block_leaves_a_pass():
    text = text_of(
        """
        import keras
        if gpus > 1:
            from keras.utils import multi_gpu_model
        """
    )
    assert "if gpus > 1:\n    pass\n" in text


def test_a_function_of_that_name_in_the_script():
    text = text_of(
        """
        import keras


        def multi_gpu_model(model):
            return keras.utils.multi_gpu_model(model, gpus=2)
        """
    )
    assert "import keras_parallel\n" in text
    assert "return keras_parallel.multi_gpu_model(model, gpus=2)" in text


def test_what_is_not_keras_is_left_alone():
    unchanged(
        """
        import re
        from sklearn.svm import SVC
        from mine import K, SGD, multi_gpu_model

        multi_gpu_model(1)
        SGD(lr=0.1)
        K.sum(3)
        re.compile("adadelta", options=3)
        SVC().predict_proba(x)
        layers[-2].weights
        args.lr = 3
        print("concatenate_1", {"acc": 1})
        """
    )


def test_a_local_name_hides_an_import():
    unchanged(
        """
        from keras import backend as K


        def f(K):
            return K.sum(3)


        K.epsilon()
        """
    )


def test_a_name_that_is_bound_twice_is_not_followed():
    unchanged(
        """
        from keras import backend as K

        K.epsilon()
        K = mine()
        K.sum(3)
        """
    )


def test_names_that_moved_to_another_module():
    text = text_of(
        """
        from keras.engine import Layer
        from keras.backend import sum as total

        Layer(total(3))
        """
    )
    assert text == (
        "from keras.layers import Layer\n"
        "from keras.ops import sum as total\n\n"
        "Layer(total(3))\n"
    )


def test_a_try_around_the_import_goes_with_it():
    text = text_of(
        """
        import numpy
        # either
        try:
            from keras.utils import multi_gpu_model
        except ImportError:
            from keras.utils.training_utils import multi_gpu_model

        multi_gpu_model(model, 2)
        """
    )
    assert text == (
        "from keras_parallel import multi_gpu_model\n\n"
        "import numpy\n# either\n\nmulti_gpu_model(model, 2)\n"
    )


def test_a_new_name_that_is_taken_is_imported_under_the_old_one():
    text = text_of(
        """
        from keras.layers import CuDNNLSTM


        class LSTM(object):
            pass


        CuDNNLSTM(4)
        """
    )
    assert "from keras.layers import LSTM as CuDNNLSTM\n" in text
    assert "\nCuDNNLSTM(4)\n" in text


def test_two_statements_on_one_line():
    text = text_of(
        "from keras.layers.core import Dense; import numpy as np\nDense(2)\n"
    )
    assert text == (
        "from keras.layers import Dense\nimport numpy as np\nDense(2)\n"
    )


def test_an_empty_script():
    unchanged("")
    unchanged("# only a comment\n")


def test_a_script_of_keras_3_stays():
    unchanged(
        '''
        """Uses keras-parallel already."""

        from keras_parallel import multi_gpu_model

        import keras
        from keras import ops

        model = multi_gpu_model(keras.Sequential([keras.layers.Dense(1)]), 2)
        model.compile(keras.optimizers.SGD(0.1, 0.9), "mse")
        model.fit(x, y, epochs=2, steps_per_epoch=3)
        loss = ops.mean(ops.concatenate([a, b]))
        model.save_weights("a.weights.h5")
        '''
    )


def test_tensorflow_reached_through_the_backend():
    text = text_of(
        """
        from keras import backend as K
        from keras.layers import Dense

        K.set_session(K.tf.Session(config=K.tf.ConfigProto()))
        with K.tf.device('/cpu:0'):
            layer = Dense(1)
        """
    )
    assert text == "from keras.layers import Dense\n\nlayer = Dense(1)\n"


def test_tensorflow_that_is_imported_with_keras_and_used_beside_it():
    text = text_of(
        """
        import tensorflow.keras

        data = tensorflow.data.Dataset.range(3)
        tensorflow.keras.layers.Dense(1)
        """
    )
    assert "import tensorflow, keras\n" in text
    assert "\nkeras.layers.Dense(1)\n" in text
    text = text_of("import tensorflow.keras\ntensorflow.keras.Input((1,))\n")
    assert text == "import keras\nkeras.Input((1,))\n"


def test_names_of_the_backend_that_nobody_knows():
    unchanged(
        """
        import keras.backend as K

        K.tensorflow_backend._get_available_gpus()
        K.foldl(f, x)
        """,
        notes=2,
    )


def test_what_is_gone_is_said_once_where_it_is_imported():
    text_of(
        """
        from keras.preprocessing.image import ImageDataGenerator

        ImageDataGenerator().flow(ImageDataGenerator)
        """,
        notes=1,
    )


def test_a_module_that_is_gone_with_names_that_moved():
    text = text_of("import keras.engine as KE\nlayer = KE.Layer()\n")
    assert text == "import keras\nlayer = keras.layers.Layer()\n"
    text_of("import keras.engine as KE\nbase = KE.Network\n", notes=2)


# ---- formatting


def test_comments_and_formatting_stay():
    text = text_of(
        """
        # first
        import keras  # the library

        # second
        from keras.layers.core import (
            Dense,  # a layer
            Dropout,
        )

        sgd = keras.optimizers.SGD(
            lr=0.1,  # large
            decay=0.0,
            momentum = 0.9,  # odd spaces stay
        )
        """
    )
    assert text == textwrap.dedent(
        """
        # first
        import keras  # the library

        # second
        from keras.layers import (
            Dense,  # a layer
            Dropout,
        )

        sgd = keras.optimizers.SGD(
            learning_rate=0.1,  # large
            momentum = 0.9,  # odd spaces stay
        )
        """
    ).lstrip("\n")


def test_arguments_below_each_other_stay_so():
    text = text_of(
        """
        import keras
        history = model.fit_generator(data,
                                      epochs=2,
                                      workers=1,
                                      verbose=0)
        """
    )
    assert text == (
        "import keras\n"
        "history = model.fit(data,\n"
        "                    epochs=2,\n"
        "                    verbose=0)\n"
    )


def test_the_last_argument_of_several_lines_goes():
    text = text_of(
        """
        import keras
        model.fit_generator(
            data,
            epochs=2,
            workers=1
        )
        """
    )
    assert text == "import keras\nmodel.fit(\n    data,\n    epochs=2\n)\n"


def test_a_scope_of_several_lines_is_dedented():
    text = text_of(
        """
        import keras
        import tensorflow as tf


        def build():
            # on the CPU
            with tf.device('/device:CPU:0'):
                a = keras.Input((2,))

                # the output
                b = keras.layers.Dense(
                    1,
                    name='b')(a)
                if b:
                    c = 3
                # end
            return keras.Model(a, b)
        """
    )
    assert text == textwrap.dedent(
        """
        import keras


        def build():
            # on the CPU
            a = keras.Input((2,))

            # the output
            b = keras.layers.Dense(
                1,
                name='b')(a)
            if b:
                c = 3
            # end
            return keras.Model(a, b)
        """
    ).lstrip("\n")


# ---- sessions


def test_a_session_that_is_used_stays():
    text = text_of(
        """
        import tensorflow as tf
        import keras.backend as K

        config = tf.ConfigProto()
        sess = tf.Session(config=config)
        K.set_session(sess)
        sess.run(something)
        """,
        notes=3,
    )
    assert "sess = tf.Session(config=config)\nK.set_session(sess)\n" in text
    assert "config = tf.ConfigProto()\n" in text


def test_options_of_a_session_go_with_it():
    text = text_of(
        """
        import tensorflow as tf
        from keras import backend as K
        from keras.models import Sequential

        gpu_options = tf.GPUOptions(per_process_gpu_memory_fraction=0.3)
        sess = tf.Session(config=tf.ConfigProto(gpu_options=gpu_options))
        K.set_session(sess)
        model = Sequential()
        """,
        notes=1,
    )
    assert text == (
        "from keras.models import Sequential\n\nmodel = Sequential()\n"
    )


def test_a_session_of_tensorflow_alone_is_not_ours():
    unchanged(
        """
        import tensorflow as tf

        sess = tf.Session()
        """
    )


# ---- optimizers and training


def test_the_learning_rate_is_set_elsewhere():
    source = """
        from keras.optimizers import SGD
        from keras.callbacks import ReduceLROnPlateau

        sgd = SGD(lr=0.1, decay=1e-6)
        callbacks = [ReduceLROnPlateau()]
        """
    assert "SGD(learning_rate=0.1, decay=1e-6)" in text_of(source, notes=1)


def test_other_learning_rates_are_no_learning_rate():
    text = text_of(
        """
        from keras.optimizers import SGD

        config.learning_rate = 0.1
        sgd = SGD(lr=config.learning_rate, decay=1e-6)
        """
    )
    assert "InverseTimeDecay(config.learning_rate, decay_steps=1" in text


def test_the_rate_of_a_named_optimizer_is_set():
    text = text_of(
        """
        from keras.optimizers import SGD

        sgd = SGD(lr=0.1, decay=1e-6)
        sgd.lr = 0.2
        """,
        notes=1,
    )
    assert "sgd.learning_rate = 0.2" in text


def test_options_in_stars_are_not_guessed():
    text = text_of(
        """
        from keras.optimizers import Adadelta, SGD

        Adadelta(**options)
        SGD(*options)
        """
    )
    assert "Adadelta(**options)\nSGD(*options)\n" in text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "Adadelta()",
            "keras.optimizers.Adadelta(learning_rate=0.001)",
        ),
        ("Adam(lr=0.1)", "keras.optimizers.Adam(learning_rate=0.1)"),
        (
            "SGD(0.1, 0.9, True)",
            "keras.optimizers.SGD(0.1, 0.9, nesterov=True)",
        ),
        (
            "RMSprop(decay=0.1)",
            "keras.optimizers.RMSprop(learning_rate="
            "keras.optimizers.schedules.InverseTimeDecay(0.001, "
            "decay_steps=1, decay_rate=0.1))",
        ),
    ],
)
def test_optimizers_of_tf_keras(before, after):
    """They had the defaults and the order that Keras 3 has."""
    text = text_of(
        f"import tensorflow as tf\noptimizer = tf.keras.optimizers.{before}\n"
    )
    assert text == f"import keras\noptimizer = {after}\n"


def test_a_string_in_a_script_of_tf_keras():
    text = text_of(
        """
        from tensorflow.keras.models import Sequential

        model = Sequential()
        model.compile('adadelta', 'mse')
        """
    )
    assert "keras.optimizers.Adadelta(learning_rate=0.001)" in text


@pytest.mark.parametrize(
    "call",
    [
        "model.fit_generator(data, 2000, nb_epoch=2)",
        "model.fit(data, nb_val_samples=10)",
        "model.fit_generator(data, *options)",
        "model.fit(data, steps_per_epoch=a / b / c)",
        "model.fit(data, steps_per_epoch=steps)",
    ],
)
def test_what_training_cannot_decide(call):
    text_of(f"import keras\nsteps = len(x) / 32\n{call}\n", notes=1)


def test_samples_of_keras_1_are_refused_by_keras_3():
    text = text_of(
        "import keras\nmodel.fit_generator(data, 2000, nb_epoch=2)\n", notes=1
    )
    assert text.endswith("model.fit(data, samples_per_epoch=2000, epochs=2)\n")


def test_a_model_that_is_compiled_again_may_be_frozen():
    source = """
        import keras
        model.compile('sgd', 'mse')
        model.fit(x, y)
        model.trainable = False
        model.compile('sgd', 'mse')
        model.fit(x, y)
        """
    unchanged(source)


# ---- names in strings


def test_outputs_that_are_not_written_out():
    source = """
        from keras.models import Model
        from keras.utils import multi_gpu_model
        model = multi_gpu_model(Model(a, [b, c]), 2)
        model.compile('sgd', {'concatenate_1': 'mse', 'concatenate_2': 'mse'})
        """
    assert "{'concatenate_1': 'mse'" in text_of(source, notes=2)


def test_a_concatenation_of_the_script_itself():
    unchanged(
        """
        from keras.layers import Concatenate
        from keras.models import Model
        out = Concatenate(name='concatenate_1')([a, b])
        model = Model(a, [out])
        model.compile('sgd', {'concatenate_1': 'mse'})
        """
    )


def test_numbers_of_outputs_need_not_begin_at_one():
    """A concatenation inside the model took the first ones."""
    text = text_of(
        """
        from keras.layers import Dense
        from keras.models import Model
        from keras.utils import multi_gpu_model
        b = Dense(1, name='b')(a)
        model = Model(a, [b, Dense(1, name='c')(a)])
        model.compile('sgd', {'concatenate_10': 'mse', 'concatenate_9': 'mae'})
        """
    )
    assert "{'c': 'mse', 'b': 'mae'}" in text


def test_acc_stays_where_it_was_asked_for():
    unchanged(
        """
        import keras
        model.compile('sgd', 'mse', metrics=['acc'])
        history = model.fit(x, y)
        print(history.history['acc'])
        """
    )


def test_a_path_is_renamed_wherever_it_stands():
    text = text_of(
        """
        import os
        import keras
        path = 'w.h5'
        model.save_weights(path)
        model.save_weights(os.path.join(folder, 'last.h5'))
        model.load_weights('w.h5')
        model.save_weights('%s.h5' % name)
        model.save_weights('{}.hdf5'.format(name))
        """
    )
    assert text == textwrap.dedent(
        """
        import os
        import keras
        path = 'w.weights.h5'
        model.save_weights(path)
        model.save_weights(os.path.join(folder, 'last.weights.h5'))
        model.load_weights('w.weights.h5')
        model.save_weights('%s.weights.h5' % name)
        model.save_weights('{}.weights.h5'.format(name))
        """
    ).lstrip("\n")


# ---- a fixed batch size


def test_a_fixed_batch_size_where_no_input_can_be_written():
    text_of(
        """
        from keras.layers import LSTM

        layer = LSTM(4, batch_input_shape=(8, 2, 1), stateful=True)
        """,
        notes=1,
    )


# ---- the wrapper


def test_the_template_in_a_class():
    text = text_of(
        """
        from keras.utils import multi_gpu_model


        class Training(object):
            def __init__(self, model):
                self.parallel = multi_gpu_model(model, 2)

            def save(self):
                self.parallel.layers[-2].save('a.h5')


        Training(model).parallel.layers[-2].summary()
        """
    )
    assert "self.parallel.save('a.h5')" in text
    assert "Training(model).parallel.summary()" in text


def test_a_class_around_the_wrapper():
    text_of(
        """
        from keras.models import Model
        from keras.utils import multi_gpu_model


        class ParallelModel(Model):
            def __init__(self, model, gpus):
                made = multi_gpu_model(model, gpus)
                self.__dict__.update(made.__dict__)
                self._model = model
        """,
        notes=1,
    )


def test_a_name_for_both_models():
    text_of(
        """
        from keras.models import Sequential
        from keras.utils import multi_gpu_model
        model = Sequential()
        model = multi_gpu_model(model, 2)
        model.layers[-2].save('a.h5')
        """,
        notes=1,
    )


def test_a_layer_that_is_called_so_is_no_template():
    text = text_of(
        """
        from keras.layers import Dense
        from keras.utils import multi_gpu_model
        dense = Dense(1, name='model_1')
        parallel = multi_gpu_model(model, 2)
        parallel.get_layer('model_1').kernel
        parallel.get_layer('dense_1').kernel
        model.get_layer('model_2').kernel
        """
    )
    assert "parallel.get_layer('model_1').kernel" in text
    assert "parallel.get_layer('dense_1').kernel" in text
    assert "model.get_layer('model_2').kernel" in text


def test_a_data_set_with_a_constructor():
    text = text_of(
        '''
        from keras.utils import Sequence


        class Rows(Sequence):
            def __init__(self, x):
                """Keeps `x`."""
                self.x = x


        class Others(Sequence):
            def __init__(self, x):
                super(Others, self).__init__()
        '''
    )
    assert (
        '                """Keeps `x`."""\n'.lstrip()
        + "        super().__init__()\n"
        in text
    )
    assert text.count("__init__()") == 2


# ---- what is not for Keras, or for Keras 3 already


def test_a_script_without_keras_is_left_alone():
    unchanged(
        """
        import tensorflow as tf
        from mylib import Agent

        agent = Agent()
        agent.fit(data, workers=4, nb_epoch=3, steps_per_epoch=n / 3)
        agent.fit_generator(stream, 10, 2)
        agent.compile("adadelta", {"concatenate_1": "logcosh"})
        agent.save_weights("agent")
        agent.predict_classes(x)
        tf.set_random_seed(1)
        """
    )


def test_the_name_of_keras_inside_tensorflow_is_enough():
    text = text_of(
        """
        import tensorflow as tf
        model = tf.keras.Sequential()
        model.fit_generator(data, 10)
        """
    )
    assert "model.fit(data, steps_per_epoch=10)" in text


OWN_METHODS = """
    from keras.models import Sequential


    class Net(object):
        def __init__(self):
            self.model = Sequential()

        def fit_generator(self, generator, batches, workers=1):
            self.model.fit_generator(generator, batches)

        def predict_classes(self, x):
            return self.model.predict(x).argmax(-1)


    net = Net()
    net.fit_generator(gen, 5, workers=3)
    Net().predict_classes(x)
    """


def test_methods_of_the_script_itself():
    text = text_of(OWN_METHODS)
    assert "self.model.fit(generator, steps_per_epoch=batches)" in text
    assert text.endswith(
        "net.fit_generator(gen, 5, workers=3)\nNet().predict_classes(x)\n"
    )


def test_a_method_that_may_be_of_the_script_or_of_keras():
    text = text_of(OWN_METHODS + "given.fit_generator(gen, 5)\n", notes=1)
    assert text.endswith("given.fit_generator(gen, 5)\n")


@pytest.mark.parametrize(
    "line",
    [
        "from keras import ops",
        "import keras_parallel",
        "from keras.utils import PyDataset",
        "keras.random.normal((3,))",
        "keras.config.floatx()",
        "model.save('a.keras')",
    ],
)
def test_defaults_of_a_script_of_keras_3(line):
    rest = """
import keras
from keras.utils import multi_gpu_model
from keras.layers import Conv2D
model.compile('adadelta', {'concatenate_1': 'mse'})
opt = keras.optimizers.Adagrad()
Conv2D(4, 3, 2)
"""
    kept = "\n".join(rest.splitlines()[4:])
    assert kept in text_of(rest + line + "\n")
    assert kept not in migrate(rest).text


def test_backends_of_keras_3_and_of_keras_2():
    text = """
        import os
        os.environ['KERAS_BACKEND'] = 'jax'
        import keras
        opt = keras.optimizers.Adagrad()
        """
    unchanged(text)
    assert "Adagrad(learning_rate" in text_of(
        text.replace("'jax'", "'tensorflow'"), notes=1
    )


def test_keys_like_those_of_the_old_wrapper():
    unchanged("import keras\nfirst = {'concatenate_1': 1}\n")


@pytest.mark.parametrize(
    "steps",
    [
        *("n // 2 / b", "n % k / b", "n * 0.8 / b", "0.8 * (n / b)"),
        *("1 + n / b", "n / float(b)", "max(1, n / b)", "share / b"),
    ],
)
def test_steps_that_are_more_than_one_division(steps):
    text = text_of(
        f"import keras\nshare = 0.5\nm.fit(g, steps_per_epoch={steps})\n",
        notes=1,
    )
    assert f"steps_per_epoch={steps})" in text


@pytest.mark.parametrize("steps", ["n", "int(n / b)", "n // b", "round(n / b)"])
def test_steps_that_are_whole(steps):
    unchanged(f"import keras\nm.fit(g, steps_per_epoch={steps})\n")


def test_steps_that_are_one_division():
    text = text_of("import keras\nm.fit(g, steps_per_epoch=len(x) / self.b)\n")
    assert "steps_per_epoch=-(-len(x) // self.b))" in text


def test_outputs_that_are_called_like_a_loss():
    text = text_of(
        """
        import keras
        m.compile("sgd", loss={"logcosh": "mse", "o": "logcosh"})
        """
    )
    assert 'loss={"logcosh": "mse", "o": "log_cosh"}' in text


@pytest.mark.parametrize(
    "name",
    [
        *("Highway", "Merge", "MaxoutDense", "LocallyConnected2D"),
        *("TimeDistributedDense", "ThresholdedReLU", "AtrousConvolution2D"),
    ],
)
def test_layers_that_are_gone_are_said_where_they_are_imported(name):
    unchanged(f"from keras.layers import Dense, {name}\n{name}(2)\n", notes=1)


# ---- files, all places or none


def test_a_name_without_a_suffix_is_renamed_where_weights_are_saved():
    text = text_of(
        """
        from keras.models import Sequential
        model = Sequential(name="lstm")
        registry = {"lstm": model}
        model.save_weights("lstm")
        model.load_weights("lstm")
        """
    )
    assert text.count('"lstm"') == 2
    assert text.count('_weights("lstm.weights.h5")') == 2


def test_a_name_without_a_suffix_that_stands_elsewhere():
    unchanged(
        """
        from keras.models import Sequential
        name = "lstm"
        model = Sequential(name=name)
        model.save_weights(name)
        """,
        notes=1,
    )


JOINED = """
import os
from keras.models import Sequential
from keras.callbacks import ModelCheckpoint
model = Sequential()
if os.path.exists(PATH):
    model.load_weights(PATH)
model.save_weights(PATH)
ModelCheckpoint(PATH, save_weights_only=True)
"""


@pytest.mark.parametrize(
    ("path", "renamed"),
    [
        ("os.path.join(out, 'w.h5')", "os.path.join(out, 'w.weights.h5')"),
        ("out + '.h5'", "out + '.weights.h5'"),
        ("out + '/w.hdf5'", "out + '/w.weights.h5'"),
        ("'%d.h5' % n", "'%d.weights.h5' % n"),
        ("'{}.h5'.format(n)", "'{}.weights.h5'.format(n)"),
        ("f'{out}/w.h5'", "f'{out}/w.weights.h5'"),
        (
            "os.path.join(out, f'{n}.h5')",
            "os.path.join(out, f'{n}.weights.h5')",
        ),
    ],
)
def test_a_path_that_is_put_together(path, renamed):
    text = text_of(JOINED.replace("PATH", path))
    assert text.count(renamed) == 4
    assert path not in text


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("'ep_%d.h5' % 3", "'ep_3.h5'"),
        ("name + '.h5'", "'net.h5'"),
        ("os.path.join(out, 'w.h5')", "'out/w.h5'"),
        ("'out/w.h5'", "os.path.join(out, 'w.h5')"),
        ("f'{name}.h5'", "'net.h5'"),
    ],
)
def test_a_path_that_is_written_in_two_ways_is_left(path, other):
    text = JOINED.replace("PATH", path) + f"model.load_weights({other})\n"
    done = migrate(text)
    lines = {note.line for note in done.notes}
    changed = done.text != text
    assert (changed, lines) == (False, {7, 8, 9, 10})


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("name + '.h5'", "h5py.File(data + '.h5')"),
        ("f'{name}.h5'", "h5py.File(f'{data}.h5')"),
        ("os.path.join(a, 'w.h5')", "print(os.path.join(b, 'w.h5'))"),
        ("'w.h5'", "print(os.path.join(b, 'w.h5'))"),
    ],
)
def test_a_file_that_ends_like_the_weights_is_not_renamed(path, other):
    text = JOINED.replace("PATH", path) + f"{other}\n"
    done = migrate(text)
    lines = {note.line for note in done.notes}
    assert (done.text, lines) == (text, {7, 8, 9})


def test_each_place_of_a_path_is_noted_once():
    text = """
import keras
model.save_weights(name + '.h5')
model.load_weights('a.h5')
model.load_weights('b.h5')
"""
    notes = migrate(text).notes
    assert [note.line for note in notes] == [3, 4]


def test_a_suffix_with_a_name_is_left():
    text = JOINED.replace("PATH", "name + ext").replace(
        "model = ", "ext = '.h5'\nmodel = "
    )
    done = migrate(text)
    assert (done.text, len(done.notes)) == (text, 2)


def test_a_file_with_a_name_in_a_folder_and_in_an_attribute():
    text = text_of(
        """
        import os
        import keras
        name = 'w.h5'
        path = os.path.join(folder, name)
        self.last = folder + '/last.h5'
        model.save_weights(path)
        model.load_weights(os.path.join(folder, name))
        model.save_weights(self.last)
        """
    )
    assert "name = 'w.weights.h5'" in text
    assert "self.last = folder + '/last.weights.h5'" in text


def test_one_path_for_weights_and_a_model():
    unchanged(
        """
        import keras
        model.save_weights('a.h5')
        model.save('a.h5')
        """,
        notes=2,
    )


@pytest.mark.parametrize(
    "path",
    [
        "f'{out}{suffix}'",
        "args.path",
        "path()",
        "'%s' % path",
        "'{}'.format(path)",
    ],
)
def test_a_path_whose_end_is_not_written(path):
    unchanged(f"import keras\nmodel.save_weights({path})\n", notes=1)


def test_a_checkpoint_of_weights_by_position():
    text = text_of(
        """
        from keras.callbacks import ModelCheckpoint
        ModelCheckpoint("a.h5", "loss", 1, True, True)
        ModelCheckpoint("b.hdf5", "loss", 1, True, False, "auto", 1)
        """
    )
    assert 'ModelCheckpoint("a.weights.h5", "loss", 1, True, True)' in text
    assert 'ModelCheckpoint("b.keras", "loss", 1, True, False, "auto")' in text


# ---- accuracy, all places or a note


@pytest.mark.parametrize(
    "metrics", ["['accuracy']", "metrics=['accuracy']", "metrics=METRICS"]
)
@pytest.mark.parametrize(
    "line",
    [
        "logs.get('acc')",
        "logs['val_acc']",
        "history.history.get('val_acc')",
        "'val_acc' in history.history",
        "hist['acc']",
        "EarlyStopping('val_acc')",
        "ReduceLROnPlateau('val_acc', 0.5)",
        "ModelCheckpoint('a.keras', 'val_acc')",
        "EarlyStopping(monitor=watched)",
    ],
)
def test_accuracy_is_renamed(metrics, line):
    text = f"""
from keras.callbacks import EarlyStopping, ModelCheckpoint
from keras.callbacks import ReduceLROnPlateau
METRICS = ['accuracy']
watched = 'val_acc'
model.compile('sgd', 'mse', {metrics})
hist = history.history
EarlyStopping(watched)
{line}
"""
    new = text_of(text)
    assert "acc'" not in new
    assert new == text.lstrip().replace("acc'", "accuracy'")


def test_accuracy_in_a_path_of_two_parts():
    text = text_of(
        """
        from keras.callbacks import ModelCheckpoint
        model.compile('sgd', 'mse', ['accuracy'])
        ModelCheckpoint(folder + '{val_acc:.2f}' + '.hdf5')
        """
    )
    assert "folder + '{val_accuracy:.2f}' + '.keras'" in text


def test_accuracy_where_nobody_can_tell():
    unchanged(
        """
        import keras
        import matplotlib.pyplot as plt
        model.compile('sgd', 'mse', ['accuracy'])
        for key in ('val_acc', 'loss'):
            print(key, 'acc')
        print([k for k in history.history if k.endswith('acc')])
        plt.legend(['acc', 'val_acc'])
        """,
        notes=2,
    )


def test_models_of_both_spellings():
    unchanged(
        """
        import keras
        model.compile('sgd', 'mse', ['accuracy'])
        other.compile('sgd', 'mse', ['acc'])
        print(history.history['acc'])
        """,
        notes=1,
    )


# ---- generators against discriminators


GAN = """
from keras.optimizers import Adam
optimizer = Adam(0.1)
d.compile('sgd', 'mse')
d.trainable = False
c.compile('sgd', 'mse')
while True:
    d.train_on_batch(x, y)
    c.train_on_batch(z, y)
"""


def test_a_discriminator_that_is_frozen_after_it_was_compiled():
    (note,) = migrate(GAN).notes
    assert note.line == 5
    assert "`d.trainable = False` after it was compiled" in note.text


def test_the_advice_for_a_discriminator_was_followed():
    unchanged(
        GAN.replace("    d.", "    d.trainable = True\n    d.").replace(
            "    c.", "    d.trainable = False\n    c."
        )
    )


def test_a_discriminator_that_is_thawed_is_not_accused():
    text = GAN.replace("    c.", "    d.trainable = True\n    c.")
    assert [note.line for note in migrate(text).notes] == [5]


def test_one_optimizer_for_two_models():
    text = GAN.replace("'sgd'", "optimizer")
    notes = [n for n in migrate(text).notes if "optimizer of another" in n.text]
    assert [note.line for note in notes] == [6]
    unchanged(
        """
        from keras.optimizers import Adam
        first, second = Adam(0.1), Adam(0.1)
        optimizer = Adam(0.1)
        d.compile(first, 'mse')
        c.compile(second, 'mse')
        e.compile(optimizer, 'mse')
        e.compile(optimizer, 'mse')
        """
    )


def test_the_optimizer_of_a_template_and_its_wrapper():
    source = """
        from keras.optimizers import Adam
        from keras_parallel import multi_gpu_model
        optimizer = Adam(0.1)
        parallel = multi_gpu_model(model, 2)
        model.compile(optimizer, 'mse')
        parallel.compile(optimizer, 'mse')
        """
    unchanged(
        source.replace("import Adam", "import Adam\n        import keras")
    )


# ---- more of Keras 1 and 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("K.expand_dims(b, dim=1)", "keras.ops.expand_dims(b, axis=1)"),
        (
            "K.random_normal((2,), std=2.0)",
            "keras.random.normal((2,), stddev=2.0)",
        ),
        ("keras.losses.mse(a, b)", "keras.losses.mean_squared_error(a, b)"),
        ("keras.losses.MAE(a, b)", "keras.losses.mean_absolute_error(a, b)"),
        (
            "keras.layers.BatchNormalization(mode=0, gamma_init='one')",
            "keras.layers.BatchNormalization(gamma_initializer='one')",
        ),
    ],
)
def test_older_spellings(before, after):
    head = "import keras\nfrom keras import backend as K\nK.epsilon()\n"
    assert text_of(head + before + "\n") == head + after + "\n"


def test_short_names_of_losses_by_name():
    text = text_of("from keras.losses import mse\nloss = mse(a, b)\n")
    assert text == (
        "from keras.losses import mean_squared_error\n"
        "loss = mean_squared_error(a, b)\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        "keras.layers.BatchNormalization(mode=2)",
        "vae.add_loss(loss)",
        "print(x._keras_shape)",
        "print(vae.layers[1].output_shape)",
        "print(vae.get_layer('a').input_shape)",
        "vae.fit(x, y, show_accuracy=True)",
    ],
)
def test_what_is_gone_and_has_a_note(line):
    unchanged(f"import keras\nvae = keras.Model(a, b)\n{line}\n", notes=1)


def test_shapes_and_losses_that_are_still_there():
    unchanged(
        """
        import keras


        class Own(keras.layers.Layer):
            def call(self, x):
                self.add_loss(x)
                return x


        model = keras.Model(a, b)
        print(model.output_shape)
        """
    )
