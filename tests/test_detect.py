"""`stoker cluster detect` reads what Slurm of several releases prints, and says what it does not know.

The answers are made from the documented formats, one set a release, with what differs there:
20.11  nodes have no CPUEfctv; accounting off is `accounting_storage/none`
22.05  nodes have CPUEfctv
23.11  partitions have MaxCPUsPerSocket; accounting off is `(null)`; nodes have Comment and Extra
25.05  partitions have ExclusiveTopo and Topology; times and names as before
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Stoker
from stoker.cluster.detect import Detected, detect_cluster, saved_file, this_person
from stoker.cluster.detect.answers import (
    Gres,
    hosts,
    read_gres,
    read_limits,
    read_records,
    read_settings,
    split_list,
)
from stoker.cluster.detect.network import interface_to
from stoker.cluster.detect.nodes import SEPARATOR, read_nodes
from stoker.cluster.detect.queues import Person, read_qos
from stoker.cluster.layers import Layer, fold, read_layer
from stoker.cluster.load import load_cluster
from stoker.cluster.profile import Cluster
from stoker.errors import ClusterError, SlurmError, StokerError
from stoker.plan.make import make_plan
from stoker.plan.spec import Spec
from stoker.report.detected import detected_json, render_detected

DAY = dt.date(2026, 11, 2)
ME = Person("ada", frozenset({"ada", "users"}))


@dataclass
class Site:
    """A Slurm that answers from memory, and notes what it was asked."""

    version: str = "22.05.8"
    cluster: str = "Grotto"
    settings: dict[str, str] = field(default_factory=dict)
    partitions: list[str] = field(default_factory=list)
    # Partition, state, CPUs, memory, disk, threads, features, gres, names.
    nodes: list[tuple[str, str, int, int, int, int, str, str, str]] = field(default_factory=list)
    records: str = ""
    qos: str = "normal||||||\n"
    associations: str = "vision|normal|\n"
    mpi: str = "MPI plugin types are...\n\tnone\n\tpmi2\n"
    refuses: tuple[str, ...] = ()
    asked: list[list[str]] = field(default_factory=list)

    def __call__(self, words: Sequence[str]) -> str:
        self.asked.append(list(words))
        line = " ".join(words)
        if any(each in line for each in self.refuses):
            raise SlurmError(f"`{words[0]}` refuses", why="it was told to", fix="none")
        if words[0] == "srun":
            return self.mpi
        if words[0] == "sinfo":
            rows = (SEPARATOR.join(map(str, row)) for row in self.nodes)
            return "\n".join(rows) + "\n"
        if words[0] == "sacctmgr":
            return self.qos if "qos" in words else self.associations
        return {"config": self._config(), "partition": "\n".join(self.partitions)}.get(
            words[-1], self.records
        )

    def _config(self) -> str:
        known = {
            "AccountingStorageEnforce": "associations,limits,qos",
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "ClusterName": self.cluster,
            "JobSubmitPlugins": "(null)",
            "MpiDefault": "none",
            "SelectType": "select/cons_tres",
            "SLURM_VERSION": self.version,
            "TmpFS": "/tmp",
            **self.settings,
        }
        return "Configuration data as of 2026-11-02T10:00:00\n" + "\n".join(
            f"{name:<23} = {value}" for name, value in known.items()
        )


def partition(name: str, **facts: str) -> str:
    known = {
        "PartitionName": name, "AllowGroups": "ALL", "AllowAccounts": "ALL", "AllowQos": "ALL",
        "Default": "NO", "QoS": "N/A", "DefaultTime": "NONE", "ExclusiveUser": "NO", "MaxNodes": "UNLIMITED",
        "MaxTime": "2-00:00:00", "MinNodes": "0", "MaxCPUsPerNode": "UNLIMITED", "RootOnly": "NO",
        "ReqResv": "NO", "OverSubscribe": "NO", "State": "UP", "TotalNodes": "4", "JobDefaults": "(null)",
        "DefMemPerNode": "UNLIMITED", "MaxMemPerNode": "UNLIMITED", **facts,
    }  # fmt: skip
    return " ".join(f"{key}={value}" for key, value in known.items())


def a100_site(**changes: object) -> Site:
    site = Site(
        partitions=[partition("gpu", TotalNodes="4")],
        nodes=[("gpu", "idle", 64, 515000, 0, 1, "(null)", "gpu:a100:4(S:0-1)", "g[01-04]")],
    )
    for key, value in changes.items():
        setattr(site, key, value)
    return site


def detect(site: Site, person: Person = ME) -> Detected:
    return detect_cluster(site, person=person, today=DAY, environ={})


def load(found: Detected, tmp_path: Path) -> Cluster:
    """Read the text as everybody would: from a file, checked by the schema."""
    path = tmp_path / "stoker.toml"
    path.write_text(found.toml())
    return load_cluster(found.name, [read_layer(path)])


def unknown(found: Detected) -> set[str]:
    return {each.fact for each in found.unknown}


RECORD = {
    "20.11.9": "NodeName=g01 Arch=x86_64 CoresPerSocket=32 CPUAlloc=0 CPUTot=64 CPULoad=0.01 CoreSpecCount=8 "
    "CPUSpecList=0-7 MemSpecLimit=20480 Gres=gpu:a100:4(S:0-1) NodeAddr=127.0.0.1 RealMemory=515000 State=IDLE "
    "ThreadsPerCore=1 TmpDisk=0 Partitions=gpu",
    "22.05.8": "NodeName=g01 Arch=x86_64 CoresPerSocket=32  CPUAlloc=0 CPUEfctv=56 CPUTot=64 CPULoad=0.01 "
    "CoreSpecCount=8 CPUSpecList=0-7 MemSpecLimit=20480 Gres=gpu:a100:4(S:0-1) RealMemory=515000 State=IDLE",
    "23.11.10": "NodeName=g01 Arch=x86_64 CoresPerSocket=32  CPUAlloc=0 CPUEfctv=56 CPUTot=64 CPULoad=0.01 "
    "OS=Linux 5.14.0 #1 SMP MemSpecLimit=20480 Gres=gpu:a100:4(S:0-1) Comment=see Gres=gpu:none:1 Extra=x=y",
    "25.05.1": "NodeName=g01 Arch=x86_64 CoresPerSocket=32 CPUAlloc=0 CPUEfctv=56 CPUTot=64 CPULoad=0.01 "
    "Gres=gpu:a100:4(S:0-1) MemSpecLimit=20480 Topology=default:s1 ResumeAfterTime=None InstanceId=(null)",
}
PARTITION_MORE = {
    "20.11.9": {},
    "22.05.8": {},
    "23.11.10": {"MaxCPUsPerSocket": "UNLIMITED"},
    "25.05.1": {"MaxCPUsPerSocket": "UNLIMITED", "ExclusiveTopo": "NO", "Topology": "(null)"},
}


@pytest.mark.parametrize("version", RECORD)
def test_every_release_tells_the_same_cluster(version: str, tmp_path: Path) -> None:
    site = a100_site(
        version=version,
        records=RECORD[version],
        partitions=[partition("gpu", DefaultTime="01:00:00", **PARTITION_MORE[version])],
    )
    cluster = load(detect(site), tmp_path)
    assert cluster.slurm.version == ".".join(version.split(".")[:2])
    gpu = cluster.gpu["a100"]
    assert (gpu.type, gpu.per_node, gpu.nodes, gpu.arch) == ("a100", 4, 4, "x86_64")
    # Eight cores and 20 GiB of each node are kept for the system.
    assert (gpu.cpus_per_node, gpu.mem_gib_per_node) == (56, 482)
    assert (gpu.vendor, gpu.bf16) == ("nvidia", True)
    queue = cluster.partition["gpu"]
    assert (queue.time, queue.max_nodes, queue.max_gpus) == ("2-00:00:00", 4, 16)
    assert cluster.slurm.default_time == "01:00:00"
    assert (cluster.slurm.account, cluster.slurm.account_example) == ("optional", "vision")


def test_every_table_says_which_commands_told_it_and_when(tmp_path: Path) -> None:
    cluster = load(detect(a100_site()), tmp_path)
    sources = [cluster.slurm.source, cluster.gpu["a100"].source, cluster.partition["gpu"].source]
    assert all("2026-11-02" in source for source in sources)
    assert cluster.partition["gpu"].source.startswith("scontrol show partition, sinfo")


def test_few_commands_are_asked_and_none_for_json() -> None:
    site = a100_site()
    detect(site)
    assert len(site.asked) == 7
    assert not any("json" in word for words in site.asked for word in words)


@pytest.mark.parametrize(
    ("usual", "offered", "expected"),
    [
        ("none", "MPI plugin types are...\n\tpmi2\n\tpmix\n", "pmix"),
        ("none", "MPI plugin types are...\n\tnone\n\tpmi2\n", "pmi2"),
        ("none", "MPI plugin types are...\n\tnone\n", None),
        ("none", "", None),
        ("pmi2", "MPI plugin types are...\n\tpmix\n", "pmi2"),
    ],
)
def test_ranks_of_mpi_start_with_what_srun_has(
    usual: str, offered: str, expected: str | None, tmp_path: Path
) -> None:
    site = a100_site()
    site.settings, site.mpi = {"MpiDefault": usual}, offered
    assert load(detect(site), tmp_path).slurm.mpi == expected


def test_an_srun_that_does_not_answer_is_no_reason_to_stop(tmp_path: Path) -> None:
    site = a100_site()
    site.refuses = ("srun",)
    assert load(detect(site), tmp_path).slurm.mpi is None


def test_a_plan_can_be_made_at_once(tmp_path: Path) -> None:
    plan = make_plan(Spec(("train.py",), gpus=8), load(detect(a100_site()), tmp_path))
    options = dict(plan.directives)
    assert (options["partition"], options["nodes"]) == ("gpu", "2")
    assert options["gres"] == "gpu:a100:4"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(null)", []),
        ("", []),
        ("gpu:4", [("gpu", None, 4)]),
        ("gpu", [("gpu", None, 1)]),
        ("gpu:a100", [("gpu", "a100", 1)]),
        ("gpu:a100:4(S:0-1),nvme:3600", [("gpu", "a100", 4), ("nvme", None, 3600)]),
        ("gpu:a100:2(S:0,2-3),gpu:v100:1(S:1)", [("gpu", "a100", 2), ("gpu", "v100", 1)]),
        ("gpu:a100_1g.5gb:28(S:0-1)", [("gpu", "a100_1g.5gb", 28)]),
        ("gpu:gtx:no_consume:2", [("gpu", "gtx", 2)]),
        ("gpu:no_consume:2", [("gpu", None, 2)]),
        ("tmp:900G", [("tmp", None, 900 * 2**30)]),
    ],
)
def test_generic_resources_are_read_in_all_their_forms(
    text: str, expected: list[tuple[str, str | None, int]]
) -> None:
    assert read_gres(text) == tuple(Gres(*each) for each in expected)


def test_gpus_without_a_type_are_asked_for_by_number(tmp_path: Path) -> None:
    site = a100_site(nodes=[("gpu", "idle", 32, 190000, 0, 1, "(null)", "gpu:4", "g[1-4]")])
    cluster = load(detect(site), tmp_path)
    assert cluster.slurm.gpu_type == "never"
    assert cluster.gpu["gpu"].per_node == 4
    plan = make_plan(Spec(("train.py",), gpus=2), cluster)
    assert dict(plan.directives)["gres"] == "gpu:2"


def test_a_feature_names_gpus_that_have_no_type(tmp_path: Path) -> None:
    site = a100_site(
        nodes=[
            ("gpu", "idle", 32, 190000, 0, 1, "rack1,ib,v100", "gpu:4", "g[1-4]"),
            ("gpu", "mix", 64, 515000, 0, 1, "rack2,a100,ib", "gpu:4", "g[5-6]"),
        ]
    )
    cluster = load(detect(site), tmp_path)
    assert list(cluster.gpu) == ["v100", "a100"]
    plan = make_plan(Spec(("train.py",), gpus=1, gpu="a100"), cluster)
    assert dict(plan.directives)["constraint"] == "a100"


def test_slices_of_a_gpu_come_after_whole_ones_and_share_the_node(tmp_path: Path) -> None:
    gres = "gpu:a100:2(S:0),gpu:a100_1g.5gb:14(S:1)"
    site = a100_site(
        nodes=[("gpu", "idle", 64, 512000, 0, 1, "(null)", gres, "m[1-2]")],
    )
    cluster = load(detect(site), tmp_path)
    whole, part = cluster.gpu["a100"], cluster.gpu["a100_1g.5gb"]
    assert list(cluster.gpu) == ["a100", "a100_1g.5gb"]
    assert (whole.cpu_share, part.cpu_share) == (16, 2)
    assert (part.slice_of, part.memory_gb, part.counts) == ("a100", 5, (1,))
    assert part.mem_share_gib == 17


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        ("nvidia_h100_80gb_hbm3", "nvidia_h100_80gb_hbm3_1g.10gb"),
        ("nvidia_h100_80gb_hbm3", "h100_1g.10gb"),
        ("h100", "nvidia_h100_80gb_hbm3_1g.10gb"),
        ("h100", "h100_mig_1g.10gb"),
    ],
)
def test_a_slice_knows_its_gpu_however_long_their_names_are(
    whole: str, part: str, tmp_path: Path
) -> None:
    nodes = [
        ("gpu", "idle", 64, 512000, 0, 1, "(null)", f"gpu:{whole}:4", "g1"),
        ("gpu", "idle", 64, 512000, 0, 1, "(null)", f"gpu:{part}:28", "m1"),
    ]
    gpu = load(detect(a100_site(nodes=nodes)), tmp_path).gpu[part]
    assert (gpu.slice_of, gpu.memory_gb) == (whole, 10)


def test_slices_without_a_whole_gpu_are_a_kind_of_their_own(tmp_path: Path) -> None:
    nodes = [("gpu", "idle", 64, 512000, 0, 1, "(null)", "gpu:a100_1g.5gb:28", "m1")]
    gpu = load(detect(a100_site(nodes=nodes)), tmp_path).gpu["a100_1g.5gb"]
    assert (gpu.slice_of, gpu.per_node, gpu.cpu_share, gpu.counts) == (None, 28, 2, (1,))


def test_the_same_gpu_in_other_nodes_is_another_kind(tmp_path: Path) -> None:
    site = a100_site(
        partitions=[partition("gpu"), partition("fat", TotalNodes="2")],
        nodes=[
            ("gpu", "idle", 64, 515000, 0, 1, "(null)", "gpu:a100:4", "g[01-04]"),
            ("fat", "idle", 128, 1030000, 0, 1, "(null)", "gpu:a100:8", "f[1-2]"),
        ],
    )
    cluster = load(detect(site), tmp_path)
    assert {name: gpu.per_node for name, gpu in cluster.gpu.items()} == {"a100": 4, "a100_8": 8}
    assert cluster.partition["fat"].gpus == ("a100_8",)
    plan = make_plan(Spec(("train.py",), gpus=8, gpu="a100_8"), cluster)
    assert dict(plan.directives)["gres"] == "gpu:a100:8"


def test_kinds_that_would_be_called_the_same_are_told_apart(tmp_path: Path) -> None:
    rows = [("a100", "gpu:a100:4"), ("a100", "gpu:4"), ("a100", "gpu:a100:8"), ("a100", "gpu:8")]
    nodes = [
        ("gpu", "idle", 64, 515000, 0, 1, feature, gres, f"n{index}")
        for index, (feature, gres) in enumerate(rows)
    ]
    cluster = load(detect(a100_site(nodes=nodes)), tmp_path)
    assert len(cluster.gpu) == 4
    assert {(gpu.type, gpu.constraint, gpu.per_node) for gpu in cluster.gpu.values()} == {
        ("a100", None, 4),
        (None, "a100", 4),
        ("a100", None, 8),
        (None, "a100", 8),
    }


def test_where_nodes_differ_the_least_of_them_is_planned_with(tmp_path: Path) -> None:
    site = a100_site(
        nodes=[
            ("gpu", "idle", 64, 515000, 0, 1, "(null)", "gpu:a100:4(S:0)", "g[01-03]"),
            ("gpu", "idle", 64, 1030000, 0, 1, "(null)", "gpu:a100:4(S:0-1)", "g04"),
        ]
    )
    gpu = load(detect(site), tmp_path).gpu["a100"]
    assert (gpu.mem_gib_per_node, gpu.nodes) == (502, 4)
    assert gpu.note == "nodes differ: 502 to 1005 GiB; the least is given"


def test_long_names_of_types_have_a_short_one_too(tmp_path: Path) -> None:
    gres = "gpu:nvidia_a100_80gb_pcie:2(S:0-1)"
    site = a100_site(nodes=[("gpu", "idle", 64, 515000, 0, 2, "(null)", gres, "g1")])
    gpu = load(detect(site), tmp_path).gpu["nvidia_a100_80gb_pcie"]
    assert (gpu.aliases, gpu.memory_gb) == (("a100",), 80)
    assert gpu.note == "a core counts as 2 CPUs"


@pytest.mark.parametrize("state", ["down*", "drain", "drng", "inval", "fail", "down$", "unk*"])
def test_a_kind_of_which_no_node_takes_jobs_is_not_to_be_had(state: str, tmp_path: Path) -> None:
    site = a100_site(
        nodes=[
            ("gpu", state, 32, 190000, 0, 1, "(null)", "gpu:k80:4", "k[1-9]"),
            ("gpu", "mix-", 64, 515000, 0, 1, "(null)", "gpu:a100:4", "g[1-2]"),
            ("gpu", state, 64, 515000, 0, 1, "(null)", "gpu:a100:4", "g3"),
        ]
    )
    cluster = load(detect(site), tmp_path)
    assert (cluster.gpu["k80"].available, cluster.gpu["a100"].available) == (False, True)
    plan = make_plan(Spec(("train.py",), gpus=1), cluster)
    assert dict(plan.directives)["gres"] == "gpu:a100:1"


@pytest.mark.parametrize("state", ["idle~", "alloc#", "mix@", "resv", "maint", "comp*", "plnd"])
def test_busy_and_sleeping_nodes_are_there(state: str, tmp_path: Path) -> None:
    nodes = [("gpu", state, 64, 515000, 0, 1, "(null)", "gpu:a100:4", "g[1-2]")]
    assert load(detect(a100_site(nodes=nodes)), tmp_path).gpu["a100"].available


def test_a_cluster_without_gpus_plans_cpu_jobs(tmp_path: Path) -> None:
    site = Site(
        partitions=[partition("batch", TotalNodes="10", OverSubscribe="EXCLUSIVE")],
        nodes=[("batch", "idle", 128, 256000, 0, 2, "(null)", "(null)", "n[001-010]")],
    )
    found = detect(site)
    assert "gpu" in unknown(found)
    cluster = load(found, tmp_path)
    queue = cluster.partition["batch"]
    assert (queue.kind, queue.exclusive, queue.mem_gib_per_node) == ("cpu", True, 250)
    plan = make_plan(Spec(("train.py",), gpus=0), cluster)
    assert dict(plan.directives)["partition"] == "batch"


def test_a_partition_with_both_kinds_of_nodes_takes_both_kinds_of_jobs(tmp_path: Path) -> None:
    site = a100_site(
        nodes=[
            ("gpu", "idle", 64, 515000, 0, 1, "(null)", "gpu:a100:4", "g[01-02]"),
            ("gpu", "idle", 64, 190000, 0, 1, "(null)", "(null)", "c[01-02]"),
        ]
    )
    cluster = load(detect(site), tmp_path)
    assert cluster.partition["gpu"].min_gpus == 0
    for gpus in (0, 1):
        plan = make_plan(Spec(("train.py",), gpus=gpus), cluster)
        assert dict(plan.directives)["partition"] == "gpu"


def test_a_partition_with_two_kinds_of_gpu_has_the_limits_of_each(tmp_path: Path) -> None:
    site = a100_site(
        partitions=[partition("gpu", TotalNodes="6"), partition("mini", MaxNodes="1")],
        nodes=[
            (name, "idle", *rest)
            for name in ("gpu", "mini")
            for rest in (
                (40, 382000, 0, 1, "(null)", "gpu:v100:4", "v[1-2]"),
                (64, 515000, 0, 1, "(null)", "gpu:a100:4", "a[1-4]"),
            )
        ],
    )
    cluster = load(detect(site), tmp_path)
    limits = {
        each.name: (each.gpus, each.max_nodes, each.max_gpus) for each in cluster.partition.values()
    }
    assert limits == {
        "gpu": (("a100",), 4, 16),
        "gpu_v100": (("v100",), 2, 8),
        "mini": (("a100", "v100"), 1, 4),
    }
    for gpu, most in (("a100", 16), ("v100", 8)):
        plan = make_plan(Spec(("train.py",), gpus=most, gpu=gpu, partition="gpu"), cluster)
        assert dict(plan.directives)["partition"] == "gpu"
        with pytest.raises(StokerError, match="does not fit"):
            make_plan(Spec(("train.py",), gpus=most + 4, gpu=gpu, partition="gpu"), cluster)


def test_a_partition_whose_jobs_make_room_comes_last(tmp_path: Path) -> None:
    row = ("idle", 64, 515000, 0, 1, "(null)", "gpu:a100:4", "g[01-04]")
    site = a100_site(
        partitions=[
            partition("scavenge", PriorityTier="1", PreemptMode="REQUEUE"),
            partition("gpu", PriorityTier="10", PreemptMode="OFF"),
        ],
        nodes=[("scavenge", *row), ("gpu", *row)],
    )
    cluster = load(detect(site), tmp_path)
    assert list(cluster.partition) == ["gpu", "scavenge"]
    assert cluster.notes == ("jobs in `scavenge` make room for others",)


@pytest.mark.parametrize(
    ("name", "limit", "is_test"),
    [
        ("gputest", "00:15:00", True),
        ("debug", "01:00:00", True),
        ("dev-g", "03:00:00", True),
        ("boost_dbg", "00:30:00", True),
        ("quick", "00:20:00", True),
        ("debug", "2-00:00:00", False),
        ("latest", "7-00:00:00", False),
        ("devices", "04:00:00", False),
        ("short", "04:00:00", False),
        ("test", "UNLIMITED", False),
    ],
)
def test_the_test_queue_is_known_by_its_name_and_its_time(
    name: str, limit: str, is_test: bool, tmp_path: Path
) -> None:
    site = a100_site(
        partitions=[partition(name, MaxTime=limit)],
        nodes=[(name, "idle", 64, 515000, 0, 1, "(null)", "gpu:a100:4", "g[01-04]")],
    )
    assert load(detect(site), tmp_path).partition[name].test is is_test


def test_limits_of_the_qos_cut_those_of_the_partition(tmp_path: Path) -> None:
    site = a100_site(
        partitions=[partition("gpu", QoS="gpu-limits", TotalNodes="4")],
        qos="normal|||cpu=999|||\n"
        "gpu-limits|DenyOnLimit|12:00:00|cpu=512|gres/gpu=8,node=3|gres/gpu=6|gres/gpu=1\n",
    )
    queue = load(detect(site), tmp_path).partition["gpu"]
    assert (queue.time, queue.max_nodes, queue.max_gpus, queue.min_gpus) == ("12:00:00", 3, 6, 1)


def test_the_usual_qos_of_a_person_limits_too(tmp_path: Path) -> None:
    site = a100_site(qos="normal||06:00:00||gres/gpu=4||\n", associations="vision|normal,long|\n")
    queue = load(detect(site), tmp_path).partition["gpu"]
    assert (queue.time, queue.max_gpus) == ("06:00:00", 4)


def test_a_qos_that_cannot_be_read_is_named_as_unknown() -> None:
    found = detect(a100_site(partitions=[partition("gpu", QoS="secret")]))
    assert "partition.gpu.max_gpus" in unknown(found)
    assert "# max_gpus: unknown; the limits of its QOS secret" in found.toml()


def test_a_qos_that_a_partition_wants_is_asked_for(tmp_path: Path) -> None:
    site = a100_site(
        partitions=[partition("gpu", AllowQos="gpu-std,gpu-long")],
        qos="normal||||||\ngpu-long||7-00:00:00||||\n",
        associations="vision|normal,gpu-long|normal\n",
    )
    cluster = load(detect(site), tmp_path)
    assert cluster.partition["gpu"].qos == "gpu-long"
    plan = make_plan(Spec(("train.py",), gpus=1), cluster)
    assert dict(plan.directives)["qos"] == "gpu-long"


@pytest.mark.parametrize(
    ("facts", "access"),
    [
        ({"State": "INACTIVE"}, "its state was INACTIVE"),
        ({"RootOnly": "YES"}, "for administrators"),
        ({"ReqResv": "YES"}, "jobs need a reservation"),
        ({"AllowGroups": "staff,ops"}, "for the groups ops, staff"),
        ({"AllowGroups": "users"}, None),
        ({"AllowAccounts": "physics"}, "for the accounts physics"),
        ({"AllowAccounts": "physics,vision"}, None),
        ({"DenyAccounts": "vision"}, "not for your accounts"),
        ({"AllowQos": "boss"}, "for the QOS boss"),
    ],
)
def test_a_queue_that_is_closed_to_somebody_says_to_whom_it_is_open(
    facts: dict[str, str], access: str | None, tmp_path: Path
) -> None:
    site = a100_site(partitions=[partition("gpu", **facts)])
    cluster = load(detect(site), tmp_path)
    assert cluster.partition["gpu"].access == access
    assert cluster.gpu["a100"].access == access


@pytest.mark.parametrize(
    ("version", "kind"), [("20.11.9", "accounting_storage/none"), ("23.11.10", "(null)")]
)
def test_without_accounting_nothing_is_asked_of_it(version: str, kind: str, tmp_path: Path) -> None:
    settings = {"AccountingStorageType": kind, "AccountingStorageEnforce": "none"}
    site = a100_site(version=version, settings=settings)
    found = detect(site)
    assert not [words for words in site.asked if words[0] == "sacctmgr"]
    assert "slurm.account_example" in unknown(found)
    cluster = load(found, tmp_path)
    assert (cluster.slurm.account, cluster.partition["gpu"].max_gpus) == ("optional", 16)


def test_accounting_that_does_not_answer_leaves_the_rest(tmp_path: Path) -> None:
    found = detect(a100_site(refuses=("sacctmgr",)))
    assert "slurm.account_example" in unknown(found)
    assert load(found, tmp_path).gpu["a100"].per_node == 4


def test_nodes_that_do_not_tell_leave_what_sinfo_told(tmp_path: Path) -> None:
    gpu = load(detect(a100_site(refuses=("oneliner node",))), tmp_path).gpu["a100"]
    assert (gpu.cpus_per_node, gpu.arch) == (64, None)


@pytest.mark.parametrize(
    ("settings", "associations", "need"),
    [
        ({}, "a1|normal|\n", "optional"),
        ({}, "a1|normal|\nb2|normal|\n", "required"),
        ({"JobSubmitPlugins": "lua"}, "a1|normal|\n", "required"),
        ({"AccountingStorageEnforce": "none"}, "a1|normal|\nb2|normal|\n", "optional"),
    ],
)
def test_an_account_is_wanted_where_slurm_cannot_choose_one(
    settings: dict[str, str], associations: str, need: str, tmp_path: Path
) -> None:
    site = a100_site(settings=settings, associations=associations)
    assert load(detect(site), tmp_path).slurm.account == need


def test_several_accounts_of_one_form_make_a_pattern(tmp_path: Path) -> None:
    site = a100_site(associations="project_2001234|normal|\nproject_2005678|normal|\n")
    pattern = load(detect(site), tmp_path).slurm.account_pattern
    assert pattern == r"project_\d{7}"
    assert re.fullmatch(pattern, "project_2009999")


@pytest.mark.parametrize("associations", ["project_2001234|normal|\n", "a|n|\nb|n|\n", ""])
def test_other_accounts_make_none(associations: str, tmp_path: Path) -> None:
    found = detect(a100_site(associations=associations))
    assert load(found, tmp_path).slurm.account_pattern is None


def test_the_local_disk_is_a_resource_or_the_folder_for_temporary_files(tmp_path: Path) -> None:
    gres = [("gpu", "idle", 40, 382000, 0, 1, "(null)", "gpu:v100:4,nvme:3600", "g[1-4]")]
    disk = load(detect(a100_site(nodes=gres)), tmp_path).disk
    assert (disk.exists, disk.gres, disk.max_gb) == (True, "nvme", 3600)
    plain = [("gpu", "idle", 40, 382000, 1800000, 1, "(null)", "gpu:v100:4", "g[1-4]")]
    found = detect(a100_site(nodes=plain, settings={"TmpFS": "/local"}))
    disk = load(found, tmp_path).disk
    assert (disk.exists, disk.path, disk.free_gb) == (True, "/local", 1800)
    assert (disk.kept, "disk.exists" in unknown(found)) == (None, False)
    private = {"JobContainerType": "job_container/tmpfs"}
    disk = load(detect(a100_site(nodes=plain, settings=private)), tmp_path).disk
    assert (disk.path, disk.kept) == ("/tmp", False)


def test_a_disk_of_which_slurm_tells_nothing_stays_unknown(tmp_path: Path) -> None:
    found = detect(a100_site())
    assert load(found, tmp_path).disk.exists is None
    assert "disk.exists" in unknown(found)


def test_what_slurm_bills_becomes_the_cost(tmp_path: Path) -> None:
    weights = "CPU=1.0,Mem=0.25G,GRES/gpu=16.0"
    site = a100_site(
        partitions=[partition("gpu", TRESBillingWeights=weights)],
        settings={"PriorityFlags": "MAX_TRES"},
    )
    billing = load(detect(site), tmp_path).billing
    assert (billing.rule, billing.per_gpu_hour, billing.per_cpu_hour, billing.per_mem_gib_hour) == (
        "max", 16, 1, 0.25,
    )  # fmt: skip


def test_the_sites_own_share_of_cores_is_kept(tmp_path: Path) -> None:
    facts = {"JobDefaults": "DefCpuPerGPU=8,DefMemPerGPU=64000", "MaxCPUsPerNode": "48"}
    gpu = load(detect(a100_site(partitions=[partition("gpu", **facts)])), tmp_path).gpu["a100"]
    assert (gpu.cpus_per_gpu, gpu.cpus_per_node) == (8, 48)


def test_a_cluster_that_comes_with_stoker_is_compared_with_its_profile(tmp_path: Path) -> None:
    nodes = [("gpu", "idle", 40, 382000, 0, 1, "(null)", "gpu:v100:4,nvme:3600", "r01g[01-80]")]
    more = [("gpunew", *nodes[0][1:])]
    found = detect(
        Site(
            cluster="Puhti",
            partitions=[
                partition("gpu", MaxTime="1-00:00:00", MaxNodes="20", TotalNodes="80"),
                partition("gpunew", MaxNodes="2", TotalNodes="80"),
            ],
            nodes=nodes + more,
        )
    )
    told = {each.fact: (each.shipped, each.here) for each in found.differences}
    assert told["partition.gpu.time"] == ("3-00:00:00", "1-00:00:00")
    assert told["partition.gputest"] == ("there", None)
    assert told["partition.gpunew"] == (None, "there")
    assert "gpu.v100.per_node" not in told
    assert "comes with Stoker" in render_detected(found)
    # The shipped profile tells how PyTorch is loaded, though Slurm does not.
    assert not {"software", "disk.env", "billing.unit", "gpu.v100.memory_gb"} & unknown(found)
    cluster = load(found, tmp_path)
    assert (cluster.partition["gpu"].time, cluster.disk.env) == ("1-00:00:00", "LOCAL_SCRATCH")


def test_a_kind_is_called_as_in_the_shipped_profile(tmp_path: Path) -> None:
    gres = "gpu:nvidia_h100_80gb_hbm3_1g.10gb:8"
    site = Site(
        cluster="fir",
        partitions=[partition("mig")],
        nodes=[("mig", "idle", 48, 1150000, 0, 1, "(null)", gres, "fc[1-4]")],
    )
    assert list(detect(site).table["gpu"]) == ["h100_1g.10gb"]


def test_json_has_the_facts_the_unknown_and_the_differences() -> None:
    value = detected_json(detect(a100_site()))
    assert value["name"] == "grotto"
    assert value["cluster"]["checked"] == "2026-11-02"
    assert {"fact", "why"} == set(value["unknown"][0])
    assert value["differences"] == []


def test_names_that_toml_would_misread_are_quoted(tmp_path: Path) -> None:
    name = 'gpu "a".b\\c'
    site = a100_site(
        partitions=[partition("x").replace("PartitionName=x", "PartitionName=gpu.a'b\"c\\d")],
        nodes=[("gpu.a'b\"c\\d", "idle", 64, 515000, 0, 1, "x", "gpu:a.1:4", "g1")],
        associations=f"{name}|normal|\n",
    )
    cluster = load(detect(site), tmp_path)
    assert cluster.slurm.account_example == name
    assert (*cluster.partition, *cluster.gpu) == ("gpu.a'b\"c\\d", "a.1")


def test_a_slurm_without_a_name_is_refused() -> None:
    with pytest.raises(ClusterError):
        detect(a100_site(cluster=""))


def test_a_slurm_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(SlurmError):
        detect(a100_site(refuses=("show config",)))


def test_five_thousand_nodes_are_one_kind_of_which_one_is_asked(tmp_path: Path) -> None:
    names = ["gpu", "large", "long", "debug", "all"]
    nodes = [
        (name, state, 64, 515000, 0, 1, f"rack{rack}", "gpu:a100:4(S:0-1)", f"n[{low}-{low + 124}]")
        for name in names
        for rack in range(20)
        for low, state in ((10000 + rack * 250, "idle"), (10125 + rack * 250, "alloc"))
    ]
    site = a100_site(nodes=nodes, partitions=[partition(name, TotalNodes="5000") for name in names])
    cluster = load(detect(site), tmp_path)
    assert cluster.gpu["a100"].nodes == 5000
    # One node of the only build is asked, not 5,000.
    assert site.asked[2][-1] == "n10000"


def test_the_way_to_the_nodes_is_read_from_the_routes(tmp_path: Path) -> None:
    routes = tmp_path / "route"
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    routes.write_text(
        head
        + "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        + "ib0\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\nnonsense\n"
    )
    assert interface_to("10.77.0.11", routes) == "ib0"
    assert interface_to("192.168.1.1", routes) is None
    assert interface_to("10.77.0.11", tmp_path / "none") is None


def test_the_profile_is_kept_beside_the_persons_own_file() -> None:
    assert saved_file("grotto", {"HOME": "/home/ada"}) == Path(
        "/home/ada/.config/stoker/clusters/grotto.toml"
    )


def test_this_person_has_a_name_and_groups() -> None:
    person = this_person()
    assert isinstance(person.name, str)
    assert person.accounts is None


WORDS = st.text(alphabet="gpu:a10_.,()[]-S0 =|M\x1f\n\\\"'é%", max_size=60)


@given(WORDS)
def test_no_answer_breaks_a_reader(text: str) -> None:
    read_settings(text)
    read_records(text)
    read_limits(text)
    read_qos(text)
    read_nodes(text)
    for gres in read_gres(text):
        assert gres.count >= 0
    assert "".join(split_list(text)) == "" or split_list(text)
    assert all(isinstance(name, str) for _, name in zip(range(100), hosts(text), strict=False))


@given(st.lists(st.integers(0, 99), min_size=1, max_size=5), st.integers(1, 4))
def test_lists_of_hosts_are_read_with_their_zeros(numbers: list[int], width: int) -> None:
    parts = ",".join(f"{number:0{width}d}" for number in numbers)
    assert list(hosts(f"n[{parts}]")) == [f"n{number:0{width}d}" for number in numbers]


@given(partition_name=st.text(min_size=1, max_size=8), gres=WORDS, account=st.text(max_size=8))
def test_whatever_slurm_tells_the_profile_can_be_read_again(
    tmp_path_factory: pytest.TempPathFactory, partition_name: str, gres: str, account: str
) -> None:
    site = a100_site(
        partitions=[partition(partition_name)],
        nodes=[(partition_name, "idle", 64, 515000, 0, 1, account, gres, "g[1-2]")],
        associations=f"{account}|normal|\n",
    )
    found = detect(site)
    load(found, tmp_path_factory.mktemp("profile"))


def layer_of(found: Detected) -> Layer:
    return Layer("detected", {fold(found.name): found.table}, {})


@pytest.mark.parametrize("queue", ["gpu", "gputest", "small"])
def test_every_queue_of_a_detected_cluster_takes_a_plan(queue: str) -> None:
    gpu = ("idle", 40, 382000, 0, 1, "(null)", "gpu:v100:4,nvme:3600", "r01g[01-04]")
    site = Site(
        partitions=[
            partition("small", MaxNodes="1", TotalNodes="2", Default="YES"),
            partition("gputest", MaxTime="00:15:00", MaxNodes="2"),
            partition("gpu", MaxNodes="20"),
        ],
        nodes=[
            ("small", "idle", 40, 190000, 0, 1, "(null)", "(null)", "r01c[01-02]"),
            ("gputest", *gpu),
            ("gpu", *gpu),
        ],
    )
    found = detect(site)
    cluster = load_cluster(found.name, [layer_of(found)])
    count = 0 if queue == "small" else 2
    plan = make_plan(Spec(("train.py",), gpus=count, partition=queue), cluster)
    assert dict(plan.directives)["partition"] == queue


@pytest.mark.parametrize(
    "words",
    [
        ("list", "--save"),
        ("show", "puhti", "-o", "x.toml"),
        ("detect", "puhti"),
        ("detect", "--set", "a=1"),
    ],
)
def test_options_of_one_action_are_refused_with_another(
    stoker: Stoker, words: tuple[str, ...]
) -> None:
    done = stoker("cluster", *words)
    assert done.returncode == 2
    assert "takes neither" in done.stderr


def test_without_slurm_the_error_says_where_to_go(stoker: Stoker, tmp_path: Path) -> None:
    done = stoker("cluster", "detect", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "error: there is no `scontrol` here" in done.stderr
    assert "fix: log in to a cluster" in done.stderr
