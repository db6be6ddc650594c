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
        return f'"${{{disk.env}:?is not set: this node has no local disk for the job}}"'
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
        if not copies_results(plan):
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
