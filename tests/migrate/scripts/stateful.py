"""A stateful network: the state is kept from batch to batch."""
import numpy as np
from keras.models import Sequential
from keras.layers import Dense, LSTM
from keras.utils import multi_gpu_model

tsteps = 2
batch_size = 8
epochs = 3

rng = np.random.RandomState(12)
series = np.cumsum(rng.normal(size=(64, tsteps, 1)), axis=0)
expected = series.mean(axis=1)

model = Sequential()
model.add(LSTM(6,
               batch_input_shape=(batch_size, tsteps, 1),
               stateful=True))
model.add(Dense(1))
model = multi_gpu_model(model, gpus=2)
model.compile(loss='mse', optimizer='rmsprop')

for i in range(epochs):
    model.fit(series, expected, batch_size=batch_size, epochs=1, verbose=0,
              shuffle=False)
    model.reset_states()

predicted = model.predict(series, batch_size=batch_size, verbose=0)
print('rows:', predicted.shape)
