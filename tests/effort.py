"""How hard the property tests try: all examples with `make test`, a fifth in your own loop."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

IS_ALL = bool(os.environ.get("STOKER_TEST_ALL"))
# How long it takes to draw an example, and to try it, is the machine's affair.
PATIENT = [HealthCheck.too_slow]
# For tests that say themselves what their fixtures hold before each example.
KEEPS_FIXTURES = [*PATIENT, HealthCheck.function_scoped_fixture]


def examples(number: int) -> int:
    """Return how many of so many examples are tried."""
    return number if IS_ALL else max(10, number // 5)


def choose_profile() -> None:
    """Try the same examples each time in CI, and others each time on a developer's machine."""
    settings.register_profile(
        "here", deadline=None, suppress_health_check=PATIENT, max_examples=examples(100)
    )
    settings.register_profile("ci", settings.get_profile("here"), derandomize=True)
    settings.load_profile("ci" if os.environ.get("CI") else "here")
