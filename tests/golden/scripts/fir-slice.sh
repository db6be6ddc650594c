#!/bin/bash
#SBATCH --job-name=train
#SBATCH --account=def-prof
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=35G
#SBATCH --gpus-per-node=nvidia_h100_80gb_hbm3_1g.10gb:1
#SBATCH --time=01:00:00

# Written by Stoker 0.1.0 for Fir; plain bash, yours to edit.

# Software: pytorch.
module load StdEnv/2023 python
virtualenv --no-download "$SLURM_TMPDIR/env"
# shellcheck source=/dev/null
source "$SLURM_TMPDIR/env/bin/activate"
pip install --no-index --upgrade pip
pip install --no-index torch

# Threads and variables: 1 core a process, no loader workers seen.
export OMP_NUM_THREADS=1

# Run: one process a node.
srun --nodes=1 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    python3 train.py --epochs 3
