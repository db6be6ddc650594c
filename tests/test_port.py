"""`stoker port`: what is rewritten, what is refused, and what is written where."""

from __future__ import annotations

import ast
import json
import subprocess
from functools import cache
from pathlib import Path

import pytest

from conftest import Stoker
from stoker.port.rewrite import TARGETS, Ported, port_script

FOLDER = Path(__file__).parent / "ported"
SCRIPTS = sorted(FOLDER.glob("*.py"))
REFUSED = {
    "by_hand": (7, "takes no batches from a DataLoader"),
    "counted": (12, "accumulated in a way that was not recognised"),
    "data_parallel": (5, "DataParallel"),
    "extreme": (17, "training keeps `max(worst, "),
    "kept_samples": (18, "training keeps `out.argmax(1).tolist()`"),
    "metric_object": (32, "training keeps `out`"),
    "generator": (16, "takes no batches from a DataLoader"),
    "weighted": (6, "`sampler` of its own"),
    "gan": (7, "several optimizers: opt_g, opt_d"),
    "iterable": (13, "IterableDataset"),
    "one_maker": (53, "an evaluation keeps `torch.sigmoid("),
    "method": (19, "training calls `model.training_loss`"),
    "sampler": (9, "`sampler` of its own"),
    "two_trainings": (15, "made again after a training"),
    "two_devices": (10, "several devices: cuda:0, cuda:1"),
}
# What a target cannot do, it says; everything else is ported.
LIMITS: dict[str, set[str]] = {
    "ddp": set(),
    "accelerate": {"amp", "scaler_groups"},
    "fsdp": {"amp", "autoencoder", "characters", "closure_state", "csv_log", "ema", "full_resume", "images_main",
             "late_device", "max_steps", "resume", "scaler_groups", "series", "snapshot", "unet"},
    "deepspeed": {"accumulation", "amp", "autoencoder", "characters", "csv_log", "factory", "full_resume", "images_main",
                  "language_model", "late_device", "max_steps", "resume", "rnn", "run_log", "scaler_groups", "series",
                  "snapshot", "unet"},
    "horovod": {"accumulation", "amp", "autoencoder", "characters", "factory", "language_model", "max_steps",
                "rnn", "run_log", "scaler_groups", "snapshot", "unet"},
}  # fmt: skip


@cache
def ported(name: str, target: str = "ddp") -> Ported:
    return port_script((FOLDER / f"{name}.py").read_text(), target, f"{name}.py")


def test_there_are_twenty_scripts_of_different_shape() -> None:
    assert len(SCRIPTS) >= 20


@pytest.mark.parametrize(
    "target", ["ddp", *(pytest.param(t, marks=pytest.mark.slow) for t in TARGETS if t != "ddp")]
)
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_is_ported_with_its_comments_or_refused_with_a_reason(
    path: Path, target: str
) -> None:
    found = ported(path.stem, target)
    assert bool(found.refusals) == (path.stem in LIMITS[target])
    if found.refusals:
        assert found.after == found.before
        assert all(each.line and each.what and each.why and each.fix for each in found.refusals)
        return
    ast.parse(found.after)
    assert found.diff.startswith("--- a/")
    comments = [line.strip() for line in found.before.splitlines() if line.strip().startswith("#")]
    assert all(each in found.after for each in comments)
    again = port_script(found.after, target)
    assert again.is_old
    assert again.after == found.after
    assert again.diff == ""


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_unsafe_is_refused_with_its_line(name: str) -> None:
    text = (FOLDER / "refused" / f"{name}.py").read_text()
    line, what = REFUSED[name]
    found = port_script(text, "ddp")
    assert any(each.line == line and what in each.what for each in found.refusals)
    assert found.after == text


def test_the_pieces_of_a_port() -> None:
    after = ported("with_main").after
    assert "train_loader = distributed_loader(TensorDataset(" in after
    assert "    test_loader = DataLoader(TensorDataset(" in after
    assert "class RankSampler(DistributedSampler):" in after
    assert "    model = DistributedDataParallel(model)\n" in after
    assert "save_on_main(unwrap(model).state_dict(), " in after
    assert "output = unwrap(model)(data)" in after  # validation
    assert "        output = model(data)\n" in after  # training
    assert after.startswith("#!/usr/bin/env python\n")


def test_an_evaluation_within_the_loop_of_steps_is_without_the_wrapper() -> None:
    """DDP shares running averages in its first pass: a rank without a batch would be waited for."""
    after = ported("step_trainer").after
    assert "in share_of_batches(self.val_loader)" in after
    assert "out = unwrap(self.model)(x.to(self.device))" in after
    assert "loss = self.criterion(self.model(x), y)" in after


def test_zero_grad_of_horovod_takes_no_argument() -> None:
    assert "optimizer.zero_grad(set_to_none=True)\n" in ported("transformer").after
    assert "optimizer.zero_grad()\n" in ported("transformer", "horovod").after


