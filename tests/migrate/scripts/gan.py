"""A generator against a discriminator, one train_on_batch each."""
import numpy as np
from keras.models import Sequential, Model
from keras.layers import Input, Dense, LeakyReLU
from keras.optimizers import Adam
from keras.utils import multi_gpu_model

latent = 4
rng = np.random.RandomState(5)


def build_generator():
    model = Sequential()
    model.add(Dense(16, input_dim=latent))
    model.add(LeakyReLU(0.2))
    model.add(Dense(2))
    return model


def build_discriminator():
    model = Sequential()
    model.add(Dense(16, input_dim=2))
    model.add(LeakyReLU(0.2))
    model.add(Dense(1, activation='sigmoid'))
    return model


optimizer = Adam(0.01, 0.5)
discriminator = build_discriminator()
parallel_discriminator = multi_gpu_model(discriminator, gpus=2)
parallel_discriminator.compile(loss='binary_crossentropy',
                               optimizer=optimizer, metrics=['accuracy'])

generator = build_generator()
z = Input(shape=(latent,))
# only the generator learns in the combined model
discriminator.trainable = False
combined = Model(z, discriminator(generator(z)))
parallel_combined = multi_gpu_model(combined, gpus=2)
parallel_combined.compile(loss='binary_crossentropy', optimizer=Adam(lr=0.01))

before = discriminator.get_weights()
for step in range(4):
    real = rng.normal(loc=2, size=(16, 2))
    noise = rng.normal(size=(16, latent))
    fake = generator.predict(noise, verbose=0)
    d_loss = parallel_discriminator.train_on_batch(
        np.concatenate([real, fake]),
        np.concatenate([np.ones((16, 1)), np.zeros((16, 1))]))
    g_loss = parallel_combined.train_on_batch(noise, np.ones((16, 1)))
    print('%d [D loss: %f, acc: %.2f] [G loss: %f]'
          % (step, d_loss[0], d_loss[1], g_loss))
moved = max(abs(a - b).max()
            for a, b in zip(before, discriminator.get_weights()))
print('the discriminator learned:', moved > 0.001)
