"""A headline and a body, and two losses found by the names of layers."""
import numpy as np
import keras
from keras.layers import Input, Embedding, LSTM, Dense
from keras.models import Model
from keras import backend as K


def jaccard_distance(y_true, y_pred, smooth=100):
    intersection = K.sum(K.abs(y_true * y_pred), axis=-1)
    sum_ = K.sum(K.abs(y_true) + K.abs(y_pred), axis=-1)
    jac = (intersection + smooth) / (sum_ - intersection + smooth)
    return (1 - jac) * smooth


main_input = Input(shape=(10,), dtype='int32', name='main_input')
x = Embedding(output_dim=8, input_dim=40, input_length=10)(main_input)
lstm_out = LSTM(8)(x)
auxiliary_output = Dense(1, activation='sigmoid', name='aux_output')(lstm_out)
auxiliary_input = Input(shape=(5,), name='aux_input')
x = keras.layers.concatenate([lstm_out, auxiliary_input])
x = Dense(16, activation='relu')(x)
main_output = Dense(3, activation='sigmoid', name='main_output')(x)

model = Model(inputs=[main_input, auxiliary_input],
              outputs=[main_output, auxiliary_output])
model = keras.utils.multi_gpu_model(model, gpus=2)
model.compile(optimizer=keras.optimizers.RMSprop(lr=0.01, decay=1e-3),
              loss={'main_output': jaccard_distance,
                    'aux_output': 'binary_crossentropy'},
              metrics={'aux_output': 'acc'},
              loss_weights={'main_output': 1., 'aux_output': 0.2})

rng = np.random.RandomState(4)
headline = rng.randint(1, 40, size=(96, 10))
extra = rng.normal(size=(96, 5))
targets = {'main_output': rng.randint(2, size=(96, 3)),
           'aux_output': rng.randint(2, size=(96, 1))}
history = model.fit({'main_input': headline, 'aux_input': extra}, targets,
                    epochs=3, batch_size=32, verbose=0)
print('logged:', sorted(history.history))
print('falls:', history.history['loss'][-1] < history.history['loss'][0])
