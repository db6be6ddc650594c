"""ParameterServerStrategy: the chief gives each worker its rows and puts the gradients together."""

import tensorflow as tf
from told import INPUTS, OUTPUTS, RATE, STEPS, rows, tell

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    ).join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
world = resolver.cluster_spec().num_tasks("worker")
with strategy.scope():
    weight = tf.Variable(tf.zeros((INPUTS, OUTPUTS)))
assert "/job:ps" in weight.device
shares = [[tf.constant(each, tf.float32) for each in rows(rank, world)] for rank in range(world)]


@tf.function
def gradient(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weight - y) ** 2)
    return tape.gradient(loss, weight)


for _ in range(STEPS):
    parts = [coordinator.schedule(gradient, args=share) for share in shares]
    coordinator.join()
    weight.assign_sub(RATE * tf.add_n([part.fetch() for part in parts]) / world)
tell(0, world, tf.reshape(tf.transpose(weight.read_value()), [-1]).numpy())
