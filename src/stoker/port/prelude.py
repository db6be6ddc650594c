"""What a ported script has at its top: who it is among the ranks, and a few small helpers.

Only what the script needs is added, in plain PyTorch: a ported script does not need Stoker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MARK = "# Added by `stoker port --to {target}`"

RANKS = """
# Who this process is, as torchrun, mpirun or srun says; alone it is rank 0 of 1.
RANK, WORLD_SIZE, LOCAL_RANK = next(
    (
        [int(os.environ[name]) for name in names]
        for names in (
            ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
            ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
            ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
        )
        if all(name in os.environ for name in names)
    ),
    [0, 1, 0],
)
"""

START = '''
def start_processes():
    """Join the other ranks, each on its own GPU; leave them at the end, also after an error."""
    use_gpu = torch.cuda.is_available()
    if use_gpu:
        torch.cuda.set_device(LOCAL_RANK % torch.cuda.device_count())
    if WORLD_SIZE == 1:
        meet = {"store": torch.distributed.HashStore()}
    else:
        meet = {"init_method": "env://"}
        if "MASTER_ADDR" not in os.environ:
            nodes = os.environ.get("SLURM_STEP_NODELIST", "")
            is_far = int(os.environ.get("SLURM_STEP_NUM_NODES", "1")) > 1
            show = ["scontrol", "show", "hostnames", nodes]
            first = subprocess.check_output(show, text=True).split()[0] if is_far else "127.0.0.1"
            os.environ["MASTER_ADDR"] = first
        job = os.environ.get("SLURM_JOB_ID") or os.environ.get("OMPI_MCA_ess_base_jobid") or "0"
        os.environ.setdefault("MASTER_PORT", str(20000 + int(job) % 10000))
    torch.distributed.init_process_group(
        "nccl" if use_gpu else "gloo",
        rank=RANK,
        world_size=WORLD_SIZE,
        timeout=datetime.timedelta(minutes=10),
        **meet,
    )
    atexit.register(torch.distributed.destroy_process_group)
{seed}'''

SEED = """    # The same weights and splits on all ranks.
    seed = from_first(torch.initial_seed() % 2**32)
    if WORLD_SIZE > 1:
        torch.manual_seed(seed)
{others}"""

FROM_FIRST = '''
def from_first(value):
    """Return the value that the first rank has; each rank must call this."""
    values = [value]
    torch.distributed.broadcast_object_list(values)
    return values[0]
'''

PRINT = '''
def print(*values, **options):
    """Print on the first rank only."""
    if RANK == 0:
        builtins.print(*values, **options)
'''

LOADER = '''
class RankSampler(DistributedSampler):
    """This rank's share of each pass, in the order that one process would draw."""

    generator = None

    def __iter__(self):
        if self.shuffle:
            # The number that RandomSampler would draw; that of the first rank holds for all.
            seed = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            self.set_epoch(from_first(seed.item()))
        return super().__iter__()


def distributed_loader(dataset, batch_size=1, shuffle=False, **options):
    """Return a DataLoader of this rank's share; all ranks together take `batch_size`."""
    if batch_size % WORLD_SIZE:
        raise SystemExit(f"batch size {batch_size} cannot be divided among {WORLD_SIZE} ranks")
    sampler = RankSampler(dataset, WORLD_SIZE, RANK, shuffle=bool(shuffle))
    sampler.generator = options.get("generator")
    return DataLoader(dataset, batch_size // WORLD_SIZE, sampler=sampler, **options)
'''

BATCHES = '''
def share_of_batches(loader):
    """Return every WORLD_SIZE-th batch of an evaluation, from this rank's on; each rank must call this."""
    if WORLD_SIZE == 1:
        return loader
    batches = from_first(list(loader.batch_sampler))[RANK::WORLD_SIZE]
    names = ("collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn")
    options = {name: getattr(loader, name) for name in names}
    return DataLoader(loader.dataset, batch_sampler=batches, **options)
'''

SUM = '''
def sum_over_ranks(value):
    """Return the sum of a number over all ranks, in its own type; each rank must call this."""
    place = "cuda" if torch.cuda.is_available() else "cpu"
    whole = torch.as_tensor(value).detach().to(place, torch.float64, copy=True)
    torch.distributed.all_reduce(whole)
    if torch.is_tensor(value):
        return whole.to(value.device, value.dtype)
    is_whole = isinstance(value, int) and whole.item().is_integer()
    return round(whole.item()) if is_whole else whole.item()
'''

MEAN = '''
def mean_over_ranks(value):
    """Return the mean of a number over all ranks; each rank must call this."""
    return sum_over_ranks(value) / WORLD_SIZE
'''

SAVE = '''
def save_on_main(what, path, *args, **options):
    """Save on the first rank only: all ranks hold the same."""
    if RANK == 0:
        torch.save(what, path, *args, **options)
'''

LOAD = '''
def load_when_saved(path, *args, **options):
    """Load what the first rank saved, once it is done with that; each rank must call this."""
    torch.distributed.barrier()
    return torch.load(path, *args, **options)
'''

FIRST = '''
@contextlib.contextmanager
def main_first():
    """Let the first rank download; the others then find what is there."""
    if RANK != 0:
        torch.distributed.barrier()
    yield
    if RANK == 0:
        torch.distributed.barrier()
'''

WAIT = '''
def wait_for_ranks():
    """Go on when all ranks are here."""
    torch.distributed.barrier()
'''

SILENT = '''
class Silent:
    """Stands for a logger on all ranks but the first: takes every call and does nothing."""

    def __getattr__(self, name):
        return lambda *args, **options: self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None
'''

UNWRAP = '''
def unwrap(model):
    """Return the model without its wrapper: its own attributes, and names in checkpoints."""
    return getattr(model, "module", model)
'''

BUFFERS = '''
def share_buffers(model):
    """Give all ranks the running averages of the first, as one evaluation needs."""
    for buffer in model.buffers():
        torch.distributed.broadcast(buffer, 0)
'''

SHARD = '''
def shard_model(model):
    """Share the parameters out among the ranks, one layer of a stack at a time."""
    mesh = init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (WORLD_SIZE,))
    stacks = (torch.nn.ModuleList, torch.nn.Sequential)
    for stack in reversed([part for part in model.modules() if isinstance(part, stacks)]):
        for layer in stack:
            if not isinstance(layer, stacks) and any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)
