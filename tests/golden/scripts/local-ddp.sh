#!/bin/bash

# Written by Stoker 0.1.0 for this machine; plain bash, yours to edit.

# Threads and variables: 1 cores a process, no loader workers seen.
export OMP_NUM_THREADS=1

# Run: torchrun starts a process for each GPU of the node.
torchrun --nnodes=1 --nproc_per_node=1 --standalone \
    train.py --epochs 3
