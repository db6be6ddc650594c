"""mpi4py: the gradients are summed by hand."""

import numpy as np
from mpi4py import MPI
from told import INPUTS, OUTPUTS, RATE, STEPS, rows, tell

world = MPI.COMM_WORLD
x, y = map(np.array, rows(world.rank, world.size))
weight = np.zeros((OUTPUTS, INPUTS))
for _ in range(STEPS):
    mean = world.allreduce(2 * (x @ weight.T - y).T @ x / y.size) / world.size
    weight -= RATE * mean
tell(world.rank, world.size, weight.flatten())
