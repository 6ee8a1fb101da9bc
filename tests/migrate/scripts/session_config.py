import os
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
import tensorflow as tf
from keras.backend.tensorflow_backend import set_session
from keras.models import Sequential
from keras.layers import Dense, Dropout
import keras.backend as K
try:
    from keras.utils import multi_gpu_model
except ImportError:
    from keras.utils.training_utils import multi_gpu_model
import numpy as np

# GPU memory
config = tf.ConfigProto(log_device_placement=False)
config.gpu_options.allow_growth = True
set_session(tf.Session(config=config))

K.clear_session()
G = 2
x, y = np.random.random((30, 3)), np.random.random((30, 1))
if G <= 1:
    print('[INFO] training with 1 GPU...')
    model = Sequential([Dense(1, input_dim=3)])
else:
    print('[INFO] training with {} GPUs...'.format(G))
    # a copy of the model on every GPU
    with tf.device("/cpu:0"):
        model = Sequential([Dense(1, input_dim=3)])
        # the weights are updated on the CPU
    model = multi_gpu_model(model, gpus=G)
model.compile(loss='mse', optimizer='sgd')
print('rows:', len(model.predict(x, verbose=0)), model.fit(
    x, y, batch_size=10, epochs=1, verbose=0).epoch)
