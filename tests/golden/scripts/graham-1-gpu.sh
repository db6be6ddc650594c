#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=62G
#SBATCH --gpus-per-node=p100:1
#SBATCH --time=01:00:00

# Written by Stoker 0.2.0 for Graham; plain bash, yours to edit.

# Forget what a job that this one was submitted from has left in the environment.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_TRES_PER_TASK

# Software: pytorch.
module load StdEnv/2023 python
virtualenv --no-download "$SLURM_TMPDIR/env"
# shellcheck source=/dev/null
source "$SLURM_TMPDIR/env/bin/activate"
pip install --no-index --upgrade pip
pip install --no-index torch

# Threads and variables: 16 cores a process, the script was not read.
export OMP_NUM_THREADS=16

# Run: torchrun starts a process for each GPU of the node.
srun --nodes=1 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    torchrun --nnodes=1 --nproc_per_node=1 --standalone \
    -- train.py --epochs 3
