"""Every launcher's variables give the same facts; nothing else in the environment breaks them."""

from __future__ import annotations

import errno
import json
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.checkpoint import family
from stoker.engine.context import Context
from stoker.engine.place import Place, first_host, read_place
from stoker.errors import FileError, StokerError

TF = {
    "cluster": {"chief": ["n1:9000"], "worker": ["n1:9001", "n2:9000"], "ps": ["n1:9002"]},
    "task": {"type": "worker", "index": 1},
}
SLURM = {
    "SLURM_JOB_ID": "4211",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_MCA_ess_base_jobid": str(77 << 16 | 1),
}
HOROVOD = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
}
DEEPSPEED = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_SIZE": "2",
    "CROSS_RANK": "1",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29500",
}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "x",
}


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({}, Place(0, 1, 0, 1, 0, "127.0.0.1", None, "none")),
        (TORCHRUN, Place(5, 8, 1, 4, 1, "n1", 29400, "torchrun")),
        (DEEPSPEED, Place(3, 4, 1, 2, 1, "n1", 29500, "variables")),
        (SLURM, Place(5, 6, 1, 2, 1, "gpu07", 14211, "slurm")),
        (OPEN_MPI, Place(5, 8, 1, 4, 1, None, 10077, "openmpi")),
        # mpirun in a job starts its daemons by srun.
        ({**SLURM, **OPEN_MPI, "SLURM_JOB_NODELIST": "gpu[07-08]"},
         Place(5, 8, 1, 4, 1, "gpu07", 10077, "openmpi")),
        (HOROVOD, Place(3, 4, 1, 2, 1, "10.0.0.1", None, "horovod")),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
         Place(3, 4, 1, 2, 1, None, None, "mpich")),
        ({"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "n1:800"},
         Place(1, 2, 1, 2, 0, "n1", 801, "jax")),
        ({"TF_CONFIG": json.dumps(TF)}, Place(2, 3, 0, 1, 1, "n1", 19001, "tensorflow")),
        # As `stoker run` starts them.
        ({**OPEN_MPI, "JAX_PROCESS_ID": "5", "JAX_NUM_PROCESSES": "8",
          "JAX_COORDINATOR_ADDRESS": "n1:800"}, Place(5, 8, 1, 4, 1, "n1", 801, "jax")),
        # Our own batch scripts set RANK, LOCAL_RANK and WORLD_SIZE, and Slurm knows the rest.
        ({**SLURM, "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "6", "MASTER_ADDR": "n9"},
         Place(5, 6, 1, 2, 1, "n9", 14211, "variables")),
    ],
    ids=["none", "torchrun", "deepspeed", "slurm", "openmpi", "openmpi in slurm", "horovod", "mpich", "jax",
         "tensorflow", "jax by stoker", "variables"],
)  # fmt: skip
def test_every_launcher_is_understood(env: dict[str, str], place: Place) -> None:
    assert read_place(env) == place


def test_in_a_batch_script_itself_there_is_one_process() -> None:
    env = {name: value for name, value in SLURM.items() if "STEP" not in name}
    assert read_place(env)[:2] == (0, 1)


def test_a_parameter_server_is_no_rank_of_the_training() -> None:
    place = read_place({"TF_CONFIG": json.dumps({**TF, "task": {"type": "ps", "index": 0}})})
    assert place.world_size == 3
    assert place.rank == 3


NAMES = sorted({*SLURM, *OPEN_MPI, *HOROVOD, *TORCHRUN, "TF_CONFIG", "PMI_RANK", "PMI_SIZE"})


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.one_of(st.text(), st.integers().map(str), st.just('{"cluster": [], "task": 3}')),
    )
)
def test_whatever_stands_there_it_never_fails(env: dict[str, str]) -> None:
    place = read_place(env)
    assert place.rank >= 0
    assert place.world_size >= 1


@given(st.text("n[]-,0129"))
def test_any_list_of_hosts_is_read(text: str) -> None:
    assert first_host(text) != ""


