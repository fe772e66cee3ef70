"""What the benchmarks share: tables of text, and the processor time of other processes."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

#: The directory that has ``jetstream_sync`` and ``tests``.
ROOT = Path(__file__).resolve().parents[2]


# When the benchmark began: later, its own processes are in it.
_LOADS = os.getloadavg()


def machine_state() -> str:
    """Return the load of the machine when the benchmark began, and the version of Python."""
    load = "/".join(f"{item:.1f}" for item in _LOADS)
    return f"load {load}, {os.cpu_count()} CPUs, Python {platform.python_version()}"


def measured_copy() -> str:
    """Return which copy of the package is measured, at which commit, and whether with the C extension."""
    import jetstream_sync
    from jetstream_sync import speedups

    place = Path(jetstream_sync.__file__).resolve().parent
    git = ["git", "-C", str(place), "describe", "--always", "--dirty"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    commit = found.stdout.strip() or "unknown"
    kind = "with the C extension" if speedups.IN_USE else "WITHOUT the C extension"
    return f"measured: {place}, commit {commit}, {kind}; {machine_state()}"


def align(lines: Sequence[Sequence[str]]) -> str:
    """Format a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            word.ljust(width) if number == 0 else word.rjust(width)
            for number, (word, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def processor_seconds_of(pid: int | None) -> float | None:
    """Return the processor seconds of another process, to the hundredth; ``None``: unknown."""
    stat = Path(f"/proc/{pid}/stat")
    if pid is None or not stat.exists():
        return None
    # The second field is the name of the program, which may contain spaces.
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tree_seconds(processes: Iterable[int]) -> float:
    """Return the processor seconds of processes and their living descendants so far."""
    return sum(program_seconds(processes).values())


def program_seconds(processes: Iterable[int]) -> Counter[str]:
    """Return the processor seconds of processes and their living descendants so far, by program."""
    parents, names = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, fields = path.read_text().partition("(")[2].rpartition(")")
            parents[int(path.parent.name)] = int(fields.split()[1])
            names[int(path.parent.name)] = name
    found = set(processes)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    seconds: Counter[str] = Counter()
    for pid in found:
        seconds[names.get(pid, "")] += processor_seconds_of(pid) or 0.0
    return seconds
