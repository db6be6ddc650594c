"""Keras' `fit` with planted delays: `tf_fit.py '{"option": value, …}'`, the options below.

Prints the loss of every epoch and the weights at the end exactly, and writes what the planted
delays really took, in seconds a batch, to the file named by TRUTH.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tensorflow as tf

options = {
    "data": "dataset",  # dataset, arrays, pydataset, unknown (a dataset that hides its length)
    "data_ms": 0.0,
    "step_ms": 0.0,
    "between_ms": 0.0,  # between batches, in a callback of the user's
    "batches": 12,
    "epochs": 2,
    "steps_per_execution": 1,
    "jit_compile": "auto",
    "run_eagerly": False,
    "prefetch": False,
    "validation": False,
    "class_weight": None,
    "steps_per_epoch": None,
    "workers": 0,
    "width": 16,
    "replicas": 1,
    "predict": False,
    "deterministic": False,  # True; or "late": another fit, with determinism, after the first
    **json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"),
}
BATCH = 16
if options["replicas"] > 1:
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * options["replicas"]
    tf.config.set_logical_device_configuration(cpu, parts)
keras.utils.set_random_seed(7)
if options["deterministic"] is True:
    tf.config.experimental.enable_op_determinism()
rng = np.random.default_rng(7)
x = rng.normal(size=(options["batches"] * BATCH, 8)).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")


slept = {}


def sleep(name):
    began = time.perf_counter()
    time.sleep(options[f"{name}_ms"] / 1000)
    slept.setdefault(name, []).append(time.perf_counter() - began)


def wait(tensor):
    sleep("step")
    return tensor


class Slow(keras.layers.Layer):
    """Takes a known time, in every forward pass."""

    def call(self, inputs):
        if not options["step_ms"]:
            return inputs
        outputs = tf.py_function(wait, [inputs], inputs.dtype)
        return tf.ensure_shape(outputs, inputs.shape)

    def compute_output_shape(self, shape):
        return shape


class Sequence(keras.utils.PyDataset):
    """Batches from Python, read by threads of Keras."""

    def __len__(self):
        return options["batches"]

    def __getitem__(self, index):
        sleep("data")
        part = slice(index * BATCH, (index + 1) * BATCH)
        return x[part], y[part]


class Between(keras.callbacks.Callback):
    """Takes a known time between batches."""

    def on_train_batch_end(self, batch, logs=None):
        sleep("between")


def make_dataset():
    def generate():
        for index in range(options["batches"]):
            sleep("data")
            part = slice(index * BATCH, (index + 1) * BATCH)
            yield x[part], y[part]

    signature = (tf.TensorSpec([BATCH, 8]), tf.TensorSpec([BATCH, 1]))
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    if options["data"] != "unknown":
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(options["batches"]))
    if options["steps_per_epoch"]:
        dataset = dataset.repeat()
    if options["prefetch"]:
        return dataset.prefetch(2)
    settings = tf.data.Options()
    settings.experimental_optimization.inject_prefetch = False
    return dataset.with_options(settings)


def make_model():
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(options["width"], activation="relu"),
            Slow(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss="binary_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=options["steps_per_execution"],
        jit_compile=options["jit_compile"],
        run_eagerly=options["run_eagerly"],
    )
    return model


if options["replicas"] > 1:
    devices = [f"CPU:{index}" for index in range(options["replicas"])]
    with tf.distribute.MirroredStrategy(devices).scope():
        model = make_model()
else:
    model = make_model()
data = {"x": x, "y": y, "batch_size": BATCH}
if options["data"] == "pydataset":
    data = {"x": Sequence(workers=options["workers"], use_multiprocessing=False)}
elif options["data"] != "arrays":
    data = {"x": make_dataset()}
weights = options["class_weight"]
callbacks = [Between()] if options["between_ms"] else []
settings = {
    **data,
    "epochs": options["epochs"],
    "steps_per_epoch": options["steps_per_epoch"],
    "validation_data": (x[: 4 * BATCH], y[: 4 * BATCH]) if options["validation"] else None,
    "validation_batch_size": BATCH if options["validation"] else None,
    "class_weight": weights and {int(key): value for key, value in weights.items()},
    "callbacks": callbacks,
    "verbose": 0,
}
history = model.fit(**settings)
if options["deterministic"] == "late":
    tf.config.experimental.enable_op_determinism()
    history = model.fit(**settings)
assert callbacks == ([] if not options["between_ms"] else callbacks[:1])
for name, values in sorted(history.history.items()):
    print(name, [float(value).hex() for value in values])
for weight in model.get_weights():
    print(weight.astype("float64").sum().hex())
if options["predict"]:
    print(float(model.predict(x, batch_size=BATCH, verbose=0).sum()).hex())
if "TRUTH" in os.environ:
    means = {name: sum(each) / len(each) for name, each in slept.items()}
    Path(os.environ["TRUTH"]).write_text(json.dumps(means))
