#!/bin/bash
#SBATCH --job-name=train
#SBATCH --account=project_2001234
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=40
#SBATCH --mem=320G
#SBATCH --gres=gpu:v100:4,nvme:119
#SBATCH --time=01:00:00

# Written by Stoker 0.2.0 for Puhti; plain bash, yours to edit.

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

# Threads and variables: 10 cores a process, the script was not read.
export OMP_NUM_THREADS=10

# Local disk: what is read often lies on the node itself.
export STOKER_LOCAL="${LOCAL_SCRATCH:?is not set: this node has no local disk for the job}"
export STOKER_DATA_SOURCE=/scratch/project_2001234/packed
export STOKER_DATA="$STOKER_LOCAL"/data/packed
# Once on every node: sized first, in parallel, compared; an interrupted copy goes on.
if [ -f "$STOKER_DATA_SOURCE" ] && command -v lfs > /dev/null &&
    [ "$(lfs getstripe -c "$STOKER_DATA_SOURCE" 2> /dev/null)" = 1 ] &&
    [ "$(stat -L -c %s "$STOKER_DATA_SOURCE")" -gt 10000000000 ]; then
    echo "note: $STOKER_DATA_SOURCE lies on one server; lfs migrate -c 8 spreads it" >&2
fi
stage_data=$(
    cat << 'END'
fail() {
    echo "$(hostname): $1" >&2
    exit 1
}
mkdir -p "${STOKER_DATA%/*}" || exit 1
exec 9> "$STOKER_DATA.lock" && flock 9
touch "${STOKER_DATA%/*}"
[ -e "$STOKER_DATA" ] && exit 0
part=$STOKER_DATA.part
need=$(du --dereference --summarize --apparent-size --block-size=1 "$STOKER_DATA_SOURCE" | cut -f 1)
have=$(du --summarize --apparent-size --block-size=1 "$part" 2> /dev/null | cut -f 1)
free=$(df --output=avail --block-size=1 "${STOKER_DATA%/*}" | sed -n 2p)
[ $((${need:-0} - ${have:-0})) -le "${free:-0}" ] ||
    fail "the data needs $need bytes, ${STOKER_DATA%/*} has $free"
if [ -d "$STOKER_DATA_SOURCE" ]; then
    sizes() { (cd "$1" && find -L . -type f -printf '%s %P\0' | LC_ALL=C sort -z); }
    missing() { LC_ALL=C comm -z -23 <(sizes "$STOKER_DATA_SOURCE") <(sizes "$part") | cut -z -d ' ' -f 2-; }
    mkdir -p "$part" && cd "$STOKER_DATA_SOURCE" || exit 1
    find -L . -type d -print0 | (cd "$part" && xargs -0 mkdir -p)
    missing | xargs -0 -r -n 32 -P 8 cp --force --dereference --preserve=mode,timestamps --parents -t "$part" --
    lost=$(missing | tr -dc '\0' | wc -c)
    [ "$lost" = 0 ] || fail "$lost files of $STOKER_DATA_SOURCE were not copied whole"
else
    { [ -d "$part" ] || [ "$STOKER_DATA_SOURCE" -nt "$part" ]; } && rm -rf "$part" && have=0
    tail -c +"$((${have:-0} + 1))" "$STOKER_DATA_SOURCE" >> "$part"
    [ "$(stat -L -c %s "$part")" = "$(stat -L -c %s "$STOKER_DATA_SOURCE")" ] ||
        fail "$STOKER_DATA_SOURCE was not copied whole"
fi
if [ -e "$part/index.stoker" ] && command -v stoker > /dev/null; then
    stoker verify "$part" >&2
else
    diff -r -q "$STOKER_DATA_SOURCE" "$part" >&2
fi || {
    rm -rf "$part"
    fail "the copy of $STOKER_DATA_SOURCE is damaged, or it was so before"
}
mv "$part" "$STOKER_DATA"
END
)
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c "$stage_data" || exit 1

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
