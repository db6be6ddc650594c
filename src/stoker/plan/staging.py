"""The block of a script that brings data to the nodes, and results home."""

from __future__ import annotations

from stoker.plan.plan import Plan
from stoker.plan.quote import quote

# Slurm 22.05 and 23.02 give a step one CPU unless srun is told again.
CPUS = '--cpus-per-task="$SLURM_CPUS_PER_TASK"'
_STAGE = """\
stage_data=$(
    cat << 'END'
[ -e "$STOKER_DATA" ] && exit 0
mkdir -p "$STOKER_LOCAL/data"
need=$(du --dereference --summarize --apparent-size --block-size=1 "$STOKER_DATA_SOURCE" | cut -f 1)
free=$(df --output=avail --block-size=1 "$STOKER_LOCAL" | sed -n 2p)
if [ "${need:-0}" -gt "${free:-0}" ]; then
    echo "$(hostname): the data needs $need bytes, $STOKER_LOCAL has $free" >&2
    exit 1
fi
rm -rf "$STOKER_DATA.part"
{copy} &&
    mv "$STOKER_DATA.part" "$STOKER_DATA"
END
)"""
_COPY = 'cp -r --dereference "$STOKER_DATA_SOURCE" "$STOKER_DATA.part"'
_UNPACK = """\
mkdir "$STOKER_DATA.part" &&
    tar -x -f "$STOKER_DATA_SOURCE" -C "$STOKER_DATA.part\""""

# Every file is copied under another name first; of two nodes, the newer file wins.
_BRING_BACK = """\
copy_results=$(
    cat << 'END'
cd "$STOKER_RESULTS" || exit 0
find . \\( -type f -o -type l \\) -print0 | while IFS= read -r -d '' file; do
    target=$STOKER_RESULTS_HOME/$file
    part=$target.part-$SLURM_JOB_ID-${{SLURM_NODEID:-0}}
    [ -e "$target" ] && [ ! "$file" -nt "$target" ] && continue
    mkdir -p "$(dirname "$target")"
    cp -a "$file" "$part" && mv "$part" "$target"
done
END
)
# shellcheck disable=SC2329  # called by a trap
bring_back() {{
    "$@" {each}bash -c "$copy_results"
}}"""


def _local(plan: Plan) -> str:
    disk = plan.cluster.disk
    if disk.env:
        return f'"${{{disk.env}:?is not set: this node has no local disk for the job}}"'
    return f'{quote(disk.path or "/tmp")}/stoker-"$SLURM_JOB_ID"'


def _absolute(path: str) -> str:
    """Return a path that still holds after `cd`."""
    return quote(path) if path.startswith("/") else f'"$PWD"/{quote(path)}'


def _each_node(plan: Plan, *, overlap: bool = False) -> str:
    """Return what runs a command once on every node; nothing on a job of one node."""
    if plan.shape.nodes == 1 or plan.cluster.scheduler == "none":
        return ""
    return " ".join(node_srun(plan, overlap=overlap)) + " "


def node_srun(plan: Plan, *, overlap: bool = False) -> list[str]:
    """Return the words that run a command once on every node, beside the training if need be."""
    nodes = plan.shape.nodes
    # Before 23.02 SLURM_NTASKS of the job wins over --ntasks-per-node: both are given.
    words = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    return [*words, *([CPUS] if has_cpus(plan) else []), *(beside(plan) if overlap else [])]


def beside(plan: Plan) -> list[str]:
    """Return the options of a step that runs while another one does.

    Before 22.05 --overlap shares CPUs only, so such a step takes no memory and no GPUs. Where
    GPUs are asked for by --gpus-per-node, srun refuses `--gres=none`; those sites are newer.
    """
    free = ["--mem=0", "--gres=none"] if plan.cluster.slurm.gpu_option == "gres" else []
    return ["--overlap", *free]


def has_cpus(plan: Plan) -> bool:
    """Whether the header has --cpus-per-task, which the user may have left out."""
    return any(name == "cpus-per-task" for name, _ in plan.directives)


def copies_results(plan: Plan) -> bool:
    """Whether results are written on the node and copied home."""
    return plan.spec.staging.results is not None and bool(plan.cluster.disk.exists)


def render_stage(plan: Plan) -> str:
    """Return the block that brings the data to every node's own disk, once."""
    staged = plan.spec.staging
    lines: list[str] = []
    if staged.data is not None or copies_results(plan):
        lines.append("# Local disk: what is read often lies on the node itself.")
        lines.append(f"export STOKER_LOCAL={_local(plan)}")
    if staged.data is not None:
        lines += [
            f"export STOKER_DATA_SOURCE={_absolute(staged.data)}",
            f'export STOKER_DATA="$STOKER_LOCAL"/data/{quote(staged.staged_name)}',
            "# Once on every node; a half copy never has the final name, a second run copies nothing.",
            _STAGE.replace("{copy}", _UNPACK if staged.unpack else _COPY),
            f'{_each_node(plan)}bash -c "$stage_data" || exit 1',
        ]
    if staged.results is not None:
        if not copies_results(plan):
            lines += [
                "# Results: this site has no local disk, so they are written in place.",
                f"export STOKER_RESULTS={_absolute(staged.results)}",
                'mkdir -p "$STOKER_RESULTS"',
            ]
            return "\n".join(lines)
        lines += [
            "# Results: written on the node, copied home at the end, on failure and before the limit.",
            f"export STOKER_RESULTS_HOME={_absolute(staged.results)}",
            'export STOKER_RESULTS="$STOKER_LOCAL"/results',
            f'{_each_node(plan)}mkdir -p "$STOKER_RESULTS" "$STOKER_RESULTS_HOME" || exit 1',
            _BRING_BACK.format(each=_each_node(plan, overlap=True)),
            "trap bring_back EXIT",
        ]
    return "\n".join(lines)
