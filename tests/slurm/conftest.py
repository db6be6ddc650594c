"""One cluster for all tests of this folder; STOKER_TEST_CLUSTER=FOLDER takes one that is up already."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.cluster import SlurmCluster, why_not

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A cluster, up: see `SlurmCluster`."""
    if reason := why_not():
        # Root can have a cluster: where all tests are to be run, one that is missing is a failure.
        is_wanted = os.environ.get("STOKER_TEST_ALL") and os.geteuid() == 0
        (pytest.fail if is_wanted else pytest.skip)(reason)
    if started := os.environ.get("STOKER_TEST_CLUSTER"):
        yield SlurmCluster(Path(started))
        return
    cluster = SlurmCluster(Path(tempfile.mkdtemp(prefix="stoker-cluster-")))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(autouse=True, scope="module")
def quiet_cluster(slurm: SlurmCluster) -> Iterator[None]:
    """Each file of tests begins and ends with an empty queue."""
    slurm.cancel_all()
    yield
    slurm.repair()
    slurm.cancel_all()


@pytest.fixture(autouse=True)
def whole_cluster(slurm: SlurmCluster) -> Iterator[None]:
    """What a test took away is back for the next."""
    yield
    slurm.repair()
