"""Sequences of words, padded, through an LSTM."""
import numpy as np
from keras.preprocessing import sequence
from keras.models import Sequential
from keras.layers.embeddings import Embedding
from keras.layers import Dense, CuDNNLSTM
from keras.utils.multi_gpu_utils import multi_gpu_model

max_features = 50
maxlen = 12

rng = np.random.RandomState(3)
texts = [list(rng.randint(1, max_features, size=rng.randint(3, 20)))
         for _ in range(300)]
y = np.array([int(np.mean(t) > 25) for t in texts])
x = sequence.pad_sequences(texts, maxlen=maxlen)

model = Sequential()
model.add(Embedding(max_features, 8))
model.add(CuDNNLSTM(8))
model.add(Dense(1, activation='sigmoid'))

parallel_model = multi_gpu_model(model, gpus=2, cpu_merge=False)
# try using different optimizers and different optimizer configs
parallel_model.compile('nadam', 'binary_crossentropy', metrics=['acc'])
history = parallel_model.fit(x, y, batch_size=50, nb_epoch=10, verbose=0,
                             validation_data=(x, y))
print('falls:', history.history['loss'][-1] < history.history['loss'][0])
print('logged:', sorted(history.history))
print(parallel_model.predict_proba(x[:7]).shape)
