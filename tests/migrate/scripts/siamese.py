'''Two inputs through one network, and a loss on their distance.'''
import numpy as np
from keras.models import Model
from keras.layers import Input, Flatten, Dense, Lambda
from keras.optimizers import RMSprop
from keras.utils import multi_gpu_model
from keras import backend as K


def euclidean_distance(vects):
    x, y = vects
    sum_square = K.sum(K.square(x - y), axis=1, keepdims=True)
    return K.sqrt(K.maximum(sum_square, K.epsilon()))


def eucl_dist_output_shape(shapes):
    shape1, shape2 = shapes
    return (shape1[0], 1)


def contrastive_loss(y_true, y_pred):
    '''Close pairs are drawn together, others pushed a margin apart.'''
    margin = 1
    square_pred = K.square(y_pred)
    margin_square = K.square(K.maximum(margin - y_pred, 0))
    return K.mean(y_true * square_pred + (1 - y_true) * margin_square)


def accuracy(y_true, y_pred):
    return K.mean(K.equal(y_true, K.cast(y_pred < 0.5, 'float32')))


def create_base_network(input_shape):
    input = Input(shape=input_shape)
    x = Flatten()(input)
    x = Dense(16, activation='relu')(x)
    x = Dense(4)(x)
    return Model(input, x)


rng = np.random.RandomState(2)
first = rng.normal(size=(400, 3, 2))
same = rng.randint(2, size=(400, 1)).astype('float32')
second = np.where(same[..., None] == 1, first, rng.normal(size=(400, 3, 2)))

base_network = create_base_network((3, 2))
input_a = Input(shape=(3, 2))
input_b = Input(shape=(3, 2))
distance = Lambda(euclidean_distance,
                  output_shape=eucl_dist_output_shape)(
                      [base_network(input_a), base_network(input_b)])
model = Model([input_a, input_b], distance)

parallel_model = multi_gpu_model(model, gpus=[0, 1])
parallel_model.compile(loss=contrastive_loss, optimizer=RMSprop(),
                       metrics=[accuracy])
history = parallel_model.fit([first, second], same, batch_size=40, epochs=8,
                             verbose=0)
print('logged:', sorted(history.history))
print('learned:', history.history['accuracy'][-1] > 0.9)
