#!/bin/bash
#SBATCH --job-name=train
#SBATCH --account=project_2001234
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=40
#SBATCH --mem=320G
#SBATCH --gres=gpu:v100:4,nvme:169
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120

# Written by Stoker 0.2.0 for Puhti; plain bash, yours to edit.

# Stop at once if Slurm gave another shape than the numbers below were made for.
if [[ ${SLURM_NNODES:-2} != 2 || ${SLURM_GPUS_ON_NODE:-4} != 4 ]]; then
    echo "this script is for 2 nodes with 4 GPUs, not $SLURM_NNODES with $SLURM_GPUS_ON_NODE" >&2
    exit 1
fi

# Forget what a job that this one was submitted from has left in the environment.
unset "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_TRES_PER_TASK

# Time limit: Slurm sends USR1 to this shell 120 s before it.
# The training is told, has time to write its checkpoint, and the job is queued again;
# the number of an array alone would queue all of its tasks.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
export STOKER_SIGNAL=USR1
# Slurm itself queues a job again whose node failed, however often that is.
if ((${SLURM_RESTART_COUNT:-0} > 10)); then
    echo "not started again: 10 restarts are enough" >&2
    exit 1
fi
# shellcheck disable=SC2329  # called by a trap
before_limit() {
    interrupted=1
    trap '' USR1
    [[ $training ]] && kill -s USR1 "$training"
    for ((left = 75; left > 0; left--)); do
        kill -0 "${training:-none}" 2> /dev/null || break
        sleep 1
    done
    bring_back timeout 45
    if ((${SLURM_RESTART_COUNT:-0} >= 10)); then
        echo "not queued again: 10 restarts are enough" >&2
    elif scontrol requeue "$job"; then
        exit 0
    fi
}
trap before_limit USR1
trap 'exit 143' TERM

# Software: pytorch.
module purge
module load pytorch

# Threads and variables: 10 cores a process, the script was not read.
export OMP_NUM_THREADS=10

# Local disk: what is read often lies on the node itself.
export STOKER_LOCAL="${LOCAL_SCRATCH:?is not set: this node has no local disk for the job}"
export STOKER_DATA_SOURCE=/scratch/project_2001234/train.tar
export STOKER_DATA="$STOKER_LOCAL"/data/train
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
rm -rf "$part"
mkdir "$part" && tar -x -f "$STOKER_DATA_SOURCE" -C "$part" || fail "$STOKER_DATA_SOURCE was not unpacked"
mv "$part" "$STOKER_DATA"
END
)
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c "$stage_data" || exit 1
# Results: written on the node, copied home at the end, on failure and before the limit.
export STOKER_RESULTS_HOME=/scratch/project_2001234/results
export STOKER_RESULTS="$STOKER_LOCAL"/results-"$SLURM_JOB_ID"
if [ ! -e "$STOKER_RESULTS_HOME" ] && command -v lfs > /dev/null; then
    mkdir -p "$STOKER_RESULTS_HOME"
    if [ "$(stat -f -c %T "$STOKER_RESULTS_HOME")" = lustre ]; then
        lfs setstripe -E 1G -c 1 -E -1 -c 4 "$STOKER_RESULTS_HOME"
    fi
fi
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" mkdir -p "$STOKER_RESULTS" "$STOKER_RESULTS_HOME" || exit 1
copy_results=$(
    cat << 'END'
cd "$STOKER_RESULTS" || exit 0
find . \( -type f -o -type l \) -print0 | {
    lost=0
    while IFS= read -r -d '' file; do
        target=$STOKER_RESULTS_HOME/$file
        part=$target.part-$SLURM_JOB_ID-${SLURM_NODEID:-0}
        [ -e "$target" ] && [ ! "$file" -nt "$target" ] && continue
        mkdir -p "$(dirname "$target")"
        cp -a "$file" "$part" && mv "$part" "$target" && continue
        rm -f "$part"
        [ -e "$file" ] && lost=$((lost + 1))
    done
    [ "$lost" = 0 ] && exit 0
    echo "$(hostname): of the files in $PWD, $lost not copied to $STOKER_RESULTS_HOME" >&2
    exit 1
}
END
)
# shellcheck disable=SC2329  # called by a trap
bring_back() {
    "$@" srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --overlap --mem=0 --gres=none bash -c "$copy_results"
}
# shellcheck disable=SC2329  # called by a trap
leave() {
    local code=$?
    bring_back || code=$((code ? code : 1))
    exit "$code"
}
trap leave EXIT

# Rendezvous: the first node of the job, and a port on it that no other job is using.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))
while (: < "/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2> /dev/null; do
    MASTER_PORT=$((MASTER_PORT + 1))
done
export MASTER_ADDR MASTER_PORT

# Run: one torchrun a node, which meet at the first node.
# USR1 is passed on to those processes of the launcher that handle it.
task=$(
    cat << 'END'
pass_on() {
    interrupted=1
    pids=$launcher
    while [[ $pids ]]; do
        for pid in $pids; do
            # A process that handles the signal has its bit set in SigCgt; others would die of it.
            caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$pid/status")
            ((16#${caught:-0} >> $(kill -l USR1) - 1 & 1)) && kill -s USR1 "$pid"
        done
        pids=${pids// /}
        pids=$(ps -o pid= --ppid "${pids//$'\n'/,}")
    done
}
trap pass_on USR1
(
    trap '' USR1
    exec "$@"
) &
launcher=$!
interrupted=
wait "$launcher"
status=$?
while [[ $interrupted ]]; do
    interrupted=
    wait "$launcher"
    status=$?
done
exit "$status"
END
)
srun --nodes=2 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
    --wait=600 \
    bash -c "$task" task \
    torchrun --nnodes=2 --nproc_per_node=4 --rdzv_id="$SLURM_JOB_ID" --rdzv_backend=c10d \
    --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT" \
    -- train.py --epochs 3 --data "$STOKER_DATA" &
training=$!
# bash runs a trap only between commands: wait can be interrupted, a foreground srun cannot.
interrupted=
wait "$training"
status=$?
while [[ $interrupted ]]; do
    interrupted=
    wait "$training"
    status=$?
done
exit "$status"
