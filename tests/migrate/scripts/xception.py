"""The example of the documentation of `multi_gpu_model`, smaller."""
import tensorflow as tf
from keras.applications import Xception
from keras.utils import multi_gpu_model
import numpy as np

num_samples = 16
height = 71
width = 71
num_classes = 10

# Instantiate the base model (or "template" model) under a CPU scope, so
# that its weights are hosted on CPU memory.
with tf.device('/cpu:0'):
    model = Xception(weights=None,
                     input_shape=(height, width, 3),
                     classes=num_classes)

# Replicates the model on 8 GPUs.
parallel_model = multi_gpu_model(model, gpus=8)
parallel_model.compile(loss='categorical_crossentropy',
                       optimizer='rmsprop')

# Generate dummy data.
x = np.random.random((num_samples, height, width, 3))
y = np.random.random((num_samples, num_classes))

parallel_model.fit(x, y, epochs=1, batch_size=16, verbose=0)

# Save model via the template model (which shares the same weights):
model.save('my_model.h5')
print('steps:', int(parallel_model.optimizer.iterations))
