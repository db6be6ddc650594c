"""Stoker: from an unchanged training script to busy GPUs, on a laptop or on Slurm.

The public names of the library; each is imported when it is first used, so that
`import stoker` stays cheap. See docs/library.md.
"""

from __future__ import annotations

# `typing` takes longer to import than all the rest of this.
TYPE_CHECKING = False

__version__ = "0.2.0"

__all__ = [
    "CenterCrop",
    "Checked",
    "Cluster",
    "Finding",
    "Loader",
    "Plan",
    "RandomResizedCrop",
    "Resize",
    "Settings",
    "Spec",
    "StokerError",
    "check_script",
    "context",
    "fix_script",
    "load_cluster",
    "make_plan",
    "open",
    "pack",
    "render_script",
]

_HOME = {
    "CenterCrop": "stoker.data.pictures.crop",
    "Checked": "stoker.check.lint",
    "Cluster": "stoker.cluster.profile",
    "Finding": "stoker.check.findings",
    "Loader": "stoker.data.loading.loader",
    "Plan": "stoker.plan.plan",
    "RandomResizedCrop": "stoker.data.pictures.crop",
    "Resize": "stoker.data.pictures.crop",
    "Settings": "stoker.check.lint",
    "Spec": "stoker.plan.spec",
    "StokerError": "stoker.errors",
    "check_script": "stoker.check.lint",
    "context": "stoker.engine.context",
    "fix_script": "stoker.check.lint",
    "load_cluster": "stoker.cluster.load",
    "make_plan": "stoker.plan.make",
    "open": "stoker.data.loading.dataset",
    "pack": "stoker.data.packing.objects",
    "render_script": "stoker.plan.script",
}

if TYPE_CHECKING:
    from stoker.check.findings import Finding
    from stoker.check.lint import Checked, Settings, check_script, fix_script
    from stoker.cluster.load import load_cluster
    from stoker.cluster.profile import Cluster
    from stoker.data.loading.dataset import open
    from stoker.data.loading.loader import Loader
    from stoker.data.packing.objects import pack
    from stoker.data.pictures.crop import CenterCrop, RandomResizedCrop, Resize
    from stoker.engine.context import context
    from stoker.errors import StokerError
    from stoker.plan.make import make_plan
    from stoker.plan.plan import Plan
    from stoker.plan.script import render_script
    from stoker.plan.spec import Spec


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
