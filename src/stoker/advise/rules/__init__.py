"""One function per cause, one module per subject; each tells its cause apart from its neighbours."""

from __future__ import annotations

from stoker.advise.finding import Rule
from stoker.advise.rules import (
    device,
    device_memory,
    ending,
    gpus,
    loading,
    memory,
    pauses,
    ranks,
    reservation,
    storage,
    tensorflow_input,
    threads,
)

RULES: tuple[Rule, ...] = (
    *loading.RULES,
    *storage.RULES,
    *tensorflow_input.RULES,
    *threads.RULES,
    *device.RULES,
    *gpus.RULES,
    *ranks.RULES,
    *device_memory.RULES,
    *memory.RULES,
    *pauses.RULES,
    *ending.RULES,
    *reservation.RULES,
)
