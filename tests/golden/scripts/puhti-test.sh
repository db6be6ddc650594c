#!/bin/bash
#SBATCH --job-name=train
#SBATCH --account=project_2001234
#SBATCH --partition=gputest
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=40
#SBATCH --mem=320G
#SBATCH --gres=gpu:v100:4
#SBATCH --time=00:15:00

# Written by Stoker 0.2.0 for Puhti; plain bash, yours to edit.

# Stop at once if Slurm gave another shape than the numbers below were made for.
if [[ ${SLURM_NNODES:-1} != 1 || ${SLURM_GPUS_ON_NODE:-4} != 4 ]]; then
    echo "this script is for 1 node with 4 GPUs, not $SLURM_NNODES with $SLURM_GPUS_ON_NODE" >&2
    exit 1
fi

# Forget what a job that this one was submitted from has left in the environment.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_TRES_PER_TASK

# Software: pytorch.
module purge
module load pytorch

# Threads and variables: 10 cores a process, the script was not read.
export OMP_NUM_THREADS=10

# Run: torchrun starts a process for each GPU of the node.
srun --nodes=1 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    torchrun --nnodes=1 --nproc_per_node=4 --standalone \
    -- train.py --epochs 3
