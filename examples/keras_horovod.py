"""Horovod with Keras `fit`: the optimizer averages the gradients of all ranks.

It needs Keras 2 (the package tf_keras): with Keras 3 the ranks would drift apart without a word.

Here:          stoker run --procs 2 examples/keras_horovod.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 8 --time 0:15:00 examples/keras_horovod.py
"""

import argparse
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd
import tensorflow as tf
from tf_loop import make_model, make_optimizer, read_data


def print_mean(epoch: int, logs: dict[str, float]) -> None:
    """Say what the epoch lost: the mean of all ranks.

    Horovod's MetricAverageCallback looks into Keras 3 even here, and fails.
    """
    mean = hvd_tf.allreduce(tf.constant(logs["loss"], tf.float32))
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1} loss {float(mean):.6f}", flush=True)


def main() -> None:
    """Train, then test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128, help="of all ranks together")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=60_000, help="train on so many only")
    parser.add_argument("--save", help="where the trained model goes: FILE.keras")
    args = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    tf.keras.utils.set_random_seed(0)
    model = make_model()
    model.compile(
        hvd.DistributedOptimizer(make_optimizer()),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    # Every n-th picture: all ranks have the same order.
    data = read_data("train", args.images).shard(hvd.size(), hvd.rank())
    data = data.batch(args.batch // hvd.size(), drop_remainder=True).prefetch(2)
    callbacks = [
        # All ranks start from the weights of the first.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        tf.keras.callbacks.LambdaCallback(on_epoch_end=print_mean),
    ]
    model.fit(data, epochs=args.epochs, verbose=0, callbacks=callbacks)

    if hvd.rank() == 0:
        test = read_data("t10k", args.images).batch(1000)
        print(f"accuracy {model.evaluate(test, verbose=0, return_dict=True)['accuracy']:.4f}")
        if args.save:
            model.save(args.save)


if __name__ == "__main__":
    main()
