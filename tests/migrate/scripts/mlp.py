'''A multi-layer perceptron on blobs, on two GPUs.'''
from __future__ import print_function

import numpy as np
import keras
from keras.models import Sequential
from keras.layers.core import Dense, Dropout
from keras.optimizers import RMSprop
from keras.utils import np_utils, multi_gpu_model

batch_size = 64
num_classes = 4
epochs = 6

# points around one center for each class
rng = np.random.RandomState(0)
centers = rng.normal(scale=3, size=(num_classes, 10))
labels = rng.randint(num_classes, size=500)
x = (centers[labels] + rng.normal(size=(500, 10))).astype('float32')
y = np_utils.to_categorical(labels, num_classes)

model = Sequential()
model.add(Dense(32, activation='relu', input_shape=(10,)))
model.add(Dropout(0.2))
model.add(Dense(num_classes, activation='softmax'))
model.summary()

parallel_model = multi_gpu_model(model, 2)
parallel_model.compile(loss='categorical_crossentropy',
                       optimizer=RMSprop(lr=0.01, rho=0.9, epsilon=None),
                       metrics=['accuracy'])

history = parallel_model.fit(x, y,
                             batch_size=batch_size,
                             epochs=epochs,
                             verbose=0,
                             validation_split=0.2)
score = parallel_model.evaluate(x, y, verbose=0)
print('Test accuracy:', score[1])
print('learned:', score[1] > 0.9, 'epochs:', len(history.history['val_acc']))
