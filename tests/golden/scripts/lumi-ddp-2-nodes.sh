#!/bin/bash
#SBATCH --job-name=train
#SBATCH --account=project_462000123
#SBATCH --partition=standard-g
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=56
#SBATCH --mem=480G
#SBATCH --gpus-per-node=8
#SBATCH --time=01:00:00

# Written by Stoker 0.2.0 for LUMI-G; plain bash, yours to edit.

# Stop at once if Slurm gave another shape than the numbers below were made for.
if [[ ${SLURM_NNODES:-2} != 2 || ${SLURM_GPUS_ON_NODE:-8} != 8 ]]; then
    echo "this script is for 2 nodes with 8 GPUs, not $SLURM_NNODES with $SLURM_GPUS_ON_NODE" >&2
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
    singularity run "$SIF" torchrun --nnodes=2 --nproc_per_node=8 --rdzv_id="$SLURM_JOB_ID" \
    --rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT" --numa-binding=exclusive \
    -- train.py --epochs 3
