#!/bin/bash
#SBATCH --job-name=train
#SBATCH --account=def-prof
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=35G
#SBATCH --gpus-per-node=nvidia_h100_80gb_hbm3_1g.10gb:1
#SBATCH --time=01:00:00

# Written by Stoker 0.2.0 for Fir; plain bash, yours to edit.

# Forget what a job that this one was submitted from has left in the environment.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_TRES_PER_TASK

# Software: pytorch.
module load StdEnv/2023 python
virtualenv --no-download "$SLURM_TMPDIR/env"
# shellcheck source=/dev/null
source "$SLURM_TMPDIR/env/bin/activate"
pip install --no-index --upgrade pip
pip install --no-index torch

# Threads and variables: 1 core a process, the script was not read.
export OMP_NUM_THREADS=1

# Run: one process a node.
srun --nodes=1 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    python3 train.py --epochs 3
