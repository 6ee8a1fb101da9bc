"""A convolutional autoencoder."""
import numpy as np
from keras.layers import Input
from keras.layers.convolutional import Convolution2D, MaxPooling2D, UpSampling2D
from keras.models import Model
from keras.utils import multi_gpu_model

rng = np.random.RandomState(6)
images = (rng.uniform(size=(120, 8, 8, 1)) > 0.7).astype('float32')

input_img = Input(shape=(8, 8, 1))
x = Convolution2D(8, 3, 3, activation='relu', border_mode='same')(input_img)
encoded = MaxPooling2D((2, 2), border_mode='same')(x)
x = Convolution2D(8, 3, 3, activation='relu', border_mode='same')(encoded)
x = UpSampling2D((2, 2))(x)
decoded = Convolution2D(1, 3, 3, activation='sigmoid',
                        border_mode='same')(x)

autoencoder = Model(input=input_img, output=decoded)
autoencoder = multi_gpu_model(autoencoder, 2)
autoencoder.compile(optimizer='adadelta', loss='binary_crossentropy')
history = autoencoder.fit(images, images, nb_epoch=12, batch_size=40,
                          shuffle=True, verbose=0)
print(autoencoder.predict(images, verbose=0).shape)
print('falls by a tenth:',
      history.history['loss'][-1] < 0.9 * history.history['loss'][0])
