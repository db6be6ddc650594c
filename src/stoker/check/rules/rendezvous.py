"""Rules about where the processes meet: address, port, interface."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.check.batch import Edit
from stoker.check.findings import Hit, Severity, Subject, rule

_ADDRESS = ("MASTER_ADDR", "MASTER_IP", "HEAD_NODE_IP", "RDZV_HOST", "head_node_ip", "master_addr")
_PORT = ("MASTER_PORT", "RDZV_PORT", "master_port")
FIRST_NODE = 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1'


def _sharing(subject: Subject) -> Severity | None:
    """Return how bad a fixed port is: another job on the same node can take it, if one can be there."""
    script = subject.script
    alone = script.has("exclusive") or any(queue.exclusive for queue in subject.queues)
    if alone or script.gpus_per_node is None:
        return None
    kinds = [gpu.per_node for gpu in subject.kinds if gpu.per_node and not gpu.slice_of]
    # Nodes have 4 or 8 GPUs nearly everywhere: with fewer, the node is shared.
    return "warning" if script.gpus_per_node < min(kinds, default=4) else "advice"


@rule("ST501", "warning")
def fixed_port(subject: Subject) -> Iterator[Hit]:
    """A fixed rendezvous port on a node that other jobs may share."""
    severity = _sharing(subject)
    if severity is None:
        return
    for each in subject.script.assignments:
        if each.name in _PORT and re.fullmatch(r"[\"']?[0-9]{4,5}[\"']?", each.value):
            yield _fixed(each.line, each.value, severity)
            return
    for launch in subject.launches:
        options = launch.options
        endpoint = options.get("rdzv_endpoint") or ""
        port = options.get("master_port") or options.get("main_process_port") or ""
        match = re.search(r":([0-9]{4,5})$", endpoint) or re.fullmatch(r"([0-9]{4,5})", port)
        told = {"standalone", "rdzv_endpoint", "master_port", "rdzv_backend"} & set(options)
        many = (launch.number("nproc_per_node") or 1) > 1
        if match and "standalone" not in options:
            yield _fixed(launch.line, match[1], severity)
            return
        if launch.launcher == "torchrun" and many and not told and not subject.is_multi_node:
            yield _fixed(launch.line, "29500, torchrun's own,", severity)
            return


def _fixed(line: int, port: str, severity: Severity) -> Hit:
    return Hit(
        line,
        f"port {port} is the same for every job",
        "two jobs on one node then meet each other, or one dies with `Address already in use`",
        "torchrun --standalone on one node; else MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))",
        severity=severity,
    )


_OWN_ADDRESS = re.compile(r"\$\(\s*hostname\s+(-i|-I|--ip-address|--all-ip-addresses)[^()]*\)")


@rule("ST502", "warning")
def address_of_host(subject: Subject) -> Iterator[Hit]:
    """The address comes from `hostname -i` or `-I`, which may be the loopback or the wrong one."""
    script = subject.script
    if not subject.is_multi_node:
        return
    lines = [
        each.line
        for each in script.assignments
        if re.search(r"hostname\s+(-i|-I|--ip-address|--all-ip)", each.value)
        and re.search(r"ADDR|IP|HOST", each.name, re.IGNORECASE)
    ]
    lines += [
        launch.line
        for launch in subject.launches
        if re.search(r"(endpoint|addr|process_ip)[= ]+\"?\$\(hostname\s+-", launch.raw)
    ]
    for line in dict.fromkeys(lines):
        text = script.lines[line - 1]
        found = _OWN_ADDRESS.search(text)
        own = found is not None and "srun" not in text
        yield Hit(
            line,
            "`hostname -i` may give 127.0.0.1 or several addresses",
            "it prints what /etc/hosts or every interface says, not what other nodes can reach",
            f"$({FIRST_NODE})",
            (Edit(line, (text.replace(found[0], f"$({FIRST_NODE})", 1),)),)
            if found and own
            else (),
        )


@rule("ST503", "warning")
def launch_address(subject: Subject) -> Iterator[Hit]:
    """SLURM_LAUNCH_NODE_IPADDR is where srun ran, not where rank 0 is."""
    for each in subject.script.assignments:
        if (
            each.name in _ADDRESS
            and "SLURM_LAUNCH_NODE_IPADDR" in each.value
            and subject.is_multi_node
        ):
            yield Hit(
                each.line,
                "$SLURM_LAUNCH_NODE_IPADDR is where srun was started",
                "in a batch script that is the first node by luck; from salloc it is the login node",
                f"{each.name}=$({FIRST_NODE})",
            )


@rule("ST504", "error")
def loopback(subject: Subject) -> Iterator[Hit]:
    """Several nodes are told to meet at localhost."""
    if not subject.is_multi_node:
        return
    yield from _own_master(subject)
    yield from _no_meeting(subject)
    reaches = any(launch.starter for launch in subject.launches)
    local = re.compile(r"[\"']?(localhost|127\.\d+\.\d+\.\d+)[\"']?(:\d+)?$")
    for each in subject.script.assignments:
        if each.name in _ADDRESS and local.match(each.value) and reaches:
            yield _local(each.line, each.value)
            return
    for launch in subject.launches:
        for name in ("rdzv_endpoint", "master_addr", "main_process_ip"):
            value = launch.options.get(name) or ""
            if local.match(value) and launch.starter and "standalone" not in launch.options:
                yield _local(launch.line, value)
                return


_MEETING = {"rdzv_endpoint", "rdzv_backend", "rdzv_conf", "master_addr", "standalone"}


def _no_meeting(subject: Subject) -> Iterator[Hit]:
    if re.search(r"PET_|MASTER_ADDR", subject.script.body):
        return
    for launch in subject.launches:
        several = (launch.number("nnodes") or 1) > 1 or "NNODES" in (
            launch.options.get("nnodes") or ""
        )
        by_srun = launch.launcher == "torchrun" and launch.starter == "srun"
        if by_srun and several and not _MEETING & set(launch.options):
            yield _local(launch.line, "127.0.0.1, torchrun's default")


def _own_master(subject: Subject) -> Iterator[Hit]:
    for launch in subject.launches:
        inner = re.search(r"bash\s+-l?c\s+'[^']*MASTER_ADDR=\$\(hostname", launch.raw)
        if inner and launch.starter == "srun":
            yield _local(launch.line, "$(hostname)")


def _local(line: int, value: str) -> Hit:
    return Hit(
        line,
        f"every node looks for the others at `{value}`",
        "that is each node itself: they never meet, and the job waits until a time-out",
        f"MASTER_ADDR=$({FIRST_NODE})",
    )


@rule("ST505", "error")
def gloo_interface(subject: Subject) -> Iterator[Hit]:
    """GLOO_SOCKET_IFNAME holds a list, a prefix or an address."""
    for each in subject.script.assignments:
        if each.name != "GLOO_SOCKET_IFNAME":
            continue
        if re.search(r"[\^=,]|^\"?\d+\.\d+\.\d+\.\d+", each.value) and "$" not in each.value:
            yield Hit(
                each.line,
                f"GLOO_SOCKET_IFNAME={each.value} is not one interface",
                "Gloo takes exactly one name; lists, `^` and prefixes are NCCL's",
                "GLOO_SOCKET_IFNAME=hsn0 (one name), NCCL_SOCKET_IFNAME may stay a list",
            )


@rule("ST506", "warning")
def disabled_transport(subject: Subject) -> Iterator[Hit]:
    """NCCL is told not to use the fast network or NVLink."""
    for each in subject.script.assignments:
        if (
            each.name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE")
            and each.value == "1"
        ):
            path = {"NCCL_P2P_DISABLE": "NVLink and PCIe peer access", "NCCL_IB_DISABLE": "InfiniBand",
                    "NCCL_SHM_DISABLE": "shared memory"}[each.name]  # fmt: skip
            yield Hit(
                each.line,
                f"{each.name}=1 switches {path} off",
                "it is a switch for finding faults; left in, communication is many times slower",
                "remove it, or say in a comment why this machine needs it",
            )


RULES = (
    fixed_port,
    address_of_host,
    launch_address,
    loopback,
    gloo_interface,
    disabled_transport,
)
