"""CPU time and memory of the processes of a session, from ``/proc`` on Linux."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Processor", "forget_peaks", "peak", "processor"]

_TICK: Final = os.sysconf("SC_CLK_TCK")
#: Indices of the fields after the name in ``/proc/PID/stat``: the parent, and the user and system times of the
#: process and of its ended children.
_PARENT: Final = 1
_OWN: Final = slice(11, 13)
_ENDED: Final = slice(13, 15)


@dataclass(frozen=True, kw_only=True)
class Processor:
    """CPU time in seconds, by kind of process."""

    server: float = 0.0
    python: float = 0.0
    """Workers and driver."""
    jvm: float = 0.0

    def __sub__(self, other: Processor) -> Processor:
        return Processor(
            server=self.server - other.server,
            python=self.python - other.python,
            jvm=self.jvm - other.jvm,
        )

    def per_row(self, rows: int) -> str:
        """Return the microseconds for each row as text; empty if they are unknown."""
        parts = [each / rows * 1e6 for each in (self.server, self.python, self.jvm)]
        whole = sum(parts)
        return " + ".join(f"{each:.1f}" for each in parts) + f" = {whole:.1f}" if whole else ""


def processor() -> Processor:
    """Return the CPU time of this process and its children so far."""
    server = python = jvm = 0
    for command, fields in _descendants().values():
        own, ended = sum(map(int, fields[_OWN])), sum(map(int, fields[_ENDED]))
        if b"nats-server" in command:
            server += own + ended
        elif command.partition(b"\0")[0].endswith(b"java"):
            # The remaining children are Python processes.
            jvm, python = jvm + own, python + ended
        else:
            python += own + ended
    return Processor(server=server / _TICK, python=python / _TICK, jvm=jvm / _TICK)


def forget_peaks() -> None:
    """Reset the peak memory of each worker."""
    for folder in _workers():
        # 5: reset the peak of the resident memory.
        (folder / "clear_refs").write_text("5")


def peak() -> int:
    """Return the peak resident memory of a worker, in KiB."""
    most = 0
    for folder in _workers():
        for line in (folder / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                most = max(most, int(line.split()[1]))
    return most


def _workers() -> Iterator[Path]:
    """Yield the folders in /proc of the Python workers of this session."""
    for number, (command, _) in _descendants().items():
        if b"pyspark.daemon" in command:
            yield Path("/proc", str(number))


def _descendants() -> dict[int, tuple[bytes, list[str]]]:
    """Return command and statistics of this process and its descendants."""
    found: dict[int, tuple[bytes, list[str]]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            found[int(folder.name)] = (folder / "cmdline").read_bytes(), fields
        except OSError:
            continue
    return {number: each for number, each in found.items() if _is_ours(number, found)}


def _is_ours(number: int, found: dict[int, tuple[bytes, list[str]]]) -> bool:
    while number in found and number != os.getpid():
        number = int(found[number][1][_PARENT])
    return number == os.getpid()
