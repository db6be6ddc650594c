"""The command line: what goes to stdout and stderr, exit codes, files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Stoker
from stoker.cluster.load import names
from stoker.commands import VERBS, render_usage

PLAN = ["plan", "--cluster", "puhti", "--gpus", "8", "--time", "1h", "--account", "project_2001234"]


def test_plan_prints_facts_to_stdout_and_talk_to_stderr(
    stoker: Stoker, golden: Callable[[str, str], None], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import torch.distributed as d\nd.init_process_group()\n")
    done = stoker(*PLAN, "train.py", "--epochs", "3")
    assert done.returncode == 0
    golden("plan.txt", done.stdout)
    golden("plan-stderr.txt", done.stderr)


def test_script_prints_nothing_but_the_script(stoker: Stoker) -> None:
    done = stoker(*PLAN, "--script", "train.py", "--epochs", "3")
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=train\n")
    assert done.stdout.endswith("train.py --epochs 3\n")


def test_everything_after_the_script_belongs_to_the_script(stoker: Stoker) -> None:
    arguments = ["--gpus", "1", "--cluster=x", "--", "-o", "--json", "--help", "--"]
    done = stoker(*PLAN, "--json", "train.py", *arguments)
    assert json.loads(done.stdout)["command"] == ["train.py", *arguments]
    assert json.loads(done.stdout)["gpus"] == 8


def test_python_before_the_script_is_the_jobs_own(stoker: Stoker) -> None:
    assert json.loads(stoker(*PLAN, "--json", "python3", "train.py", "-x").stdout)["command"] == [
        "train.py",
        "-x",
    ]
    script = stoker(*PLAN, "--script", "--gpus", "1", "python", "-m", "pkg.train", "-x").stdout
    assert script.endswith("python3 -m pkg.train -x\n")


def test_two_dashes_may_stand_before_the_script(stoker: Stoker) -> None:
    done = stoker(*PLAN, "--json", "--", "train.py", "--", "x")
    assert json.loads(done.stdout)["command"] == ["train.py", "--", "x"]


def test_json_has_every_number_with_its_reason(stoker: Stoker) -> None:
    told = json.loads(stoker(*PLAN, "--json", "--framework", "ddp", "train.py").stdout)
    assert told["format"] == 1
    assert (
        told["nodes"],
        told["gpus_per_node"],
        told["cpus_per_task"],
        told["mem_gib_per_node"],
    ) == (2, 4, 40, 320)
    assert told["cost"]["total"] == 624
    assert {each["name"] for each in told["reasons"]} >= {
        "nodes",
        "partition",
        "cpus per task",
        "memory",
        "threads",
    }
    assert told["script"].startswith("#!/bin/bash")


def test_o_writes_the_script_whole_and_not_over_another(stoker: Stoker, odd_path: Path) -> None:
    path = odd_path / "job.sh"
    assert stoker(*PLAN, "-o", str(path), "train.py").returncode == 0
    first = path.read_text()
    again = stoker(*PLAN, "-o", str(path), "other.py")
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert path.read_text() == first
    assert stoker(*PLAN, "-o", str(path), "--force", "other.py").returncode == 0
    assert "other.py" in path.read_text()
    assert [each.name for each in odd_path.iterdir()] == ["job.sh"]


def test_a_folder_that_cannot_be_written_is_an_error_not_a_traceback(stoker: Stoker) -> None:
    done = stoker(*PLAN, "-o", "/proc/nope/job.sh", "train.py")
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write `/proc/nope/job.sh`\n  why: ")


def test_defaults_come_from_the_project_and_give_way_to_the_command_line(
    stoker: Stoker, tmp_path: Path
) -> None:
    (tmp_path / "stoker.toml").write_text(
        '[defaults]\ncluster = "mahti"\naccount = "project_2009999"\ngpus = 2\ntime = "2h"\n'
        'env = ["A=b c"]\ntest = false\nsbatch = ["mail-type=END"]\n'
    )
    told = json.loads(stoker("plan", "--json", "--gpus", "4", "train.py").stdout)
    options = {each["option"]: each["value"] for each in told["directives"]}
    assert (told["cluster"], told["gpus"], told["time_s"]) == ("mahti", 4, 7200)
    assert (options["account"], options["mail-type"]) == ("project_2009999", "END")
    assert "export A='b c'" in told["script"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('gpus = "four"', "not a whole number"),
        ('acount = "x"', "did you mean `account`"),
        ("gpus = -1", "not a whole"),
    ],
)
def test_a_wrong_default_is_named(stoker: Stoker, tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "stoker.toml").write_text(f"[defaults]\n{text}\n")
    done = stoker("plan", "train.py")
    assert done.returncode == 2
    assert what in done.stderr


WRONG = {
    (): 2,
    ("plann",): 2,
    ("plan",): 2,
    ("plan", "--gpus"): 2,
    ("plan", "--gpus", "x", "t.py"): 2,
    ("plan", "--time", "soon", "t.py"): 2,
    ("plan", "--cluster", "nowhere", "t.py"): 1,
    ("plan", "--cluster", "puhti", "--gpus", "6", "t.py"): 1,
    ("plan", "--signal", "TERM", "t.py"): 2,
    ("plan", "--env", "1A=x", "t.py"): 2,
    ("plan", "--account", "", "t.py"): 2,
    ("plan", "--mem", "0G", "t.py"): 2,
    ("plan", "--cluster", "puhti", "--set", "gpu.v100.per_node=0", "t.py"): 1,
    ("plan", "--cluster", "puthi", "--set", "title=x", "t.py"): 1,
    ("check", "/dev/zero"): 1,
    ("check",): 2,
    ("check", "none.sh"): 1,
    ("check", "none.sh", "--slurm-version", "new"): 2,
    ("check", "-", "--set", "a=b"): 2,
    ("cluster",): 2,
    ("cluster", "show"): 2,
    ("cluster", "show", "nowhere"): 1,
    ("cluster", "list", "extra"): 2,
    ("demo", "extra"): 2,
}


@pytest.mark.parametrize("words", WRONG, ids=lambda words: " ".join(words) or "nothing")
def test_mistakes_have_one_form_and_their_exit_code(stoker: Stoker, words: tuple[str, ...]) -> None:
    done = stoker(*words)
    assert done.returncode == WRONG[words]
    assert "Traceback" not in done.stderr
    if words:
        lines = done.stderr.splitlines()
        assert [line.strip().split(":")[0] for line in lines] == ["error", "why", "fix"]


BAD = "#!/bin/bash\n#SBATCH --time=1:00:00\ncd x\n#SBATCH --mem=4G\nsrun python t.py\n"


def test_check_tells_place_code_why_and_fix(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(BAD)
    done = stoker("check", "job.sh")
    assert done.returncode == 1
    assert done.stdout == (
        "job.sh:4: error: `#SBATCH --mem=4G` is ignored [ST103]\n"
        "  why: sbatch stops reading at the first command, `cd x` on line 3\n"
        "  fix: move it above the first command\n"
    )
    assert "job.sh: 1 error\n" in done.stderr
    assert "next: stoker check job.sh --fix | patch job.sh\n" in done.stderr


def test_fix_is_a_diff_that_patch_takes(stoker: Stoker, odd_path: Path) -> None:
    path = odd_path / "job.sh"
    path.write_text(BAD)
    diff = stoker("check", str(path), "--fix").stdout
    subprocess.run(["patch", str(path)], input=diff, text=True, check=True, capture_output=True)
    assert (
        path.read_text()
        == "#!/bin/bash\n#SBATCH --time=1:00:00\n#SBATCH --mem=4G\ncd x\nsrun python t.py\n"
    )
    assert stoker("check", str(path)).returncode == 0


def test_fix_of_a_script_with_crlf_is_a_diff_that_patch_takes(
    stoker: Stoker, tmp_path: Path
) -> None:
    path = tmp_path / "job.sh"
    path.write_bytes(BAD.replace("\n", "\r\n").encode())
    diff = subprocess.run(
        [sys.executable, "-m", "stoker", "check", str(path), "--fix"],
        capture_output=True,
        check=False,
    ).stdout
    subprocess.run(["patch", "--binary", str(path)], input=diff, check=True, capture_output=True)
    assert b"\r" not in path.read_bytes()


def test_warnings_alone_do_not_fail(stoker: Stoker) -> None:
    done = stoker(
        "check", "-", stdin="#!/bin/bash\n#SBATCH --time=1:00\n#SBATCH --mem=64\nsrun x\n"
    )
    assert done.returncode == 0
    assert "ST111" in done.stdout


def test_check_says_which_cluster_it_guessed_and_from_what(stoker: Stoker) -> None:
    text = "#!/bin/bash\n#SBATCH --time=1:00:00\n#SBATCH --partition=small-g\n#SBATCH --gpus-per-node=1\nsrun x\n"
    told = json.loads(stoker("check", "-", "--json", stdin=text).stdout)
    assert told["cluster"] == "lumi"
    assert told["guessed_from"] == ["partition `small-g`"]
    assert (
        json.loads(stoker("check", "-", "--json", "--cluster", "none", stdin=text).stdout)[
            "cluster"
        ]
        is None
    )


def test_check_says_that_a_cluster_is_retired_without_calling_it_a_mistake(stoker: Stoker) -> None:
    script = stoker(*PLAN, "--script", "train.py").stdout
    done = stoker("check", "-", "--cluster", "puhti", stdin=script)
    assert (done.returncode, done.stdout) == (0, "")
    assert "note: Puhti is retired since 2026-07-31" in done.stderr


def test_slurm_version_decides_about_cpus_per_task(stoker: Stoker) -> None:
    text = "#!/bin/bash\n#SBATCH --time=1:00:00\n#SBATCH --cpus-per-task=8\nsrun python t.py\n"
    assert stoker("check", "-", stdin=text).returncode == 0
    assert stoker("check", "-", "--slurm-version", "23.02", stdin=text).returncode == 1
    assert stoker("check", "-", "--slurm-version", "24.05.1", stdin=text).returncode == 0


def test_a_file_that_is_not_utf8_is_checked(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_bytes(
        b"#!/bin/bash\n#SBATCH --comment=\xff\xfe\n#SBATCH --time=1:00\n\x80\n"
    )
    assert stoker("check", "job.sh").returncode == 0


def test_a_pipe_gets_one_line_a_cluster() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "cluster", "list"], capture_output=True, text=True, check=True,
        env={"PATH": "", "HOME": "/nonexistent"},
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 1 + len(names())


@pytest.mark.parametrize("name", names())
def test_every_cluster_can_be_shown(stoker: Stoker, name: str) -> None:
    assert stoker("cluster", "show", name).returncode == 0


def test_cluster_list_and_show(stoker: Stoker) -> None:
    listed = stoker("cluster", "list").stdout
    assert "puhti" in listed
    assert "retired 2026-07-31, now roihu" in listed
    shown = json.loads(
        stoker("cluster", "show", "puhti", "--json", "--set", "gpu.v100.nodes=3").stdout
    )
    assert shown["gpu"]["v100"]["nodes"] == 3
    assert shown["retired"] == "2026-07-31"
    text = stoker("cluster", "show", "m3").stdout
    assert "unknown" in text


def test_without_a_cluster_the_plan_is_for_this_machine(stoker: Stoker) -> None:
    assert (
        json.loads(stoker("plan", "--gpus", "0", "--json", "train.py", PATH="").stdout)["cluster"]
        == "local"
    )


@pytest.mark.parametrize("words", [("--cluster", "lumi"), ("--cluster=lumi",)])
def test_a_cluster_that_was_named_too_late_is_told(
    stoker: Stoker, tmp_path: Path, words: tuple[str, ...]
) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.touch(0o755)
    done = stoker("plan", "train.py", *words, PATH=str(tmp_path))
    assert done.returncode == 2
    assert "no cluster was named before the script" in done.stderr


def test_help_is_on_stdout_and_names_every_verb(stoker: Stoker) -> None:
    done = stoker("--help")
    assert done.stdout == render_usage()
    assert all(verb in done.stdout for verb in VERBS)
    assert stoker("--version").stdout.startswith("stoker ")


@pytest.mark.parametrize("verb", VERBS)
def test_the_options_of_a_verb_are_a_decision(
    verb: str, stoker: Stoker, golden: Callable[[str, str], None]
) -> None:
    words = stoker(verb, "--help").stdout.split()
    options = {
        word.strip("[],").split("=")[0] for word in words if word.lstrip("[").startswith("-")
    }
    golden(
        f"options-{verb}.txt",
        "\n".join(sorted(option for option in options if option.strip("-"))) + "\n",
    )


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    line = f"{sys.executable} -m stoker cluster show lumi 2> err | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0
    assert b"Traceback" not in (tmp_path / "err").read_bytes()


def test_demo_runs_to_its_end(stoker: Stoker) -> None:
    done = stoker("demo")
    assert done.returncode == 0
    assert "Traceback" not in done.stdout + done.stderr
    assert "this Python has no torch" in done.stdout
    assert "next: stoker run YOUR_SCRIPT.py" in done.stdout


def test_check_falls_back_to_the_projects_own_cluster(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "stoker.toml").write_text(
        '[defaults]\ncluster = "mine"\n[cluster.mine.gpu.a100]\nper_node = 2\n'
        '[cluster.mine.partition.batch]\ngpus = ["a100"]\ntime = "12:00:00"\n'
    )
    text = "#!/bin/bash\n#SBATCH --partition=batch\n#SBATCH --gres=gpu:1\n#SBATCH --time=9-00\nsrun x\n"
    done = stoker("check", "-", stdin=text)
    assert done.returncode == 1
    assert "216 h is over the limit of 12 h" in done.stdout
    assert "why: the profile of the cluster says so" in done.stdout


def test_the_next_command_of_check_keeps_its_options(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(BAD)
    done = stoker("check", "job.sh", "--cluster", "none")
    assert "next: stoker check job.sh --cluster none --fix | patch job.sh\n" in done.stderr


def test_the_next_command_of_plan_says_what_is_missing(stoker: Stoker) -> None:
    done = stoker("plan", "--cluster", "lumi", "-o", "my job.sh", "train.py")
    assert "next: replace <account> in it, then sbatch 'my job.sh'\n" in done.stderr


@pytest.mark.parametrize(
    "fact", ['partition.gpu.time="banana"', 'slurm.account_pattern="("', "gpu.v100.per_node=-1"]
)
def test_a_fact_that_cannot_be_used_is_refused_at_once(stoker: Stoker, fact: str) -> None:
    done = stoker("cluster", "show", "puhti", "--set", fact)
    assert done.returncode == 1
    assert "--set" in done.stderr


def test_a_queue_that_is_a_qos_is_advised_as_one(stoker: Stoker) -> None:
    text = (
        "#!/bin/bash\n#SBATCH --account=m1234\n#SBATCH --constraint=gpu\n#SBATCH --qos=debug\n"
        "#SBATCH --nodes=64\n#SBATCH --gpus-per-node=4\n#SBATCH --time=00:20:00\nsrun x\n"
    )
    done = stoker("check", "-", "--cluster", "perlmutter", stdin=text)
    assert "fix: --qos=regular" in done.stdout
    assert "--partition=" not in done.stdout
