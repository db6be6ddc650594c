"""TensorFlow on one GPU, or on the CPU, with a training loop of our own.

Where the other TensorFlow examples start from.

Here:          stoker run examples/tf_loop.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 1 --time 0:15:00 examples/tf_loop.py
"""

import argparse

import tensorflow as tf
from fashion_mnist import read_images


def make_model() -> tf.keras.Model:
    """Return a small network that learns the same on any number of ranks.

    Dropout and batch norm would differ. ReLU and the largest of a pool have kinks, at which the
    rounding of a sum decides which way the training goes.
    """
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            tf.keras.layers.Conv2D(8, 3, activation="gelu"),
            tf.keras.layers.AveragePooling2D(2),
            tf.keras.layers.Conv2D(16, 3, activation="gelu"),
            tf.keras.layers.AveragePooling2D(2),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )


def make_optimizer() -> tf.keras.optimizers.Optimizer:
    """Return the optimizer of all TensorFlow examples."""
    return tf.keras.optimizers.SGD(0.02, momentum=0.9)


def read_data(part: str, count: int) -> tf.data.Dataset:
    """Return pictures with one channel and their classes; those to train on in random order.

    With the same seed the order is the same in every process, and another one in each epoch.
    """
    images, labels = read_images(part, count)
    data = tf.data.Dataset.from_tensor_slices((images[..., None], labels))
    return data.shuffle(len(labels), seed=0) if part == "train" else data


def losses_of(model: tf.keras.Model, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return the loss of each picture."""
    logits = model(images, training=True)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def accuracy(model: tf.keras.Model, data: tf.data.Dataset) -> float:
    """Return the part of the pictures that the model puts into the right class."""
    right = count = 0
    for images, labels in data.batch(1000):
        found = tf.argmax(model(images), axis=1)
        right += int(tf.reduce_sum(tf.cast(found == labels, tf.int32)))
        count += len(labels)
    return right / count


def main() -> None:
    """Train, then test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=60_000, help="train on so many only")
    parser.add_argument("--every", type=int, default=50, help="print the loss every so many steps")
    parser.add_argument("--save", help="where the trained model goes: FILE.keras")
    args = parser.parse_args()

    tf.keras.utils.set_random_seed(0)
    model = make_model()
    optimizer = make_optimizer()
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses_of(model, images, labels))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step = 0
    data = read_data("train", args.images).batch(args.batch, drop_remainder=True)
    for _ in range(args.epochs):
        for images, labels in data.prefetch(2):
            loss = train_step(images, labels)
            step += 1
            if step % args.every == 0:
                print(f"step {step} loss {float(loss):.6f}", flush=True)

    print(f"accuracy {accuracy(model, read_data('t10k', args.images)):.4f}")
    if args.save:
        model.save(args.save)


if __name__ == "__main__":
    main()