# -- checkpoints, without PyTorch ----------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Context:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return Context()


def test_a_checkpoint_comes_back_and_the_last_ones_are_kept(alone: Context, odd_path: Path) -> None:
    for step in (8, 9, 10, 11):
        alone.checkpoint.save({"step": step}, odd_path / f"run2-{step}.pkl", keep=2)
    (odd_path / "run2-best.pkl").write_text("")
    assert alone.checkpoint.latest(odd_path / "run2-0.pkl") == str(odd_path / "run2-11.pkl")
    assert alone.checkpoint.load(odd_path / "run2-10.pkl") == {"step": 10}
    names = sorted(file.name for file in odd_path.iterdir())
    assert names == ["run2-10.pkl", "run2-11.pkl", "run2-best.pkl"]


def test_what_was_just_saved_stays_though_an_older_training_came_further(
    alone: Context, tmp_path: Path
) -> None:
    for step in (100, 200, 300):
        alone.checkpoint.save("old", tmp_path / f"c-{step}.pkl")
    for step in (1, 2, 3):
        alone.checkpoint.save("new", tmp_path / f"c-{step}.pkl", keep=2)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["c-100.pkl", "c-2.pkl", "c-200.pkl", "c-3.pkl", "c-300.pkl"]


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    alone: Context, tmp_path: Path
) -> None:
    path = tmp_path / "c.pkl"
    alone.checkpoint.save(1, path)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        alone.checkpoint.save(lambda: 1, path)
    assert alone.checkpoint.load(path) == 1
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileError, match="was not written"):
        alone.checkpoint.save(1, path / "below a file")


def test_what_a_killed_training_left_half_written_goes_away(alone: Context, tmp_path: Path) -> None:
    left = [".c-7.pkl.123.part", ".c-12.pkl.4567.part", ".last.pkl.123.part"]
    # Of another process that may still write, and of others altogether.
    stays = [".c-8.pkl.99.part", ".d-7.pkl.123.part", ".c-7.pkl.part", "c-7.pkl.123.part"]
    for name in (*left, *stays):
        (tmp_path / name).write_text("half")
        if name != stays[0]:
            os.utime(tmp_path / name, (0, 0))
    for name in ("c-13.pkl", "last.pkl"):
        alone.checkpoint.save(1, tmp_path / name)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {*stays, "c-13.pkl", "last.pkl"}


def test_a_full_disk_is_told_though_pytorch_raises_an_error_of_its_own(
    alone: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(obj: object, file: IO[bytes]) -> None:
        # As torch 2.13 does: closing what cannot be written fails as well, and hides why.
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            raise RuntimeError(
                "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"
            )

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(save=save))
    with pytest.raises(FileError, match="was not written") as caught:
        alone.checkpoint.save(1, tmp_path / "c.pt")
    assert caught.value.why == "No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_none_it_is_said(alone: Context, tmp_path: Path) -> None:
    assert alone.checkpoint.latest(tmp_path / "c-1.pt") is None
    assert family(tmp_path / "no" / "c-1.pt") == []
    with pytest.raises(FileError, match="no checkpoint"):
        alone.checkpoint.load(tmp_path / "c.pt")


def test_other_ranks_write_nothing(
    alone: Context, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    other = Context()
    other.checkpoint.save(1, tmp_path / "c.pkl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("visible", "device"),
    [("", "cpu"), ("-1", "cpu"), ("0,1", "cuda:1"), ("1", "cuda:0"), ("GPU-5a1, GPU-11", "cuda:1")],
)
def test_without_pytorch_the_visible_devices_are_counted(
    visible: str, device: str, alone: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    alone.local_rank = 1
    assert alone.device == device


def test_without_pytorch_the_facts_are_there_and_init_says_what_is_missing(
    alone: Context, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    alone.print_main("one", "two")
    alone.barrier()
    alone.close()
    assert capsys.readouterr().out == "one two\n"
    assert (alone.device, alone.backend) == ("cpu", "gloo")
    with pytest.raises(StokerError, match="no PyTorch"):
        alone.init()
