"""A pipeline of TensorFlow's that decodes with TensorFlow's own operations, in larger batches."""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import tensorflow as tf

is_fixed = "fixed=1" in sys.argv
# Whether only `prefetch` is missing.
is_parallel = "parallel=1" in sys.argv
BATCH, BATCHES, SIDE = 16, 50, 96

# TensorFlow prefetches by itself: a smaller picture is decoded while the model computes.
picture = tf.io.encode_jpeg(
    tf.cast(tf.random.uniform([4 * SIDE, 4 * SIDE, 3], 0, 255, seed=7), tf.uint8)
)


def load(index):
    row = tf.io.decode_jpeg(picture, channels=3)
    row = tf.image.resize(row, [SIDE, SIDE], method="bicubic") / 255.0
    return row, tf.cast(index % 2, tf.float32)


calls = tf.data.AUTOTUNE if is_fixed or is_parallel else None
dataset = tf.data.Dataset.range(BATCH * BATCHES).map(load, num_parallel_calls=calls).batch(BATCH)
if is_fixed:
    dataset = dataset.prefetch(tf.data.AUTOTUNE)
model = keras.Sequential(
    [
        keras.Input((SIDE, SIDE, 3)),
        keras.layers.Conv2D(8, 3, strides=4, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(1),
    ]
)
model.compile("adam", "mse")
model.fit(dataset, epochs=3, verbose=0)
