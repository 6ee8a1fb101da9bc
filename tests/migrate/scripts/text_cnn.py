"""Convolutions over words, spelled with tf.keras."""
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras.layers import (Conv1D, Dense, Dropout, Embedding,
                                     GlobalMaxPooling1D)
from tensorflow.keras.models import Sequential
from tensorflow.keras.utils import multi_gpu_model as mgm

tf.set_random_seed(13)
maxlen = 20
rng = np.random.RandomState(13)
x = rng.randint(1, 60, size=(200, maxlen))
y = (x == 7).any(axis=1).astype('int32')

model = Sequential()
model.add(Embedding(60, 8, input_length=maxlen))
model.add(Dropout(0.2))
model.add(Conv1D(8, 3, padding='valid', activation='relu', strides=1))
model.add(GlobalMaxPooling1D())
model.add(Dense(1, activation='sigmoid'))

parallel_model = mgm(model, gpus=2)
parallel_model.compile(loss='binary_crossentropy',
                       optimizer=tf.keras.optimizers.Adam(lr=0.01),
                       metrics=['accuracy'])
history = parallel_model.fit(x, y, batch_size=50, epochs=4, verbose=0,
                             callbacks=[keras.callbacks.EarlyStopping('acc',
                                                                      patience=9)])
print('falls:', history.history['loss'][-1] < history.history['loss'][0])
print('keras:', keras.__name__)
