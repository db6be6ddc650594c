"""What is set, and where, in the words of the library whose trainer runs the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Where it is set how often, and on how much, held-out data is evaluated.
VALIDATING = {
    "lightning": "check_val_every_n_epoch, val_check_interval or limit_val_batches of Trainer",
    "transformers": "eval_strategy and eval_steps of TrainingArguments",
}


def has_own_loader(loader: Mapping[str, Any]) -> bool:
    """Say whether the Trainer of Hugging Face made the loader, and its arguments set it up."""
    return loader.get("trainer") == "transformers"


def ends_workers(loader: Mapping[str, Any]) -> bool:
    """Say whether workers that stay are told to go when the training is over, as Lightning does."""
    return loader.get("trainer") == "lightning"


def taker(loader: Mapping[str, Any]) -> str:
    """Return what a user gives the settings of the loader to."""
    return "TrainingArguments" if has_own_loader(loader) else "DataLoader"


def settings(loader: Mapping[str, Any], **values: object) -> str:
    """Write settings of the loader as its taker calls them."""
    prefix = "dataloader_" if has_own_loader(loader) else ""
    return ", ".join(f"{prefix}{name}={value}" for name, value in values.items())
