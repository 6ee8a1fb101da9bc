"""What is written for a line of Keras 2, and what is left to the user.

A rule takes a call and returns what stands there in Keras 3. Where it cannot
decide, it leaves the call as it is, so that Keras refuses it, and adds a
note. `docs/from_keras_2.md` has a row for each; a test runs the rows.
"""

from keras_parallel.migrate.rules import backend as backend
from keras_parallel.migrate.rules import beside as beside
from keras_parallel.migrate.rules import callbacks as callbacks
from keras_parallel.migrate.rules import layers as layers
from keras_parallel.migrate.rules import optimizers as optimizers
from keras_parallel.migrate.rules import training as training
from keras_parallel.migrate.rules import wrapper as wrapper
