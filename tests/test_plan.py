"""The planner's rules, its refusals and its costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from stoker.cluster.layers import parse_overrides
from stoker.cluster.load import load_cluster
from stoker.errors import SpecError, StokerError, UsageError
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan
from stoker.plan.script import render_script
from stoker.plan.spec import FRAMEWORKS, Setup, Spec, Staging, Survival
from stoker.units import parse_time

HOUR = 3600


def plan(cluster: str, *facts: str, script: str | None = None, **asked: Any) -> Plan:
    asked.setdefault("time_s", HOUR)
    asked.setdefault("framework", "ddp")
    loaded = load_cluster(cluster, parse_overrides(facts, cluster))
    return make_plan(Spec((script or "train.py",), **asked), loaded, Path("/nowhere"))


def shape(made: Plan) -> tuple[str | None, int, int]:
    queue = made.shape.partition
    return queue.name if queue else None, made.shape.nodes, made.shape.gpus_per_node


@pytest.mark.parametrize(
    ("cluster", "gpus", "expected"),
    [
        ("puhti", 1, ("gpu", 1, 1)),
        ("puhti", 4, ("gpu", 1, 4)),
        ("puhti", 8, ("gpu", 2, 4)),
        ("mahti", 1, ("gpusmall", 1, 1)),
        ("mahti", 2, ("gpusmall", 1, 2)),
        ("mahti", 3, ("gpumedium", 1, 3)),
        ("mahti", 24, ("gpumedium", 6, 4)),
        ("lumi", 1, ("small-g", 1, 1)),
        ("lumi", 8, ("standard-g", 1, 8)),
        ("lumi", 64, ("standard-g", 8, 8)),
        ("trillium", 1, ("compute", 1, 1)),
        ("trillium", 8, ("compute", 2, 4)),
        ("nibi", 16, ("automatic", 2, 8)),
        ("roihu", 4, ("gpumedium", 1, 4)),
        ("roihu", 8, ("gpularge", 2, 4)),
        ("perlmutter", 1, ("shared", 1, 1)),
        ("perlmutter", 8, ("regular", 2, 4)),
    ],
)
def test_up_to_a_node_one_node_and_beyond_that_full_nodes(
    cluster: str, gpus: int, expected: tuple[str, int, int]
) -> None:
    assert shape(plan(cluster, gpus=gpus)) == expected


def test_a_long_job_on_a_full_lumi_node_goes_where_it_fits() -> None:
    assert shape(plan("lumi", gpus=8, time_s=60 * HOUR)) == ("small-g", 1, 8)


@pytest.mark.parametrize(
    ("cluster", "queue"),
    [("puhti", "gputest"), ("mahti", "gputest"), ("lumi", "dev-g"), ("roihu", "gputest"),
     ("perlmutter", "debug"), ("leonardo", "boost_qos_dbg"), ("carc_discovery", "debug"), ("trillium", "debug")],
)  # fmt: skip
def test_test_takes_the_short_partition_and_cuts_the_time(cluster: str, queue: str) -> None:
    made = plan(cluster, gpus=1, test=True, time_s=36 * HOUR)
    assert made.shape.partition
    assert made.shape.partition.name == queue
    assert made.time_s == made.shape.partition.time_s


def directives(made: Plan) -> dict[str, str | None]:
    return dict(made.directives)


def test_alliance_clusters_get_a_gpu_model_and_no_partition() -> None:
    for cluster in ("fir", "nibi", "rorqual", "narval", "graham", "cedar", "beluga"):
        options = directives(plan(cluster, gpus=1))
        assert "partition" not in options
        assert (options["gpus-per-node"] or "").count(":") == 1


def test_cvl_gets_no_gres_and_no_qos() -> None:
    options = directives(plan("cvl_uwa", gpus=1))
    assert not {"gres", "gpus-per-node", "qos"} & set(options)
    assert options["partition"] == "desktop"


def test_a_queue_that_is_a_qos_is_asked_for_as_one() -> None:
    options = directives(plan("perlmutter", gpus=4))
    assert (options["qos"], options["constraint"], options.get("partition")) == (
        "regular",
        "gpu",
        None,
    )
    options = directives(plan("leonardo", gpus=1, test=True))
    assert (options["partition"], options["qos"]) == ("boost_usr_prod", "boost_qos_dbg")


@pytest.mark.parametrize(
    ("cluster", "gpu", "request_"),
    [("mahti", "a100_1g.5gb", "gpu:a100_1g.5gb:1"), ("fir", "h100_1g.10gb", "nvidia_h100_80gb_hbm3_1g.10gb:1"),
     ("narval", "a100_1g.5gb", "a100_1g.5gb:1"), ("nibi", "h100_2g.20gb", "h100_2g.20gb:1")],
)  # fmt: skip
def test_slices_are_asked_for_by_their_own_name(cluster: str, gpu: str, request_: str) -> None:
    options = directives(plan(cluster, gpus=1, gpu=gpu))
    assert request_ in (options.get("gres"), options.get("gpus-per-node"))


@pytest.mark.parametrize(
    ("cluster", "asked", "unit", "per_hour"),
    [
        ("puhti", {"gpus": 1}, "GPU BU", 60 + 10 + 8.0),
        ("puhti", {"gpus": 8}, "GPU BU", 2 * (240 + 40 + 32.0)),
        ("puhti", {"gpus": 1, "staging": Staging(disk_gb=100)}, "GPU BU", 60 + 10 + 8 + 0.006 * 100 / 1.073741824),
        ("mahti", {"gpus": 4}, "GPU BU", 400.0),
        ("mahti", {"gpus": 1, "gpu": "a100_1g.5gb"}, "GPU BU", 15.0),
        ("roihu", {"gpus": 2}, "GPU BU", 400.0),
        ("lumi", {"gpus": 8}, "GPU-hours", 4.0),
        ("lumi", {"gpus": 1}, "GPU-hours", 0.5),
        ("lumi", {"gpus": 1, "mem_gib": 65.0}, "GPU-hours", 1.0),
        ("lumi", {"gpus": 1, "cpus_per_task": 9}, "GPU-hours", 1.0),
        ("fir", {"gpus": 4}, "RGU-hours", 48.8),
        ("perlmutter", {"gpus": 8}, "node-hours", 2.0),
        ("della", {"gpus": 1}, "billing weight", 12 + 12 + 22.3),
    ],
)  # fmt: skip
def test_cost_follows_the_sites_formula(
    cluster: str, asked: Any, unit: str, per_hour: float
) -> None:
    cost = plan(cluster, **asked, time_s=2 * HOUR).cost
    assert cost
    assert unit in cost.unit
    assert cost.per_hour == pytest.approx(per_hour)
    assert cost.total == pytest.approx(2 * per_hour)
    assert cost.source


def test_a_cost_that_is_not_known_is_not_invented() -> None:
    assert plan("leonardo", gpus=1).cost is None
    assert plan("carc_discovery", gpus=1, gpu="l40s").cost is None


REFUSALS: dict[str, tuple[str, dict[str, Any], str]] = {
    "8 GPUs on one node of 4": (
        "puhti",
        {"nodes": 1, "gpus": 8},
        "--nodes 2 --gpus-per-node 4 --gpus 8",
    ),
    "6 GPUs": ("puhti", {"gpus": 6}, "--gpus 4 or --gpus 8"),
    "12 GPUs, 2 on each": (
        "puhti",
        {"gpus": 12, "gpus_per_node": 2},
        "--nodes 3 --gpus-per-node 4 --gpus 12",
    ),
    "spread over nodes": ("puhti", {"nodes": 4, "gpus": 4}, "--nodes 1 --gpus-per-node 4 --gpus 4"),
    "40 h where 36 h is the limit": (
        "mahti",
        {"gpus": 1, "time_s": 40 * HOUR},
        "--time 1-12:00:00",
    ),
    "too many GPUs": ("mahti", {"gpus": 48}, "--gpus 24"),
    "too many nodes": ("mahti", {"nodes": 8}, "--nodes 6 --gpus-per-node 4 --gpus 24"),
    "more GPUs than any queue": ("roihu", {"gpus": 400}, "--gpus 40"),
    "a GPU in a CPU queue": ("puhti", {"gpus": 1, "partition": "small"}, "--partition gpu"),
    "a slice where there is none": (
        "mahti",
        {"gpu": "a100_1g.5gb", "partition": "gpumedium"},
        "--partition gpusmall",
    ),
    "nvme where there is none": ("lumi", {"staging": Staging(disk_gb=100)}, "leave --nvme out"),
    "data where there is no disk": (
        "lumi",
        {"staging": Staging(data="/d", data_gib=1.0)},
        "leave --data out",
    ),
    "nvme beyond the disk": ("puhti", {"staging": Staging(disk_gb=4000)}, "--nvme 3600"),
    "data of unknown size": ("puhti", {"staging": Staging(data="/no/such")}, "--data-size"),
    "data without a name": ("puhti", {"staging": Staging(data=".", data_gib=1.0)}, "itself"),
    "a zip to unpack": (
        "puhti",
        {"staging": Staging(data="a.zip", data_gib=1.0, unpack=True)},
        "tar",
    ),
    "memory beyond the node": ("puhti", {"mem_gib": 500.0}, "--mem 373G"),
    "memory beyond the share": ("roihu", {"gpus": 1, "mem_gib": 800.0}, "--mem 217G"),
    "CPUs beyond the node": ("puhti", {"cpus_per_task": 64}, "--cpus-per-task 40"),
    "CPUs beyond the slice": (
        "mahti",
        {"gpu": "a100_1g.5gb", "cpus_per_task": 32},
        "--cpus-per-task 4",
    ),
    "2 of 4 on Trillium": ("trillium", {"gpus": 2}, "--gpus 1 or --gpus 4"),
    "two slices": ("mahti", {"gpu": "a100_1g.5gb", "gpus": 2}, "--gpus 1"),
    "no such GPU": ("puhti", {"gpu": "h100"}, "--gpu v100"),
    "no such partition": ("puhti", {"partition": "gpuu"}, "--partition gpu"),
    "no GPUs at all": ("niagara", {"gpus": 1}, "--cluster trillium"),
    "mirrored over nodes": (
        "puhti",
        {"gpus": 8, "framework": "mirrored"},
        "--nodes 1 --gpus-per-node 4 --gpus 4",
    ),
    "several nodes on a laptop": ("local", {"gpus": 0, "nodes": 2}, "--nodes 1"),
    "servers on a laptop": (
        "local",
        {"gpus": 0, "framework": "parameter-server"},
        "--framework mirrored",
    ),
    "unknown framework": ("puhti", {"framework": "dpp"}, "--framework ddp"),
    "counts that differ": (
        "puhti",
        {"gpus": 4, "nodes": 2, "gpus_per_node": 4},
        "--nodes 1 --gpus-per-node 4",
    ),
    "a signal before the start": (
        "puhti",
        {"time_s": 120, "survival": Survival(requeue=True)},
        "--time 00:12:00",
    ),
    "two environments": ("puhti", {"setup": Setup(venv="v", conda="c")}, "keep one"),
    "not an option": ("puhti", {"add": ("No Option",)}, "--sbatch=--mail-type=END"),
    "a short option": ("puhti", {"add": ("-p=gpu",)}, "--sbatch=--mail-type=END"),
    "a line break": ("puhti", {"job_name": "a\nb"}, "one line"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_had_is_refused_with_the_nearest_request(name: str) -> None:
    cluster, asked, fix = REFUSALS[name]
    with pytest.raises(StokerError) as caught:
        plan(cluster, **asked)
    assert fix in caught.value.fix
    assert caught.value.what
    assert caught.value.why


CLUSTERS = [
    "puhti",
    "mahti",
    "lumi",
    "roihu",
    "trillium",
    "nibi",
    "fir",
    "perlmutter",
    "leonardo",
    "m3",
    "della",
]
OPTIONS = {"--gpus": "gpus", "--nodes": "nodes", "--gpus-per-node": "gpus_per_node", "--time": "time_s",
           "--partition": "partition"}  # fmt: skip


def apply(fix: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Add the options of one offer to a request, as a user who pastes them would."""
    words = fix.split(" or ", maxsplit=1)[0].split(" (", maxsplit=1)[0].split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    changed = dict(asked)
    for option, value in given.items():
        name = OPTIONS[option]
        changed[name] = (
            value if name == "partition" else parse_time(value) if name == "time_s" else int(value)
        )
    return changed


