"""Rules about ranks: one that is slow, a machine that is, and a network that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from stoker.advise.findings import find
from stoker.watch.summary import Line, Rank, Summary
from test_rules_device import ALL, BUSY, HOT, WELL, keys, make_machine, make_rank, make_run, only

# Equal steps of 60 ms, of which 2 are communication.
EQUAL = {"data": 1.0, "forward": 17.0, "backward": 38.0, "optimizer": 2.0, "comm": 2.0}
LATE = {**EQUAL, "other": 30.0}
WAITS = {**EQUAL, "comm": 32.0}


def equal_ranks(count: int, phases: Mapping[str, float], **more: object) -> list[Rank]:
    hosts = ("node1", "node2")
    return [
        make_rank(phases, rank=i, host=hosts[i * 2 // count], is_on_device=False, **more)  # type: ignore[arg-type]
        for i in range(count)
    ]


def run_of(*ranks: Rank) -> Summary:
    return make_run(ranks, [make_machine(host="node1"), make_machine(host="node2")])


def test_equal_ranks_are_told_nothing() -> None:
    assert find(run_of(*equal_ranks(4, EQUAL)), ALL) == []


def test_a_rank_that_works_longer_is_named_with_its_line() -> None:
    own = Line("/home/me/train.py", "save", 51, 14.0, 14.0, "other")
    both = Line("/home/me/train.py", "<module>", 9, 20.0, 20.0, "other")
    slow = make_rank(LATE, rank=0, is_on_device=False, lines=(both, own))
    found = only(run_of(slow, *equal_ranks(4, WAITS, lines=(both,))[1:]))
    assert (found.key, found.level, found.safety) == ("slow-rank", "problem", "A")
    assert found.what == "Rank 0 on node1 slows the other 3 down."
    assert "most of it is other code (30 ms)" in found.why
    assert "train.py:51" in found.fix
    assert found.gain is not None
    # Shared out, 30 ms of 90 are 7.5 for each of four; gone, they leave 60.
    part = 54 * 11 * 0.09 / 60
    assert found.gain.low == pytest.approx(1 / (1 - part * 22.5 / 90), rel=0.03)
    assert found.gain.ceiling == pytest.approx(1 / (1 - part * 32 / 90), rel=0.03)


def test_a_slow_loader_of_one_rank_is_told_as_such() -> None:
    slow = make_rank({**EQUAL, "data": 31.0}, rank=3, host="node2", is_on_device=False)
    found = find(run_of(*equal_ranks(4, WAITS)[:3], slow), ALL)
    assert [each.key for each in found] == ["slow-rank"]
    assert "DistributedSampler" in found[0].fix


def test_where_all_ranks_of_a_machine_are_slow_it_is_the_machine() -> None:
    slower = {**EQUAL, "forward": 27.0, "backward": 58.0}
    here = [make_rank(WAITS, rank=i, host="node1", is_on_device=False) for i in range(2)]
    there = [make_rank(slower, rank=i, host="node2", is_on_device=False) for i in range(2, 4)]
    found = only(run_of(*here, *there))
    assert (found.key, found.level) == ("slow-host", "problem")
    assert "`#SBATCH --exclude=node2`" in found.fix


def test_a_rank_on_a_hot_gpu_is_the_gpus_fault() -> None:
    slower = {**BUSY, "forward": 40.0, "backward": 60.0, "comm": 1.0}
    slow = make_rank(slower, rank=0)
    fast = make_rank({**BUSY, "comm": 40.0}, rank=1, host="node2")
    machines = [
        make_machine({**HOT, "mine_gib": 60.0}, host="node1"),
        make_machine({**WELL, "mine_gib": 60.0}, host="node2"),
    ]
    assert keys(make_run([slow, fast], machines)) == ["gpu-too-hot"]
    cool = [make_machine({**WELL, "mine_gib": 60.0}, host=host) for host in ("node1", "node2")]
    assert keys(make_run([slow, fast], cool)) == ["slow-rank"]


def test_ranks_that_differ_without_waiting_are_no_problem() -> None:
    slow = make_rank(LATE, rank=0, is_on_device=False)
    assert "slow-rank" not in keys(run_of(slow, *equal_ranks(4, EQUAL)[1:]))


# -- communication -------------------------------------------------------------------

SENDING = {**EQUAL, "comm": 40.0}
LARGE = {"parameters": 300_000_000, "dtype": "float32", "device": "cpu"}
SMALL = {"parameters": 500_000, "dtype": "float32", "device": "cpu"}


def test_communication_that_takes_its_time_for_its_size_is_hidden_or_saved() -> None:
    run = run_of(*equal_ranks(2, SENDING, model=LARGE, more={"ddp_comm": 5.0, "ddp_overlapped": 5.0}))  # fmt: skip
    found = only(run)
    assert (found.key, found.level, found.safety) == ("exposed-communication", "problem", "B")
    assert "no_sync" in found.fix
    assert "1.2e+03 MB" in found.why
    assert found.gain is not None
    part = 54 * 10 * 0.098 / 60
    assert found.gain.ceiling == pytest.approx(1 / (1 - part * 40 / 98), rel=0.03)


def test_on_gpus_gradients_can_be_sent_in_bfloat16() -> None:
    phases = {**BUSY, "comm": 40.0}
    ranks = [
        make_rank(phases, rank=i, host=f"node{i + 1}", more={"ddp_comm": 5.0, "ddp_overlapped": 5.0})
        for i in range(2)
    ]  # fmt: skip
    machines = [make_machine({**WELL, "mine_gib": 60.0}, host=f"node{i + 1}") for i in range(2)]
    found = only(make_run(ranks, machines))
    assert found.key == "exposed-communication"
    assert "bf16_compress_hook" in found.fix


def test_little_that_takes_long_is_sent_in_crumbs() -> None:
    told = {"ddp_comm": 5.0, "ddp_overlapped": 5.0}
    found = only(run_of(*equal_ranks(2, SENDING, model=SMALL, more=told)))
    assert "fewer and larger messages" in found.fix
    # What DDP itself says of its buckets is believed.
    few = {"buckets": 1}
    found = only(run_of(*equal_ranks(2, SENDING, model=SMALL, more=told, ddp=few)))
    assert "fewer and larger messages" not in found.fix
    many = {"buckets": 5_000}
    found = only(run_of(*equal_ranks(2, SENDING, model=LARGE, more=told, ddp=many)))
    assert "fewer and larger messages" in found.fix


def test_collectives_called_by_hand_are_named() -> None:
    line = Line("/home/me/train.py", "average", 15, 20.0, 20.0, "comm")
    found = only(run_of(*equal_ranks(2, SENDING, model=LARGE, lines=(line,))))
    assert "DistributedDataParallel average the gradients instead of train.py:15" in found.fix


def test_the_rank_that_waits_least_says_what_is_communication() -> None:
    slow = make_rank(LATE, rank=0, is_on_device=False)
    run = run_of(slow, make_rank(WAITS, rank=1, is_on_device=False))
    assert keys(run) == ["slow-rank"]
    assert "exposed-communication" not in [each.key for each in find(run, ALL)]


def test_one_rank_and_few_steps_are_told_nothing() -> None:
    ranks = equal_ranks(2, SENDING, model=LARGE)
    assert find(run_of(ranks[0]), ALL) == []
    assert ranks[1].steady is not None
    few = replace(ranks[1], steady=replace(ranks[1].steady, steps=19))
    assert find(run_of(ranks[0], few), ALL) == []
