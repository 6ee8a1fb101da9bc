"""The exceptions of keras-parallel.

    KerasParallelError
    ├── DeviceError            (also ValueError)      a device that is not there
    ├── PlacementError         (also ValueError)      a call that is not there
    ├── RefusedModelError      (also ValueError)      a model no mode can run
    ├── OutputNameError        (also ValueError)      a loss for no output
    ├── InputError             (also ValueError, TypeError)  no step takes it
    ├── DistributionSetError   (also RuntimeError)    keras.distribution is on
    ├── BackendError           (also RuntimeError)    no engine for the backend
    ├── AlreadyStartedError    (also RuntimeError)    asked for too late
    ├── ClusterError           (also RuntimeError)    a job or a cluster fails
    ├── DataWorkerError        (also RuntimeError)    a process that feeds data
    ├── TraceError             (also RuntimeError)    nothing can be recorded
    ├── MigrationError         (also ValueError)      no script to migrate
    ├── PlanError              (also ValueError)      nothing to plan
    ├── PlotError              (also ImportError)     nothing to draw with
    └── NotEqualError          (also AssertionError)  not what one device gives

Each is also the built-in exception that Keras would raise, so code that
catches `ValueError` keeps working.
"""


class KerasParallelError(Exception):
    """Base of every exception that keras-parallel raises on purpose."""


class DeviceError(KerasParallelError, ValueError):
    """A device was named that does not exist or cannot be combined."""


class PlacementError(KerasParallelError, ValueError):
    """A placement names what is no call of the model, or no device."""


class RefusedModelError(KerasParallelError, ValueError):
    """The model cannot be made parallel; the message says why."""


class OutputNameError(KerasParallelError, ValueError):
    """A loss or metric is keyed by a name that is no output of the model."""


class InputError(KerasParallelError, ValueError, TypeError):
    """Data or an argument that no step can take.

    Keras raises the one or the other, depending on the method.
    """


class DistributionSetError(KerasParallelError, RuntimeError):
    """A global `keras.distribution` is active beside a parallel model."""


class BackendError(KerasParallelError, RuntimeError):
    """There is no engine for the Keras backend in use."""


class AlreadyStartedError(KerasParallelError, RuntimeError):
    """The backend runs already, so its devices cannot be changed."""


class ClusterError(KerasParallelError, RuntimeError):
    """A job or a cluster cannot be joined, or a part of it does not answer."""


class DataWorkerError(KerasParallelError, RuntimeError):
    """A process that prepares batches cannot be started, or died."""


class TraceError(KerasParallelError, RuntimeError):
    """What runs cannot be recorded, or a record is read before it is made."""


class MigrationError(KerasParallelError, ValueError):
    """`keras-parallel migrate` cannot read a script."""


class PlanError(KerasParallelError, ValueError):
    """A model that there is no plan of, or a plan that contradicts itself."""


class PlotError(KerasParallelError, ImportError):
    """A picture was asked for, and Matplotlib is not installed."""


class NotEqualError(KerasParallelError, AssertionError):
    """A parallel model did not train like the same model on one device."""
