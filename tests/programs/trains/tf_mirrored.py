"""MirroredStrategy or CentralStorageStrategy: one process, two devices."""

import sys

import tensorflow as tf
from told import INPUTS, OUTPUTS, RATE, STEPS, rows, tell

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
devices = ["/cpu:0", "/cpu:1"]
if sys.argv[1:] == ["central"]:
    strategy = tf.distribute.experimental.CentralStorageStrategy(devices, "/cpu:0")
else:
    strategy = tf.distribute.MirroredStrategy(devices)
world = strategy.num_replicas_in_sync
shares = [[tf.constant(each, tf.float32) for each in rows(rank, world)] for rank in range(world)]
with strategy.scope():
    weight = tf.Variable(tf.zeros((INPUTS, OUTPUTS)))


@tf.function
def gradient(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weight - y) ** 2)
    return tape.gradient(loss, weight)


def share(column):
    return strategy.experimental_distribute_values_from_function(
        lambda context: shares[context.replica_id_in_sync_group][column]
    )


for _ in range(STEPS):
    parts = strategy.run(gradient, args=(share(0), share(1)))
    weight.assign_sub(RATE * strategy.reduce("MEAN", parts, axis=None))
tell(0, world, tf.reshape(tf.transpose(weight.read_value()), [-1]).numpy())
