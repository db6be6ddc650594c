"""Numbers of a training batch in a port: what they become, and what is refused."""

from __future__ import annotations

import pytest

from stoker.port.rewrite import Ported, port_script

SCRIPT = """\
import math
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
loader = DataLoader(data, batch_size=8, shuffle=True)
total, best, log = 0, 9.0, []
for step, (x, y) in enumerate(loader):
    out = model(x)
    loss = criterion(out, y)
    loss.backward()
    optimizer.step()
    LINE
"""
EVALUATION = """\
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, shuffle=True)
test_loader = DataLoader(data, batch_size=8)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
correct = 0
for x, y in test_loader:
    out = model(x)
    LINE
print(correct)
"""


def port_line(line: str, script: str = SCRIPT) -> Ported:
    return port_script(script.replace("LINE", line.replace("\n", "\n    ")), "ddp")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("total += loss.item()", "total += mean_over_ranks(loss).item()"),
        ("total += loss.item() * len(x)", "mean_over_ranks(loss).item() * (len(x) * WORLD_SIZE)"),
        ("total += (out.argmax(1) == y).sum().item()", "total += sum_over_ranks((out.argmax(1) == y).sum()).item()"),
        ("total += y.size(0)", "total += (y.size(0) * WORLD_SIZE)"),
        ("log.append(float(loss))", "log.append(float(mean_over_ranks(loss)))"),
        ("print(math.exp(loss.item()))", "print(math.exp(mean_over_ranks(loss).item()))"),
        ('print(f"{step} {loss:.3f}")', 'print(f"{step} {mean_over_ranks(loss):.3f}")'),
        ("rmse = loss.sqrt().item()\nlog.append(rmse)", "rmse = mean_over_ranks(loss).sqrt().item()"),
        ("best = min(best, loss.item())", "best = min(best, mean_over_ranks(loss).item())"),
        ("if loss.item() < best:\n    best = loss.item()", "if mean_over_ranks(loss).item() < best:"),
        ("if not torch.isfinite(loss):\n    break", "if not torch.isfinite(mean_over_ranks(loss)):"),
        ("log.append((out.argmax(1) == y).float().mean().item())",
         "log.append(mean_over_ranks((out.argmax(1) == y).float().mean()).item())"),
        ("print(x.shape, step, len(loader))", "print(x.shape, step, len(loader))"),
    ],
)  # fmt: skip
def test_a_number_becomes_that_of_all_ranks(line: str, wanted: str) -> None:
    found = port_line(line)
    assert not found.refusals
    assert wanted in found.after


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("log.extend(out.argmax(1).tolist())", "training keeps `out.argmax(1).tolist()`"),
        ("log.append(out.max().item())", "training keeps `out.max().item()`"),
        ("total += somewhere.score(out, y)", "training keeps `somewhere.score(out, y)`"),
        ("if (y == 0).any():\n    continue", "`(y == 0).any()` decides how training goes on"),
    ],
)
def test_what_only_one_rank_has_is_refused(line: str, what: str) -> None:
    found = port_line(line)
    assert [(each.line, each.what) for each in found.refusals] == [(16, what)]


def test_a_summed_loss_gives_the_gradients_of_the_whole_sum() -> None:
    script = SCRIPT.replace("nn.CrossEntropyLoss()", 'nn.CrossEntropyLoss(reduction="sum")')
    after = port_line("total += loss.item()", script).after
    assert "(loss * WORLD_SIZE).backward()" in after
    assert "total += sum_over_ranks(loss).item()" in after


def test_a_file_with_a_number_of_all_ranks_is_not_left_to_the_first() -> None:
    after = port_line('numpy.save("loss", loss.detach().numpy())').after
    assert '    numpy.save("loss", mean_over_ranks(loss).detach().numpy())' in after
    assert "if RANK == 0:\n        numpy.save" not in after
    assert "if RANK == 0:\n        numpy.save" in port_line('numpy.save("x", [step])').after


def test_an_evaluation_that_only_adds_up_is_divided() -> None:
    found = port_line("correct += (out.argmax(1) == y).sum().item()", EVALUATION)
    assert "for x, y in share_of_batches(test_loader):" in found.after
    assert "correct = sum_over_ranks(correct)\nprint(correct)" in found.after


@pytest.mark.parametrize(
    "line",
    [
        "correct += (out.argmax(1) == y).sum()",  # a tensor: a rank without a batch has none
        "correct = max(correct, out.max().item())",
        "print(out.mean().item())\ncorrect += len(x)",
        "correct += len(x)\nif correct > 10:\n    break",
        "correct += other(model, x).item()",
    ],
)
def test_an_evaluation_that_does_more_stays_whole(line: str) -> None:
    found = port_line(line, EVALUATION)
    assert not found.refusals
    assert "share_of_batches" not in found.after
    assert any("each rank goes through all of the batches" in each for each in found.notes)
