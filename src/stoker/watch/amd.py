"""AMD's GPUs through AMD SMI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.watch.gpus import MIB, Ask, Card, Gpu, Note, Values, parse_visible
from stoker.watch.processes import GIB


class Amd:
    """AMD's GPUs through AMD SMI; `smi` is the module `amdsmi`, ready to use."""

    kind = "amd"

    def __init__(self, smi: Any) -> None:
        self._smi = smi
        self.questions: Mapping[str, Callable[[Card], Values]] = {
            "duty_pct": self._duty,
            "mem_gib": self._memory,
            "power_w": self._power,
            "temp_c": self._temperature,
        }
        self.rare_questions: Mapping[str, Callable[[Card], Values]] = {}

    def cards(self) -> list[Card]:
        """Return the GPUs that AMD SMI shows; the two halves of an MI250 are two."""
        handles = self._smi.amdsmi_get_processor_handles()
        return [Card(index, handle, self._uuid(handle)) for index, handle in enumerate(handles)]

    def _uuid(self, handle: Any) -> str:
        # ROCR_VISIBLE_DEVICES takes `GPU-` and the serial; amdsmi_get_gpu_device_uuid is another.
        try:
            serial = str(self._smi.amdsmi_get_gpu_asic_info(handle)["asic_serial"])
            return "GPU-" + serial.lower().removeprefix("0x")
        except Exception:
            return str(self._smi.amdsmi_get_gpu_device_uuid(handle))

    def visible(self, cards: Sequence[Card], environ: Mapping[str, str], note: Note) -> None:
        """Follow ROCR_VISIBLE_DEVICES, and within it HIP's variable or CUDA's."""
        left = list(cards)
        hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
        for variable in ("ROCR_VISIBLE_DEVICES", hip):
            owners = {card.uuid: place for place, card in enumerate(left)}
            left = [left[at] for at in parse_visible(environ.get(variable), owners, len(left))]
        seen = {card.index for card in left}
        for card in cards:
            card.is_watched = card.index in seen

    def describe(self, card: Card, ask: Ask) -> Gpu:
        """Return the facts of a GPU."""
        smi, handle = self._smi, card.handle
        asic = ask("name", lambda: smi.amdsmi_get_gpu_asic_info(handle)) or {}
        driver = ask("driver", lambda: smi.amdsmi_get_gpu_driver_info(handle)) or {}
        vram = ask("memory_gib", lambda: smi.amdsmi_get_gpu_vram_usage(handle)) or {}
        cap = ask("power_limit_w", lambda: smi.amdsmi_get_power_cap_info(handle)) or {}
        total, cap_uw = _number(vram.get("vram_total")), _number(cap.get("power_cap"))
        return Gpu(
            index=card.index,
            uuid=card.uuid,
            name=str(asic.get("market_name") or "AMD GPU"),
            kind=self.kind,
            driver=str(driver.get("driver_version") or "") or None,
            memory_gib=total * MIB / GIB if total is not None else None,
            power_limit_w=cap_uw / 1e6 if cap_uw is not None else None,
            mig=False,
            has_gpm=False,
        )

    def memory_of(self, card: Card) -> dict[int, int]:
        """Return the processes on a GPU and the bytes that each holds there, 0 if untold."""
        held = {}
        for each in self._smi.amdsmi_get_gpu_process_list(card.handle):
            vram = _number(each.get("memory_usage", {}).get("vram_mem"))
            held[int(each["pid"])] = int(vram or 0)
        return held

    def verdict(self, error: Exception) -> str:
        """Return what an error means: `lost` for the GPU, `never` for the question, or `retry`."""
        # AMD's codes have changed between versions; their names have not.
        text = str(getattr(error, "err_info", error))
        if "NOT_FOUND" in text or "NOT_INIT" in text:
            return "lost"
        words = ("NOT_SUPPORTED", "NO_PERM", "NOT_YET_IMPLEMENTED", "INVAL")
        has_code = hasattr(error, "err_info")
        return "never" if not has_code or any(word in text for word in words) else "retry"

    def close(self) -> None:
        """End the use of AMD SMI."""
        self._smi.amdsmi_shut_down()

    def _duty(self, card: Card) -> Values:
        usage = self._smi.amdsmi_get_gpu_activity(card.handle)
        return _known(duty_pct=_number(usage.get("gfx_activity")))

    def _memory(self, card: Card) -> Values:
        used = _number(self._smi.amdsmi_get_gpu_vram_usage(card.handle).get("vram_used"))
        return _known(mem_gib=used * MIB / GIB if used is not None else None)

    def _power(self, card: Card) -> Values:
        # MI300 and newer have the first, older ones the second; an MI250 only on its first half.
        power = self._smi.amdsmi_get_power_info(card.handle)
        now, mean = (_number(power.get(f"{each}_socket_power")) for each in ("current", "average"))
        return _known(power_w=now or mean or None)

    def _temperature(self, card: Card) -> Values:
        smi = self._smi
        kind, current = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        return {"temp_c": smi.amdsmi_get_temp_metric(card.handle, kind, current)}


def has_amd(dev: Path = Path("/dev")) -> bool:
    """Say whether AMD SMI can be expected, without loading anything."""
    return (dev / "kfd").exists()


def _number(value: object) -> float | None:
    """AMD SMI says "N/A" for what it does not know."""
    return float(value) if isinstance(value, int | float) else None


def _known(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
