#!/bin/bash
#SBATCH --job-name=train
#SBATCH --account=project_2001234
#SBATCH --partition=gpusmall
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:a100_1g.5gb:1
#SBATCH --time=01:00:00

# Written by Stoker 0.2.0 for Mahti; plain bash, yours to edit.

# Forget what a job that this one was submitted from has left in the environment.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_TRES_PER_TASK

# Software: pytorch.
module purge
module load pytorch

# Threads and variables: 4 cores a process, the script was not read.
export OMP_NUM_THREADS=4

# Run: one process a node.
srun --nodes=1 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    python3 train.py --epochs 3
