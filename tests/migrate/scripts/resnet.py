"""A small ResNet with a learning-rate schedule by epoch."""
import keras
from keras.layers import Dense, Conv2D, BatchNormalization, Activation
from keras.layers import AveragePooling2D, Input, Flatten
from keras.optimizers import Adam
from keras.callbacks import LearningRateScheduler, ReduceLROnPlateau
from keras.regularizers import l2
from keras.models import Model
from keras.utils import multi_gpu_model
import numpy as np


def lr_schedule(epoch):
    lr = 1e-3
    if epoch > 0:
        lr *= 1e-1
    print('Learning rate: ', lr)
    return lr


def resnet_layer(inputs, num_filters=8, strides=1, activation='relu'):
    x = Conv2D(num_filters,
               kernel_size=3,
               strides=strides,
               padding='same',
               kernel_initializer='he_normal',
               kernel_regularizer=l2(1e-4))(inputs)
    x = BatchNormalization()(x)
    if activation is not None:
        x = Activation(activation)(x)
    return x


inputs = Input(shape=(8, 8, 3))
x = resnet_layer(inputs)
y = resnet_layer(x)
y = resnet_layer(y, activation=None)
x = keras.layers.add([x, y])
x = Activation('relu')(x)
x = Flatten()(AveragePooling2D(pool_size=4)(x))
outputs = Dense(3, activation='softmax', kernel_initializer='he_normal')(x)
model = Model(inputs=inputs, outputs=outputs)

parallel_model = multi_gpu_model(model, gpus=2)
parallel_model.compile(loss='categorical_crossentropy',
                       optimizer=Adam(lr=lr_schedule(0)),
                       metrics=['accuracy'])
rng = np.random.RandomState(14)
images = rng.normal(size=(64, 8, 8, 3))
targets = keras.utils.to_categorical(rng.randint(3, size=64), 3)
parallel_model.fit(images, targets, batch_size=32, epochs=2, verbose=0,
                   validation_data=(images, targets),
                   callbacks=[ReduceLROnPlateau(factor=0.5, patience=5),
                              LearningRateScheduler(lr_schedule)])
print('rate: %.1e' % keras.backend.get_value(parallel_model.optimizer.lr))
