#!/bin/bash
#SBATCH --job-name=train
#SBATCH --account=project_2001234
#SBATCH --partition=gpumedium
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=128
#SBATCH --gres=gpu:a100:4
#SBATCH --time=01:00:00

# Written by Stoker 0.2.0 for Mahti; plain bash, yours to edit.

# Stop at once if Slurm gave another shape than the numbers below were made for.
if [[ ${SLURM_NNODES:-2} != 2 || ${SLURM_GPUS_ON_NODE:-4} != 4 ]]; then
    echo "this script is for 2 nodes with 4 GPUs, not $SLURM_NNODES with $SLURM_GPUS_ON_NODE" >&2
    exit 1
fi

# Forget what a job that this one was submitted from has left in the environment.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_TRES_PER_TASK

# Software: pytorch.
module purge
module load pytorch

# Threads and variables: 32 cores a process, the script was not read.
export OMP_NUM_THREADS=32

# Rendezvous: the first node of the job, and a port on it that no other job is using.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
while (: < "/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2> /dev/null; do
    MASTER_PORT=$((MASTER_PORT + 1))
done
export MASTER_ADDR MASTER_PORT

# Run: one torchrun a node, which meet at the first node.
srun --nodes=2 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
    --wait=600 \
    torchrun --nnodes=2 --nproc_per_node=4 --rdzv_id="$SLURM_JOB_ID" --rdzv_backend=c10d \
    --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT" \
    -- train.py --epochs 3
