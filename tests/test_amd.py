"""AMD's GPUs through a stand-in for AMD SMI that fails as the real one does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stoker.watch.amd import Amd
from stoker.watch.gpus import Gpus

GIB = 2**30


class AmdSmiError(Exception):
    """As amdsmi's AmdSmiLibraryException."""

    def __init__(self, name: str) -> None:
        self.err_info = f"AMDSMI_STATUS_{name} - as the library says"
        super().__init__(name)

    def __str__(self) -> str:
        return f"Error code:\n\t2 | {self.err_info}"


class FakeSmi:
    """The part of amdsmi that we use, with the values that an MI250 and an MI300 give."""

    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT=1)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)

    def __init__(self, count: int = 4) -> None:
        self.count, self.errors = count, dict[str, str]()
        self.power: dict[str, Any] = {"current_socket_power": "N/A", "average_socket_power": 240}

    def _enter(self, name: str) -> None:
        if name in self.errors:
            raise AmdSmiError(self.errors[name])

    def amdsmi_shut_down(self) -> None:
        pass

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(self.count))

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, Any]:
        self._enter("asic")
        return {"market_name": "AMD Instinct MI250X", "asic_serial": f"0xDEAD00000000000{handle}"}

    def amdsmi_get_gpu_device_uuid(self, handle: int) -> str:
        return f"74ff74a1-0000-1000-8000-00000000000{handle}"

    def amdsmi_get_gpu_driver_info(self, handle: int) -> dict[str, Any]:
        return {"driver_name": "amdgpu", "driver_version": "6.14.14"}

    def amdsmi_get_gpu_vram_usage(self, handle: int) -> dict[str, int]:
        self._enter("vram")
        return {"vram_total": 65520, "vram_used": 2048}

    def amdsmi_get_power_cap_info(self, handle: int) -> dict[str, int]:
        return {"power_cap": 560_000_000}

    def amdsmi_get_power_info(self, handle: int) -> dict[str, Any]:
        return self.power

    def amdsmi_get_gpu_activity(self, handle: int) -> dict[str, Any]:
        return {"gfx_activity": 87 if handle == 0 else "N/A", "umc_activity": 3}

    def amdsmi_get_temp_metric(self, handle: int, sensor: int, metric: int) -> int:
        self._enter("temp")
        return 55

    def amdsmi_get_gpu_process_list(self, handle: int) -> list[dict[str, Any]]:
        return [{"pid": 200, "mem": 9, "memory_usage": {"vram_mem": 3 * GIB}}] if handle else []


def amd(smi: FakeSmi, **environ: str) -> tuple[Gpus, list[str]]:
    notes: list[str] = []
    return Gpus([Amd(smi)], environ, notes.append), notes


def test_an_amd_gpu_in_our_units() -> None:
    gpus, notes = amd(FakeSmi(2))
    reading = gpus.read(0, True, {200}) | gpus.read(2, True, {200})
    assert reading == {
        "gpu.0.duty_pct": 87.0,
        "gpu.0.mem_gib": 2.0,
        "gpu.0.power_w": 240.0,
        "gpu.0.temp_c": 55.0,
        "gpu.1.mem_gib": 2.0,
        "gpu.1.power_w": 240.0,
        "gpu.1.temp_c": 55.0,
        "gpu.1.mine_gib": 3.0,
    }
    assert gpus.used == {1}
    gpu = gpus.gpus[0]
    assert (gpu.kind, gpu.name, gpu.driver) == ("amd", "AMD Instinct MI250X", "6.14.14")
    assert (gpu.memory_gib, gpu.power_limit_w) == (65520 / 1024, 560.0)
    assert notes == []
    gpus.close()


@pytest.mark.parametrize("power", [{}, {"current_socket_power": 0, "average_socket_power": "N/A"}])
def test_the_second_half_of_an_mi250_tells_no_power(power: dict[str, Any]) -> None:
    smi = FakeSmi(1)
    smi.power = power
    gpus, _ = amd(smi)
    assert "gpu.0.power_w" not in gpus.read(0, True, ())


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, {0, 1, 2, 3}),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, {1, 2}),
        ({"ROCR_VISIBLE_DEVICES": "2,GPU-dead000000000003"}, {2, 3}),
        ({"ROCR_VISIBLE_DEVICES": "3,2", "HIP_VISIBLE_DEVICES": "0"}, {3}),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, {1}),
        ({"CUDA_VISIBLE_DEVICES": "0"}, {0}),
        ({"ROCR_VISIBLE_DEVICES": ""}, set()),
    ],
)
def test_amds_variables_narrow_each_other(environ: dict[str, str], seen: set[int]) -> None:
    assert {gpu.index for gpu in amd(FakeSmi(), **environ)[0].gpus} == seen


def test_errors_of_amd_are_told_apart_by_name() -> None:
    smi = FakeSmi(1)
    smi.errors = {"temp": "NOT_SUPPORTED", "vram": "BUSY", "asic": "NO_PERM"}
    gpus, notes = amd(smi)
    assert gpus.gpus[0].uuid == "74ff74a1-0000-1000-8000-000000000000"
    assert set(gpus.read(0, True, ())) == {"gpu.0.duty_pct", "gpu.0.power_w"}
    smi.errors = {}
    assert set(gpus.read(1, True, ())) == {"gpu.0.duty_pct", "gpu.0.power_w", "gpu.0.mem_gib"}
    smi.errors = {"vram": "NOT_FOUND"}
    gpus.read(2, True, ())
    assert gpus.read(3, True, ()) == {}
    assert [note.partition(":")[0] for note in notes] == [
        "GPU 0 does not tell name",
        "GPU 0 did not tell memory_gib for a while",
        "GPU 0 did not tell mem_gib for a while",
        "GPU 0 does not tell temp_c",
        "GPU 0 is lost",
    ]
