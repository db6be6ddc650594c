"""What these trainings share: the rows, and the line with which each rank says how it ended.

All fit the same weights by five steps down the gradient over all rows, so whatever the framework
and the number of ranks, they end alike. Standard library only.
"""

import json
import math
import os

STEPS, RATE = 5, 0.3
INPUTS, OUTPUTS, ROWS = 4, 2, 32


def rows(rank=0, world=1):
    """Return the inputs and targets of one rank, as lists."""
    truth = [[1.0, -2.0, 0.5, 3.0], [-1.0, 0.0, 2.0, 1.0]]
    inputs = [[math.sin(7 * row + 3 * column) for column in range(INPUTS)] for row in range(ROWS)]
    targets = [[sum(map(math.prod, zip(row, each))) for each in truth] for row in inputs]
    return inputs[rank::world], targets[rank::world]


def tell(rank, world, weights):
    """Say how a rank ended, in one write: the lines of two ranks never mix."""
    values = [float(each) for each in weights]
    line = f"rank {rank} of {world} on {os.uname().nodename}: {json.dumps(values)}\n"
    os.write(1, line.encode())
