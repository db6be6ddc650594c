"""Horovod with TensorFlow, and a loop of one's own."""

import horovod.tensorflow as hvd
import tensorflow as tf
from told import INPUTS, OUTPUTS, RATE, STEPS, rows, tell

hvd.init()
x, y = (tf.constant(each, tf.float32) for each in rows(hvd.rank(), hvd.size()))
weight = tf.Variable(tf.fill((INPUTS, OUTPUTS), float(hvd.rank())))
hvd.broadcast_variables([weight], root_rank=0)
for _ in range(STEPS):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weight - y) ** 2)
    weight.assign_sub(RATE * hvd.DistributedGradientTape(tape).gradient(loss, [weight])[0])
tell(hvd.rank(), hvd.size(), tf.reshape(tf.transpose(weight.read_value()), [-1]).numpy())
