"""The block of a script that brings data to the nodes, and results home."""

from __future__ import annotations

from stoker.plan.plan import Plan
from stoker.plan.quote import quote

# Slurm 22.05 and 23.02 give a step one CPU unless srun is told again.
CPUS = '--cpus-per-task="$SLURM_CPUS_PER_TASK"'
# One copy at a time on a node; the others find it done. A half copy never has the final name.
_STAGE = """\
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
{room}
free=$(df --output=avail --block-size=1 "${STOKER_DATA%/*}" | sed -n 2p)
[ $((${need:-0} - ${have:-0})) -le "${free:-0}" ] ||
    fail "the data needs $need bytes, ${STOKER_DATA%/*} has $free"
{copy}
{verify}
mv "$part" "$STOKER_DATA"
END
)"""
# Of a folder every file's size and name is compared: what differs is missing, or only half there.
# A file goes on where an interrupted copy ended, unless it has changed since.
# What may not be written, as its source may not, is replaced.
_COPY = """\
if [ -d "$STOKER_DATA_SOURCE" ]; then
    sizes() { (cd "$1" && find -L . -type f -printf '%s %P\\0' | LC_ALL=C sort -z); }
    missing() { LC_ALL=C comm -z -23 <(sizes "$STOKER_DATA_SOURCE") <(sizes "$part") | cut -z -d ' ' -f 2-; }
    mkdir -p "$part" && cd "$STOKER_DATA_SOURCE" || exit 1
    find -L . -type d -print0 | (cd "$part" && xargs -0 mkdir -p)
    missing | xargs -0 -r -n 32 -P 8 cp --force --dereference --preserve=mode,timestamps --parents -t "$part" --
    lost=$(missing | tr -dc '\\0' | wc -c)
    [ "$lost" = 0 ] || fail "$lost files of $STOKER_DATA_SOURCE were not copied whole"
else
    { [ -d "$part" ] || [ "$STOKER_DATA_SOURCE" -nt "$part" ]; } && rm -rf "$part" && have=0
    tail -c +"$((${have:-0} + 1))" "$STOKER_DATA_SOURCE" >> "$part"
    [ "$(stat -L -c %s "$part")" = "$(stat -L -c %s "$STOKER_DATA_SOURCE")" ] ||
        fail "$STOKER_DATA_SOURCE was not copied whole"
fi"""
# A packed data set has the checksum of every sample; of other data all bytes are compared. What is
# wrong goes away: it would be found whole by its size the next time.
_VERIFY = """\
if [ -e "$part/index.stoker" ] && command -v stoker > /dev/null; then
    stoker verify "$part" >&2
else
    diff -r -q "$STOKER_DATA_SOURCE" "$part" >&2
fi || {
    rm -rf "$part"
    fail "the copy of $STOKER_DATA_SOURCE is damaged, or it was so before"
}"""
_UNPACK = """\
rm -rf "$part"
mkdir "$part" && tar -x -f "$STOKER_DATA_SOURCE" -C "$part" || fail "$STOKER_DATA_SOURCE was not unpacked\""""
# Where the disk keeps what jobs leave, what no job has begun with for a month makes room: no job
# that still reads it runs so long. It loses its name first, as a job may be killed meanwhile.
_MAKE_ROOM = """\
find "${STOKER_DATA%/*/*}" -mindepth 1 -maxdepth 1 \\( -mtime +30 -o -name '*.gone' \\) -print0 |
    while IFS= read -r -d '' old; do
        [[ $old == *.gone ]] || mv "$old" "$old.gone"
        rm -rf "${old%.gone}.gone"
    done"""
# On Lustre, small files of a new folder lie on one server, and large ones on several.
LUSTRE_LAYOUT = "-E 1G -c 1 -E -1 -c 4"
_STRIPE = f"""\
if [ ! -e "$STOKER_RESULTS_HOME" ] && command -v lfs > /dev/null; then
    mkdir -p "$STOKER_RESULTS_HOME"
    if [ "$(stat -f -c %T "$STOKER_RESULTS_HOME")" = lustre ]; then
        lfs setstripe {LUSTRE_LAYOUT} "$STOKER_RESULTS_HOME"
    fi
fi"""
# One large file on one server of Lustre is read by all nodes through it.
_ADVISE = """\
if [ -f "$STOKER_DATA_SOURCE" ] && command -v lfs > /dev/null &&
    [ "$(lfs getstripe -c "$STOKER_DATA_SOURCE" 2> /dev/null)" = 1 ] &&
    [ "$(stat -L -c %s "$STOKER_DATA_SOURCE")" -gt 10000000000 ]; then
    echo "note: $STOKER_DATA_SOURCE lies on one server; lfs migrate -c 8 spreads it" >&2
fi"""
# Data of the same names, sizes and times is the same data.
_KEY = """\
STOKER_DATA_KEY=$(find -L "$STOKER_DATA_SOURCE" -type f -printf '%P %s %T@\\n' | LC_ALL=C sort | cksum | tr ' ' -)"""

