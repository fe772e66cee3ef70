"""``jsm demo``: what is refused before anything starts."""

from __future__ import annotations

import pytest
from fix_jsm import run_jsm


def test_keep_needs_a_server() -> None:
    """--keep without --server is wrong usage: nothing could be kept."""
    result = run_jsm("demo", "--keep")
    assert result.status == 2
    assert "--keep needs --server" in result.err


def test_bad_stream_name_is_wrong_usage() -> None:
    """A stream name that no server accepts is refused before anything is started."""
    result = run_jsm("demo", "--stream", "a.b")
    assert (result.status, result.out) == (2, "")
    assert "'a.b'" in result.err


@pytest.mark.parametrize(
    ("stdin", "part"),
    [(b"", "no orders"), (b"[]\n", "standard input, line 1: must be a JSON object")],
)
def test_bad_input_is_wrong_usage(stdin: bytes, part: str) -> None:
    """Bad input is refused in one line, before a server is started."""
    result = run_jsm("demo", "--input", "-", stdin=stdin)
    assert (result.status, result.out) == (2, "")
    assert part in result.err
    assert result.err.count("\n") == 1


def test_missing_input_file_is_wrong_usage() -> None:
    """A file that is not there is named."""
    result = run_jsm("demo", "--input", "no-such-file.jsonl")
    assert (result.status, result.err) == (
        2,
        "jsm: cannot read no-such-file.jsonl: No such file or directory\n",
    )
