"""A generator held by a class, counted in steps."""
from keras.models import Sequential
from keras.layers import Dense, BatchNormalization
import keras.utils as ku
import numpy as np


class DataGenerator(object):
    def __init__(self, rows, batch_size=32):
        self.rows = rows
        self.batch_size = batch_size
        self.rng = np.random.RandomState(8)

    def flow(self):
        while True:
            x = self.rng.normal(size=(self.batch_size, 6))
            y = (x[:, :1] > 0).astype('float32')
            yield x, y


class Training(object):
    """Holds its models, as many projects did."""

    def __init__(self):
        self.model = Sequential()
        self.model.add(Dense(8, activation='relu', input_dim=6))
        self.model.add(BatchNormalization())
        self.model.add(Dense(1, activation='sigmoid'))
        self.parallel_model = ku.multi_gpu_model(self.model, gpus=2)
        self.parallel_model.compile(optimizer='sgd',
                                    loss='binary_crossentropy',
                                    metrics=['accuracy'])

    def run(self, data):
        return self.parallel_model.fit_generator(
            generator=data.flow(),
            steps_per_epoch=data.rows / data.batch_size,
            nb_epoch=4,
            verbose=0,
            max_q_size=10,
            pickle_safe=False)


training = Training()
data = DataGenerator(rows=100)
history = training.run(data)
score = training.parallel_model.evaluate_generator(data.flow(), steps=3)
predicted = training.parallel_model.predict_generator(data.flow(), 2)
print('steps:', int(training.parallel_model.optimizer.iterations))
print('epochs:', len(history.history['acc']), 'rows:', len(predicted))
print('template:', training.parallel_model.layers[-2].name == training.model.name)