def test_the_first_rank_writes_to_the_terminal() -> None:
    after = ported("numpy_metrics").after
    assert '    (sys.stdout if RANK == 0 else Silent()).write("\\n")\n' in after


def test_horovods_optimizer_gets_the_state_that_was_loaded_before_it() -> None:
    after = ported("late_device", "horovod").after
    order = [
        "resume(",
        "loaded_state = ",
        "hvd.DistributedOptimizer(",
        ".load_state_dict(loaded_state)",
    ]
    assert order == sorted(order, key=after.rindex)
    # Right behind the optimizer's creation nothing can be loaded yet.
    assert "loaded_state" not in ported("full_resume", "horovod").after


def test_horovod_takes_no_step_before_the_first() -> None:
    """With weight decay its `broadcast_optimizer_state` changes the weights."""
    after = ported("numpy_metrics", "horovod").after
    assert "hvd.broadcast_parameters(" in after
    assert "broadcast_optimizer_state" not in after


def test_accumulation_is_without_synchronisation() -> None:
    after = ported("accumulation").after
    assert "else model.no_sync():\n                out = model(x)" in after


def test_a_script_that_sets_its_gpu_by_number_gets_that_of_its_rank() -> None:
    after = ported("amp").after
    assert 'device = "cuda" if torch.cuda.is_available()' in after


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (
            "import torch\nfrom transformers import Trainer\nTrainer(model=torch.nn.Linear(2, 2)).train()\n",
            "stoker run --procs N runs it as it is",
        ),
        (
            "import torch.multiprocessing as mp\nimport torch.distributed as dist\n"
            "def work(rank):\n    dist.init_process_group('gloo')\nmp.spawn(work, nprocs=2)\n",
            "stoker run runs it as it is",
        ),
    ],
)
def test_what_is_distributed_already_is_told_once(text: str, fix: str) -> None:
    """That it has no `backward()`, or a sampler of its own, is then no news."""
    assert [each.fix for each in port_script(text, "ddp").refusals] == [fix]


def test_statements_that_share_a_line_are_refused_not_half_ported() -> None:
    text = (FOLDER / "plain_module.py").read_text()
    text = text.replace(
        "    total = 0.0\n    for inputs, labels in loader:",
        "    total = 0.0; n = 0\n    for inputs, labels in loader:",
    )
    assert not port_script(text, "ddp").refusals
    text = text.replace("torch.manual_seed(0)\n", "torch.manual_seed(0); import math\n")
    assert not port_script(text, "ddp").refusals


def test_windows_lines_stay() -> None:
    text = (FOLDER / "plain_module.py").read_text().replace("\n", "\r\n")
    found = port_script(text, "ddp")
    assert not found.refusals
    assert compile(found.after, "x", "exec")


def test_nothing_is_written_unless_asked(stoker: Stoker, tmp_path: Path) -> None:
    text = (FOLDER / "plain_module.py").read_text()
    script = tmp_path / "train.py"
    script.write_text(text)
    done = stoker("port", "train.py", "--to", "ddp")
    assert done.returncode == 0
    assert script.read_text() == text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["home", "train.py"]
    assert "+model = DistributedDataParallel(model)" in done.stdout
    assert "batch_size // WORLD_SIZE" in done.stderr
    assert done.stderr.splitlines()[-1] == "next: stoker port train.py --to ddp --check"
    subprocess.run(["patch", "-p1"], input=done.stdout, cwd=tmp_path, text=True, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    again = stoker("port", "train.py", "--to", "ddp")
    assert again.returncode == 0
    assert "is ported already" in again.stderr


def test_a_refusal_writes_nothing_and_ends_with_1(stoker: Stoker, tmp_path: Path) -> None:
    script = FOLDER / "refused/gan.py"
    done = stoker("port", str(script), "--to", "ddp", "-o", "new.py")
    assert done.returncode == 1
    assert f"{script}:7: error: several optimizers" in done.stderr
    assert not (tmp_path / "new.py").exists()


def test_output_is_not_overwritten(stoker: Stoker, tmp_path: Path) -> None:
    script = str(FOLDER / "rnn.py")
    assert stoker("port", script, "--to", "ddp", "-o", "new.py").returncode == 0
    assert stoker("port", script, "--to", "ddp", "-o", "new.py").returncode == 1
    assert stoker("port", script, "--to", "fsdp", "-o", "new.py", "--force").returncode == 0
    found = json.loads(stoker("port", script, "--to", "ddp", "--json").stdout)
    assert found["refusals"] == []
    assert found["diff"]


def test_what_is_not_python_is_said(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("for x in\n")
    done = stoker("port", "train.py", "--to", "ddp")
    assert done.returncode == 1
    assert "cannot be read as Python" in done.stderr
    assert "Traceback" not in done.stderr
