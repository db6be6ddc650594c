"""JAX with several processes, which find each other by their launcher's variables."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from told import INPUTS, OUTPUTS, RATE, STEPS, rows, tell

jax.distributed.initialize()
rank, world = jax.process_index(), jax.process_count()
mesh = Mesh(np.array(jax.devices()), ("ranks",))
split, whole = NamedSharding(mesh, PartitionSpec("ranks")), NamedSharding(mesh, PartitionSpec())
x, y = (
    jax.make_array_from_process_local_data(split, np.array(each, np.float32))
    for each in rows(rank, world)
)
weight = jax.make_array_from_process_local_data(whole, np.zeros((INPUTS, OUTPUTS), np.float32))


@jax.jit
def step(weight, x, y):
    gradient = jax.grad(lambda weight: jnp.mean((x @ weight - y) ** 2))(weight)
    return weight - RATE * gradient


for _ in range(STEPS):
    weight = step(weight, x, y)
tell(rank, world, np.asarray(weight.addressable_data(0)).T.flatten())
jax.distributed.shutdown()
