"""The blocks of a script that move data and outlive the time limit."""

from __future__ import annotations

from stoker.plan.plan import Plan
from stoker.plan.quote import quote

# Slurm 22.05 and 23.02 give a step one CPU unless srun is told again.
CPUS = '--cpus-per-task="$SLURM_CPUS_PER_TASK"'
# What remains of the grace period for copying results and for the requeue itself.
RESERVE_S = 45

_STAGE = """\
stage_data=$(
    cat << 'END'
[ -e "$STOKER_DATA" ] && exit 0
mkdir -p "$STOKER_LOCAL"
need=$(du --summarize --apparent-size --block-size=1 "$STOKER_DATA_SOURCE" | cut -f 1)
free=$(df --output=avail --block-size=1 "$STOKER_LOCAL" | sed -n 2p)
if [ "$need" -gt "$free" ]; then
    echo "$(hostname): the data needs $need bytes, $STOKER_LOCAL has $free" >&2
    exit 1
fi
rm -rf "$STOKER_DATA.part"
{copy} &&
    mv "$STOKER_DATA.part" "$STOKER_DATA"
END
)"""
_COPY = 'cp -r "$STOKER_DATA_SOURCE" "$STOKER_DATA.part"'
_UNPACK = """\
mkdir "$STOKER_DATA.part" &&
    tar -x -f "$STOKER_DATA_SOURCE" -C "$STOKER_DATA.part\""""

_BRING_BACK = """\
copy_results=$(
    cat << 'END'
cd "$STOKER_RESULTS" || exit 0
find . -type f -print0 | while IFS= read -r -d '' file; do
    target=$STOKER_RESULTS_HOME/$file
    [ -e "$target" ] && [ ! "$file" -nt "$target" ] && continue
    mkdir -p "$(dirname "$target")"
    cp -p "$file" "$target.part-$SLURM_JOB_ID" && mv "$target.part-$SLURM_JOB_ID" "$target"
done
END
)
# shellcheck disable=SC2329  # called by a trap
bring_back() {{
    {each}bash -c "$copy_results"
}}"""


def _local(plan: Plan) -> str:
    disk = plan.cluster.disk
    if disk.env:
        return f'"${disk.env}"'
    return f'{quote(disk.path or "/tmp")}/stoker-"$SLURM_JOB_ID"'


def _each_node(plan: Plan, *, overlap: bool = False) -> str:
    """Return what runs a command once on every node; nothing on a job of one node."""
    if plan.shape.nodes == 1 or plan.cluster.scheduler == "none":
        return ""
    return " ".join(node_srun(plan, overlap=overlap)) + " "


def node_srun(plan: Plan, *, overlap: bool = False) -> list[str]:
    """Return the words that run a command once on every node, beside the training if need be."""
    words = ["srun", f"--nodes={plan.shape.nodes}", "--ntasks-per-node=1"]
    return [*words, CPUS, *(["--overlap"] if overlap else [])]


def _copies_results(plan: Plan) -> bool:
    return plan.spec.staging.results is not None and bool(plan.cluster.disk.exists)


def render_stage(plan: Plan) -> str:
    """Return the block that brings the data to every node's own disk, once."""
    staged = plan.spec.staging
    lines: list[str] = []
    if staged.data is not None or _copies_results(plan):
        lines.append("# Local disk: what is read often lies on the node itself.")
        lines.append(f"export STOKER_LOCAL={_local(plan)}")
    if staged.data is not None:
        name = staged.data.rstrip("/").rsplit("/", 1)[-1]
        name = name.split(".tar")[0].removesuffix(".tgz") if staged.unpack else name
        lines += [
            f"export STOKER_DATA_SOURCE={quote(staged.data)}",
            f'export STOKER_DATA="$STOKER_LOCAL"/{quote(name)}',
            "# Once on every node; a half copy never has the final name, a second run copies nothing.",
            _STAGE.replace("{copy}", _UNPACK if staged.unpack else _COPY),
            f'{_each_node(plan)}bash -c "$stage_data" || exit 1',
        ]
    if staged.results is not None:
        home = f"export STOKER_RESULTS_HOME={quote(staged.results)}"
        if not _copies_results(plan):
            lines += [
                "# Results: this site has no local disk, so they are written in place.",
                f"export STOKER_RESULTS={quote(staged.results)}",
                'mkdir -p "$STOKER_RESULTS"',
            ]
            return "\n".join(lines)
        lines += [
            "# Results: written on the node, copied home at the end, on failure and before the limit.",
            home,
            'export STOKER_RESULTS="$STOKER_LOCAL"/results',
            f'{_each_node(plan)}mkdir -p "$STOKER_RESULTS" "$STOKER_RESULTS_HOME" || exit 1',
            _BRING_BACK.format(each=_each_node(plan, overlap=True)),
            "trap bring_back EXIT",
        ]
    return "\n".join(lines)


def _needs_wait(plan: Plan) -> bool:
    return plan.cluster.scheduler != "none" and (
        plan.spec.survival.requeue or _copies_results(plan)
    )


def render_survival(plan: Plan) -> str:
    """Return the block that answers the signal before the time limit."""
    if not _needs_wait(plan):
        return ""
    survival = plan.spec.survival
    lines = [
        f"# Time limit: Slurm sends {survival.signal} to this shell {survival.grace_s} s before it."
    ]
    if survival.requeue:
        patience = max(10, survival.grace_s - RESERVE_S)
        lines += [
            "# The training is told, has time to write its checkpoint, and the job is queued again.",
            # The id of an array alone would requeue all of its tasks.
            "job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}",
            "job=${job:-$SLURM_JOB_ID}",
            "# shellcheck disable=SC2329  # called by a trap",
            "before_limit() {",
            "    interrupted=1",
            f"    trap '' {survival.signal}",
            f'    kill -s {survival.signal} "$training"',
            f"    for ((left = {patience}; left > 0; left--)); do",
            '        kill -0 "$training" 2> /dev/null || break',
            "        sleep 1",
            "    done",
            *(["    bring_back"] if _copies_results(plan) else []),
            f"    if ((${{SLURM_RESTART_COUNT:-0}} >= {survival.max_restarts})); then",
            f'        echo "not queued again: {survival.max_restarts} restarts are enough" >&2',
            '    elif scontrol requeue "$job"; then',
            "        exit 0",
            "    fi",
            "}",
        ]
    else:
        lines += [
            "# shellcheck disable=SC2329  # called by a trap",
            "before_limit() {",
            "    interrupted=1",
            "    bring_back",
            "}",
        ]
    lines.append(f"trap before_limit {survival.signal}")
    lines.append("trap 'exit 143' TERM")
    return "\n".join(lines)


def render_run(plan: Plan, run: str) -> str:
    """Return the lines that start the training; in the background where a trap must work."""
    if not _needs_wait(plan):
        return run
    return f"""\
{run} &
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
exit "$status\""""
