"""What the workers of all Keras peers do alike."""

import keras
from keras_models import compile_model
from keras_models import make_model
from serving import compile_seconds
from serving import peak_memory
from serving import timed
from workloads import Workload


class KerasRunner:
    """Trains with `fit`; subclasses say how the model is made parallel."""

    model = None

    def make(self, workload):
        """The model, compiled, on the devices of this peer."""
        model = make_model(workload)
        compile_model(model, workload)
        return model

    def wait(self):
        """Returns when the devices have done all that they were given."""

    def start(self, workload):
        """Builds the model and compiles its step."""
        self.model = None
        keras.utils.clear_session(free_memory=True)
        self.workload = Workload.of(workload)
        self.x, self.y = self.workload.data()
        self.model = self.make(self.workload)
        first = slice(self.workload.batch)
        seconds = compile_seconds(
            lambda: self._fit(self.x[first], self.y[first])
        )
        trainable = self.model.trainable_variables
        return {
            "compile_seconds": seconds,
            "trainable_bytes": sum(4 * v.value.size for v in trainable)
            if hasattr(trainable[0].value, "size")
            else None,
            "trainable_variables": len(trainable),
            "variables": len(self.model.variables)
            + len(self.model.optimizer.variables),
        }

    def turn(self):
        """Trains for one turn."""
        return timed(self._turn, self.workload.steps)

    def memory(self):
        return {"bytes": peak_memory()}

    def _turn(self):
        self._fit(self.x, self.y, self.workload.epochs)

    def _fit(self, x, y, epochs=1):
        self.model.fit(
            x,
            y,
            batch_size=self.workload.batch,
            epochs=epochs,
            verbose=0,
        )
        self.wait()
