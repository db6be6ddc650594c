"""NVIDIA's GPUs through NVML, from the data centre to the laptop, whole or divided (MIG)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.watch.gpus import MIB, Ask, Card, Gpu, Note, Values, parse_visible
from stoker.watch.processes import GIB

# NVML's codes, which never change; nvml.h, nvmlReturn_t.
_LOST = {15, 16, 28}  # GPU is lost, needs a reset, not found
_NEVER = {2, 3, 4, 13, 25, 26}  # invalid argument, not supported, no permission, not in this driver
_FUNCTION_NOT_FOUND = 13
# Clocks event reasons that slow the GPU down: software power cap, hardware slowdown, software
# thermal, hardware thermal, power brake. Not idle, not clocks that somebody has set.
_SLOWED = 0x04 | 0x08 | 0x20 | 0x40 | 0x80
# Of these the ones that heat alone causes.
_HOT = 0x20 | 0x40
# GPM metrics: id, our name, factor. NVML gives PCIe in MiB/s; "transmit" is from the GPU.
_GPM = (
    (2, "sm_pct", 1.0),
    (3, "occupancy_pct", 1.0),
    (5, "tensor_pct", 1.0),
    (10, "dram_pct", 1.0),
    (12, "fp32_pct", 1.0),
    (20, "pcie_tx_mb_s", MIB / 1e6),
    (21, "pcie_rx_mb_s", MIB / 1e6),
)
_NVML_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",  # Windows has no /dev/nvidiactl
    "/run/opengl-driver/lib",
)


class Gpm:
    """The GPU's own performance counters (Hopper and newer): the change between two samples."""

    def __init__(self, nvml: Any, handle: Any, slice_id: int | None) -> None:
        self._nvml, self._handle, self._slice_id = nvml, handle, slice_id
        self._older, self._newer = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._has_older = False
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(_GPM)
        for place, (metric, _, _) in enumerate(_GPM):
            self._request.metrics[place].metricId = metric

    def read(self) -> dict[str, float]:
        """Return the metrics since the last call; nothing at the first."""
        if self._slice_id is None:
            self._nvml.nvmlGpmSampleGet(self._handle, self._newer)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._handle, self._slice_id, self._newer)
        values = self._difference() if self._has_older else {}
        self._older, self._newer, self._has_older = self._newer, self._older, True
        return values

    def _difference(self) -> dict[str, float]:
        self._request.sample1, self._request.sample2 = self._older, self._newer
        self._nvml.nvmlGpmMetricsGet(self._request)
        answers = [self._request.metrics[place] for place in range(len(_GPM))]
        return {
            name: answer.value * factor
            for answer, (_, name, factor) in zip(answers, _GPM, strict=True)
            if answer.nvmlReturn == 0 and math.isfinite(answer.value)
        }

    def close(self) -> None:
        """Free the two samples."""
        for sample in (self._older, self._newer):
            self._nvml.nvmlGpmSampleFree(sample)


