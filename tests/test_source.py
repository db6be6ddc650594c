"""The script says which framework it uses; it is read, never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.plan.source import read_source

CASES = {
    "plain": "import torch\nmodel = torch.nn.Linear(1, 1)\n",
    "ddp": "from torch.nn.parallel import DistributedDataParallel as DDP\nDDP(model)\n",
    "ddp init": "import torch.distributed as dist\ndist.init_process_group('nccl')\n",
    "ddp mesh": "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cuda', (8,))\n",
    "ddp hf": "from transformers import Trainer\nTrainer(model=m).train()\n",
    "fsdp": "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n",
    "fsdp old": "from torch.distributed.fsdp import FullyShardedDataParallel as F\nimport torch.distributed as d\nd.init_process_group()\nF(m)\n",
    "deepspeed": "import deepspeed\ne, o, _, _ = deepspeed.initialize(model=m)\n",
    "deepspeed import": "import deepspeed\n",
    "horovod": "import horovod.torch as hvd\nhvd.init()\n",
    "horovod keras": "import horovod.tensorflow.keras as hvd\nhvd.init()\n",
    "mirrored": "import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n",
    "multiworker": "import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()\n",
    "parameter-server": "import tensorflow as tf\ns = tf.distribute.ParameterServerStrategy(r)\n",
    "lightning": "import lightning as L\nL.Trainer(devices=4)\n",
    "lightning old": "import pytorch_lightning as pl\npl.Trainer(gpus=4)\n",
    "accelerate": "from accelerate import Accelerator\na = Accelerator()\n",
    "accelerate with deepspeed": "import deepspeed\nfrom accelerate import Accelerator\na = Accelerator()\n",
    "jax": "import jax\njax.distributed.initialize()\n",
    "mpi": "from mpi4py import MPI\ncomm = MPI.COMM_WORLD\n",
}


@pytest.mark.parametrize("name", CASES)
def test_framework_is_read_from_the_script(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(CASES[name])
    source = read_source(path)
    assert source.framework == name.split(maxsplit=1)[0]
    assert source.was_read
    if source.framework != "plain":
        assert "train.py:" in source.evidence


LOOP = "import torch\nfor x in loader:\n    loss = model(x)\n    loss.backward()\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            LOOP,
            "train.py:4 calls `loss.backward`, and nothing in the script names a GPU or a device",
        ),
        (
            "import lightning as L\nL.Trainer(accelerator='cpu')\n",
            'train.py:2 sets accelerator="cpu"',
        ),
        (LOOP.replace("model(x)", "model(x.cuda())"), None),
        (LOOP.replace("model(x)", "model(x.to(args.device))"), None),
        (LOOP.replace("import torch", "import torch\ntorch.set_default_device('cuda')"), None),
        (LOOP.replace("import torch", "from help import to_gpu\nimport torch"), None),
        (LOOP.replace("loss.backward", "accelerator.backward"), None),
        ("import lightning as L\nL.Trainer()\n", None),
        ("import torch\nfrom mine import fit\nfit(torch.nn.Linear(1, 1))\n", None),
        ("import keras\nm = keras.Sequential([])\nm.fit(x, y)\n", None),
    ],
)
def test_a_script_that_never_takes_a_gpu_is_told_with_its_line(
    text: str, why: str | None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(text)
    assert read_source(tmp_path / "train.py").stays_on_cpu == why


def test_modules_beside_the_script_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from engine.loop import main\nmain()\n")
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/__init__.py").write_text("")
    (tmp_path / "engine/loop.py").write_text("import lightning as L\ndef main(): L.Trainer()\n")
    source = read_source(tmp_path / "train.py")
    assert source.framework == "lightning"
    assert source.evidence == "loop.py:2 calls `lightning.Trainer`"


@pytest.mark.parametrize(
    ("loader", "workers", "known"),
    [
        ("DataLoader(d, num_workers=8)", 8, True),
        ("DataLoader(d)", 0, True),
        ("DataLoader(d, num_workers=args.workers)", None, False),
        ("DataLoader(d, **options)", None, False),
        ("print(1)", None, False),
    ],
)
def test_loader_workers_are_counted_where_they_are_written(
    tmp_path: Path, loader: str, workers: int | None, known: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"from torch.utils.data import DataLoader\n{loader}\n")
    source = read_source(path)
    assert (source.workers, source.workers_known) == (workers, known)


@pytest.mark.parametrize("content", [b"def broken(:\n", b"\x00\xff", b"print 'two'\n"])
def test_what_is_not_python_is_not_guessed_at(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(content)
    source = read_source(path)
    assert not source.was_read
    assert "could not be read" in source.evidence


def test_a_missing_script_is_said_not_guessed(tmp_path: Path) -> None:
    assert not read_source(tmp_path / "none.py").was_read


def test_imports_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b\n")
    (tmp_path / "b.py").write_text("import a\nimport deepspeed\n")
    assert read_source(tmp_path / "a.py").framework == "deepspeed"


def test_modules_of_a_package_are_found_from_its_root(tmp_path: Path) -> None:
    for path, text in {
        "pkg/__init__.py": "",
        "pkg/train.py": "from pkg.engine import run\nrun()\n",
        "pkg/engine.py": "from .sub import loop\n",
        "pkg/sub/__init__.py": "",
        "pkg/sub/loop.py": "from ..wrap import wrap\n",
        "pkg/wrap.py": "from torch.nn.parallel import DistributedDataParallel as D\nD(m)\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert read_source(tmp_path / "pkg/train.py", root=tmp_path).framework == "ddp"


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("import pytorch_lightning as pl\npl.Trainer.from_argparse_args(a)\n", "lightning"),
        ("from trl import SFTTrainer\nSFTTrainer(m).train()\n", "ddp"),
        ("from transformers import Trainer\nclass T(Trainer): pass\nT().train()\n", "ddp"),
    ],
)
def test_trainers_are_known_in_their_disguises(tmp_path: Path, text: str, framework: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert read_source(tmp_path / "train.py").framework == framework
