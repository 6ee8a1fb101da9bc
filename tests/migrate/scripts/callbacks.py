"""Checkpoints of the template while the parallel model trains."""
import os
import tempfile

import keras
import numpy as np
from keras.callbacks import Callback, EarlyStopping, ModelCheckpoint
from keras.layers import Dense
from keras.models import Sequential, load_model
from keras.utils import multi_gpu_model


class TemplateCheckpoint(Callback):
    """Saves the model that was wrapped: the wrapper cannot be loaded."""

    def __init__(self, model_to_save, path):
        self.model_to_save = model_to_save
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        self.model_to_save.save_weights(self.path + '.h5')


os.chdir(tempfile.mkdtemp())
rng = np.random.RandomState(10)
x = rng.normal(size=(200, 5))
y = (x.sum(axis=1) > 0).astype('int32')

model = Sequential()
model.add(Dense(8, activation='tanh', input_dim=5))
model.add(Dense(1, activation='sigmoid'))
parallel_model = multi_gpu_model(model, gpus=2)
parallel_model.compile('adam', 'binary_crossentropy', metrics=['accuracy'])

best = 'best.hdf5'
history = parallel_model.fit(
    x, y, epochs=5, verbose=0, validation_split=0.25,
    callbacks=[
        TemplateCheckpoint(model, 'template'),
        ModelCheckpoint(best, monitor='val_acc', mode='max', period=1),
        ModelCheckpoint('w.{epoch:02d}-{val_acc:.2f}.hdf5',
                        save_weights_only=True),
        EarlyStopping(monitor='val_acc', patience=9),
    ])
print('acc and val_acc:', len(history.history['acc']),
      len(history.history['val_acc']))
loaded = load_model(best)
same = np.allclose(loaded.predict(x), parallel_model.predict(x), atol=1e-6)
print('the file is the model:', same)
parallel_model.layers[-2].save_weights('last.h5')
model.load_weights('last.h5')
model.save('model.h5')
print('files:', len(os.listdir('.')))
