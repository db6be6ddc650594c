"""Keras on any backend (KERAS_BACKEND), with planted delays: `tf_backend.py DATA_MS STEP_MS [--compile]`.

Prints the loss of every epoch and the weights at the end exactly.
"""

import sys
import time

import keras
import numpy as np

data_s, step_s = float(sys.argv[1]) / 1000, float(sys.argv[2]) / 1000
BATCH, BATCHES, EPOCHS = 16, 25, 2

keras.utils.set_random_seed(7)
rng = np.random.default_rng(7)
x = rng.normal(size=(BATCHES * BATCH, 8)).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")


class Slow(keras.layers.Layer):
    """Takes a known time in every forward pass, where layers run eagerly."""

    def call(self, inputs):
        time.sleep(step_s)
        return inputs


class Sequence(keras.utils.PyDataset):
    """Batches from Python that take a known time."""

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        time.sleep(data_s)
        part = slice(index * BATCH, (index + 1) * BATCH)
        return x[part], y[part]


model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(16, activation="relu"), Slow(), keras.layers.Dense(1)]
)
model.compile(optimizer="adam", loss="mse", jit_compile="--compile" in sys.argv)
history = model.fit(Sequence(), epochs=EPOCHS, validation_data=(x[:64], y[:64]), verbose=0)
for name, values in sorted(history.history.items()):
    print(name, [float(value).hex() for value in values])
for weight in model.get_weights():
    print(weight.astype("float64").sum().hex())
