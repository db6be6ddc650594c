"""The GPU readings of a run as CSV, for a spreadsheet or a plot."""

from __future__ import annotations

import csv
import io
from typing import Any

from stoker.advise.verdict import gpu_numbers
from stoker.watch.series import known_number
from stoker.watch.summary import Machine, Summary

# Means over each row of the series; empty where a GPU does not tell.
METRICS = (
    "duty_pct", "sm_pct", "tensor_pct", "dram_pct", "mem_gib", "power_w", "temp_c",
    "occupancy_pct", "pcie_rx_mb_s", "pcie_tx_mb_s", "throttled", "mine_gib",
)  # fmt: skip
# `time_s` is the end of a row, in seconds since the run began; `interval_s` is its length.
HEADER = ("time_s", "host", "gpu", "uuid", *METRICS, "interval_s")


def render_gpu_csv(summary: Summary) -> str:
    """Return one line for each GPU and row; the header alone where there was no GPU."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for machine in summary.machines:
        numbers, uuids = gpu_numbers(machine), _uuids(machine)
        for row in machine.rows:
            for number in numbers:
                stats = [row.stats.get(f"gpu.{number}.{metric}") for metric in METRICS]
                if any(stat is not None for stat in stats):
                    means = ["" if stat is None else f"{stat.mean:.6g}" for stat in stats]
                    place = [f"{row.end_s:.3f}", machine.host, number, uuids.get(number, "")]
                    writer.writerow([*place, *means, f"{row.end_s - row.start_s:.3f}"])
    return text.getvalue()


def _uuids(machine: Machine) -> dict[int, str]:
    told: Any = machine.facts.get("gpus")
    uuids = {}
    for each in told if isinstance(told, list) else []:
        index = known_number(each.get("index")) if isinstance(each, dict) else None
        if index is not None:
            uuids[int(index)] = str(each.get("uuid") or "")
    return uuids
