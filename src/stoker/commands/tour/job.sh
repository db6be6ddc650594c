#!/bin/bash
#SBATCH --job-name=train
#SBATCH --account=project_2001234
#SBATCH --partition=gpusmall
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:a100:4
#SBATCH --mem=64
#SBATCH --time=40:00:00
module load pytorch
#SBATCH --cpus-per-task=32

export MASTER_ADDR=$(hostname -i)
srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_endpoint=$MASTER_ADDR:29400 train.py