@settings(max_examples=examples(300))
@given(
    st.sampled_from(CLUSTERS),
    st.fixed_dictionaries(
        {},
        optional={
            "gpus": st.integers(1, 70),
            "nodes": st.integers(1, 40),
            "gpus_per_node": st.integers(1, 9),
            "time_s": st.integers(1, 300).map(lambda hours: hours * HOUR),
            "test": st.booleans(),
        },
    ),
)
def test_every_offer_works_when_it_is_pasted(cluster: str, asked: dict[str, Any]) -> None:
    try:
        plan(cluster, **asked)
    except SpecError as error:
        if error.fix.startswith("--"):
            plan(cluster, **apply(error.fix, asked))


def test_partial_nodes_are_allowed_where_the_site_allows_them() -> None:
    assert shape(plan("puhti", "slurm.full_nodes=false", nodes=4, gpus=4)) == ("gpu", 4, 1)


def test_retired_clusters_plan_and_warn_with_the_successor() -> None:
    notices = plan("puhti", gpus=1).notices
    assert any("retired since 2026-07-31" in each.what and "roihu" in each.fix for each in notices)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_every_framework_starts_one_process_per_gpu_or_says_why_not(
    framework: str, gpus: int
) -> None:
    if framework == "mirrored" and gpus == 8:
        return
    made = plan("puhti", gpus=gpus, framework=framework)
    processes = made.launch.processes_per_node * made.shape.nodes
    alone = framework in ("plain", "mirrored", "multiworker", "parameter-server")
    assert processes == (made.shape.nodes if alone else gpus)
    assert render_script(made).startswith("#!/bin/bash\n")


