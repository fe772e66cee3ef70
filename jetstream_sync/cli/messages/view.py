"""
Output of messages: as text, raw, in a format of the user, as JSON, or as files.

A message has the same JSON document in all commands.
"""

from __future__ import annotations

import base64
import contextlib
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ... import JetStreamMsg, StoredMsg, errors
from ...durations import time_from_ns, time_to_text
from ...subjects import ACK_PREFIX, metadata_of
from ..shared.env import STANDARD_OUTPUT, Environment, named, readable, visible
from ..shared.output import emit_line, to_json
from ..shared.settings import Settings
from ..shared.status import CommandError
from ..shared.values import allow_one

if TYPE_CHECKING:
    from ... import Headers, Metadata, Msg

FORMAT_HELP = "Format each message, for example '{stream_seq} {subject} {text}\\n'."


def _formatted(layout: str, document: dict[str, Any]) -> str:
    """Return a message in a format of the user, whose fields are those of the JSON document."""
    for mark, character in (("\\n", "\n"), ("\\t", "\t"), ("\\0", "\0")):
        layout = layout.replace(mark, character)
    headers = {name: values[0] for name, values in document.get("headers", {}).items()}
    # A missing header is empty.
    fields = {"text": "", **document, "headers": defaultdict(str, headers)}
    try:
        return layout.format_map(fields)
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise CommandError(f"--format: {error}; the fields are {', '.join(fields)}") from error


def message_document(msg: Msg | StoredMsg, *, acked: bool = False) -> dict[str, Any]:
    """Return the JSON document of a message, the same for all commands."""
    document: dict[str, Any] = {"subject": visible(msg.subject)}
    end: dict[str, Any] = {}
    if isinstance(msg, StoredMsg):
        document.update(stream=msg.stream, stream_seq=msg.seq, time=time_to_text(msg.time))
    else:
        about = _about(msg)
        if about is not None:
            document.update(
                stream=about.stream,
                consumer=about.consumer,
                stream_seq=about.stream_seq,
                consumer_seq=about.consumer_seq,
                delivered=about.num_delivered,
                pending=about.num_pending,
                time=time_to_text(time_from_ns(about.timestamp_ns)),
            )
            end["acked"] = acked
        elif msg.reply:
            document["reply"] = visible(msg.reply)
        if msg.status is not None:
            document["status"] = {
                "code": msg.status.code,
                "description": visible(msg.status.description),
            }
    return {**document, **header_fields(msg.headers), **body_fields(msg.data), **end}


def is_delivery(msg: Msg) -> bool:
    """Return whether a message is from a consumer, also if it was pushed to a plain subscription."""
    return msg.reply.startswith(ACK_PREFIX.decode())


def _about(msg: Msg) -> Metadata | None:
    """Return the metadata of a message, also of one pushed to a plain subscription."""
    if isinstance(msg, JetStreamMsg):
        return msg.metadata
    if not is_delivery(msg):
        return None
    try:
        return metadata_of(msg.reply.encode("utf-8", "surrogateescape"))
    except errors.NotJSMessageError:
        return None


def header_fields(headers: Headers | None) -> dict[str, Any]:
    """Return the document field with the headers; empty without headers."""
    if headers is None:
        return {}
    return {
        "headers": {
            visible(name): [visible(value) for value in headers.get_all(name)] for name in headers
        }
    }


def header_lines(headers: Headers | None) -> list[str]:
    """Return a line of text for each value of each header."""
    fields: dict[str, list[str]] = header_fields(headers).get("headers", {})
    return [f"{name}: {readable(one)}" for name, values in fields.items() for one in values]


def body_fields(data: bytes) -> dict[str, str]:
    """Return the document fields with the body: base64, and text if it is UTF-8."""
    fields = {"data": base64.b64encode(data).decode("ascii")}
    with contextlib.suppress(UnicodeDecodeError):
        fields["text"] = data.decode()
    return fields


