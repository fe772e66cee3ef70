"""Output of ``jsm sub``: lines in the format of ``nats-sub``, raw, JSON, or files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ... import JetStreamMsg, Msg
from ...net.clock import monotonic
from ..output import emit_line, note
from ..render import Table, write_table
from ..sanitize import readable, visible
from ..settings import Settings
from ..status import CommandError, ExitStatus
from .shown import header_fields, message_document, write_bytes

__all__ = ["SubjectReport", "ViewOptions", "Viewer"]


@dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """Options for the output of messages."""

    timestamps: bool = False
    since_start: bool = False
    raw: bool = False
    headers_only: bool = False
    subjects_only: bool = False
    dump: str | None = None
    translate: Callable[[str, bytes], bytes] | None = None


class Viewer:
    """
    Shows messages one by one.

    Args:
        settings: the settings of the command.
        options: the options for the output.

    """

    def __init__(self, settings: Settings, options: ViewOptions) -> None:
        self._settings = settings
        self._env = settings.env
        self._options = options
        self._started = monotonic()
        self._number = 0
        self._folder: Path | None = None
        if options.dump not in (None, "-"):
            self._folder = Path(str(options.dump))
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise _unwritable(self._folder, error) from error

    def show(self, msg: Msg, *, acked: bool) -> None:
        """Show a message."""
        self._number += 1
        body = self._body(msg)
        options = self._options
        if options.dump is not None:
            self._dump(self._document(msg, body, acked=acked))
        elif options.raw:
            write_bytes(self._env, body + b"\n")
        elif self._settings.json:
            emit_line(self._settings, self._document(msg, body, acked=acked))
        elif options.subjects_only:
            self._env.stdout.write(readable(msg.subject) + "\n")
        else:
            self._env.stdout.write(self._lines(msg, body))
        # The reader of a pipe may wait for the message.
        self._env.stdout.flush()

    def _body(self, msg: Msg) -> bytes:
        if self._options.translate is None:
            return msg.data
        try:
            return self._options.translate(msg.subject, msg.data)
        except CommandError as error:
            # A body that the command rejects must not stop the following messages.
            note(self._settings, f"warning: {error}")
            return msg.data

    def _document(self, msg: Msg, body: bytes, *, acked: bool) -> dict[str, Any]:
        options = self._options
        if options.subjects_only:
            return {"subject": visible(msg.subject)}
        document = message_document(msg, acked=acked, body=body)
        if options.headers_only:
            document.pop("data", None)
            document.pop("text", None)
        if options.timestamps:
            document["received"] = datetime.now(timezone.utc).isoformat()
        return document

    def _lines(self, msg: Msg, body: bytes) -> str:
        options = self._options
        line = f"[#{self._number}] Received on [{readable(msg.subject)}]"
        if options.timestamps:
            line = f"{datetime.now().astimezone():%Y/%m/%d %H:%M:%S %z} {line}"
        if options.since_start:
            line = f"{monotonic() - self._started:.4f}s {line}"
        if isinstance(msg, JetStreamMsg):
            about = msg.metadata
            line += f" stream: {about.stream} seq {about.stream_seq}"
        elif msg.reply and not msg.reply.startswith("$JS.ACK."):
            line += f" reply: {readable(msg.reply)}"
        if not options.headers_only:
            line += f": '{readable(body)}'"
        headers: dict[str, list[str]] = header_fields(msg.headers).get("headers", {})
        return "".join(
            [
                f"{line}\n",
                *(f"  {name}: {readable(one)}\n" for name, all_ in headers.items() for one in all_),
            ]
        )

    def _dump(self, document: dict[str, Any]) -> None:
        if self._folder is None:
            self._env.stdout.write(json.dumps(document, ensure_ascii=False) + "\0")
            return
        path = self._folder / f"{self._number}.json"
        try:
            path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
        except OSError as error:
            raise _unwritable(path, error) from error


class SubjectReport:
    """
    Counts messages by subject and shows the counts at the end.

    Args:
        settings: the settings of the command.
        top: the number of subjects to show; JSON output has all of them.

    """

    def __init__(self, settings: Settings, top: int) -> None:
        self._settings = settings
        self._top = top
        self._messages: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def show(self, msg: Msg, *, acked: bool) -> None:
        """Count a message."""
        del acked
        subject = visible(msg.subject)
        self._messages[subject] += 1
        self._bytes[subject] += len(msg.data)

    def close(self) -> None:
        """Show the subjects in descending order of messages."""
        ordered = sorted(self._messages.items(), key=lambda item: (-item[1], item[0]))
        if self._settings.json:
            rows = [
                {"subject": subject, "messages": count, "bytes": self._bytes[subject]}
                for subject, count in ordered
            ]
            self._settings.env.stdout.write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
            return
        shown = ordered[: self._top]
        title = f"{len(ordered):,} subjects"
        if len(shown) < len(ordered):
            title += f", the first {len(shown):,}"
        rows_shown = [
            (readable(subject), f"{count:,}", f"{self._bytes[subject]:,}")
            for subject, count in shown
        ]
        columns = ("Subject", "Messages", "Bytes")
        write_table(Table(title=title, columns=columns, rows=rows_shown), self._settings.env)


def _unwritable(path: Path, error: OSError) -> CommandError:
    return CommandError(f"cannot write {path}: {error.strerror or error}", ExitStatus.FAILED)
