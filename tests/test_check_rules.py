"""Every rule fires on the mistake it is about, and stays silent without the evidence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from stoker.check.findings import Finding
from stoker.check.lint import Settings, check_script, fix_script
from stoker.check.rules import RULES
from stoker.cluster.load import load_cluster


@dataclass(frozen=True)
class Case:
    """A script with the mistake, the same without it, and what must be known to see it."""

    code: str
    bad: str
    good: str
    cluster: str | None = None
    version: tuple[int, int] | None = None
    fixed: bool = False
    line: int | None = None


def job(header: str = "", body: str = "srun python3 train.py\n") -> str:
    lines = "".join(f"#SBATCH {each.strip()}\n" for each in header.split(";") if each.strip())
    return f"#!/bin/bash\n{lines}#SBATCH --time=01:00:00\n\n{body}"


PUHTI = "--account=project_2001234; --partition=gpu; --mem=64G; --nodes=1"
TWO = "--nodes=2; --ntasks-per-node=1; --gres=gpu:4"
FIR = "--account=def-prof; --mem=280G; --nodes=1"
LUMI = "--account=project_462000123; --mem=60G; --nodes=1"

CASES = [
    Case("ST101", job().replace("\n", "\r\n"), job(), fixed=True),
    Case("ST102", "#SBATCH --time=1:00\nsrun x\n", job(), fixed=True),
    Case("ST102", "\ufeff" + job(), job(), fixed=True),
    Case("ST103", job(body="cd x\n#SBATCH --mem=3G\nsrun y\n"), job("--mem=3G", "cd x\nsrun y\n"), fixed=True, line=5),
    Case("ST104", job("--ntaks=4"), job("--ntasks=4"), fixed=True, line=2),
    Case("ST104", job("nodes=2"), job("--nodes=2"), fixed=True),
    Case("ST104", job("--workdir=/x"), job("--chdir=/x"), fixed=True),
    Case("ST104", job("--flurb=4"), job("--container-image=x")),
    Case("ST105", job().replace("#SBATCH", "#SBATCH --mem=1G\n# SBATCH"), job("--mem=1G")),
    Case("ST105", job("--mem=1G").replace("#SBATCH --time", "#sbatch --time"), job("--mem=1G"), fixed=True),
    Case("ST106", job("--output=$HOME/%j.out"), job("--output=%j.out")),
    Case("ST106", job("--chdir=~/x"), job("--chdir=/x/~")),
    Case("ST107", job("--mem=1G; --mem=2G"), job("--mail-type=BEGIN; --mail-type=END")),
    Case("ST108", job("--nodes = 2"), job("--nodes=2"), fixed=True),
    Case("ST108", job("--mem="), job("--mem=1G")),
    Case("ST109", job().replace("01:00:00", "1h"), job(), fixed=True),
    Case("ST110", job("--mem=lots"), job("--mem=64GB")),
    Case("ST111", job("--mem=64"), job("--mem=64000"), fixed=True),
    Case("ST112", job("\u2013\u2013nodes=2"), job("--comment=a\u2013b"), fixed=True),
    Case("ST113", job() + "#" * 5_000_000, job() + "#" * 1_000_000),
    Case("ST114", job("--output=no/such/%j.out"), job("--output=%j.out")),
    Case("ST115", job("--array=1-9; --output=run.log"), job("--array=1-9; --output=run_%a.log"), fixed=True),
    Case("ST115", job("--array=1-9; --output=run_%A.log"), job("--output=run.log"), fixed=True),
    Case("ST201", job("--mem=1G; --mem-per-cpu=1G"), job("--mem=1G")),
    Case("ST202", job("--cpus-per-gpu=4; --cpus-per-task=4"), job("--cpus-per-task=4")),
    Case("ST203", job("--ntasks-per-gpu=1; --ntasks-per-node=4"), job("--ntasks-per-gpu=1")),
    Case("ST204", job("--nodes=2; --ntasks=4; --ntasks-per-node=4"), job("--nodes=2; --ntasks=8; --ntasks-per-node=4")),
    Case("ST205", job(TWO, "srun torchrun --nproc_per_node=$SLURM_GPUS_PER_NODE a.py\n"),
         job(TWO, "srun torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE a.py\n"), fixed=True),
    Case("ST205", job(body="export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nsrun x\n"),
         job(body="export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}\nsrun x\n")),
    Case("ST206", job("--cpus-per-task=4", "python train.py --num_workers 16\n"),
         job("--cpus-per-task=16", "python train.py --num_workers 16\n")),
    Case("ST206", job("--cpus-per-task=8; --gres=gpu:4", "torchrun --standalone --nproc_per_node=4 a.py --num-workers=4\n"),
         job("--cpus-per-task=16; --gres=gpu:4", "torchrun --standalone --nproc_per_node=4 a.py --num-workers=4\n")),
    Case("ST301", job("--gres=gpu:2; --gpus-per-node=2"), job("--gres=gpu:2")),
    Case("ST302", job("--ntasks-per-node=4; --gpus-per-task=1", "export MASTER_ADDR=x\nsrun python t.py\n"),
         job("--ntasks-per-node=4; --gpus-per-task=1; --gres-flags=allow-task-sharing", "export MASTER_ADDR=x\nsrun python t.py\n")),
    Case("ST303", job("--gres=gpu:2", "export CUDA_VISIBLE_DEVICES=3\npython t.py\n"),
         job("--gres=gpu:2", "export CUDA_VISIBLE_DEVICES=0,1\npython t.py\n")),
    Case("ST304", job("--gres=gpu:8", "srun torchrun --standalone --nproc_per_node=4 t.py\n"),
         job("--gres=gpu:8", "srun torchrun --standalone --nproc_per_node=8 t.py\n")),
    Case("ST304", job("--gres=gpu:2", "GPUS=4\nsrun torchrun --standalone --nproc_per_node=$GPUS t.py\n"),
         job("--gres=gpu:2", "srun torchrun --standalone --nproc_per_node=$SLURM_GPUS_ON_NODE t.py\n")),
    Case("ST305", job(TWO, "srun --ntasks=1 python t.py\n"), job(TWO, "srun python t.py\n")),
    Case("ST401", job("--ntasks-per-node=4; --gres=gpu:4", "srun torchrun --nproc_per_node=4 t.py\n"),
         job("--ntasks-per-node=1; --gres=gpu:4", "srun torchrun --standalone --nproc_per_node=4 t.py\n")),
    Case("ST402", job(TWO, "torchrun --nnodes=2 --nproc_per_node=4 t.py\n"), job(TWO, "srun torchrun --nnodes=2 --nproc_per_node=4 t.py\n")),
    Case("ST402", job(TWO, "python t.py\n"), job("--nodes=1", "python t.py\n")),
    Case("ST402", job(TWO, "torchrun --nnodes=2 --nproc_per_node=4 -- ./train --log x\n"), job(TWO, "srun torchrun --nnodes=2 --nproc_per_node=4 -- ./train --log x\n")),
    Case("ST403", job(TWO, "srun torchrun --nnodes=4 --nproc_per_node=4 t.py\n"), job(TWO, "srun torchrun --nnodes=2 --nproc_per_node=4 t.py\n")),
    Case("ST404", job("--cpus-per-task=10", "srun python t.py\n"),
         job("--cpus-per-task=10", 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python t.py\n'), version=(23, 2), fixed=True),
    Case("ST405", job(TWO, "srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID --nproc_per_node=4 t.py\n"),
         job(TWO, "srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID --nproc_per_node=4 t.py'\n")),
    Case("ST405", job(TWO, 'srun bash -c "accelerate launch --machine_rank $SLURM_NODEID t.py"\n'),
         job(TWO, 'srun bash -c "accelerate launch --machine_rank \\$SLURM_NODEID t.py"\n')),
    Case("ST406", job(TWO, "srun bash -c 'torchrun --rdzv_id=\\$SLURM_JOB_ID --nproc_per_node=4 t.py'\n"),
         job(TWO, "srun bash -c 'torchrun --rdzv_id=$SLURM_JOB_ID --nproc_per_node=4 t.py'\n"), fixed=True),
    Case("ST407", job(TWO, "srun deepspeed t.py\n"), job(TWO, "deepspeed --hostfile h t.py\n")),
    Case("ST408", job(body="python -m torch.distributed.launch --nproc_per_node=1 t.py\n"), job(body="torchrun --standalone --nproc_per_node=1 t.py\n")),
    Case("ST409", job(body="accelerate launch --cpu --num_processes 2 t.py\n"), job(body="accelerate launch --cpu --num_processes 2 --mpirun_hostfile h t.py\n")),
    Case("ST501", job("--gres=gpu:1", "export MASTER_PORT=29500\nsrun python t.py\n"),
         job("--gres=gpu:1", "export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))\nsrun python t.py\n")),
    Case("ST501", job("--gres=gpu:1", "srun torchrun --rdzv_endpoint=$H:29400 --nproc_per_node=1 t.py\n"),
         job("--gres=gpu:4; --exclusive", "srun torchrun --rdzv_endpoint=$H:29400 --nproc_per_node=4 t.py\n")),
    Case("ST502", job(TWO, "export MASTER_ADDR=$(hostname -i)\nsrun python t.py\n"),
         job(TWO, 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\nsrun python t.py\n'), fixed=True),
    Case("ST503", job(TWO, "export MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR\nsrun python t.py\n"), job("--nodes=1", "export MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR\nsrun python t.py\n")),
    Case("ST504", job(TWO, "export MASTER_ADDR=localhost\nsrun python t.py\n"), job("--nodes=1", "export MASTER_ADDR=localhost\nsrun python t.py\n")),
    Case("ST505", job(body="export GLOO_SOCKET_IFNAME=hsn0,hsn1\nsrun x\n"), job(body="export GLOO_SOCKET_IFNAME=hsn0\nsrun x\n")),
    Case("ST506", job(body="export NCCL_P2P_DISABLE=1\nsrun x\n"), job(body="export NCCL_P2P_DISABLE=0\nsrun x\n")),
    Case("ST601", job("--signal=B:USR1@120"), job("--signal=USR1@120")),
    Case("ST601", job("--signal=B:USR1@120", "trap 'echo x' USR1\nsrun python t.py\n"),
         job("--signal=B:USR1@120", "trap 'echo x' SIGUSR1\nsrun python t.py &\nwait\n")),
    Case("ST602", job("--requeue"), job("--requeue; --open-mode=append"), fixed=True),
    Case("ST603", job("--array=1-9", "scontrol requeue $SLURM_JOB_ID\n"), job("--array=1-9", "scontrol requeue ${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}\n"), fixed=True),
    Case("ST604", job("--open-mode=append", "scontrol requeue $SLURM_JOB_ID\n"),
         job("--open-mode=append", "((SLURM_RESTART_COUNT < 5)) && scontrol requeue $SLURM_JOB_ID\n")),
    Case("ST701", job(body="export HF_TOKEN=hf_" + "a1B2" * 9 + "\nsrun x\n"), job(body="export HF_TOKEN=<your token>\nsrun x\n")),
    Case("ST702", job("--gres=gpu:1", "srun python t.py --data-dir ~/imagenet\n"), job("--gres=gpu:1", "srun python t.py --data-dir /scratch/imagenet\n")),
    Case("ST703", job("--cpus-per-task=40", "srun torchrun --standalone --nproc_per_node=4 t.py\n"),
         job("--cpus-per-task=40", "export OMP_NUM_THREADS=10\nsrun torchrun --standalone --nproc_per_node=4 t.py\n")),
    Case("ST704", job("--export=PATH"), job("--export=ALL,A=1")),
    Case("ST704", job("--export=NONE"), job("--export=NONE", "export SLURM_EXPORT_ENV=ALL\nsrun x\n")),
    Case("ST704", job(body="srun --export=A=1 python t.py\n"), job(body="srun --export=ALL,A=1 python t.py\n")),
    Case("ST705", job(body="source c.sh\nset -euo pipefail\nconda activate x\n"), job(body="source c.sh\nset -eo pipefail\nconda activate x\n")),
    Case("ST706", job(body="conda activate x\npython t.py\n"), job(body="module load conda\nconda activate x\npython t.py\n"), fixed=True),
    Case("ST707", job("--gres=gpu:1", "export CUDA_LAUNCH_BLOCKING=1\nsrun python t.py\n"), job("--gres=gpu:1", "export CUDA_LAUNCH_BLOCKING=0\nsrun python t.py\n")),
    Case("ST801", job(PUHTI.replace("=gpu;", "=gpuu;") + ";--gres=gpu:v100:1"), job(PUHTI + ";--gres=gpu:v100:1"), "puhti"),
    Case("ST802", job(PUHTI + ";--gres=gpu:v100:1").replace("01:00:00", "4-00:00:00"), job(PUHTI + ";--gres=gpu:v100:1"), "puhti", fixed=True),
    Case("ST802", job(FIR + ";--gpus-per-node=h100:1").replace("01:00:00", "9-00:00:00"), job(FIR + ";--gpus-per-node=h100:1"), "fir"),
    Case("ST803", job("--account=project_2001234; --partition=gpusmall; --nodes=2; --gres=gpu:a100:1"),
         job("--account=project_2001234; --partition=gpumedium; --nodes=2; --gres=gpu:a100:4"), "mahti"),
    Case("ST804", job("--account=project_2001234; --partition=gpusmall; --nodes=1; --gres=gpu:a100:4"),
         job("--account=project_2001234; --partition=gpusmall; --nodes=1; --gres=gpu:a100:2"), "mahti"),
    Case("ST804", job(PUHTI.replace("=gpu;", "=small;") + ";--gres=gpu:v100:1"), job(PUHTI + ";--gres=gpu:v100:1"), "puhti"),
    Case("ST805", job(PUHTI + ";--gres=gpu:v100:8"), job(PUHTI + ";--gres=gpu:v100:4"), "puhti"),
    Case("ST805", job(LUMI + ";--partition=small-g; --gpus-per-node=8; --cpus-per-task=64"), job(LUMI + ";--partition=small-g; --gpus-per-node=8; --cpus-per-task=56"), "lumi"),
    Case("ST805", job(PUHTI.replace("64G", "400G") + ";--gres=gpu:v100:4"), job(PUHTI.replace("64G", "373G") + ";--gres=gpu:v100:4"), "puhti"),
    Case("ST806", job(PUHTI + ";--gres=gpu:v100:1; --cpus-per-task=30"), job(PUHTI + ";--gres=gpu:v100:1; --cpus-per-task=10"), "puhti"),
    Case("ST806", job(PUHTI.replace("64G", "300G") + ";--gres=gpu:v100:1"), job(PUHTI + ";--gres=gpu:v100:1"), "puhti"),
    Case("ST807", job(PUHTI.replace("64G", "0") + ";--gres=gpu:v100:1"), job(PUHTI.replace("64G", "0") + ";--gres=gpu:v100:4"), "puhti"),
    Case("ST808", job(PUHTI.replace("nodes=1", "nodes=4") + ";--gres=gpu:v100:1"), job(PUHTI + ";--gres=gpu:v100:4"), "puhti"),
    Case("ST809", job(PUHTI + ";--gres=gpu:a100:1"), job(PUHTI + ";--gres=gpu:v100:1"), "puhti"),
    Case("ST809", job(FIR + ";--gpus-per-node=1"), job(FIR + ";--gpus-per-node=h100:1"), "fir"),
    Case("ST810", job("--partition=gpu; --mem=8G; --gres=gpu:1"), job("--partition=gpu; --mem=8G; --gres=gpu:v100:1"), "carc_discovery"),
    Case("ST811", job(PUHTI), job(PUHTI + ";--gres=gpu:v100:1"), "puhti"),
    Case("ST812", job(FIR + ";--partition=x; --gpus-per-node=h100:1"), job(FIR + ";--gpus-per-node=h100:1"), "fir", fixed=True),
    Case("ST812", job("--partition=desktop; --mem=40G; --gres=gpu:1"), job("--partition=desktop; --mem=40G"), "cvl_uwa"),
    Case("ST813", job("--partition=gpu; --mem=1G; --gres=gpu:v100:1"), job(PUHTI + ";--gres=gpu:v100:1"), "puhti"),
    Case("ST813", job("--account=m1; --qos=regular; --gpus-per-node=4"), job("--account=m1; --qos=regular; --constraint=gpu; --gpus-per-node=4"), "perlmutter"),
    Case("ST814", "#!/bin/bash\n#SBATCH --nodes=1\nsrun x\n", job()),
    Case("ST816", job(PUHTI + ";--gres=gpu:v100:1", "tar xf d.tar -C $LOCAL_SCRATCH\nsrun python t.py\n"),
         job(PUHTI + ";--gres=gpu:v100:1,nvme:100", "tar xf d.tar -C $LOCAL_SCRATCH\nsrun python t.py\n"), "puhti"),
    Case("ST816", job(LUMI + ";--partition=small-g; --gres=gpu:1,nvme:100"), job(LUMI + ";--partition=small-g; --gres=gpu:1"), "lumi"),
    Case("ST816", job(PUHTI + ";--gres=gpu:v100:1,nvme:9000"), job(PUHTI + ";--gres=gpu:v100:1,nvme:900"), "puhti"),
    Case("ST817", job(PUHTI + ";--gres=gpu:v100:1", "mpirun python t.py\n"), job(PUHTI + ";--gres=gpu:v100:1"), "puhti"),
    Case("ST818", job(PUHTI + ";--gres=gpu:v100:1", "module load pytorch\nsrun singularity_wrapper exec deepspeed t.py\n"),
         job(PUHTI + ";--gres=gpu:v100:1", "module load pytorch/1.13\nsrun singularity_wrapper exec deepspeed t.py\n"), "puhti", fixed=True),
    Case("ST819", job("--account=project_462000123; --nodes=1; --partition=small-g; --gpus-per-node=8; --exclusive"),
         job("--account=project_462000123; --nodes=1; --partition=small-g; --gpus-per-node=8; --exclusive; --mem=480G"), "lumi"),
    Case("ST820", job("--nodes=1; --gpus-per-node=2"), job("--nodes=1; --gpus-per-node=4"), "trillium"),
    Case("ST821", job("--account=project_2001234; --partition=gpumedium; --nodes=1; --gres=gpu:gh200:1").replace("01:00:00", "00:10:00"),
         job("--account=project_2001234; --partition=gputest; --nodes=1; --gres=gpu:gh200:1").replace("01:00:00", "00:10:00"), "roihu"),
    Case("ST822", job(FIR + ";--gpus-per-node=h100:1").replace("01:00:00", "00:10:00"), job(FIR + ";--gpus-per-node=h100:1"), "fir"),
    Case("ST102", "", job()),
    Case("ST102", job() + "\0", job()),
    Case("ST104", job("--tiem=1"), job("--image=x"), fixed=True),
    Case("ST104", job("--queue=gpu"), job("--partition=gpu"), fixed=True),
    Case("ST104", job("-nodes=2"), job("-N 2"), fixed=True),
    Case("ST104", job("--mem=64 GB"), job("--account=<your project>")),
    Case("ST104", job("--nodes=2 4"), job("--nodes = 2")),
    Case("ST105", job("--mem=1G").replace("#SBATCH --time", "#SBTACH --time"), job("--mem=1G"), fixed=True),
    Case("ST108", job("-c=2"), job("-c 2"), fixed=True),
    Case("ST108", job("--nodes"), job("--account=")),
    Case("ST109", job().replace("01:00:00", "24:00  # 24 hours"), job().replace("01:00:00", "24:00")),
    Case("ST109", job().replace("01:00:00", "2:00"), job().replace("01:00:00", "2:00  # two minutes")),
    Case("ST109", job().replace("01:00:00", "soon"), job().replace("01:00:00", "HH:MM:SS")),
    Case("ST110", job("--mem=1.5G"), job("--mem=1536M"), fixed=True),
    Case("ST112", job("\u2013\u2013nodes=2"), job("--mem=1G # \u2013mem is better"), fixed=True),
    Case("ST116", job("--nodes=two"), job("--nodes=2-4")),
    Case("ST116", job("--nodes=4-2"), job("--nodes=2")),
    Case("ST116", job("--ntasks=0"), job("--ntasks=1")),
    Case("ST116", job("--hint=exclusive"), job("--hint=nomultithread")),
    Case("ST103", job(body="cd x\n#SBATCH --mem=3G\n"), job(body="sbatch << EOF\n#!/bin/bash\n#SBATCH --mem=3G\nEOF\n"), fixed=True),
    Case("ST205", job("--nodes=1", "echo hi\nN=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))\n"), job("--nodes=1", 'echo "$SLURM_NTASKS_PER_NODE tasks"\n')),
    Case("ST301", job("--gres=gpu:2; --gpus-per-node=4"), job("--gres=gpu:2; --gpus=2")),
    Case("ST302", job("--ntasks-per-node=4; --gpus-per-task=a100:1", "export MASTER_ADDR=x\nsrun python t.py\n"),
         job("--ntasks-per-node=1; --gpus-per-task=a100:4", "export MASTER_ADDR=x\nsrun python t.py\n")),
    Case("ST303", job("--gres=gpu:2", "export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\nsrun python t.py\n"),
         job("--gres=gpu:2; --exclusive", "export CUDA_VISIBLE_DEVICES=3\npython t.py\n")),
    Case("ST304", job(TWO, "srun accelerate launch --num_processes 4 t.py\n"), job(TWO, "srun accelerate launch --num_processes 8 t.py\n")),
    Case("ST402", job(TWO, 'echo "no srun needed"\ntorchrun --nproc_per_node=4 t.py\n'), job(TWO, "ddlrun python t.py\n")),
    Case("ST403", job(TWO, "srun torchrun --standalone --nproc_per_node=4 t.py\n"), job("--nodes=1; --gres=gpu:4", "srun torchrun --standalone --nproc_per_node=4 t.py\n")),
    Case("ST404", job("--cpus-per-task=10", "LOG=srun.log; srun --cpu-bind=cores python t.py\n"),
         job("--cpus-per-task=10", "srun --cpu-bind=mask_cpu:0xfe python t.py\n"), version=(22, 5), fixed=True),
    Case("ST405", job(TWO, "export NODE_RANK=$SLURM_NODEID\nsrun torchrun --node_rank $NODE_RANK --nproc_per_node=4 t.py\n"),
         job(TWO, "echo $SLURM_NODEID\nsrun python t.py\n")),
    Case("ST407", job(TWO, "srun deepspeed t.py\n"), job(TWO, "case $1 in\n  deepspeed) srun python t.py ;;\nesac\n")),
    Case("ST410", job("--nodes=1; --ntasks-per-node=4; --gres=gpu:4", "python t.py\n"), job("--nodes=1; --ntasks=6; --gres=gpu:1", "python t.py\n")),
    Case("ST501", job("--gres=gpu:2", "torchrun --nproc_per_node=2 t.py\n"), job("--gres=gpu:2", "torchrun --standalone --nproc_per_node=2 t.py\n")),
    Case("ST502", job(TWO, "srun torchrun --rdzv_endpoint=$(hostname -i):29400 --nproc_per_node=4 t.py\n"), job(TWO, "srun python t.py\n")),
    Case("ST502", job(TWO, "export MASTER_ADDR=$(hostname -I) && echo hi\nsrun python t.py\n"), job(TWO, "srun python t.py\n"), fixed=True),
    Case("ST504", job(TWO, "srun bash -c 'export MASTER_ADDR=$(hostname); python t.py'\n"), job(TWO, "export MASTER_ADDR=$(hostname)\nsrun python t.py\n")),
    Case("ST605", job(body="srun python t.py &\n"), job(body="srun python t.py &\nwait\n"), fixed=True),
    Case("ST701", job(body="wandb login " + "0a1b2" * 8 + "\n"), job(body="wandb login\n")),
    Case("ST206", job("--cpus-per-task=4", "python train.py data.num_workers=16\n"), job("--cpus-per-task=4", "python train.py data.num_workers=4\n")),
    Case("ST812", job(FIR + "; --constraint=a --partition=x; --gpus-per-node=h100:1"), job(FIR + ";--gpus-per-node=h100:1"), "fir", fixed=True),
    Case("ST802", job(PUHTI + ";--job-name=run5-00 -t 5-00; --gres=gpu:v100:1").replace("#SBATCH --time=01:00:00\n", ""), job(PUHTI + ";--gres=gpu:v100:1"), "puhti", fixed=True),
    Case("ST501", job(TWO, "export MASTER_PORT=29500\nsrun python t.py\n"), job(TWO + "; --exclusive", "export MASTER_PORT=29500\nsrun python t.py\n")),
    Case("ST504", job(TWO, "srun torchrun --nnodes=2 --nproc_per_node=4 t.py\n"),
         job(TWO, "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$H:$P t.py\n")),
    Case("ST704", job(body="srun --export=ALL,NCCL_SOCKET_IFNAME=hsn0,hsn1 python t.py\n"), job(body="srun --export=ALL,A=1,B=2,HOME python t.py\n")),
    Case("ST813", job("--account=m1; --qos=regular; --constraint=cpu; --gpus-per-node=4"), job("--account=m1; --qos=regular; --constraint=gpu&hbm80g; --gpus-per-node=4"), "perlmutter"),
]  # fmt: skip
IDS = [f"{case.code}-{index}" for index, case in enumerate(CASES)]


def findings(text: str, case: Case, folder: Path) -> list[Finding]:
    return [
        each for each in check_script(text, how(case, folder)).findings if each.code == case.code
    ]


def how(case: Case, folder: Path) -> Settings:
    cluster = load_cluster(case.cluster) if case.cluster else None
    return Settings(cluster=cluster, slurm_version=case.version, folder=folder)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_rule_sees_the_mistake(case: Case, tmp_path: Path) -> None:
    found = findings(case.bad, case, tmp_path)
    assert found
    assert all(each.what and each.why and each.fix for each in found)
    assert case.line is None or found[0].line == case.line


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_rule_is_silent_without_the_mistake(case: Case, tmp_path: Path) -> None:
    assert findings(case.good, case, tmp_path) == []


@pytest.mark.parametrize("case", [case for case in CASES if case.fixed], ids=lambda case: case.code)
def test_fix_mends_it_and_nothing_is_left_to_mend(case: Case, tmp_path: Path) -> None:
    settings = how(case, tmp_path)
    mended = fix_script(case.bad, settings)
    assert findings(mended, case, tmp_path) == []
    assert fix_script(mended, settings) == mended


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.fixed], ids=lambda case: case.code
)
def test_what_is_not_mechanical_is_left_to_the_user(case: Case, tmp_path: Path) -> None:
    own = findings(case.bad, case, tmp_path)
    assert all(not each.edits or case.code in {"ST802", "ST812", "ST108"} for each in own)


def test_every_rule_has_a_case() -> None:
    assert {rule.code for rule in RULES} == {case.code for case in CASES}


def test_there_are_at_least_forty_rules_with_codes_of_their_own() -> None:
    codes = [rule.code for rule in RULES]
    assert len(codes) == len(set(codes)) >= 40


FIXES = {
    "other options of the line stay": (
        "#SBATCH --time=01:00:00 --partition=gpu --account=def-x\n",
        "#SBATCH --time=01:00:00 --account=def-x\n",
        "fir",
    ),
    "other words of the line stay": (
        "#SBATCH --time=01:00:00\n#SBATCH -J a --array=0-3 -o a\n",
        "#SBATCH --time=01:00:00\n#SBATCH -J a --array=0-3 -o a_%a\n",
        None,
    ),
    "a name is not a size": (
        "#SBATCH --time=01:00:00\n#SBATCH --job-name=mem=64 --mem=64\n",
        "#SBATCH --time=01:00:00\n#SBATCH --job-name=mem=64 --mem=64G\n",
        None,
    ),
    "a time as people write it": (
        "#SBATCH -t 1d12h  # long\n#SBATCH --mem=64G\n",
        "#SBATCH -t 1-12:00:00  # long\n#SBATCH --mem=64G\n",
        None,
    ),
    "a comment behind a value stays": (
        "#SBATCH --time=01:00:00\n#SBATCH --mem=64   # plenty\n",
        "#SBATCH --time=01:00:00\n#SBATCH --mem=64G   # plenty\n",
        None,
    ),
}


@pytest.mark.parametrize("name", FIXES)
def test_a_fix_touches_nothing_else(name: str) -> None:
    before, after, cluster = FIXES[name]
    head, tail = "#!/bin/bash\n", "srun x\n"
    settings = Settings(cluster=load_cluster(cluster) if cluster else None)
    assert fix_script(head + before + tail, settings) == head + after + tail
