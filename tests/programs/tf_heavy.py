"""Keras fits a model that computes for long on batches that are there: nothing is waited for."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import tensorflow as tf

SIZE, STEPS, BRANCHES = 1024, 30, 4

keras.utils.set_random_seed(0)
batch = tf.random.normal((SIZE, SIZE)), tf.zeros((SIZE, 1))
data = tf.data.Dataset.from_tensors(batch).cache().repeat(STEPS).prefetch(4)
rows = keras.Input((SIZE,))
# All of them have what they need as soon as the batch is there.
branches = [keras.layers.Dense(SIZE)(rows) for _ in range(BRANCHES)]
model = keras.Model(rows, keras.layers.Dense(1)(keras.layers.add(branches)))
model.compile(optimizer=keras.optimizers.SGD(1e-6), loss="mse")
print(model.fit(data, verbose=0).history)
