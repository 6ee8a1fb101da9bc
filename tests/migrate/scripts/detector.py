"""A detector with three heads, compiled with the names of the wrapper."""
import numpy as np
from keras.layers import Conv2D, Dense, Flatten, GlobalAveragePooling2D, Input
from keras.models import Model
from keras.optimizers import Adam
from keras.utils import multi_gpu_model

image = Input((8, 8, 3))
features = Conv2D(4, 3, padding='same', activation='relu')(image)
where = Flatten(name='where')(Conv2D(1, 1, activation='sigmoid')(features))
pooled = GlobalAveragePooling2D()(features)
what = Dense(3, activation='softmax', name='what')(pooled)
box = Dense(4, name='box')(pooled)
model = Model(inputs=image, outputs=[where, what, box])

parallel_model = multi_gpu_model(model, gpus=2)
# The wrapper renamed the outputs: see parallel_model.summary()
losses = {'concatenate_1': 'binary_crossentropy',  # where
          'concatenate_2': 'categorical_crossentropy',
          'concatenate_3': 'mse'}
parallel_model.compile(optimizer=Adam(lr=1e-3), loss=losses,
                       metrics={'concatenate_2': 'acc'},
                       loss_weights={"concatenate_1": 1.0,
                                     "concatenate_2": 0.5,
                                     "concatenate_3": 0.1})

rng = np.random.RandomState(11)
x = rng.normal(size=(32, 8, 8, 3))
y = {'concatenate_1': rng.randint(2, size=(32, 64)),
     'concatenate_2': np.eye(3)[rng.randint(3, size=32)],
     'concatenate_3': rng.normal(size=(32, 4))}
history = parallel_model.fit(x, y, batch_size=16, epochs=2, verbose=0)
print('logged:', sorted(history.history))
