"""`stoker bench comm`: what is measured, what follows from it, and how it is shown."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import Stoker
from stoker.cluster.load import load_cluster
from stoker.cluster.profile import Network
from stoker.errors import UsageError
from stoker.report.communication import communication_json, render_communication
from stoker.scale.collectives import (
    OPERATIONS,
    Communication,
    bus_factor,
    parse_sizes,
    read_measured,
    with_expected,
)

TORCH = Path(__file__).parent.parent / ".venv-torch/bin/python"


def measured(*steps: float, ranks: int = 4) -> Communication:
    return read_measured(
        {
            "backend": "gloo",
            "device": "cpu",
            "ranks": ranks,
            "nodes": 2,
            "parameters_mb": 24.0,
            "timings": [
                {"operation": "all-reduce", "size": 1 << 20, "seconds": [0.002, 0.001, 0.004]},
                {"operation": "all-gather", "size": 1 << 20, "seconds": [0.002]},
            ],
            "buckets": [
                {"megabytes": size, "seconds": [step] * 5}
                for size, step in zip((1, 25, 100), steps, strict=False)
            ],
        }
    )


def test_bandwidths_follow_from_the_median() -> None:
    reduce, gather = measured().timings
    assert (reduce.median_s, reduce.low_s, reduce.high_s) == (0.002, 0.001, 0.004)
    assert reduce.algorithm_gbps == pytest.approx((1 << 20) / 0.002 / 1e9)
    assert reduce.bus_gbps == pytest.approx(1.5 * reduce.algorithm_gbps)
    assert gather.bus_gbps == pytest.approx(0.75 * gather.algorithm_gbps)


def test_with_one_rank_nothing_is_carried() -> None:
    assert [bus_factor(name, 1) for name in OPERATIONS] == [0.0, 1.0, 0.0]
    text = render_communication(measured(ranks=1))
    assert "GB/s" not in text
    assert text.endswith("--procs N starts more, one for each GPU.")


def test_the_table_says_who_measured_what() -> None:
    text = render_communication(measured(0.01, 0.03, 0.03))
    assert text.startswith("4 ranks on 2 nodes, gloo on cpu\n")
    assert "1 MiB" in text
    assert "bucket_cap_mb=1" in text
    assert json.loads(json.dumps(communication_json(measured())))["ranks"] == 4


def test_a_difference_within_the_spread_is_none() -> None:
    assert "No size is clearly better" in render_communication(measured(0.029, 0.03, 0.03))
    assert "bucket" not in render_communication(measured())


def test_between_nodes_it_is_compared_with_the_network_of_the_site() -> None:
    network = load_cluster("mahti").network
    compared = with_expected(measured(), network)
    assert compared.expected is not None
    assert compared.expected.gbps == 25.0
    text = render_communication(compared)
    assert "carries 0.786 GB/s, 3 % of the 25 GB/s of a node (InfiniBand HDR" in text
    assert "NCCL_SOCKET_IFNAME" in text
    slow = Network("thin", gbit_per_node=8.0)
    assert "NCCL_SOCKET_IFNAME" not in render_communication(with_expected(measured(), slow))


def test_on_one_node_or_an_unknown_network_nothing_is_compared() -> None:
    assert with_expected(measured(), Network("unknown")).expected is None
    one = replace(measured(), nodes=1)
    assert with_expected(one, Network("thin", gbit_per_node=8.0)) == one


@pytest.mark.parametrize("text", ["", "4X", "1M,,2M", "0", "-4K", "1.5M"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_sizes(text)


def test_sizes_are_in_order_and_once() -> None:
    assert parse_sizes("1M,4k,1MiB,2G") == (4096, 1 << 20, 2 << 30)


def test_ranks_that_are_there_are_not_started_again(stoker: Stoker) -> None:
    task = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    done = stoker("bench", "comm", "--procs", "2", **task)
    assert done.returncode == 2
    assert "the ranks are here already" in done.stderr


def test_without_pytorch_it_is_said(stoker: Stoker) -> None:
    done = stoker("bench", "comm", "--procs", "1")
    assert done.returncode == 1
    assert "the ranks did not get through" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not TORCH.exists(), reason="no PyTorch in .venv-torch")
@pytest.mark.parametrize("launcher", ["stoker", "mpirun"])
def test_it_measures_between_real_ranks(launcher: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "stoker", "bench", "comm", "--python", str(TORCH)]
    words += ["--json", "--sizes", "4K,256K"]
    words = ["mpirun", "-np", "2", *words] if launcher == "mpirun" else [*words, "--procs", "2"]
    allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", **allow},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["ranks"], told["nodes"], told["backend"]) == (2, 1, "gloo")
    assert [(row["operation"], row["size"]) for row in told["timings"]] == [
        (name, size) for name in OPERATIONS for size in (4096, 256 << 10)
    ]
    assert all(row["low_s"] <= row["median_s"] <= row["high_s"] for row in told["timings"])
    assert all(row["median_s"] > 0 for row in told["buckets"])
