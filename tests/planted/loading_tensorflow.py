"""A pipeline of TensorFlow's whose `map` does one element after the other, each with a wait."""

import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tensorflow as tf

is_fixed = "fixed=1" in sys.argv
# Elements that come at once.
is_healthy = "healthy=1" in sys.argv
BATCH, BATCHES = 8, 120


def read(index):
    time.sleep(0 if is_healthy else 0.003)
    return np.full(16, index, "float32"), np.float32(index % 2)


def load(index):
    x, y = tf.numpy_function(read, [index], (tf.float32, tf.float32))
    return tf.ensure_shape(x, [16]), tf.ensure_shape(y, [])


calls = tf.data.AUTOTUNE if is_fixed else None
dataset = tf.data.Dataset.range(BATCH * BATCHES).map(load, num_parallel_calls=calls).batch(BATCH)
if is_fixed:
    dataset = dataset.prefetch(tf.data.AUTOTUNE)
model = keras.Sequential(
    [
        keras.Input((16,)),
        keras.layers.Dense(64 if not is_healthy else 8000, activation="relu"),
        keras.layers.Dense(1),
    ]
)
model.compile("sgd", "mse")
model.fit(dataset, epochs=2, verbose=0)