def write_bytes(env: Environment, data: bytes) -> None:
    """Write bytes to ``stdout`` unchanged, after flushing text written before."""
    env.stdout.flush()
    raw = getattr(env.stdout, "buffer", None)
    if raw is None:
        env.stdout.write(data.decode("utf-8", "backslashreplace"))
    else:
        with named(STANDARD_OUTPUT):
            raw.write(data)
    env.stdout.flush()


class MessageWriter:
    """Write messages, one at a time, in the output format of a command."""

    def __init__(
        self,
        settings: Settings,
        text: Callable[[Any], str],
        *,
        raw: bool = False,
        layout: str | None = None,
        single: bool = False,
    ) -> None:
        allow_one({"--raw": raw, "--format": layout})
        self.number: int = 0
        """The number of messages, including the current one."""
        self._settings = settings
        self._env = settings.env
        self._text = text
        self._raw = raw
        self._layout = layout
        self._single = single

    @property
    def is_text(self) -> bool:
        """Whether the output is the default text."""
        return not (self._raw or self._layout is not None or self._settings.json)

    @property
    def shows_settling(self) -> bool:
        """Whether the output includes the acknowledgement of each message."""
        return self.is_text

    def write(self, msg: Msg | StoredMsg, *, acked: bool = False) -> None:
        """Write a message and flush the output."""
        self.number += 1
        self._put(msg, acked=acked)
        # The reader of a pipe may wait for the message.
        self._env.stdout.flush()

    def document(self, msg: Msg | StoredMsg, *, acked: bool) -> dict[str, Any]:
        """Return the JSON document of a message."""
        return message_document(msg, acked=acked)

    def _put(self, msg: Msg | StoredMsg, *, acked: bool) -> None:
        out = self._env.stdout
        if self._raw:
            write_bytes(self._env, msg.data if self._single else msg.data + b"\n")
            return
        if self.is_text:
            out.write(self._text(msg))
            return
        document = self.document(msg, acked=acked)
        if self._layout is not None:
            out.write(_formatted(self._layout, document))
        elif self._single:
            out.write(to_json(document))
        else:
            emit_line(self._settings, document)


class SubWriter(MessageWriter):
    """Write the messages of ``jsm sub``."""

    shows_settling = False

    def __init__(self, settings: Settings, *, raw: bool, **options: bool) -> None:
        super().__init__(settings, self._line, raw=raw)
        #: Whether to show ``timestamps``, ``headers_only`` or ``subjects_only``.
        self._options = options
        #: Returns the reply to the message that is written.
        self.reply_of: Callable[[], Msg | None] = lambda: None

    def document(self, msg: Msg | StoredMsg, *, acked: bool) -> dict[str, Any]:
        """Return the JSON document of a message."""
        options = self._options
        if options["subjects_only"]:
            return {"subject": visible(msg.subject)}
        document = super().document(msg, acked=acked)
        if options["headers_only"]:
            document.pop("data", None)
            document.pop("text", None)
        if (reply := self.reply_of()) is not None:
            document["response"] = message_document(reply)
        if options["timestamps"]:
            document["received"] = datetime.now(timezone.utc).isoformat()
        return document

    def _line(self, msg: Msg) -> str:
        options = self._options
        if options["subjects_only"]:
            return f"{readable(msg.subject)}\n"
        line = f"[#{self.number}] Received on [{readable(msg.subject)}]"
        if options["timestamps"]:
            line = f"{datetime.now().astimezone():%Y/%m/%d %H:%M:%S %z} {line}"
        if isinstance(msg, JetStreamMsg):
            about = msg.metadata
            line += f" stream: {about.stream} seq {about.stream_seq}"
        elif msg.reply and not is_delivery(msg):
            line += f" reply: {readable(msg.reply)}"
        if not options["headers_only"]:
            line += f": '{readable(msg.data)}'"
        lines = [line, *(f"  {line}" for line in header_lines(msg.headers))]
        if (reply := self.reply_of()) is not None:
            text = "" if options["headers_only"] else f": '{readable(reply.data)}'"
            lines.append(f"[#{self.number}] Matched reply on [{readable(reply.subject)}]{text}")
            lines += [f"  {line}" for line in header_lines(reply.headers)]
        return "".join(f"{line}\n" for line in lines)
