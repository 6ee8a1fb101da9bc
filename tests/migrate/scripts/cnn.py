'''A small convnet, with the optimizer that the MNIST example used.'''
import numpy as np
import keras
from keras.models import Sequential
from keras.layers import Dense, Dropout, Flatten
from keras.layers.convolutional import Conv2D, MaxPooling2D
from keras.utils.training_utils import multi_gpu_model
from keras import backend as K

rows, cols = 12, 12
rng = np.random.RandomState(1)
labels = rng.randint(2, size=256)
images = rng.normal(size=(256, rows, cols))
images[labels == 1, 3:8, 3:8] += 2

if K.image_data_format() == 'channels_first':
    images = images.reshape(256, 1, rows, cols)
    input_shape = (1, rows, cols)
else:
    images = images.reshape(256, rows, cols, 1)
    input_shape = (rows, cols, 1)

model = Sequential()
model.add(Conv2D(8, kernel_size=(3, 3),
                 activation='relu',
                 input_shape=input_shape))
model.add(MaxPooling2D(pool_size=(2, 2)))
model.add(Flatten())
model.add(Dropout(0.25))
model.add(Dense(2, activation='softmax'))

parallel = multi_gpu_model(model, gpus=4)
parallel.compile(loss=keras.losses.categorical_crossentropy,
                 optimizer=keras.optimizers.Adadelta(),
                 metrics=['accuracy'])
parallel.fit(images, keras.utils.to_categorical(labels, 2),
             batch_size=32, epochs=5, verbose=0)
score = parallel.evaluate(images, keras.utils.to_categorical(labels, 2),
                          verbose=0)
print('learned:', score[1] > 0.9)
