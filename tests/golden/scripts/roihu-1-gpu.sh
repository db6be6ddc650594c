#!/bin/bash
#SBATCH --job-name=train
#SBATCH --account=project_2001234
#SBATCH --partition=gpumedium
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=72
#SBATCH --gres=gpu:gh200:1
#SBATCH --time=01:00:00

# Written by Stoker 0.2.0 for Roihu; plain bash, yours to edit.

# Forget what a job that this one was submitted from has left in the environment.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_TRES_PER_TASK

# Software: pytorch.
module purge
module load python-pytorch

# Threads and variables: 72 cores a process, the script was not read.
export OMP_NUM_THREADS=72

# Run: torchrun starts a process for each GPU of the node.
srun --nodes=1 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    torchrun --nnodes=1 --nproc_per_node=1 --standalone \
    -- train.py --epochs 3
