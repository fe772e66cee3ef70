"""
The standard streams and environment variables of a command, and the escapes of untrusted text.

Any client with permission to publish or to create a stream chooses bodies, subjects, names and descriptions.
They may contain invalid UTF-8 or characters that move the cursor, change terminal colours or reverse the
direction of the text.

No command writes to ``sys.stdout`` or reads ``os.environ``; a test passes an `Environment` of its own. `jsm worker run`
replaces a closed ``sys.stdout``, to which the handlers may print.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO

if TYPE_CHECKING:
    from rich.console import Console


# --- untrusted text -----------------------------------------------------------------------------

#: The Unicode characters that control the direction of text.
_BIDIRECTIONAL: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROLS: Final = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDIRECTIONAL}]")
#: Those of them that JSON does not escape.
_IN_JSON: Final = re.compile(rf"[\x7f-\x9f{_BIDIRECTIONAL}]")


def visible(text: str) -> str:
    """Return text that any stream can encode: surrogate escapes become backslash escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def readable(data: bytes | str) -> str:
    """Return a body or header as text, with invalid UTF-8 and control characters escaped."""
    text = visible(data) if isinstance(data, str) else data.decode("utf-8", "backslashreplace")
    return _CONTROLS.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def json_text(value: object, *, indent: int | None = None, compact: bool = False) -> str:
    """Return a value as JSON; ``compact``: without spaces."""
    separators = (",", ":") if compact else None
    return json.dumps(value, indent=indent, ensure_ascii=False, separators=separators)


def parse_json(text: str | bytes) -> Any:
    """Return the value of JSON that a person wrote; raise `ValueError` with the place of a mistake."""
    return json.loads(text)


def readable_json(text: str) -> str:
    """Return the same JSON, with characters that control a terminal escaped."""
    return _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class SafeText:
    """
    A text stream that escapes what it is given, as `readable` does.

    All output of commands goes through one, so that no text of a server or a publisher controls a terminal.
    ``stream`` is the stream itself, for the control sequences of this program. With ``as_json``, each line
    that is not part of a JSON document is written as one.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.as_json: bool = False

    def write(self, text: str) -> int:
        """Write escaped text."""
        if self.as_json and not text.startswith("{"):
            lines = filter(None, text.splitlines())
            notes = [{"note": line.removeprefix("jsm: ")} for line in lines]
            text = "".join(f"{readable_json(json_text(note))}\n" for note in notes)
        return self.stream.write(readable(text))

    def writelines(self, lines: Iterable[str]) -> None:
        """Write escaped lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def unescaped(stream: TextIO) -> TextIO:
    """Return the stream below a `SafeText`, for control sequences of this program."""
    return stream.stream if isinstance(stream, SafeText) else stream


def single_line(text: str) -> str:
    """Return the same as `readable`, with line breaks and tabs escaped as well."""
    if text.isascii() and text.isprintable():
        return text
    return readable(text).replace("\n", "\\n").replace("\t", "\\t")


# --- streams ----------------------------------------------------------------------------------

#: The name of standard output in errors.
STANDARD_OUTPUT: Final = "standard output"
_STANDARD_INPUT: Final = "standard input"


class _Input(io.FileIO):
    """Standard input, which is named in the error of a read."""

    def readinto(self, buffer: Any, /) -> int | None:
        with named(_STANDARD_INPUT):
            return super().readinto(buffer)


# They are text streams above a file without Python code. If Ctrl-C interrupted a write method in Python, the buffer
# would keep bytes that were written, and write them again.


class _Output(io.TextIOWrapper):
    """Standard output, which is named in the error of a write."""

    def write(self, text: str, /) -> int:
        with named(STANDARD_OUTPUT):
            return super().write(text)

    def flush(self) -> None:
        # Python calls it at its exit, when the names of this module are gone.
        try:
            super().flush()
        except OSError as error:
            error.filename = STANDARD_OUTPUT
            raise


class _Diagnostics(io.TextIOWrapper):
    """Standard error: what cannot be written is dropped, since there is no place to report it."""

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        try:  # noqa: SIM105 - as in `_Output`
            super().flush()
        except OSError:
            pass


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Name the stream in the error of a read or write."""
    try:
        yield
    except OSError as error:
        error.filename = name
        raise


def guard_standard_streams() -> None:
    """
    Replace ``sys.stdin``, ``sys.stdout`` and ``sys.stderr``, so that a failure of each is handled in one way.

    A read or write that fails names its stream, and those of a stream that the caller closed fail; failed writes to
    standard error are dropped. A character that the terminal cannot encode becomes an escape.
    """
    # Opened in this order, they take the closed file descriptors, so that no socket gets them. Such a descriptor
    # cannot be used in the direction of its stream.
    if sys.stdin is None:
        source = _Input(os.open(os.devnull, os.O_WRONLY), closefd=False)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(source))
    for name, kind in (("stdout", _Output), ("stderr", _Diagnostics)):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # not replaced by a test
            setattr(sys, name, _guarded(stream, kind))


def _guarded(stream: TextIO | None, kind: type[io.TextIOWrapper]) -> TextIO:
    descriptor = os.open(os.devnull, os.O_RDONLY) if stream is None else stream.fileno()
    # As Python made them: lines of standard error, and with PYTHONUNBUFFERED those of both, are written at once.
    by_line = getattr(stream, "line_buffering", False) or getattr(stream, "write_through", False)
    return kind(
        io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False)),
        encoding="utf-8" if stream is None else stream.encoding,
        errors="backslashreplace",
        line_buffering=by_line or kind is _Diagnostics,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """
    The streams and variables of one command.

    Results go to ``stdout``; progress, warnings and errors go to ``stderr``. Both escape control characters;
    see `SafeText`.
    """

    stdin: BinaryIO
    stdout: TextIO
    stderr: TextIO
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("stdout", "stderr"):
            stream = getattr(self, name)
            if not isinstance(stream, SafeText):
                object.__setattr__(self, name, SafeText(stream))

    @classmethod
    def of_process(cls) -> Environment:
        """Return the streams and variables of this process, as `guard_standard_streams` has left them."""
        return cls(
            stdin=sys.stdin.buffer, stdout=sys.stdout, stderr=sys.stderr, variables=os.environ
        )

    def write_utf8(self) -> None:
        """Set the encoding of streams that are not terminals to UTF-8, as JSON requires, in any locale."""
        for stream in map(unescaped, (self.stdout, self.stderr)):
            if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")

    def console(self, stream: TextIO) -> Console | None:
        """Return a rich console for a stream, if the stream is suitable for one."""
        color = self.variables.get("JSM_COLOR", "").lower()
        dumb = self.variables.get("TERM") in ("dumb", "unknown")
        if (dumb or not stream.isatty()) and color != "always":
            return None
        from rich.console import Console  # noqa: PLC0415 - for terminals only

        plain = color == "never" or (bool(self.variables.get("NO_COLOR")) and color != "always")
        return Console(
            file=unescaped(stream),
            no_color=plain,
            highlight=False,
            force_terminal=True if color == "always" else None,
        )