def test_any_option_can_be_added_or_removed() -> None:
    made = plan(
        "puhti",
        gpus=1,
        add=("--mail-type=END", "exclusive", "--time=02:00:00"),
        drop=("--mem", "job-name"),
    )
    options = directives(made)
    assert options["mail-type"] == "END"
    assert options["exclusive"] is None
    assert options["time"] == "02:00:00"
    assert not {"mem", "job-name"} & set(options)


def test_every_choice_has_a_reason() -> None:
    for each in plan("puhti", gpus=8).choices:
        assert each.value
        assert each.reason


def test_a_script_without_a_framework_on_many_gpus_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    made = make_plan(Spec(("train.py",), gpus=4), load_cluster("puhti"), tmp_path)
    assert any("more than one process" in each.what for each in made.notices)


def test_keras_on_many_gpus_is_told_of_its_own_strategy(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import keras\n")
    made = make_plan(Spec(("train.py",), gpus=4), load_cluster("mahti"), tmp_path)
    assert any("MirroredStrategy" in each.fix for each in made.notices)


def test_a_script_that_stays_on_the_cpu_is_noticed_where_gpus_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nloss.backward()\n")
    made = make_plan(Spec(("train.py",), gpus=1), load_cluster("mahti"), tmp_path)
    whats = [each.what for each in made.notices]
    assert "the script trains on the CPU, and the job holds 1 GPU" in whats


def test_processes_that_a_script_spawns_share_the_cores(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch.multiprocessing as mp\nmp.spawn(f, nprocs=4)\n"
    )
    made = make_plan(Spec(("train.py",), gpus=4), load_cluster("puhti"), tmp_path)
    assert made.threads == 10


@pytest.mark.parametrize(
    ("text", "words", "notice"),
    [
        ("get_ipython().system('pip install x')\n", (), "train.py:1 calls `get_ipython`"),
        ("import torch\n", ("--gpus=2", "--cluster", "lumi"), "--cluster and --gpus went to the script"),
        ("add('--gpus')\n", ("--gpus", "2"), None),
        ("import torch\n", ("--epochs", "2"), None),
    ],
)  # fmt: skip
def test_words_and_lines_that_are_meant_for_others_are_noticed(
    text: str, words: tuple[str, ...], notice: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    plan = make_plan(Spec((str(path), *words)), load_cluster("local"))
    assert [each.what for each in plan.notices] == ([notice] if notice else [])


def test_threads_are_what_the_loader_workers_leave(tmp_path: Path) -> None:
    loader = "from torch.utils.data import DataLoader\nDataLoader(d, num_workers={})\n"
    for workers, threads in (("8", 2), ("0", 10), ("n", 1), ("16", 1)):
        (tmp_path / "train.py").write_text(loader.format(workers))
        made = make_plan(Spec(("train.py",), gpus=1), load_cluster("puhti"), tmp_path)
        assert made.threads == threads


def test_bf16_on_a_gpu_without_it_is_noticed() -> None:
    spec = Spec(("train.py", "--precision=bf16"), gpus=1)
    notices = make_plan(spec, load_cluster("puhti"), Path("/nowhere")).notices
    assert any("bf16" in each.what for each in notices)


def test_a_program_that_is_not_python_is_run_as_it_is() -> None:
    script = render_script(plan("puhti", script="./a.out", gpus=1, framework="plain"))
    assert "    ./a.out\n" in script
    assert "python3" not in script


def test_a_module_is_started_with_m() -> None:
    made = plan("puhti", script="pkg.train", gpus=1, framework="plain", is_module=True)
    assert "python3 -m pkg.train" in render_script(made)


@pytest.mark.parametrize(
    ("setup", "line"),
    [
        (Setup(modules=("pytorch/2.7",)), "module load pytorch/2.7"),
        (Setup(venv="/projappl/my env"), "source '/projappl/my env/bin/activate'"),
        (Setup(conda="torch-env"), "conda activate torch-env"),
        (Setup(container="/x/y.sif"), 'apptainer exec --nv "$SIF" torchrun'),
        (Setup(lines=("ulimit -n 4096",)), "ulimit -n 4096"),
    ],
)
def test_an_environment_of_ones_own_replaces_the_sites(setup: Setup, line: str) -> None:
    script = render_script(plan("puhti", gpus=1, setup=setup))
    assert line in script
    assert ("module load pytorch\n" in script) == bool(setup.lines)


def test_a_usage_error_is_told_apart_by_its_exit_code() -> None:
    with pytest.raises(UsageError) as caught:
        plan("puhti", framework="x")
    assert caught.value.exit_code == 2


def test_a_script_that_spawns_its_own_processes_is_started_once_a_node(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch.distributed as d\nimport torch.multiprocessing as mp\n"
        "def f(rank): d.init_process_group('nccl')\nmp.spawn(f, nprocs=4)\n"
    )
    made = make_plan(Spec(("train.py",), gpus=4), load_cluster("puhti"), tmp_path)
    assert (made.framework, made.launch.tasks_per_node) == ("plain", 1)
    assert not any("more than one process" in each.what for each in made.notices)


def test_passed_through_options_that_we_know_change_the_plan_itself() -> None:
    made = plan("puhti", gpus_per_node=4, add=("--nodes=2", "--time=02:00:00", "--mem-per-gpu=80G"))
    assert (made.shape.nodes, made.time_s) == (2, 2 * HOUR)
    options = directives(made)
    assert options["mem-per-gpu"] == "80G"
    assert "mem" not in options
    assert "--nodes=2" in render_script(made)


def test_srun_does_not_repeat_what_was_taken_away() -> None:
    script = render_script(plan("puhti", gpus=1, drop=("cpus-per-task",)))
    assert "cpus-per-task" not in script


def test_a_narrow_export_does_not_reach_the_tasks() -> None:
    assert "export SLURM_EXPORT_ENV=ALL" in render_script(
        plan("puhti", gpus=1, add=("--export=NONE",))
    )


def test_results_reserve_a_place_to_be_written() -> None:
    options = directives(plan("puhti", gpus=1, staging=Staging(results="out")))
    assert options["gres"] == "gpu:v100:1,nvme:50"


def test_a_large_cpu_job_goes_to_the_queue_that_has_the_memory() -> None:
    assert shape(plan("puhti", gpus=0, framework="plain", mem_gib=1000.0))[0] == "hugemem"


def test_a_cpu_job_has_no_gpu_price() -> None:
    assert plan("mahti", gpus=0, framework="plain").cost is None


def test_a_missing_account_is_noticed() -> None:
    assert any("no account" in each.what for each in plan("lumi", gpus=1).notices)


def test_a_container_gets_the_sites_bindings() -> None:
    script = render_script(plan("lumi", gpus=8, setup=Setup(container="/x.sif")))
    assert "module load lumi-aif-singularity-bindings" in script


def test_a_launcher_of_another_program_is_told_so() -> None:
    assert "--no_python" in render_script(plan("puhti", script="./run.sh", gpus=4))


@pytest.mark.parametrize(
    "text", ["--gpus-per-node=0", "--gpus-per-node=-1", "--cpus-per-task=0", "--mem=100K", "--nodes=0", "--nodes=2-4",
             "--account=", "--time=UNLIMITED", "--time=0"],
)  # fmt: skip
def test_what_is_passed_through_is_read_as_strictly_as_our_own_options(text: str) -> None:
    with pytest.raises(UsageError):
        plan("puhti", add=(text,))


def test_gpus_that_are_passed_through_are_planned() -> None:
    assert directives(plan("puhti", add=("--gpus=4",)))["gres"] == "gpu:v100:4"


def test_an_option_that_is_not_there_cannot_be_left_out_by_a_slip() -> None:
    with pytest.raises(UsageError) as caught:
        plan("puhti", drop=("tiem",))
    assert caught.value.fix == "--no-sbatch=time"
    plan("mahti", gpus=1, drop=("mem",))  # not there, and no slip: fine


@pytest.mark.parametrize("asked", [{"time_s": None}, {"test": True, "time_s": 5 * HOUR}])
def test_the_signal_is_checked_against_the_time_that_is_asked_for(asked: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        plan("mahti", gpus=1, survival=Survival(requeue=True, grace_s=3600), **asked)


def test_offers_are_tried_with_the_framework_too() -> None:
    with pytest.raises(SpecError) as caught:
        plan("lumi", gpus=12, framework="mirrored")
    assert caught.value.fix == "--gpus 8"


def test_a_slice_has_its_own_memory() -> None:
    with pytest.raises(SpecError) as caught:
        plan("fir", gpu="h100_1g.10gb", mem_gib=900.0)
    assert caught.value.fix == "--mem 35G"


def test_data_behind_links_is_counted(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 5_000_000)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "big")
    staging = Staging(data=str(folder))
    asked = directives(plan("puhti", gpus=1, staging=staging, framework="plain"))["gres"]
    assert asked == "gpu:v100:1,nvme:1"
    (tmp_path / "big").unlink()
    with pytest.raises(SpecError):  # a link to nothing has no size
        plan("puhti", gpus=1, staging=staging)


def test_no_framework_is_not_taken_for_no_need(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import numpy\n")
    made = make_plan(Spec(("train.py",), gpus=1), load_cluster("puhti"), tmp_path)
    assert made.environment.reason == "no framework was seen in the script"


def test_this_machine_has_no_job_id_to_meet_by() -> None:
    names = [each.name for each in plan("local", gpus=0, framework="accelerate").choices]
    assert "launcher" in names
    assert not {"rendezvous", "tasks per node"} & set(names)


def test_a_bare_environment_is_noticed_where_the_framework_needs_more() -> None:
    assert any("alone" in each.what for each in plan("fir", gpus=1, framework="lightning").notices)
    assert not any("alone" in each.what for each in plan("fir", gpus=1, framework="ddp").notices)
    assert not any(
        "alone" in each.what for each in plan("puhti", gpus=1, framework="lightning").notices
    )
