"""Two branches on two GPUs, joined on the CPU: device parallelism."""
import keras
import numpy as np
import tensorflow as tf

input_a = keras.Input(shape=(14, 6))
input_b = keras.Input(shape=(14, 6))
shared_lstm = keras.layers.LSTM(4)

# Process the first sequence on one GPU
with tf.device('/gpu:0'):
    encoded_a = shared_lstm(input_a)
# Process the next sequence on another GPU
with tf.device('/gpu:1'):
    encoded_b = shared_lstm(input_b)
# Concatenate results on CPU
with tf.device('/cpu:0'):
    merged_vector = keras.layers.concatenate([encoded_a, encoded_b],
                                             axis=-1)

model = keras.models.Model([input_a, input_b],
                           keras.layers.Dense(1)(merged_vector))
model.compile(optimizer=keras.optimizers.Adam(lr=0.01), loss='mse')
rng = np.random.RandomState(15)
a, b = rng.normal(size=(2, 40, 14, 6))
history = model.fit([a, b], a.mean(axis=(1, 2)), epochs=2, verbose=0)
print('falls:', history.history['loss'][1] < history.history['loss'][0])
