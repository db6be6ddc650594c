"""TensorFlow's and Keras' training loops, each with the same planted delays; see delays.py.

tf_loops.py --loop keras --workers 2 --steps 100 --plant item=24,forward=6

Delays sit in functions that TensorFlow calls from its graphs. Its "workers" are the calls that
tf.data makes beside each other, in threads of the one process; 0 is a pipeline that loads when it
is asked.
"""

import gc
import os
import threading
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tensorflow as tf

from delays import BATCH, CLASSES, FEATURES, Delays
from loop import parse_words, train, turn

EPOCHS, HELD_OUT = 4, 10


class Threads(Delays):
    """Delays that threads of one process share."""

    # Who turns round keeps Python's lock from the others.
    late_s = 0.0

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        # When each batch of the data was made, and which step asked for its own, and when.
        self.made = {}
        self.asking = (0, 0.0)

    def count(self, place, seconds):
        with self.lock:
            super().count(place, seconds)

    def asks(self):
        """A call begins that fetches its batch out of the program's sight."""
        self.asking = (len(self.ticks), time.perf_counter())

    def answered(self, batch):
        """It is over, and had the batch of that number."""
        ended, (step, began) = time.perf_counter(), self.asking
        waited = max(0.0, self.made[batch] - began)
        self.waits.append((step, lambda: waited))
        self.calls.append((step, ended - began - waited))


DELAYS = Threads()


def after_losing(place, x):
    """Return `x` after the time that is planted here, now or in the graph that is being made."""

    def lose(value):
        DELAYS.at(place)
        return value

    return tf.ensure_shape(tf.py_function(lose, [x], x.dtype), x.shape)


@tf.custom_gradient
def stall_backward(x):
    """Nothing forward, a delay backward."""

    return tf.identity(x), lambda upstream: after_losing("backward", upstream)


class Stalls(keras.layers.Layer):
    """Takes the planted time in each pass."""

    def call(self, x):
        return stall_backward(after_losing("forward", x))


class SlowSGD(keras.optimizers.SGD):
    """SGD with a delay; the loop's clock ticks at its end."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        if variable is self._trainable_variables[0].value:
            # The gradient that comes last: in a graph, the others are there before.
            tf.py_function(self.end, [gradient], [])

    def end(self, gradient):
        DELAYS.at("optimizer")
        DELAYS.tick()


class Between(keras.callbacks.Callback):
    """A user's callback, with a delay between two steps; it knows of epochs and evaluation."""

    def on_train_batch_begin(self, batch, logs=None):
        DELAYS.asks()

    def on_train_batch_end(self, batch, logs=None):
        DELAYS.answered(batch)
        DELAYS.at("between")

    def on_epoch_begin(self, epoch, logs=None):
        DELAYS.epoch()

    def on_test_begin(self, logs=None):
        DELAYS.is_evaluating = True

    def on_test_end(self, logs=None):
        DELAYS.is_evaluating = False


def load(index):
    for _ in range(BATCH):
        DELAYS.item()
    DELAYS.at("collate")
    x = np.full((BATCH, FEATURES), index % 7, np.float32)
    if not DELAYS.is_evaluating:
        DELAYS.made[int(index)] = time.perf_counter()
    return x, np.arange(BATCH, dtype=np.int64) % CLASSES


def make_data(batches, workers):
    def fetch(index):
        x, labels = tf.numpy_function(load, [index], (tf.float32, tf.int64))
        return tf.ensure_shape(x, (BATCH, FEATURES)), tf.ensure_shape(labels, (BATCH,))

    options = tf.data.Options()
    # What is not asked for is not there: no buffer that a pipeline without one would not have.
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    # Threads of their own: those of all graphs are as many as cores, and the model needs them.
    options.threading.private_threadpool_size = workers or 1
    data = tf.data.Dataset.range(batches).map(fetch, num_parallel_calls=workers or None)
    return data.with_options(options)


def timed(data):
    """Yield the batches, and take the loop's own time for each."""
    batches = iter(data)
    while True:
        began = time.perf_counter()
        batch = next(batches, None)
        seconds = time.perf_counter() - began
        if batch is None:
            return
        DELAYS.waited(lambda seconds=seconds: seconds)
        yield batch


def make_model():
    layers = [
        keras.layers.Dense(FEATURES, activation="relu"),
        Stalls(),
        keras.layers.Dense(CLASSES),
    ]
    return keras.Sequential([keras.Input((FEATURES,)), *layers])


def make_loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fit(data, is_eager=False, **settings):
    model = make_model()
    model.compile(optimizer=SlowSGD(0.001), loss=make_loss(), run_eagerly=is_eager)
    model.fit(data, verbose=0, callbacks=[Between()], **settings)


def keras_fit(args):
    fit(make_data(args.steps, args.workers))


def keras_eager(args):
    fit(make_data(args.steps, args.workers), is_eager=True)


def keras_validation(args):
    held_out = make_data(HELD_OUT, args.workers)
    data = make_data(args.steps // EPOCHS, args.workers)
    fit(data, epochs=EPOCHS, validation_data=held_out)


def make_step():
    model, optimizer, loss_of = make_model(), SlowSGD(0.001), make_loss()

    def step(x, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return step


def by_hand(args, step):
    for x, labels in timed(make_data(args.steps, args.workers)):
        number, began = len(DELAYS.ticks), time.perf_counter()
        step(x, labels)
        DELAYS.calls.append((number, time.perf_counter() - began))
        DELAYS.at("between")


def tf_graph(args):
    by_hand(args, tf.function(make_step()))


def tf_eager(args):
    by_hand(args, make_step())


def tf_inside(args):
    """The function fetches its batch itself, as loops with a distribution strategy do."""
    step = make_step()

    @tf.function
    def train_next(batches):
        return step(*next(batches))

    batches = iter(make_data(args.steps, args.workers))
    for batch in range(args.steps):
        DELAYS.asks()
        train_next(batches)
        DELAYS.answered(batch)
        DELAYS.at("between")


LOOPS = (keras_fit, keras_eager, keras_validation, tf_graph, tf_eager, tf_inside)


def main():
    args = parse_words(LOOPS)
    DELAYS.ms.update(args.plant)
    DELAYS.is_busy = args.busy
    # To look through all that TensorFlow made takes 0.14 s, which some runs have and others not.
    gc.freeze()
    with turn(args.turn):
        train(args, LOOPS, DELAYS)


if __name__ == "__main__":
    main()
