"""Two phases: a new top on a frozen base, then some of the base too."""
import numpy as np
from keras.layers import Conv2D, Dense, GlobalAveragePooling2D, Input
from keras.models import Model
from keras.optimizers import SGD
from keras.utils import multi_gpu_model
import tensorflow as tf

rng = np.random.RandomState(9)
x = rng.normal(size=(64, 8, 8, 3))
y = (x.mean(axis=(1, 2, 3)) > 0).astype('float32')

# Both are built on the CPU, as was recommended.
with tf.device('/cpu:0'):
    inputs = Input((8, 8, 3))
    features = Conv2D(4, 3, activation='relu', name='block1')(inputs)
    features = Conv2D(4, 3, activation='relu', name='block2')(features)
    base_model = Model(inputs, features)

    top = GlobalAveragePooling2D()(base_model.output)
    predictions = Dense(1, activation='sigmoid')(top)
    model = Model(inputs=base_model.input, outputs=predictions)

# first: train only the top layers
for layer in base_model.layers:
    layer.trainable = False

parallel_model = multi_gpu_model(model, gpus=2)
parallel_model.compile(optimizer='rmsprop', loss='binary_crossentropy')
first = base_model.get_weights()
parallel_model.fit(x, y, epochs=2, batch_size=16, verbose=0)
kept = all((a == b).all() for a, b in zip(first, base_model.get_weights()))

# then: the second block as well
for layer in model.layers[2:]:
    layer.trainable = True
parallel_model.compile(optimizer=SGD(lr=0.01, momentum=0.9, decay=1e-6,
                                     nesterov=True),
                       loss='binary_crossentropy')
parallel_model.fit(x, y, epochs=2, batch_size=16, verbose=0)
second = base_model.get_weights()
print('frozen first:', kept)
print('then trained:', bool((first[2] != second[2]).any()),
      bool((first[0] == second[0]).all()))