# Every file is copied under another name first; of two nodes, the newer file wins. One that the
# training removes meanwhile is not missed.
_BRING_BACK = """\
copy_results=$(
    cat << 'END'
cd "$STOKER_RESULTS" || exit 0
find . \\( -type f -o -type l \\) -print0 | {{
    lost=0
    while IFS= read -r -d '' file; do
        target=$STOKER_RESULTS_HOME/$file
        part=$target.part-$SLURM_JOB_ID-${{SLURM_NODEID:-0}}
        [ -e "$target" ] && [ ! "$file" -nt "$target" ] && continue
        mkdir -p "$(dirname "$target")"
        cp -a "$file" "$part" && mv "$part" "$target" && continue
        rm -f "$part"
        [ -e "$file" ] && lost=$((lost + 1))
    done
    [ "$lost" = 0 ] && exit 0
    echo "$(hostname): of the files in $PWD, $lost not copied to $STOKER_RESULTS_HOME" >&2
    exit 1
}}
END
)
# shellcheck disable=SC2329  # called by a trap
bring_back() {{
    "$@" {each}bash -c "$copy_results"
}}"""

# The training's own code stays; but a job whose results are not home has not done its work.
_LEAVE = """\
# shellcheck disable=SC2329  # called by a trap
leave() {
    local code=$?
{bring}
{tidy}    exit "$code"
}
trap leave EXIT"""
_BRING = """\
    bring_back || code=$((code ? code : 1))"""
# Where the site does not empty the disk; but not under a training that still ends and writes there.
_BRING_AND_REMOVE = """\
    if ! bring_back; then
        code=$((code ? code : 1))
    elif ! kill -0 "${training:-none}" 2> /dev/null; then
        {each}rm -rf "$STOKER_RESULTS"
    fi"""


def _local(plan: Plan) -> str:
    disk = plan.cluster.disk
    if disk.kept:
        return f'{quote(disk.path or "/tmp")}/stoker-"$USER"'
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


def _stage_data(plan: Plan) -> list[str]:
    """Return the lines that copy the data once to every node, or find it there."""
    staged, is_kept = plan.spec.staging, plan.cluster.disk.kept
    name, within = quote(staged.staged_name), '"$STOKER_DATA_KEY"/' if is_kept else ""
    script = _STAGE.replace("{copy}", _UNPACK if staged.unpack else _COPY)
    script = script.replace("{verify}\n", f"{_VERIFY}\n" if staged.verify else "")
    return [
        f"export STOKER_DATA_SOURCE={_absolute(staged.data or '')}",
        *([_KEY] if is_kept else []),
        f'export STOKER_DATA="$STOKER_LOCAL"/data/{within}{name}',
        "# Once on every node: sized first, in parallel, compared; an interrupted copy goes on.",
        _ADVISE,
        script.replace("{room}\n", f"{_MAKE_ROOM}\n" if is_kept else ""),
        f'{_each_node(plan)}bash -c "$stage_data" || exit 1',
    ]


def render_stage(plan: Plan) -> str:
    """Return the block that brings the data to every node's own disk, once."""
    staged = plan.spec.staging
    lines: list[str] = []
    if staged.data is not None or copies_results(plan):
        lines.append("# Local disk: what is read often lies on the node itself.")
        lines.append(f"export STOKER_LOCAL={_local(plan)}")
    if leaving := _tidy_up(plan):
        # Before the copy: one that fails or is cancelled would stay.
        lines.append(f"trap {quote('; '.join(leaving))} EXIT")
    if staged.data is not None:
        lines += _stage_data(plan)
    if staged.results is not None:
        lines += _keep_results(plan)
    if copies_results(plan):
        lines.append(_leave(plan))
    return "\n".join(lines)


def _leave(plan: Plan) -> str:
    """Return the lines that bring the results home in the end, and remove what nobody else does."""
    disk = plan.cluster.disk
    bring = _BRING_AND_REMOVE if disk.kept or not disk.env else _BRING
    tidy = "".join(f"    {each}\n" for each in _tidy_up(plan))
    text = _LEAVE.replace("{bring}", bring).replace("{tidy}", tidy)
    return text.replace("{each}", _each_node(plan, overlap=True))


def _keep_results(plan: Plan) -> list[str]:
    """Return the lines that say where results are written, and define how they come home."""
    results = plan.spec.staging.results or ""
    if not copies_results(plan):
        return [
            "# Results: this site has no local disk, so they are written in place.",
            f"export STOKER_RESULTS={_absolute(results)}",
            'mkdir -p "$STOKER_RESULTS"',
        ]
    return [
        "# Results: written on the node, copied home at the end, on failure and before the limit.",
        f"export STOKER_RESULTS_HOME={_absolute(results)}",
        'export STOKER_RESULTS="$STOKER_LOCAL"/results-"$SLURM_JOB_ID"',
        _STRIPE,
        f'{_each_node(plan)}mkdir -p "$STOKER_RESULTS" "$STOKER_RESULTS_HOME" || exit 1',
        _BRING_BACK.format(each=_each_node(plan, overlap=True)),
    ]


def _tidy_up(plan: Plan) -> list[str]:
    """Return what removes the data in the end from a disk that the site itself does not empty."""
    disk = plan.cluster.disk
    if plan.spec.staging.data is None or disk.env or disk.kept:
        return []
    each = _each_node(plan, overlap=True)
    # Under another name: killed half-way, and queued again, the job would take the rest for all.
    # Nothing is there yet where the copy could not begin.
    return [
        f'{each}mv "$STOKER_LOCAL"/data "$STOKER_LOCAL"/gone 2> /dev/null',
        f'{each}rm -rf "$STOKER_LOCAL"/gone',
    ]
