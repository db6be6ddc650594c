#!/bin/bash
#SBATCH --job-name=train
#SBATCH --account=project_462000123
#SBATCH --partition=standard-g
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=56
#SBATCH --mem=480G
#SBATCH --gpus-per-node=8
#SBATCH --time=01:00:00

# Written by Stoker 0.2.0 for LUMI-G; plain bash, yours to edit.

# Stop at once if Slurm gave another shape than the numbers below were made for.
if [[ ${SLURM_NNODES:-1} != 1 || ${SLURM_GPUS_ON_NODE:-8} != 8 ]]; then
    echo "this script is for 1 node with 8 GPUs, not $SLURM_NNODES with $SLURM_GPUS_ON_NODE" >&2
    exit 1
fi

# Forget what a job that this one was submitted from has left in the environment.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_TRES_PER_TASK

# Software: pytorch.
module purge
module use /appl/local/laifs/modules
module load lumi-aif-singularity-bindings
export SIF=/appl/local/laifs/containers/lumi-multitorch-latest.sif

# Threads and variables: 7 cores a process, the script was not read.
export OMP_NUM_THREADS=7
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
export NCCL_NET_GDR_LEVEL=3

# Run: torchrun starts a process for each GPU of the node.
srun --nodes=1 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    singularity run "$SIF" torchrun --nnodes=1 --nproc_per_node=8 --standalone \
    --numa-binding=exclusive \
    -- train.py --epochs 3
