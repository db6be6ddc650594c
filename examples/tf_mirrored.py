"""TensorFlow MirroredStrategy: one process, a copy of the model on each GPU of the machine.

Without GPUs the CPU stands for `--copies` devices.

Here:          stoker run examples/tf_mirrored.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 4 --time 0:15:00 examples/tf_mirrored.py
"""

import argparse

import tensorflow as tf
from tf_loop import accuracy, losses_of, make_model, make_optimizer, read_data


def make_strategy(copies: int) -> tf.distribute.Strategy:
    """Return a strategy for all GPUs, or for so many pieces of the CPU."""
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    pieces = [tf.config.LogicalDeviceConfiguration()] * copies
    tf.config.set_logical_device_configuration(cpu, pieces)
    return tf.distribute.MirroredStrategy(
        [f"CPU:{number}" for number in range(copies)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def main() -> None:
    """Train, then test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128, help="of all copies together")
    parser.add_argument("--copies", type=int, default=2, help="on a machine without GPUs")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=60_000, help="train on so many only")
    parser.add_argument("--every", type=int, default=50, help="print the loss every so many steps")
    parser.add_argument("--save", help="where the trained model goes: FILE.keras")
    args = parser.parse_args()

    strategy = make_strategy(args.copies)
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make_model()
        optimizer = make_optimizer()
        optimizer.build(model.trainable_variables)

    def train_copy(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            # Gradients are summed over the copies: divide by the whole batch.
            loss = tf.reduce_sum(losses_of(model, images, labels)) / args.batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        losses = strategy.run(train_copy, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    step = 0
    data = read_data("train", args.images).batch(args.batch, drop_remainder=True)
    # The strategy divides each batch among its copies.
    shared = strategy.experimental_distribute_dataset(data)
    for _ in range(args.epochs):
        for images, labels in shared:
            loss = train_step(images, labels)
            step += 1
            if step % args.every == 0:
                print(f"step {step} loss {float(loss):.6f}", flush=True)

    print(f"accuracy {accuracy(model, read_data('t10k', args.images)):.4f}")
    if args.save:
        model.save(args.save)


if __name__ == "__main__":
    main()
