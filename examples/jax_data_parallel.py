"""JAX over several processes: one step for all devices; the compiler puts the communication in.

Here:          stoker run --procs 2 examples/jax_data_parallel.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 8 --time 0:15:00 examples/jax_data_parallel.py
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from fashion_mnist import PIXELS, read_images
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Weights = dict[str, jax.Array]


def make_weights(hidden: int = 128) -> Weights:
    """Return a network of two layers; JAX itself has no layers."""
    first, second = jax.random.split(jax.random.key(0))
    return {
        "first": jax.random.normal(first, (PIXELS, hidden)) * PIXELS**-0.5,
        "first_bias": jnp.zeros(hidden),
        "second": jax.random.normal(second, (hidden, 10)) * hidden**-0.5,
        "second_bias": jnp.zeros(10),
    }


def classify(weights: Weights, images: jax.Array) -> jax.Array:
    """Return how much speaks for each class."""
    hidden = jax.nn.relu(images @ weights["first"] + weights["first_bias"])
    return hidden @ weights["second"] + weights["second_bias"]


def mean_loss(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean of all devices: images are shared out, and it is a mean over all of them."""
    chances = jax.nn.log_softmax(classify(weights, images))
    return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()


@jax.jit
def train_step(weights: Weights, images: jax.Array, labels: jax.Array) -> tuple[Weights, jax.Array]:
    """Return the weights after one step of gradient descent, and the loss before it."""
    loss, gradients = jax.value_and_grad(mean_loss)(weights, images, labels)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), loss


def main() -> None:
    """Train, then test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128, help="of all processes together")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=60_000, help="train on so many only")
    parser.add_argument("--every", type=int, default=50, help="print the loss every so many steps")
    args = parser.parse_args()

    # Before anything else of JAX. It finds the others by itself under Slurm and Open MPI.
    jax.distributed.initialize()
    rank, world = jax.process_index(), jax.process_count()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    shared_out = NamedSharding(mesh, PartitionSpec("data"))
    weights = jax.device_put(make_weights(), everywhere)
    images, labels = read_images("train", args.images)
    images = images.reshape(-1, PIXELS)

    step = 0
    for epoch in range(args.epochs):
        order = np.random.default_rng(epoch).permutation(len(labels))
        for start in range(0, len(order) - args.batch + 1, args.batch):
            mine = order[start : start + args.batch][rank::world]
            batch = [
                jax.make_array_from_process_local_data(shared_out, part[mine])
                for part in (images, labels)
            ]
            weights, loss = train_step(weights, *batch)
            step += 1
            if rank == 0 and step % args.every == 0:
                print(f"step {step} loss {float(loss):.6f}", flush=True)

    # Every process has all weights: one tests.
    if rank == 0:
        own = jax.tree.map(lambda array: array.addressable_data(0), weights)
        test, classes = read_images("t10k", args.images)
        found = classify(own, test.reshape(-1, PIXELS)).argmax(1)
        print(f"accuracy {float((found == classes).mean()):.4f}")
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
