"""MultiWorkerMirroredStrategy with a loop of one's own."""

import tensorflow as tf
from told import INPUTS, OUTPUTS, RATE, STEPS, rows, tell

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank, world = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
x, y = (tf.constant(each, tf.float32) for each in rows(rank, world))
with strategy.scope():
    weight = tf.Variable(tf.zeros((INPUTS, OUTPUTS)))


@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weight - y) ** 2)
    mean = tf.distribute.get_replica_context().all_reduce("MEAN", tape.gradient(loss, weight))
    weight.assign_sub(RATE * mean)


for _ in range(STEPS):
    strategy.run(step)
tell(rank, world, tf.reshape(tf.transpose(weight.read_value()), [-1]).numpy())
