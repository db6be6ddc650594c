#!/bin/bash

# Written by Stoker 0.2.0 for this machine; plain bash, yours to edit.

# Threads and variables: 1 core a process, the script was not read.
export OMP_NUM_THREADS=1

# Run: torchrun starts one process.
torchrun --nnodes=1 --nproc_per_node=1 --standalone \
    -- train.py --epochs 3
