"""A custom TensorFlow loop with planted delays: `tf_loop.py MODE BATCHES DATA_MS STEP_MS`.

MODE is how a step runs: graph (one tf.function a batch), eager (nothing is a graph), split
(gradients in a tf.function, the optimizer outside), inside (the function fetches its batch),
thread (as graph, in a thread of its own).
After each epoch of training comes one of evaluation. Prints every loss exactly, and writes what
the planted delays really took, in seconds a batch, to the file named by TRUTH.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import tensorflow as tf

mode, batches = sys.argv[1], int(sys.argv[2])
data_s, step_s = float(sys.argv[3]) / 1000, float(sys.argv[4]) / 1000
EVALUATION_BATCHES = 5

keras.utils.set_random_seed(7)
model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(1e-3)


slept = {}


def sleep(name, seconds):
    began = time.perf_counter()
    time.sleep(seconds)
    slept.setdefault(name, []).append(time.perf_counter() - began)


def make_data(length):
    def generate():
        for index in range(length):
            sleep("data" if length == batches else "evaluation", data_s)
            yield tf.fill([16, 8], index / length), tf.fill([16, 1], 0.5)

    signature = (tf.TensorSpec([16, 8]), tf.TensorSpec([16, 1]))
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.from_generator(generate, output_signature=signature).with_options(
        options
    )


def gradients(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    return loss, tape.gradient(loss, model.trainable_variables)


def train(x, y):
    loss, grads = gradients(x, y)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


def train_next(iterator):
    return train(*next(iterator))


def evaluate(x, y):
    return tf.reduce_mean((model(x, training=False) - y) ** 2)


if mode in ("graph", "inside", "thread"):
    train, evaluate = tf.function(train), tf.function(evaluate)
if mode == "inside":
    train_next = tf.function(train_next)
if mode == "split":
    gradients, evaluate = tf.function(gradients), tf.function(evaluate)


def main():
    for epoch in range(2):
        iterator = iter(make_data(batches))
        while True:
            try:
                loss = train_next(iterator) if mode == "inside" else train(*next(iterator))
            except (StopIteration, tf.errors.OutOfRangeError):
                break
            print(float(loss).hex())
            sleep("other", step_s)
        for x, y in make_data(EVALUATION_BATCHES):
            print("evaluation", float(evaluate(x, y)).hex())


if mode == "thread":
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
else:
    main()
if "TRUTH" in os.environ:
    means = {name: sum(each) / len(each) for name, each in slept.items()}
    Path(os.environ["TRUTH"]).write_text(json.dumps(means))
