"""Stoker: from an unchanged training script to busy GPUs, on a laptop or on Slurm."""

from __future__ import annotations

__version__ = "0.1.0"