'''

STATE = '''
def full_state(model):
    """Return the whole state of the model on the first rank; each rank must call this."""
    return get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )


def load_full_state(model, state, strict=True):
    """Give all ranks their shares of the state that the first rank has."""
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=strict)
    return set_model_state_dict(model, state, options=options)
'''

DEEPSPEED = """
# ZeRO 1 shares the optimizer's state out among the ranks; 2 and 3 also gradients and weights.
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 1,  # for DeepSpeed's own figures: the loader decides
    "gradient_accumulation_steps": 1,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "gradient_clipping": 0.0,  # DeepSpeed would clip at 1
    "steps_per_print": 10**9,
}
"""

HOROVOD_RANKS = """
hvd.init()
RANK, WORLD_SIZE, LOCAL_RANK = hvd.rank(), hvd.size(), hvd.local_rank()
"""

HOROVOD_START = '''
def start_processes():
    """Take the GPU of this rank; leave the other ranks at the end, also after an error."""
    if torch.cuda.is_available():
        torch.cuda.set_device(LOCAL_RANK % torch.cuda.device_count())
    atexit.register(hvd.shutdown)
{seed}'''

ACCELERATE = """
accelerator = None  # made when the processes start
"""

# Each helper with the modules it needs, in the order they are written.
HELPERS = {
    "deepspeed": (DEEPSPEED, ()),
    "accelerate": (ACCELERATE, ()),
    "from_first": (FROM_FIRST, ()),
    "print": (PRINT, ("import builtins",)),
    "unwrap": (UNWRAP, ()),
    "loader": (
        LOADER,
        (
            "from torch.utils.data import DataLoader",
            "from torch.utils.data.distributed import DistributedSampler",
        ),
    ),
    "batches": (BATCHES, ()),
    "sum": (SUM, ()),
    "mean": (MEAN, ()),
    "save": (SAVE, ()),
    "load": (LOAD, ()),
    "first": (FIRST, ("import contextlib",)),
    "wait": (WAIT, ()),
    "silent": (SILENT, ()),
    "buffers": (BUFFERS, ()),
    "shard": (SHARD, ()),
    "state": (
        STATE,
        (
            "from torch.distributed.checkpoint.state_dict import "
            "StateDictOptions, get_model_state_dict, set_model_state_dict",
        ),
    ),
}
# What a port adds to the names of a script, but for `print`, which keeps its meaning.
NAMES = frozenset(
    name
    for text in (START, *(text for text, _ in HELPERS.values()))
    for name in re.findall(r"^(?:def|class) (\w+)", text, re.MULTILINE)
    if name != "print"
) | {"RANK", "WORLD_SIZE", "LOCAL_RANK", "DEEPSPEED", "accelerator"}
_NEEDS = {"mean": ("sum",)}
# Horovod has operations of its own for all that meets the other ranks.
HOROVOD = {
    "torch.distributed.all_reduce(whole)": "whole = hvd.allreduce(whole, op=hvd.Sum)",
    "torch.distributed.barrier()": "hvd.allreduce(torch.zeros(1))",
    "torch.distributed.broadcast(buffer, 0)": "hvd.broadcast_(buffer, 0)",
    "values = [value]\n    torch.distributed.broadcast_object_list(values)\n    return values[0]": "return hvd.broadcast_object(value, root_rank=0)",
}


def write_prelude(
    target: str, wanted: Iterable[str], start: str, imports: Iterable[str], ranks: str = RANKS
) -> str:
    """Return the lines to add below the imports of a script."""
    names = {"from_first", *wanted}
    names |= {each for name in names for each in _NEEDS.get(name, ())}
    chosen = [name for name in HELPERS if name in names]
    parts = "".join(HELPERS[name][0] + "\n" for name in chosen)
    if target == "horovod":
        for old, new in HOROVOD.items():
            parts, start = parts.replace(old, new), start.replace(old, new)
    needed = {*imports, *(line for name in chosen for line in HELPERS[name][1])}
    plain = sorted(line for line in needed if line.startswith("import "))
    others = sorted(line for line in needed if not line.startswith("import "))
    head = MARK.format(target=target) + ": one process a GPU; the global batch stays as it was."
    text = "\n".join([head, *plain, *others]) + "\n" + ranks + "\n" + start + "\n" + parts
    return (
        text.replace("\n\n\n\n", "\n\n\n").rstrip("\n")
        + "\n\n\n# End of what `stoker port` added.\n"
    )
