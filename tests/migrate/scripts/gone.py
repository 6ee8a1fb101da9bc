"""What has no successor that could be written: all of it is a note."""
import keras
import tensorflow as tf
from keras.layers import *
from keras.models import Sequential
from keras.preprocessing.image import ImageDataGenerator
from keras.preprocessing.text import Tokenizer
import keras.backend as K

sess = tf.Session('grpc://10.0.0.1:2222')
K.set_session(sess)
K.set_learning_phase(1)
strategy = tf.distribute.MirroredStrategy()
model = Sequential([keras.layers.Dense(2, weights=[1])])
model.compile('sgd', 'mse', sample_weight_mode='temporal')
model.predict_classes(None)
keras.layers.Lambda(K.concatenate)
keras.layers.merge([1, 2], mode=lambda x: x)
