"""The GPUs of all makers together, whatever their libraries do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.watch.amd import Amd
from stoker.watch.gpus import Gpus, open_gpus, parse_visible
from stoker.watch.nvidia import Nvidia, has_nvidia
from test_amd import FakeSmi
from test_nvidia import UNKNOWN, FakeDevice, FakeNvml, NVMLError, opened


def test_a_library_that_fails_at_the_start_or_the_end_is_a_note() -> None:
    class Broken(FakeNvml):
        def nvmlDeviceGetCount(self) -> int:
            raise NVMLError(UNKNOWN)

        def nvmlShutdown(self) -> None:
            raise NVMLError(UNKNOWN)

    gpus, read, notes = opened(Broken())
    assert read(0) == {}
    gpus.close()
    assert notes == [
        "the nvidia GPUs cannot be read: NVML Error with code 999",
        "the nvidia library did not end well: NVML Error with code 999",
    ]


def test_amds_gpus_are_counted_after_nvidias() -> None:
    gpus = Gpus([Nvidia(FakeNvml(FakeDevice(0))), Amd(FakeSmi(2))], {}, lambda _: None)
    assert [(gpu.index, gpu.kind) for gpu in gpus.gpus] == [
        (0, "nvidia"), (1, "amd"), (2, "amd"),
    ]  # fmt: skip
    assert "gpu.2.temp_c" in gpus.read(0, True, ())


def test_without_gpus_no_library_is_imported(tmp_path: Path) -> None:
    notes: list[str] = []
    if has_nvidia():
        pytest.skip("this machine has NVIDIA's library")
    gpus = open_gpus({}, notes.append, tmp_path)
    assert (gpus.gpus, gpus.read(0, True, ()), notes) == ([], {}, [])


def test_gpus_whose_library_is_missing_or_fails_are_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "kfd").touch()

    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:
            raise NVMLError(9)

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver())
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    notes: list[str] = []
    assert open_gpus({}, notes.append, tmp_path).gpus == []
    assert notes[0] == "there are GPUs here, but nvmlInit fails: NVML Error with code 9"
    assert "amdsmi cannot be imported" in notes[1]


words = st.text(st.characters(codec="utf-8"), max_size=12)


@given(st.lists(words | st.integers(-2, 9).map(str) | st.sampled_from(["GPU-a", "MIG-b", "GPU-"])))
def test_no_variable_breaks_the_parser(parts: list[str]) -> None:
    owners = {"GPU-ab1": 0, "GPU-cd2": 1, "MIG-b7": 1}
    found = parse_visible(",".join(parts), owners, 2)
    assert set(found) <= {0, 1}
    assert {uuid for slices in found.values() for uuid in slices} <= {"MIG-b7"}
