"""NVIDIA's GPUs through a stand-in for NVML that fails as the real one does."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from stoker.watch.gpus import Gpus
from stoker.watch.nvidia import Nvidia, has_nvidia

GIB = 2**30
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND_FUNCTION, LOST, TIMEOUT, UNKNOWN = 3, 4, 13, 15, 10, 999
NOT_FOUND = 6


class NVMLError(Exception):
    """As in pynvml: every error has its code in `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        known = {3: "Not Supported", 4: "Insufficient Permissions", 15: "GPU is lost"}
        return known.get(self.value, f"NVML Error with code {self.value}")


class FakeDevice:
    """One GPU; `busy` is what its counters have counted, `errors` what its functions answer."""

    def __init__(self, index: int, name: str = "NVIDIA H200", *, gpm: bool = True) -> None:
        self.index, self.name, self.has_gpm = index, name, gpm
        self.uuid = f"GPU-{index}{index}{index}{index}-4106"
        self.errors: dict[str, int] = {}
        self.processes: list[tuple[int, int | None]] = []
        self.slices: list[FakeDevice | None] = []
        self.reasons = 0x1
        self.seconds = 0.0
        self.memory = (140 * GIB, 7 * GIB)


class FakeNvml:
    """The part of pynvml that we use: same names, same arguments, same errors.

    Signatures are those of nvidia-ml-py 13.615; a test below compares the names with the real one.
    """

    NVMLError = NVMLError
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *devices: FakeDevice) -> None:
        self.devices = devices
        self.calls: list[str] = []
        self.samples = 0
        self.old_driver: set[str] = set()

    def _enter(self, name: str, device: FakeDevice | None = None) -> None:
        self.calls.append(name)
        if name in self.old_driver:
            raise NVMLError(NOT_FOUND_FUNCTION)
        if device and "*" in device.errors:
            raise NVMLError(device.errors["*"])
        if device and name in device.errors:
            raise NVMLError(device.errors[name])

    def nvmlInit(self) -> None:
        self._enter("nvmlInit")

    def nvmlShutdown(self) -> None:
        self._enter("nvmlShutdown")

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeDevice:
        return self.devices[index]

    def nvmlDeviceGetUUID(self, handle: FakeDevice) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeDevice) -> str:
        return handle.name

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: FakeDevice) -> int:
        self._enter("nvmlDeviceGetEnforcedPowerLimit", handle)
        return 700_000

    def nvmlDeviceGetMigMode(self, handle: FakeDevice) -> list[int]:
        self._enter("nvmlDeviceGetMigMode", handle)
        return [int(bool(handle.slices)), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeDevice) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: FakeDevice, index: int) -> FakeDevice:
        found = device.slices[index] if index < len(device.slices) else None
        if found is None:
            raise NVMLError(NOT_FOUND)
        return found

    def nvmlDeviceGetGpuInstanceId(self, handle: FakeDevice) -> int:
        return handle.index

    def nvmlDeviceGetUtilizationRates(self, handle: FakeDevice) -> SimpleNamespace:
        self._enter("nvmlDeviceGetUtilizationRates", handle)
        return SimpleNamespace(gpu=98, memory=40)

    def nvmlDeviceGetMemoryInfo(
        self, handle: FakeDevice, version: int | None = None
    ) -> SimpleNamespace:
        self._enter("nvmlDeviceGetMemoryInfo" + ("_v2" if version else ""), handle)
        total, used = handle.memory
        return SimpleNamespace(total=total, used=used if version else used + GIB)

    def nvmlDeviceGetPowerUsage(self, handle: FakeDevice) -> int:
        self._enter("nvmlDeviceGetPowerUsage", handle)
        return 312_500

    def nvmlDeviceGetTemperature(self, handle: FakeDevice, sensor: int) -> int:
        self._enter("nvmlDeviceGetTemperature", handle)
        return 61

    def nvmlDeviceGetTemperatureV(self, handle: FakeDevice, sensor: int) -> int:
        self._enter("nvmlDeviceGetTemperatureV", handle)
        return 62

    def nvmlDeviceGetClockInfo(self, handle: FakeDevice, type: int) -> int:
        self._enter("nvmlDeviceGetClockInfo", handle)
        return 1_755

    def nvmlDeviceGetMaxClockInfo(self, handle: FakeDevice, type: int) -> int:
        self._enter("nvmlDeviceGetMaxClockInfo", handle)
        return 1_980

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeDevice) -> int:
        self._enter("nvmlDeviceGetCurrentClocksEventReasons", handle)
        return handle.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: FakeDevice) -> int:
        self._enter("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return handle.reasons

    def nvmlDeviceGetPcieThroughput(self, device: FakeDevice, counter: int) -> int:
        self._enter("nvmlDeviceGetPcieThroughput", device)
        return 4_000 if counter == self.NVML_PCIE_UTIL_RX_BYTES else 1_000

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: FakeDevice) -> list[Any]:
        self._enter("nvmlDeviceGetComputeRunningProcesses_v2", handle)
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in handle.processes]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: FakeDevice) -> list[Any]:
        self._enter("nvmlDeviceGetComputeRunningProcesses_v3", handle)
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in handle.processes]

    def nvmlGpmQueryDeviceSupport(self, device: FakeDevice) -> SimpleNamespace:
        self._enter("nvmlGpmQueryDeviceSupport", device)
        return SimpleNamespace(isSupportedDevice=int(device.has_gpm))

    def nvmlGpmSampleAlloc(self) -> SimpleNamespace:
        self.samples += 1
        return SimpleNamespace(seconds=None, part=None)

    def nvmlGpmSampleFree(self, gpmSample: SimpleNamespace) -> None:
        self.samples -= 1

    def nvmlGpmSampleGet(self, device: FakeDevice, gpmSample: SimpleNamespace) -> None:
        self._enter("nvmlGpmSampleGet", device)
        if device.slices:
            raise NVMLError(NOT_SUPPORTED)
        gpmSample.seconds = device.seconds

    def nvmlGpmMigSampleGet(
        self, device: FakeDevice, gpuInstanceId: int, gpmSample: SimpleNamespace
    ) -> None:
        self._enter("nvmlGpmMigSampleGet", device)
        assert any(each and each.index == gpuInstanceId for each in device.slices)
        gpmSample.seconds = device.seconds

    def c_nvmlGpmMetricsGet_t(self) -> SimpleNamespace:
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(333)]
        return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=metrics)

    def nvmlGpmMetricsGet(self, metricsGet: SimpleNamespace) -> None:
        self._enter("nvmlGpmMetricsGet")
        assert metricsGet.version == self.NVML_GPM_METRICS_GET_VERSION
        elapsed = metricsGet.sample2.seconds - metricsGet.sample1.seconds
        assert elapsed > 0, "two samples, the older first"
        for metric in metricsGet.metrics[: metricsGet.numMetrics]:
            metric.value = metric.metricId / elapsed
            metric.nvmlReturn = 0
            if metric.metricId == 10:  # as on a GPU that has all but this counter
                metric.nvmlReturn, metric.value = NOT_SUPPORTED, 0.0
            if metric.metricId == 3:
                metric.value = math.nan


class Read(Protocol):
    """Takes a reading, one second later than the last one on all GPUs."""

    def __call__(self, tick: int, pids: Collection[int] = ()) -> dict[str, float]: ...


def opened(nvml: FakeNvml, **environ: str) -> tuple[Gpus, Read, list[str]]:
    notes: list[str] = []

    def note(text: str) -> None:
        if text not in notes:
            notes.append(text)

    gpus = Gpus([Nvidia(nvml)], environ, note)

    def read(tick: int, pids: Collection[int] = ()) -> dict[str, float]:
        for device in nvml.devices:
            device.seconds += 1
        return gpus.read(tick, True, pids)

    return gpus, read, notes


def test_a_busy_hopper_tells_everything() -> None:
    device = FakeDevice(0)
    device.reasons = 0x4
    device.processes = [(200, 5 * GIB), (77, GIB)]
    gpus, read, notes = opened(FakeNvml(device))
    first = read(0, {200})
    assert first == {
        "gpu.0.duty_pct": 98.0,
        "gpu.0.mem_gib": 7.0,
        "gpu.0.power_w": 312.5,
        "gpu.0.temp_c": 61.0,
        "gpu.0.throttled": 1.0,
        "gpu.0.hot": 0.0,
        "gpu.0.clock_mhz": 1755.0,
        "gpu.0.mine_gib": 5.0,
    }
    second = read(3, {200})
    assert second["gpu.0.sm_pct"] == 2.0
    assert second["gpu.0.tensor_pct"] == 5.0
    assert second["gpu.0.fp32_pct"] == 12.0
    assert second["gpu.0.pcie_tx_mb_s"] == pytest.approx(20 * 1.048576)
    assert second["gpu.0.pcie_rx_mb_s"] == pytest.approx(21 * 1.048576)
    # What the GPU has no counter for, and what is not a number, is absent.
    assert not {"gpu.0.dram_pct", "gpu.0.occupancy_pct", "gpu.0.mine_gib"} & set(second)
    assert gpus.used == {0}
    assert notes == []


def test_counters_wait_until_enough_time_has_passed() -> None:
    nvml = FakeNvml(FakeDevice(0))
    gpus, read, _ = opened(nvml)
    read(0)
    assert "gpu.0.sm_pct" not in gpus.read(1, False, ())
    assert nvml.calls.count("nvmlGpmSampleGet") == 1
    assert read(2)["gpu.0.sm_pct"] == 2.0


def test_the_facts_of_a_gpu() -> None:
    gpus, _, _ = opened(FakeNvml(FakeDevice(0)))
    (gpu,) = gpus.gpus
    assert (gpu.index, gpu.name, gpu.kind, gpu.driver) == (0, "NVIDIA H200", "nvidia", "580.95.05")
    assert (gpu.memory_gib, gpu.power_limit_w, gpu.mig, gpu.has_gpm) == (140.0, 700.0, False, True)
    assert gpu.max_clock_mhz == 1980


def test_an_older_gpu_has_no_counters_and_its_slow_ones_are_asked_rarely() -> None:
    nvml = FakeNvml(FakeDevice(0, "NVIDIA A100", gpm=False), FakeDevice(1, gpm=False))
    gpus, read, notes = opened(nvml)
    readings = [read(tick) for tick in range(20)]
    with_pcie = [tick for tick, each in enumerate(readings) if "gpu.0.pcie_rx_mb_s" in each]
    assert with_pcie == [5, 15]
    assert readings[5]["gpu.0.pcie_rx_mb_s"] == 4.0
    assert readings[5]["gpu.0.pcie_tx_mb_s"] == 1.0
    # Never two GPUs in the same reading: each takes 40 ms.
    assert "gpu.1.pcie_rx_mb_s" not in readings[5]
    assert nvml.calls.count("nvmlDeviceGetPcieThroughput") == 8
    assert not any("sm_pct" in name for each in readings for name in each)
    assert [gpu.has_gpm for gpu in gpus.gpus] == [False, False]
    assert notes == []


def test_who_is_on_a_gpu_is_asked_rarely_but_soon() -> None:
    nvml = FakeNvml(FakeDevice(0))
    _, read, _ = opened(nvml)
    for tick in range(30):
        read(tick)
    assert nvml.calls.count("nvmlDeviceGetComputeRunningProcesses_v3") == 7  # 0 2 4 6 8 10 20


def test_numbers_of_processes_that_match_nothing_tell_nothing() -> None:
    device = FakeDevice(0)
    device.processes = [(2_000_001, 5 * GIB)]  # the host's, seen from a container
    gpus, read, _ = opened(FakeNvml(device))
    assert "gpu.0.mine_gib" not in read(0, {200})
    assert gpus.used == set()


@pytest.mark.parametrize("size", [None, 0])
def test_a_process_whose_memory_is_untold_still_uses_the_gpu(size: int | None) -> None:
    device = FakeDevice(0)
    device.processes = [(200, size)]
    gpus, read, _ = opened(FakeNvml(device))
    assert "gpu.0.mine_gib" not in read(0, {200})
    assert gpus.used == {0}


@pytest.mark.parametrize(
    ("reasons", "throttled"),
    [(0x0, 0), (0x1, 0), (0x2, 0), (0x4, 1), (0x8, 1), (0x21, 1), (0x40, 1), (0x80, 1), (0x110, 0)],
)
def test_throttled_is_what_slows_it_down_and_not_idleness(reasons: int, throttled: int) -> None:
    device = FakeDevice(0)
    device.reasons = reasons
    _, read, _ = opened(FakeNvml(device))
    assert read(0)["gpu.0.throttled"] == throttled


def test_what_is_not_supported_is_asked_once_and_noted_once() -> None:
    device = FakeDevice(0, "NVIDIA GeForce RTX 4060 Laptop GPU")
    device.errors = {
        "nvmlDeviceGetPowerUsage": NOT_SUPPORTED,
        "nvmlDeviceGetEnforcedPowerLimit": NOT_SUPPORTED,
        "nvmlGpmQueryDeviceSupport": NOT_SUPPORTED,
        "nvmlDeviceGetComputeRunningProcesses_v3": NO_PERMISSION,
    }
    nvml = FakeNvml(device)
    gpus, read, notes = opened(nvml)
    for tick in range(15):
        assert "gpu.0.power_w" not in read(tick)
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 1
    assert nvml.calls.count("nvmlDeviceGetComputeRunningProcesses_v3") == 1
    assert gpus.gpus[0].power_limit_w is None
    assert notes == [
        "GPU 0 does not tell gpm: Not Supported",
        "GPU 0 does not tell power_limit_w: Not Supported",
        "GPU 0 does not tell power_w: Not Supported",
        "GPU 0 does not tell mine_gib: Insufficient Permissions",
    ]


def test_a_passing_error_is_tried_again() -> None:
    device = FakeDevice(0)
    _, read, notes = opened(FakeNvml(device))
    device.errors = {"nvmlDeviceGetTemperature": TIMEOUT, "nvmlGpmSampleGet": UNKNOWN}
    assert "gpu.0.temp_c" not in read(0)
    assert "gpu.0.temp_c" not in read(1)
    device.errors = {}
    assert read(2)["gpu.0.temp_c"] == 61.0
    assert read(3)["gpu.0.sm_pct"] == 2.0
    assert notes == [
        "GPU 0 did not tell temp_c for a while: NVML Error with code 10",
        "GPU 0 did not tell gpm for a while: NVML Error with code 999",
    ]


def test_a_gpu_that_is_lost_midway_leaves_the_others_alone() -> None:
    nvml = FakeNvml(FakeDevice(0), FakeDevice(1))
    gpus, read, notes = opened(nvml)
    assert "gpu.1.power_w" in read(0)
    nvml.devices[1].errors = {"nvmlDeviceGetPowerUsage": LOST}
    lost = read(1)
    assert "gpu.1.duty_pct" in lost  # it was there a moment before
    assert "gpu.1.temp_c" not in lost
    calls = len(nvml.calls)
    nvml.devices[1].errors = {"*": LOST}
    assert [name for name in read(2) if name.startswith("gpu.1.")] == []
    assert read(3)["gpu.0.power_w"] == 312.5
    assert len(nvml.calls) > calls
    assert notes == ["GPU 1 is lost: GPU is lost"]
    gpus.close()


def test_an_old_driver_is_asked_by_the_old_names() -> None:
    nvml = FakeNvml(FakeDevice(0, "Tesla V100", gpm=False))
    nvml.devices[0].processes = [(200, GIB)]
    nvml.devices[0].errors = {"nvmlDeviceGetMemoryInfo_v2": NOT_FOUND_FUNCTION}
    nvml.old_driver = {
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlGpmQueryDeviceSupport",
    }
    gpus, read, notes = opened(nvml)
    reading = read(0, {200})
    read(1, {200})
    assert reading["gpu.0.throttled"] == 0.0
    assert reading["gpu.0.mine_gib"] == 1.0
    assert reading["gpu.0.mem_gib"] == 8.0  # with what the driver keeps for itself
    assert nvml.calls.count("nvmlDeviceGetCurrentClocksEventReasons") == 1
    assert not gpus.gpus[0].has_gpm
    assert len(notes) == 1


def test_a_future_driver_is_asked_by_the_new_name() -> None:
    nvml = FakeNvml(FakeDevice(0))
    nvml.old_driver = {"nvmlDeviceGetTemperature"}
    _, read, _ = opened(nvml)
    assert read(0)["gpu.0.temp_c"] == 62.0


def test_a_library_that_lacks_a_name_costs_only_that_metric() -> None:
    class OldPynvml(FakeNvml):
        nvmlDeviceGetUtilizationRates = property()

    _, read, notes = opened(OldPynvml(FakeDevice(0)))
    reading = read(0)
    assert "gpu.0.duty_pct" not in reading
    assert "gpu.0.power_w" in reading
    assert len(notes) == 1


def divided() -> FakeDevice:
    device = FakeDevice(0)
    device.errors = {"nvmlDeviceGetUtilizationRates": NOT_SUPPORTED}
    for index, uuid in ((3, "MIG-aaaa-1"), (5, "MIG-bbbb-2")):
        part = FakeDevice(index)
        part.uuid, part.memory = uuid, (20 * GIB, index * GIB)
        device.slices += [part, None]
    return device


def test_one_slice_of_a_divided_gpu() -> None:
    device = divided()
    part = device.slices[2]
    assert part is not None
    part.processes = [(200, 4 * GIB)]
    gpus, read, notes = opened(FakeNvml(device), CUDA_VISIBLE_DEVICES="MIG-bbbb-2")
    (gpu,) = gpus.gpus
    assert (gpu.uuid, gpu.memory_gib, gpu.mig, gpu.has_gpm) == ("MIG-bbbb-2", 20.0, True, True)
    reading = read(0, {200})
    assert reading["gpu.0.mem_gib"] == 5.0
    assert reading["gpu.0.mine_gib"] == 4.0
    assert "gpu.0.duty_pct" not in reading
    assert read(1)["gpu.0.sm_pct"] == 2.0
    assert notes == ["GPU 0 does not tell duty_pct: Not Supported"]


def test_counters_of_several_slices_are_not_mixed() -> None:
    gpus, read, _ = opened(FakeNvml(divided()))
    read(0)
    reading = read(1)
    assert reading["gpu.0.mem_gib"] == 8.0
    assert "gpu.0.sm_pct" not in reading
    assert gpus.gpus[0].mig
    assert gpus.gpus[0].uuid == "GPU-0000-4106"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("2,0", {0, 2}),
        ("", set()),
        ("-1", set()),
        ("NoDevFiles", set()),
        ("1,-1,0", {1}),
        ("GPU-2222", {2}),
        ("gpu-2222-4106, 0", {0, 2}),
        ("GPU-", set()),  # names all of them, so none
        ("1,9,0", {1}),
    ],
)
def test_the_run_sees_what_the_variable_names(text: str, seen: set[int]) -> None:
    nvml = FakeNvml(*(FakeDevice(index) for index in range(3)))
    gpus, read, _ = opened(nvml, CUDA_VISIBLE_DEVICES=text)
    assert {gpu.index for gpu in gpus.gpus} == seen
    assert {int(name.split(".")[1]) for name in read(3)} == seen


def test_a_hidden_gpu_that_the_run_uses_all_the_same_is_watched() -> None:
    """A script may set the variable itself."""
    nvml = FakeNvml(FakeDevice(0), FakeDevice(1))
    nvml.devices[1].processes = [(200, GIB)]
    gpus, read, notes = opened(nvml, CUDA_VISIBLE_DEVICES="0")
    assert read(2, {200})["gpu.1.mine_gib"] == 1.0
    assert read(3, {200})["gpu.1.power_w"] == 312.5
    assert read(5, {200})["gpu.1.sm_pct"] == 2.0
    assert gpus.used == {1}
    assert [gpu.index for gpu in gpus.gpus] == [0, 1]
    assert notes == ["GPU 1 is used by the run, though the environment hides it"]


def test_numbers_among_different_gpus_are_doubtful() -> None:
    mixed = (FakeDevice(0, "NVIDIA T400"), FakeDevice(1, "NVIDIA A100"))
    _, _, notes = opened(FakeNvml(*mixed), CUDA_VISIBLE_DEVICES="0")
    assert len(notes) == 1
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in notes[0]
    for environ in (
        {},
        {"CUDA_VISIBLE_DEVICES": "GPU-0000"},
        {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    ):
        assert opened(FakeNvml(*mixed), **environ)[2] == []


def test_closing_frees_the_samples_and_ends_nvml_once() -> None:
    nvml = FakeNvml(FakeDevice(0), FakeDevice(1))
    gpus, read, _ = opened(nvml)
    read(0)
    assert nvml.samples == 4
    gpus.close()
    gpus.close()
    assert nvml.samples == 0
    assert nvml.calls.count("nvmlShutdown") == 1
    assert read(1) == {}


def test_nvml_is_expected_where_its_library_is(tmp_path: Path) -> None:
    assert not has_nvidia(tmp_path, [str(tmp_path)])
    (tmp_path / "libnvidia-ml.so.1").touch()
    assert has_nvidia(tmp_path / "dev", [str(tmp_path)])


def test_the_stand_in_has_the_names_and_numbers_of_the_real_library() -> None:
    real = pytest.importorskip("pynvml")
    for name in dir(FakeNvml):
        if name.startswith(("nvml", "NVML", "c_nvml")):
            assert hasattr(real, name), name
    for name in (
        "NVML_TEMPERATURE_GPU", "NVML_PCIE_UTIL_RX_BYTES", "nvmlMemory_v2", "NVML_CLOCK_SM"
    ):  # fmt: skip
        assert getattr(FakeNvml, name) == getattr(real, name)
    lost = (real.NVML_ERROR_GPU_IS_LOST, real.NVML_ERROR_RESET_REQUIRED)
    assert lost == (15, 16)
    assert isinstance(real.NVMLError(15), real.NVMLError_GpuIsLost)
    assert real.NVMLError(13).value == real.NVML_ERROR_FUNCTION_NOT_FOUND
    metrics = ("SM_UTIL", "SM_OCCUPANCY", "ANY_TENSOR_UTIL", "DRAM_BW_UTIL", "FP32_UTIL")
    numbers = [getattr(real, f"NVML_GPM_METRIC_{name}") for name in metrics]
    assert numbers == [2, 3, 5, 10, 12]
    assert real.NVML_GPM_METRIC_PCIE_TX_PER_SEC == 20
    slowed = (
        real.nvmlClocksEventReasonSwPowerCap
        | real.nvmlClocksEventReasonHwSlowdown
        | real.nvmlClocksEventReasonSwThermalSlowdown
        | real.nvmlClocksEventReasonHwThermalSlowdown
        | real.nvmlClocksEventReasonHwPowerBrakeSlowdown
    )
    assert slowed == 0xEC
    hot = real.nvmlClocksEventReasonSwThermalSlowdown | real.nvmlClocksEventReasonHwThermalSlowdown
    assert hot == 0x60


def test_the_request_for_counters_fits_the_real_structure() -> None:
    """All but the calls into the driver: ctypes refuses a wrong field or type."""
    real = pytest.importorskip("pynvml")
    request = real.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = real.NVML_GPM_METRICS_GET_VERSION, 2
    request.sample1 = request.sample2 = real.c_nvmlGpmSample_t()
    request.metrics[1].metricId = 5
    assert request.metrics[1].nvmlReturn == 0
    assert request.metrics[1].value == 0.0
