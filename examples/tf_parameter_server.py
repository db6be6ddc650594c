"""TensorFlow ParameterServerStrategy: a server keeps the weights, a chief hands steps to workers.

Each worker takes the weights as they are, computes gradients and sends them: nobody waits for
anybody. So with several workers the losses are other ones in each run; with one they are those of
one process. A step has the batch of one worker.

Here:          stoker run --procs 2 examples/tf_parameter_server.py
On a cluster:  stoker submit --cluster leonardo --account project_2001234 --gpus 8 --time 0:15:00 examples/tf_parameter_server.py
"""

import argparse

import tensorflow as tf
from tf_loop import accuracy, losses_of, make_model, make_optimizer, read_data


def serve(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Do what the chief says, until the job ends."""
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
    )
    server.join()


def train(
    resolver: tf.distribute.cluster_resolver.ClusterResolver, args: argparse.Namespace
) -> None:
    """Train, then test; only the chief does."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make_model()
        optimizer = make_optimizer()
        optimizer.build(model.trainable_variables)

    def train_copy(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses_of(model, images, labels))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(batches: tf.data.Iterator) -> tf.Tensor:
        return strategy.run(train_copy, args=next(batches))

    def read_endless() -> tf.data.Dataset:
        data = read_data("train", args.images)
        return data.batch(args.batch, drop_remainder=True).repeat().prefetch(2)

    batches = iter(coordinator.create_per_worker_dataset(read_endless))
    for step in range(1, args.epochs * (args.images // args.batch) + 1):
        result = coordinator.schedule(train_step, args=(batches,))
        if step % args.every == 0:
            # Until then the steps run wherever a worker is free.
            coordinator.join()
            print(f"step {step} loss {float(result.fetch()):.6f}", flush=True)
    coordinator.join()

    print(f"accuracy {accuracy(model, read_data('t10k', args.images)):.4f}")
    if args.save:
        model.save(args.save)


def main() -> None:
    """Be what TF_CONFIG says: chief, server or worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128, help="of each worker")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=60_000, help="train on so many only")
    parser.add_argument("--every", type=int, default=50, help="print the loss every so many steps")
    parser.add_argument("--save", help="where the trained model goes: FILE.keras")
    args = parser.parse_args()

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        train(resolver, args)


if __name__ == "__main__":
    main()
