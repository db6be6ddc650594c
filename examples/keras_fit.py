"""Keras `fit` on one GPU, or on the CPU; MirroredStrategy makes it all GPUs of one machine.

Here:          stoker run examples/keras_fit.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 1 --time 0:15:00 examples/keras_fit.py
"""

import argparse

import tensorflow as tf
from tf_loop import make_model, make_optimizer, read_data


def print_loss(epoch: int, logs: dict[str, float]) -> None:
    """Say what the epoch lost."""
    print(f"epoch {epoch + 1} loss {logs['loss']:.6f}", flush=True)


def main() -> None:
    """Train, then test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=60_000, help="train on so many only")
    parser.add_argument("--save", help="where the trained model goes: FILE.keras")
    args = parser.parse_args()

    tf.keras.utils.set_random_seed(0)
    model = make_model()
    model.compile(
        make_optimizer(),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    data = read_data("train", args.images).batch(args.batch, drop_remainder=True)
    tell = tf.keras.callbacks.LambdaCallback(on_epoch_end=print_loss)
    model.fit(data.prefetch(2), epochs=args.epochs, verbose=0, callbacks=[tell])

    test = read_data("t10k", args.images).batch(1000)
    print(f"accuracy {model.evaluate(test, verbose=0, return_dict=True)['accuracy']:.4f}")
    if args.save:
        model.save(args.save)


if __name__ == "__main__":
    main()
