"""What this machine, or the container on it, has: memory, processors, speed, disk."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch


@dataclass(frozen=True)
class Memory:
    """Bytes of memory.

    Attributes:
        total: that the machine has, or that the container may use.
        free: of these, now.
        container: the limit is a container's.
    """

    total: int
    free: int
    container: bool = False


@dataclass(frozen=True)
class Speed:
    """What the processors reach, measured in a moment, on as many as may be used.

    Attributes:
        matrix: operations a second of a bfloat16 matrix product.
        double: the same in float64.
        elements: entries of a softmax a second.
    """

    matrix: float
    double: float
    elements: float


def memory(root: Path = Path("/")) -> Memory:
    """Memory of the machine, or what a control group leaves of it (``root`` is for tests)."""
    machine = psutil.virtual_memory()
    found = Memory(machine.total, machine.available)
    for limit_file, used_file in _memory_files(root):
        limit, used = _number(limit_file), _number(used_file)
        if limit is None or used is None or limit >= found.total:
            continue
        cache = _statistic(
            limit_file.with_name("memory.stat"), ("inactive_file", "total_inactive_file")
        )
        free = min(found.free, max(0, limit - used + cache))
        found = Memory(limit, free, container=True)
    return found


def processors(root: Path = Path("/")) -> float:
    """Processors that torch's threads may keep busy: threads, affinity, a container's quota."""
    usable = float(min(torch.get_num_threads(), _bound_to()))
    for folder in _groups(root, "cpu"):
        both = (_text(folder / "cpu.max") or "").split()
        if len(both) == 2 and both[0].isdigit() and both[1].isdigit():
            usable = min(usable, int(both[0]) / int(both[1]))
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota and period:
            usable = min(usable, quota / period)
    return usable


def speed(root: Path = Path("/")) -> Speed:
    """Measure, in a third of a second, and less what a container's quota takes away."""
    share = processors(root) / torch.get_num_threads()
    a, b = torch.ones(1024, 576, dtype=torch.bfloat16), torch.ones(576, 576, dtype=torch.bfloat16)
    c, d = torch.ones(256, 576, dtype=torch.float64), torch.ones(576, 576, dtype=torch.float64)
    x = torch.ones(64, 49_152)  # too large for a cache, as logits are
    with torch.no_grad():
        matrix = _best(lambda: torch.mm(a, b))
        double = _best(lambda: torch.mm(c, d))
        softmax = _best(lambda: x.log_softmax(-1).argmax(-1))
    return Speed(
        share * 2 * 1024 * 576 * 576 / matrix,
        share * 2 * 256 * 576 * 576 / double,
        share * x.numel() / softmax,
    )


def free_disk(place: Path) -> int:
    """Bytes free where ``place`` is, or will be."""
    place = place.resolve()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def folder_size(folder: Path) -> int:
    """Bytes of the files in a folder, links not counted; 0 where there is none."""
    size = 0
    for above, _, names in os.walk(folder):  # a run at work there renames and removes meanwhile
        for name in names:
            with suppress(OSError):
                found = os.lstat(os.path.join(above, name))
                size += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return size


def _bound_to() -> int:
    """Processors that this process is bound to."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _best(work: Callable[[], object]) -> float:
    """Least seconds that ``work`` took, of the times it fits into a moment after a first one."""
    work()
    best, end = float("inf"), time.perf_counter() + 0.1
    while (started := time.perf_counter()) < end or best == float("inf"):
        work()
        best = min(best, time.perf_counter() - started)
    return best


def _memory_files(root: Path) -> list[tuple[Path, Path]]:
    files: list[tuple[Path, Path]] = []
    for folder in _groups(root, "memory"):
        files.append((folder / "memory.max", folder / "memory.current"))
        files.append((folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes"))
    return files


def _groups(root: Path, controller: str) -> list[Path]:
    """Folders of the control groups this process is in, of version 2 and 1, innermost first."""
    folders: list[Path] = []
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            top = root / "sys/fs/cgroup"
        elif controller in names.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        inner = top / path.lstrip("/")
        # In a container the path may be one of the host's, and the container's own group the top.
        folders += [f for f in (inner, *inner.parents) if f.is_relative_to(top) and f.is_dir()]
    return folders


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _statistic(path: Path, names: tuple[str, ...]) -> int:
    for line in (_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if name in names and value.isdigit():
            return int(value)
    return 0
