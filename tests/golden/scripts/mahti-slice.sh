#!/bin/bash
#SBATCH --job-name=train
#SBATCH --account=project_2001234
#SBATCH --partition=gpusmall
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:a100_1g.5gb:1
#SBATCH --time=01:00:00

# Written by Stoker 0.1.0 for Mahti; plain bash, yours to edit.

# Software: pytorch.
module purge
module load pytorch

# Threads and variables: 4 cores a process, no loader workers seen.
export OMP_NUM_THREADS=4

# Run: one process a node.
srun --nodes=1 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    python3 train.py --epochs 3
