"""Packed samples in TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from made_data import pack
from stoker.errors import DataError

ROOT = Path(__file__).parent.parent
TENSORFLOW = ROOT / ".venv-tf/bin/python"


@pytest.mark.slow
@pytest.mark.skipif(not TENSORFLOW.exists(), reason="no TensorFlow in .venv-tf")
def test_batches_are_tensors(tmp_path: Path) -> None:
    samples = [
        (
            f"{each:04}",
            {"raw": bytes([each] * 6), "txt": str(each).encode(), "bin": b"%d" % each * each},
            each % 5,
        )
        for each in range(23)
    ]
    pack(tmp_path, samples, labels=5, arrays={"raw": {"dtype": "|u1", "shape": [2, 3]}})
    done = subprocess.run(
        [str(TENSORFLOW), str(ROOT / "tests/programs/tf_batches.py"), str(tmp_path)],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr


def test_without_tensorflow_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(tmp_path, [("a", {"txt": b"1"}, None)])
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(DataError) as caught:
        stoker.open(tmp_path).to_tf(batch_size=2)
    assert caught.value.fix == "pip install tensorflow, or stoker.Loader for batches of arrays"
