"""
Log records of workers: the logger, and JSON. `LogContextFilter` adds the message that is handled.

The payload of a message is never logged.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from .. import codec

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


LOGGER_NAME: Final = "jetstream_sync.worker"
#: The folder of this package, whose frames are left out of tracebacks.
_PACKAGE: Final = f"{Path(__file__).parents[1]}{os.sep}"


def without_own_frames(error: BaseException) -> BaseException:
    """Return an error whose traceback has the frames of the user only, if there are any."""
    frames = []
    frame = error.__traceback__
    while frame is not None:
        if not frame.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            frames.append(frame)
        frame = frame.tb_next
    if frames:
        found: TracebackType | None = None
        for frame in reversed(frames):
            found = TracebackType(found, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        error.__traceback__ = found
    return error


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an error with the frames of the user, as `codec.encodable`."""
    return codec.encodable("".join(traceback.format_exception(without_own_frames(error))))


def status_text(status: int) -> str:
    """Return how a process has ended, by the status of `subprocess.Popen`."""
    if status >= 0:
        return f"exit status {status}"
    with suppress(ValueError):
        return f"signal {signal.Signals(-status).name}"
    return f"signal {-status}"


class WorkerLogger(_Adapter):
    """A logger whose handlers and filters may fail: the first error goes to standard error."""

    _reported = False

    def __init__(self, name: str, extra: Mapping[str, object] | None = None) -> None:
        super().__init__(logging.getLogger(name), dict(extra or {}))

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the attributes to those of the call."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message."""
        if not self.logger.isEnabledFor(level):
            return
        try:
            kwargs.setdefault("stacklevel", 2)  # the caller of this method
            super().log(level, msg, *args, **kwargs)
        except Exception:  # noqa: BLE001 - a handler of the user may raise anything
            if not WorkerLogger._reported:
                WorkerLogger._reported = True
                with suppress(Exception):
                    sys.stderr.write(f"a log handler raised:\n{traceback.format_exc()}")


log: Final = WorkerLogger(LOGGER_NAME)
#: One record for each message, at the level INFO. Off unless its level is set.
outcome_log: Final = WorkerLogger(f"{LOGGER_NAME}.outcomes")
outcome_log.logger.setLevel(logging.WARNING)


#: The characters that control a terminal, or the direction of text.
_CONTROLS: Final = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"


def _escaped(text: str, pattern: str) -> str:
    """Return a text in which the characters of a pattern are escapes."""
    if text.isascii() and text.isprintable():
        return text
    return re.sub(pattern, lambda found: f"\\u{ord(found[0]):04x}", text)


class TextLogFormatter(logging.Formatter):
    """
    Formats a log record as text in which no line is forged and no terminal is controlled.

    Messages and names may come from other clients, and texts of errors from data.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - a name of `logging`
        """Return the first line, with line breaks escaped."""
        return _escaped(super().formatMessage(record), rf"{_CONTROLS}|\n")

    def formatException(self, ei: Any) -> str:  # noqa: N802 - a name of `logging`
        """Return the traceback; each of its lines is indented, so that it is no record."""
        return "\n".join(
            f"  {line}" for line in _escaped(super().formatException(ei), _CONTROLS).split("\n")
        )


class JsonLogFormatter(logging.Formatter):
    """
    Formats a log record as one line of JSON.

    The line has ``time``, ``level``, ``logger``, ``thread`` and ``message``, then the attributes of
    `LogContextFilter` and those given as ``extra``, and the traceback as ``exception``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and value != "":
                line.setdefault(name, value)
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        with suppress(Exception):  # of what the program has added
            return _json(line)
        return _json({name: _encodable(value) for name, value in line.items()})


def _json(value: object) -> str:
    """Return JSON that a strict parser reads and any stream can encode."""
    text = json.dumps(value, default=str, ensure_ascii=False, allow_nan=False)
    text = _escaped(text, _CONTROLS)
    if text.isascii():
        return text
    # A strict parser refuses half of a pair of surrogates, also as an escape of JSON: the escape is shown as text.
    return "".join(
        f"\\\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char for char in text
    )


def _encodable(value: object) -> object:
    """Return a value that JSON can have; otherwise its text."""
    with suppress(Exception):
        _json(value)
        return value
    return codec.text_of(value)


#: Attributes that every record has, and those that formatters add.
_STANDARD: Final = {
    *vars(logging.LogRecord("", 0, "", 0, "", (), None)),
    *("message", "asctime", "taskName"),
}
