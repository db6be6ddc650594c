"""TensorFlow MultiWorkerMirroredStrategy: a worker on each node, told of the others by TF_CONFIG.

The loop is our own: `fit` of Keras 3 does not work with this strategy.

Here:          stoker run --procs 2 examples/tf_multiworker.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 8 --time 0:15:00 examples/tf_multiworker.py
"""

import argparse

import tensorflow as tf
from tf_loop import accuracy, losses_of, make_model, make_optimizer, read_data


def main() -> None:
    """Train, then test."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128, help="of all workers together")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=60_000, help="train on so many only")
    parser.add_argument("--every", type=int, default=50, help="print the loss every so many steps")
    parser.add_argument("--save", help="where the trained model goes: FILE.keras")
    args = parser.parse_args()

    # Before anything else of TensorFlow: it starts the connections between the workers.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    is_chief = strategy.cluster_resolver.task_id in (0, None)
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

    def read_share(worker: tf.distribute.InputContext) -> tf.data.Dataset:
        """Return every n-th picture: all workers have the same order."""
        data = read_data("train", args.images)
        data = data.shard(worker.num_input_pipelines, worker.input_pipeline_id)
        share = worker.get_per_replica_batch_size(args.batch)
        return data.batch(share, drop_remainder=True).prefetch(2)

    step = 0
    shared = strategy.distribute_datasets_from_function(read_share)
    for _ in range(args.epochs):
        for images, labels in shared:
            loss = train_step(images, labels)
            step += 1
            if is_chief and step % args.every == 0:
                print(f"step {step} loss {float(loss):.6f}", flush=True)

    # The weights are the same on all workers; one tests and saves.
    if is_chief:
        print(f"accuracy {accuracy(model, read_data('t10k', args.images)):.4f}")
        if args.save:
            model.save(args.save)


if __name__ == "__main__":
    main()
