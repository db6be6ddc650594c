"""Profiles are whole and sourced; layers override each other in the promised order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.cluster.layers import file_layers, parse_overrides, read_layer
from stoker.cluster.load import load_cluster, names
from stoker.cluster.machine import machine_table
from stoker.errors import ClusterError, UsageError

NAMED_IN_THE_GUIDES = [
    "puhti", "mahti", "lumi", "m3", "cvl_uwa", "carc_discovery", "graham", "beluga", "cedar", "niagara",
]  # fmt: skip
OTHERS = [
    "roihu",
    "fir",
    "nibi",
    "rorqual",
    "trillium",
    "narval",
    "perlmutter",
    "leonardo",
    "della",
    "local",
]


def test_every_cluster_of_the_guides_and_the_issue_is_there() -> None:
    assert set(NAMED_IN_THE_GUIDES + OTHERS) == set(names())


@pytest.mark.parametrize("name", names())
def test_profile_is_whole_and_says_where_every_fact_comes_from(name: str) -> None:
    cluster = load_cluster(name)
    tables: list[Any] = [
        cluster.slurm, cluster.disk, cluster.billing, cluster.tools, cluster.network, cluster.binding,
        *cluster.gpu.values(), *cluster.partition.values(), *cluster.software.values(),
    ]  # fmt: skip
    for table in tables:
        empty = type(table)(**({"name": table.name} if hasattr(table, "name") else {}))
        assert table == empty or table.source, table
    assert cluster.source
    assert cluster.status in ("in service", "retired", "unknown")
    for queue in cluster.partition.values():
        assert queue.time is None or queue.time_s
        if queue.kind == "cpu":
            assert not queue.gpus


@pytest.mark.parametrize("name", names())
def test_a_retired_cluster_says_since_when_and_what_came_after(name: str) -> None:
    cluster = load_cluster(name)
    if cluster.is_retired:
        assert cluster.retired
        assert load_cluster(cluster.successor or "").status == "in service"


@pytest.mark.parametrize("name", names())
def test_shares_fit_into_the_node(name: str) -> None:
    for gpu in load_cluster(name).gpu.values():
        if gpu.per_node and gpu.cpus_per_node and gpu.cpu_share:
            assert gpu.cpu_share * gpu.per_node <= gpu.cpus_per_node
        if gpu.per_node and gpu.mem_gib_per_node and gpu.mem_share_gib:
            assert gpu.mem_share_gib * gpu.per_node <= gpu.mem_gib_per_node


@pytest.mark.parametrize("name", names())
def test_lines_for_the_shell_have_no_single_quotes(name: str) -> None:
    """They are put between single quotes when every node must run them."""
    for software in load_cluster(name).software.values():
        assert "'" not in "".join((*software.node_setup, software.prefix or ""))


@pytest.mark.parametrize("spelled", ["Béluga", "CVL@UWA", "carc-discovery", "PUHTI"])
def test_names_are_forgiving(spelled: str) -> None:
    assert load_cluster(spelled).name in names()


def test_unknown_name_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(ClusterError) as caught:
        load_cluster("puthi")
    assert str(caught.value) == (
        "error: unknown cluster `puthi`\n"
        "  why: known are: beluga, carc_discovery, cedar, cvl_uwa, della, fir, graham, leonardo, local, lumi, "
        "m3, mahti, narval, niagara, nibi, perlmutter, puhti, roihu, rorqual, trillium\n"
        "  fix: stoker cluster show puhti"
    )


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_project_wins_over_user_and_the_command_line_over_both(tmp_path: Path) -> None:
    fact = '[cluster.puhti.partition.gpu]\ntime = "{}"\n'
    write(tmp_path / "home/.config/stoker/config.toml", fact.format("4-00:00:00"))
    write(tmp_path / "project/stoker.toml", fact.format("5-00:00:00"))
    inner = tmp_path / "project/src/deep"
    inner.mkdir(parents=True)
    environ = {"HOME": str(tmp_path / "home")}
    outside, inside = file_layers(tmp_path, environ), file_layers(inner, environ)
    assert load_cluster("puhti").partition["gpu"].time == "3-00:00:00"
    assert load_cluster("puhti", outside).partition["gpu"].time == "4-00:00:00"
    assert load_cluster("puhti", inside).partition["gpu"].time == "5-00:00:00"
    given = parse_overrides(["partition.gpu.time=6-00:00:00"], "puhti")
    merged = load_cluster("puhti", [*inside, *given])
    assert merged.partition["gpu"].time == "6-00:00:00"
    assert merged.partition["gpu"].max_gpus == 80


def test_a_detected_profile_is_found_by_name_and_lies_under_the_persons_own_file(
    tmp_path: Path,
) -> None:
    fact = '[cluster.grotto.partition.gpu]\ntime = "{}"\nmax_nodes = {}\n'
    config = tmp_path / "home/.config/stoker"
    write(config / "clusters/grotto.toml", fact.format("1-00:00:00", 4))
    environ = {"HOME": str(tmp_path / "home")}
    assert load_cluster("grotto", file_layers(tmp_path, environ)).partition["gpu"].max_nodes == 4
    write(config / "config.toml", '[cluster.grotto.partition.gpu]\ntime = "2-00:00:00"\n')
    queue = load_cluster("grotto", file_layers(tmp_path, environ)).partition["gpu"]
    assert (queue.time, queue.max_nodes) == ("2-00:00:00", 4)


def test_a_cluster_of_ones_own_can_be_added(tmp_path: Path) -> None:
    layer = read_layer(
        write(
            tmp_path / "stoker.toml",
            '[cluster.my-box]\ntitle = "My box"\nstatus = "in service"\n'
            "[cluster.my-box.gpu.a100]\nper_node = 2\ncpus_per_node = 64\nmem_gib_per_node = 250\n"
            '[cluster.my-box.partition.batch]\ngpus = ["a100"]\ntime = "12:00:00"\n',
        )
    )
    cluster = load_cluster("my-box", [layer])
    assert cluster.gpu["a100"].cpu_share == 32
    assert cluster.gpu["a100"].mem_share_gib == 125
    assert "my_box" in names([layer])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[cluster.puhti.slurm]\ngpu_optin = 'gres'\n", "unknown key `gpu_optin`"),
        ("[cluster.puhti.slurm]\ngpu_option = 'gpus'\n", "slurm.gpu_option"),
        ("[cluster.puhti.gpu.v100]\nper_node = 'four'\n", "gpu.v100.per_node"),
        ("[cluster.puhti.partition.gpu]\ngpus = ['h100']\n", "partition.gpu.gpus"),
        ("[cluster.puhti]\nschema = 9\n", "schema"),
        ("[clusters.puhti]\n", "`clusters`"),
        ("cluster = 3\n", "holds"),
        ("[cluster\n", "is not TOML"),
    ],
)
def test_a_damaged_file_is_named_with_the_key_and_the_way_out(
    tmp_path: Path, text: str, what: str
) -> None:
    path = write(tmp_path / "stoker.toml", text)
    with pytest.raises(ClusterError) as caught:
        load_cluster("puhti", [read_layer(path)])
    message = str(caught.value)
    assert what in message
    assert "stoker.toml" in message
    assert caught.value.fix


@pytest.mark.parametrize("text", ["nonsense", "=3", "a b=3"])
def test_an_override_that_is_no_fact_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_overrides([text], "puhti")


def test_values_on_the_command_line_may_be_toml_or_plain_text() -> None:
    layer = parse_overrides(
        ["gpu.v100.per_node=8", "slurm.full_nodes=false", "disk.env=TMPDIR"], "puhti"
    )
    cluster = load_cluster("puhti", layer)
    assert cluster.gpu["v100"].per_node == 8
    assert cluster.slurm.full_nodes is False
    assert cluster.disk.env == "TMPDIR"


def test_this_machine_is_described_from_what_the_kernel_says(tmp_path: Path) -> None:
    for index in range(2):
        write(
            tmp_path / f"driver/nvidia/gpus/0000:0{index}:00.0/information",
            "Model: \t NVIDIA H200\nIRQ: 1\n",
        )
    write(tmp_path / "meminfo", "MemTotal:       131923456 kB\n")
    gpu = machine_table(tmp_path, tmp_path)["gpu"]["gpu"]
    assert (gpu["title"], gpu["per_node"], gpu["mem_gib_per_node"]) == ("NVIDIA H200", 2, 125.0)


def test_a_machine_without_gpus_says_nothing(tmp_path: Path) -> None:
    assert machine_table(tmp_path, tmp_path) == {}
