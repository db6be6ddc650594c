"""Whatever a file holds, the linter answers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from stoker.check.lint import Settings, check_script, fix_script
from stoker.check.options import FLAGS, VALUED
from stoker.cluster.load import load_cluster, names

CLUSTERS = tuple(load_cluster(name) for name in names())
SETTINGS = Settings(guess_from=CLUSTERS)
PIECES = [
    "#!/bin/bash\n", "#SBATCH ", "# SBATCH ", "\r\n", "\n", "srun ", "torchrun --nproc_per_node=", "$(", "`",
    "'", '"', "\\\n", "<< EOF\n", "EOF\n", "${", "}", "bash -c ", "--nodes=2", "gpu:v100:4", "&", ";", "|",
    "python3 -m torch.distributed.run ", "MASTER_ADDR=", "$SLURM_NODEID", "trap ", "--mem=", "\x00", "\ufeff",
    "²", "٣", "nvme:²", "srun --ntasks-per-node=² torchrun t.py\n", "srun -n ² -N 2 x\n", " = ", "--gres = ",
    "²", "٣", "nvme:²", "srun --ntasks-per-node=² torchrun t.py\n", "-n ", " = ", "--gres = ",
]  # fmt: skip
options = st.sampled_from(sorted(VALUED | FLAGS)).map(lambda name: f"#SBATCH --{name}=")
scripts = st.lists(
    st.one_of(st.sampled_from(PIECES), options, st.text(max_size=8)), max_size=60
).map("".join)


@settings(max_examples=examples(300))
@given(scripts)
def test_any_script_is_checked_and_mended_without_a_crash(text: str) -> None:
    check_script(text, SETTINGS)
    fixed = fix_script(text, SETTINGS)
    assert fix_script(fixed, SETTINGS) == fixed


@settings(max_examples=examples(200))
@given(st.binary(max_size=4000))
def test_random_bytes_are_checked(data: bytes) -> None:
    check_script(data.decode("utf-8", "surrogateescape"), SETTINGS)


@settings(max_examples=examples(50))
@given(st.data())
def test_a_script_cut_anywhere_is_checked(data: st.DataObject) -> None:
    text = (
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:v100:4\n"
        "srun bash -c 'torchrun --nnodes=2 \\\n  --rdzv_endpoint=\"$MASTER_ADDR:29400\" t.py'\ncat << E\nx\nE\n"
    )
    check_script(text[: data.draw(st.integers(0, len(text)))], SETTINGS)


HUGE = {
    "one line": "x" * 10_000_000,
    "open quote": "#!/bin/bash\n\"" + "a $(b) " * 1_000_000,
    "open substitution": "#!/bin/bash\n" + "$(" * 1_000_000,
    "directives": "#!/bin/bash\n" + "#SBATCH --comment=x\n" * 400_000,
    "nearly directives": "#!/bin/bash\n#SBATCH --mem=1G\n" + "# SBATCH --x\n" * 400_000,
    "late directives": "#!/bin/bash\nx\n" + "#SBATCH --comment=x\n" * 100_000,
    "commands": "#!/bin/bash\n" + "srun python3 train.py --x 'a b' $FOO\n" * 280_000,
    "assignments": "#!/bin/bash\n" + "A=$B\n" * 1_000_000,
    "long directive": "#!/bin/bash\n#SBATCH --comment=" + "x" * 10_000_000,
    "equals signs": "#!/bin/bash\n#SBATCH" + " --gres = " * 50_000,
    "noise": bytes(random.Random(4).randbytes(10_000_000)).decode("latin-1"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HUGE)
def test_ten_megabytes_are_checked(name: str) -> None:
    """A few seconds each; a quadratic step would run into CI's limit."""
    checked = check_script(HUGE[name], SETTINGS)
    assert any(finding.code == "ST113" for finding in checked.findings) == (
        len(HUGE[name]) > 4 * 2**20
    )
