"""Whatever people type, the training gets it byte for byte."""

from __future__ import annotations

import os
import string
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import job_environ, words
from effort import examples
from stoker.check.batch import split_words
from stoker.cluster.load import load_cluster
from stoker.plan.make import make_plan
from stoker.plan.quote import quote, quote_directive
from stoker.plan.script import render_script
from stoker.plan.spec import Setup, Spec, Staging
from test_golden_scripts import assert_shellcheck

NASTY = [
    "", " ", "two words", "it's", 'say "hi"', "$(rm -rf /)", "`date`", "$HOME", "${x}", "a\nb",
    "a\\nb", "\\", "trailing\\", "!event", "*", "?", "[a]", "{a,b}", "~", "~/data", "#no", "a;b",
    "a&b", "a|b", "<in", ">out", "-", "--", "--lr=1e-3", "a,b,c", "ünïcödé", "日本", "’", "\u00a0",
    "\t", "\r", "a\r\nb", "\x1b[31m", "%j", "=", "a=b", "'", '"', "''", "$'x'", "\u2028", "END", "}", "\udcff",
]  # fmt: skip
texts = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=30),
    st.text(string.punctuation + " \n\t$'\"\\`", max_size=12),
    st.binary(max_size=12).map(
        lambda raw: raw.replace(b"\0", b"").decode("utf-8", "surrogateescape")
    ),
)
FORMS = [
    ("puhti", "plain", 1, "python3", []),
    ("puhti", "ddp", 4, "torchrun", ["--nnodes=1", "--nproc_per_node=4", "--standalone"]),
    ("puhti", "deepspeed", 8, "python3", []),
    ("puhti", "horovod", 8, "python3", []),
    ("puhti", "multiworker", 8, "python3", []),
    ("lumi", "mpi", 8, "singularity", ["run", "/appl/local/laifs/containers/lumi-multitorch-latest.sif", "python3"]),
    ("fir", "lightning", 1, "python3", []),
]  # fmt: skip


@pytest.mark.parametrize(("cluster", "framework", "gpus", "program", "before"), FORMS, ids=str)
@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
@given(arguments=st.lists(texts, max_size=6), name=texts, value=texts)
def test_arguments_and_variables_survive(
    cluster: str, framework: str, gpus: int, program: str, before: list[str],
    arguments: list[str], name: str, value: str,
) -> None:  # fmt: skip
    script_name = f"dir/{name.replace('/', '_')}.py"
    spec = Spec(
        (script_name, *arguments), gpus=gpus, time_s=3600, framework=framework,
        setup=Setup(env=(("STOKER_TEST", value),)),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        text = render_script(make_plan(spec, load_cluster(cluster), Path(folder)))
        calls = run(text, Path(folder))
        sent = [call for call in calls if call[0] == program]
        assert sent
        dashes = ["--"] if program == "torchrun" and arguments else []
        for call in sent:
            assert call == [program, *before, *dashes, script_name, *arguments]
        seen = (Path(folder) / "argv.log.test").read_bytes()
        assert seen == os.fsencode(value) + b"\0"


def run(text: str, folder: Path) -> list[list[str]]:
    path = folder / "job.sh"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    environ = job_environ(folder, FAKE_ONE_TASK="1")
    done = subprocess.run(
        ["bash", str(path)], cwd=folder, env=environ, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return words(folder / "argv.log")


def test_quotes_in_what_a_profile_runs_on_each_node_survive(tmp_path: Path) -> None:
    spec = Spec(("train.py",), gpus=8, nodes=2, time_s=3600, framework="ddp")
    plan = make_plan(spec, load_cluster("puhti"), tmp_path)
    setup = ("pip install 'torch<2.6'", """printf %s "it's" > said""")
    plan = replace(plan, environment=replace(plan.environment, node_setup=setup))
    calls = run(render_script(plan), tmp_path)
    assert ["pip", "install", "torch<2.6"] in calls
    assert (tmp_path / "said").read_text() == "it's"


@settings(max_examples=examples(300))
@given(st.lists(texts, max_size=5))
def test_quoted_words_are_read_back_by_bash(arguments: list[str]) -> None:
    line = " ".join(["printf '%s\\0'", *(quote(each) for each in arguments)])
    done = subprocess.run(
        ["bash", "-c", line.encode("utf-8", "surrogateescape")], capture_output=True, check=True
    )
    expected = b"".join(os.fsencode(each) + b"\0" for each in arguments) or b"\0"
    assert done.stdout == expected


@given(
    st.text(st.characters(blacklist_characters="\0\n\r", blacklist_categories=["Cs"]), min_size=1)
)
def test_quoted_directives_are_read_back_as_sbatch_reads_them(value: str) -> None:
    assert [word for word, _, _ in split_words(f" --job-name={quote_directive(value)}")] == [
        f"--job-name={value}"
    ]


def test_nasty_words_pass_shellcheck(tmp_path: Path) -> None:
    assert_words_pass_shellcheck(NASTY, tmp_path)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(st.lists(texts, min_size=20, max_size=40))
def test_any_words_pass_shellcheck(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_words_pass_shellcheck(arguments, Path(folder))


def assert_words_pass_shellcheck(arguments: list[str], tmp_path: Path) -> None:
    spec = Spec(
        ("train me.py", *arguments), gpus=8, framework="ddp", time_s=3600,
        setup=Setup(env=tuple((f"V{index}", text) for index, text in enumerate(arguments))),
        staging=Staging(data="/scratch/it's $(here)/a b.tar", data_gib=1.0, results="~/r\nx"),
    )  # fmt: skip
    path = tmp_path / "job.sh"
    text = render_script(make_plan(spec, load_cluster("puhti"), tmp_path))
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    subprocess.run(["bash", "-n", str(path)], check=True)
    path.write_text(text.encode("utf-8", "replace").decode())  # ShellCheck reads UTF-8 only
    assert_shellcheck([str(path)])


def test_a_line_break_in_a_name_cannot_leave_its_comment(tmp_path: Path) -> None:
    spec = Spec(("train.py",), gpus=1, setup=Setup(container="a\ntouch pwned\n.sif"))
    text = render_script(make_plan(spec, load_cluster("puhti"), tmp_path))
    assert "\ntouch pwned" not in text
