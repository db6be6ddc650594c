"""Choose where the job's Python comes from: module, container, virtual environment or conda."""

from __future__ import annotations

from dataclasses import replace

from stoker.cluster.profile import Cluster, Software
from stoker.errors import UsageError
from stoker.plan.plan import Environment, Notice
from stoker.plan.quote import quote
from stoker.plan.source import Source
from stoker.plan.spec import Setup

_LIBRARY_OF = {
    "ddp": "pytorch",
    "fsdp": "pytorch",
    "deepspeed": "pytorch",
    "lightning": "pytorch",
    "accelerate": "pytorch",
    "mirrored": "tensorflow",
    "multiworker": "tensorflow",
    "parameter-server": "tensorflow",
    "jax": "jax",
}

# Packages of their own, which a bare installation of the library does not bring.
_BESIDE_LIBRARY = ("lightning", "accelerate", "deepspeed", "horovod")


def choose_environment(
    setup: Setup, cluster: Cluster, framework: str, source: Source
) -> tuple[Environment, list[Notice]]:
    """Return the environment: the user's if one was named, else the site's."""
    named = [name for name in ("modules", "container", "venv", "conda") if getattr(setup, name)]
    if len(named) > 1 and named != ["modules", "venv"]:
        raise UsageError(
            f"two environments: {' and '.join(named)}",
            why="a job has one; only --module and --venv go together (the module first)",
            fix="keep one of them",
        )
    notices: list[Notice] = []
    if named:
        environment = _asked(setup, cluster)
    else:
        environment, notices = _of_site(cluster, framework, source)
    return replace(environment, setup=environment.setup + setup.lines), notices


def _asked(setup: Setup, cluster: Cluster) -> Environment:
    base = cluster.tools.base
    modules = tuple(f"module load {quote(name)}" for name in setup.modules)
    if setup.container:
        runtime = cluster.tools.container or "apptainer exec --nv"
        return Environment(
            f"container {setup.container}",
            "as asked for",
            setup=base,
            env=(("SIF", setup.container),),
            prefix=f'{runtime} "$SIF"',
        )
    if setup.venv:
        activate = f"source {quote(setup.venv.rstrip('/') + '/bin/activate')}"
        return Environment(
            f"virtual environment {setup.venv}",
            "as asked for",
            setup=(*base, *modules, activate),
        )
    if setup.conda:
        lines = cluster.tools.conda or ('eval "$(conda shell.bash hook)"',)
        return Environment(
            f"conda environment {setup.conda}",
            "as asked for",
            setup=(*lines, f"conda activate {quote(setup.conda)}"),
        )
    purge = tuple(line for line in base if line == "module purge")
    return Environment(
        "modules " + " ".join(setup.modules), "as asked for", setup=(*purge, *modules)
    )


def _of_site(cluster: Cluster, framework: str, source: Source) -> tuple[Environment, list[Notice]]:
    library = _LIBRARY_OF.get(framework) or source.library
    if library is None and framework == "horovod":
        library = "pytorch"
    software = cluster.software.get(framework) or cluster.software.get(library or "")
    reason = f"the site's {library}" if library else ""
    if software is None and library is None and not source.was_read:
        software = cluster.software.get("pytorch")
        reason = "the script could not be read; PyTorch is assumed"
    if software is not None:
        notices = [
            Notice(f"about the site's {software.name}", software.note, "--module, --venv or --container name another")
        ] if software.note else []  # fmt: skip
        if software.node_setup and framework in _BESIDE_LIBRARY:
            notices.append(
                Notice(
                    f"the job's environment is built with {software.name} alone",
                    f"the script needs {framework} too, and what else it imports",
                    "--venv DIR with an environment of your own that has them",
                )
            )
        return _from(software, reason or f"the site's {software.name}"), notices
    if cluster.scheduler == "none":
        return Environment("the shell's own python3", "the script runs on this machine"), []
    if library is None and source.was_read and not source.library:
        return Environment("the job's own python3", "no framework was seen in the script"), []
    wanted = library or "the framework"
    return Environment("the shell's own python3", f"no site-wide {wanted} is known here"), [
        Notice(
            f"no environment with {wanted} is known for {cluster.title}",
            "its profile names none; `python3` is then whatever the job's PATH has",
            "--module NAME, --venv DIR, --conda NAME or --container FILE",
        )
    ]


def _from(software: Software, reason: str) -> Environment:
    return Environment(
        title=software.name,
        reason=reason,
        source=software.source,
        setup=software.setup,
        node_setup=software.node_setup,
        activate=software.activate,
        env=tuple(software.env.items()),
        prefix=software.prefix,
        torchrun=software.torchrun,
    )
