# Types of the C extension for columns; see speedups.py for what the functions do.

from typing import Any

from .speedups import Texts

def add_digests(table: bytearray, items: bytes | bytearray, size: int, /) -> bytes: ...
def are_subjects(offsets: Any, data: bytes, patterns: tuple[bytes, ...], /) -> bool: ...
def join_commands(
    subjects: Texts,
    ids: Texts,
    lines: Texts,
    payloads: Texts,
    head: bytes,
    reply: bytes,
    number: int,
    limit: int,
    /,
) -> bytes | None: ...
def row_digests(
    prefix: bytes, subjects: Texts, lines: Texts, payloads: Texts, /
) -> bytes | None: ...
def run_column(runs: tuple[Any, ...], field: int, /) -> tuple[bytes, bytes] | None: ...
def run_numbers(runs: tuple[Any, ...], place: int, /) -> bytes | None: ...
def split_direct(
    offsets: Any, data: bytes, /
) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes] | None: ...
def split_headers(
    offsets: Any, data: bytes, /
) -> tuple[bytes, bytes, bytes, bytes, bytes] | None: ...