class Nvidia:
    """NVIDIA's GPUs through NVML; `nvml` is the module `pynvml`, ready to use."""

    kind = "nvidia"

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._chosen: dict[str, str] = {}
        self.questions: Mapping[str, Callable[[Card], Values]] = {
            "duty_pct": self._duty,
            "mem_gib": lambda card: {"mem_gib": self._memory(card, "used") / GIB},
            "power_w": lambda card: {"power_w": nvml.nvmlDeviceGetPowerUsage(card.handle) / 1000},
            "temp_c": self._temperature,
            "throttled": self._throttled,
            "clock_mhz": lambda card: {
                "clock_mhz": nvml.nvmlDeviceGetClockInfo(card.handle, nvml.NVML_CLOCK_SM)
            },
        }
        self.rare_questions: Mapping[str, Callable[[Card], Values]] = {"pcie_mb_s": self._pcie}

    def cards(self) -> list[Card]:
        """Return the GPUs that NVML shows, in the order of their PCI addresses."""
        nvml, found = self._nvml, []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            card = Card(index, handle, nvml.nvmlDeviceGetUUID(handle))
            card.slices = self._slices(handle)
            found.append(card)
        return found

    def _slices(self, handle: Any) -> dict[str, Any]:
        nvml, slices = self._nvml, {}
        try:
            is_divided = nvml.nvmlDeviceGetMigMode(handle)[0]
            count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if is_divided else 0
        except nvml.NVMLError:  # a GPU that cannot be divided
            return {}
        for index in range(count):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                slices[nvml.nvmlDeviceGetUUID(part)] = part
            except nvml.NVMLError:  # an empty place, or a slice of somebody else
                continue
        return slices

    def visible(self, cards: Sequence[Card], environ: Mapping[str, str], note: Note) -> None:
        """Follow CUDA_VISIBLE_DEVICES."""
        text = environ.get("CUDA_VISIBLE_DEVICES")
        owners = {uuid: card.index for card in cards for uuid in (card.uuid, *card.slices)}
        found = parse_visible(text, owners, len(cards))
        for card in cards:
            card.is_watched = card.index in found
            named = found.get(card.index)
            if named:
                card.slices = {uuid: card.slices[uuid] for uuid in named}
        # NVML counts in PCI order, CUDA the fastest first unless told otherwise. Among equal
        # GPUs CUDA keeps PCI order too, so only mixed models can be mistaken for each other.
        names = {self._nvml.nvmlDeviceGetName(card.handle) for card in cards}
        is_sure = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if len(names) > 1 and not is_sure and any(word.isdecimal() for word in _words(text)):
            note(
                "the GPUs of this machine differ and CUDA counts the fastest first: the numbers in "
                "CUDA_VISIBLE_DEVICES may mean others; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )

    def describe(self, card: Card, ask: Ask) -> Gpu:
        """Return the facts of a GPU and prepare its counters."""
        nvml, handle = self._nvml, card.handle
        # Counters of several slices cannot be added up; with one slice they are the run's.
        support = ask("gpm", lambda: nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
        if support and len(card.slices) < 2:
            card.gpm = ask("gpm", lambda: self._gpm(card))
        memory = ask("memory_gib", lambda: self._memory(card, "total"))
        limit_mw = ask("power_limit_w", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        most = ask(
            "max_clock_mhz", lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
        )
        return Gpu(
            index=card.index,
            uuid=next(iter(card.slices)) if len(card.slices) == 1 else card.uuid,
            name=ask("name", lambda: nvml.nvmlDeviceGetName(handle)) or "NVIDIA GPU",
            kind=self.kind,
            driver=ask("driver", nvml.nvmlSystemGetDriverVersion),
            memory_gib=memory / GIB if memory is not None else None,
            power_limit_w=limit_mw / 1000 if limit_mw is not None else None,
            mig=bool(card.slices),
            has_gpm=card.gpm is not None,
            max_clock_mhz=most,
        )

    def _gpm(self, card: Card) -> Gpm:
        slice_id = None
        if card.slices:
            slice_id = self._nvml.nvmlDeviceGetGpuInstanceId(card.parts[0])
        return Gpm(self._nvml, card.handle, slice_id)

    def memory_of(self, card: Card) -> dict[int, int]:
        """Return the processes on a GPU and the bytes that each holds there, 0 if untold."""
        held: dict[int, int] = {}
        for part in card.parts:
            names = (
                "nvmlDeviceGetComputeRunningProcesses_v3",
                "nvmlDeviceGetComputeRunningProcesses_v2",
            )
            for each in self._call(names, part):
                held[each.pid] = held.get(each.pid, 0) + (each.usedGpuMemory or 0)
        return held

    def verdict(self, error: Exception) -> str:
        """Return what an error means: `lost` for the GPU, `never` for the question, or `retry`."""
        code = getattr(error, "value", None)
        if code in _LOST:
            return "lost"
        # Without a code it is pynvml itself that lacks a name: an older or newer version.
        return "never" if code in _NEVER or code is None else "retry"

    def close(self) -> None:
        """End the use of NVML."""
        self._nvml.nvmlShutdown()

    def _call(self, names: tuple[str, ...], *arguments: Any) -> Any:
        """Call the first of these functions that the driver has."""
        known = self._chosen.get(names[0])
        for name in (known,) if known else names:
            try:
                answer = getattr(self._nvml, name)(*arguments)
            except self._nvml.NVMLError as error:
                if error.value == _FUNCTION_NOT_FOUND and name != names[-1]:
                    continue
                raise
            self._chosen[names[0]] = name
            return answer
        raise AssertionError(names)

    def _duty(self, card: Card) -> Values:
        return {"duty_pct": self._nvml.nvmlDeviceGetUtilizationRates(card.handle).gpu}

    def _memory(self, card: Card, which: str) -> int:
        total = 0
        for part in card.parts:
            try:  # version 2 does not count what the driver keeps for itself
                info = self._nvml.nvmlDeviceGetMemoryInfo(part, self._nvml.nvmlMemory_v2)
            except self._nvml.NVMLError as error:
                if error.value not in _NEVER:
                    raise
                info = self._nvml.nvmlDeviceGetMemoryInfo(part)
            total += getattr(info, which)
        return total

    def _temperature(self, card: Card) -> Values:
        # The second one takes over when NVML drops the first, announced for CUDA 14.
        names = ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV")
        return {"temp_c": self._call(names, card.handle, self._nvml.NVML_TEMPERATURE_GPU)}

    def _throttled(self, card: Card) -> Values:
        names = (
            "nvmlDeviceGetCurrentClocksEventReasons",  # since driver 535
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        )
        reasons = self._call(names, card.handle)
        return {"throttled": float(bool(reasons & _SLOWED)), "hot": float(bool(reasons & _HOT))}

    def _pcie(self, card: Card) -> Values:
        if card.gpm:
            return {}
        read, nvml = self._nvml.nvmlDeviceGetPcieThroughput, self._nvml  # blocks 20 ms; kB/s
        return {
            "pcie_rx_mb_s": read(card.handle, nvml.NVML_PCIE_UTIL_RX_BYTES) / 1000,
            "pcie_tx_mb_s": read(card.handle, nvml.NVML_PCIE_UTIL_TX_BYTES) / 1000,
        }


def has_nvidia(dev: Path = Path("/dev"), folders: Sequence[str] = _NVML_FOLDERS) -> bool:
    """Say whether NVML can be expected, without loading anything."""
    if (dev / "nvidiactl").exists():
        return True
    return any((Path(folder) / "libnvidia-ml.so.1").exists() for folder in folders)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",")]
