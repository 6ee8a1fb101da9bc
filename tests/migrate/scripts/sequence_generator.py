"""A Sequence that reads batches, several at once."""
import math

import numpy as np
from keras.layers import Dense, Input
from keras.models import Sequential
from keras.utils import Sequence, multi_gpu_model


class Rows(Sequence):
    """Rows and their sums."""

    def __init__(self, count, batch_size):
        self.x = np.random.RandomState(7).normal(size=(count, 4))
        self.batch_size = batch_size

    def __len__(self):
        return int(math.ceil(len(self.x) / float(self.batch_size)))

    def __getitem__(self, idx):
        batch = self.x[idx * self.batch_size:(idx + 1) * self.batch_size]
        return batch, batch.sum(axis=1, keepdims=True)


model = Sequential([Dense(1, input_shape=(4,))])
parallel_model = multi_gpu_model(model, gpus=2)
parallel_model.compile('adam', 'mse')
train, test = Rows(90, 16), Rows(33, 16)
history = parallel_model.fit_generator(train,
                                       epochs=3,
                                       verbose=0,
                                       validation_data=test,
                                       workers=4,
                                       use_multiprocessing=False)
loss = parallel_model.evaluate_generator(test, workers=1)
predicted = parallel_model.predict_generator(test)
print('rows:', predicted.shape)
print('same loss:', abs(loss - history.history['val_loss'][-1]) < 1e-4)
