"""Representation of a message as a JSON document, and output of raw bytes."""

from __future__ import annotations

import base64
import contextlib
from typing import Any

from ... import Headers, JetStreamMsg, Metadata, Msg
from ...api.reply import metadata_of
from ...durations import time_from_ns, time_to_text
from ...errors import NotJSMessageError
from ..env import Environment
from ..sanitize import visible

__all__ = [
    "body_fields",
    "header_fields",
    "message_document",
    "write_bytes",
]


def message_document(msg: Msg, *, acked: bool = False, body: bytes | None = None) -> dict[str, Any]:
    """
    Return the JSON document of a message, the same for all commands.

    Args:
        msg: the message. With a consumer, the document has the stream metadata, else the reply
            subject, if any.
        acked: whether the command acknowledges the message.
        body: the body to show; ``None``: the body of the message.

    """
    document: dict[str, Any] = {"subject": visible(msg.subject)}
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
    elif msg.reply:
        document["reply"] = visible(msg.reply)
    if msg.status is not None:
        document["status"] = {
            "code": msg.status.code,
            "description": visible(msg.status.description),
        }
    document.update(header_fields(msg.headers), **body_fields(msg.data if body is None else body))
    if about is not None:
        document["acked"] = acked
    return document


def _about(msg: Msg) -> Metadata | None:
    """Return the metadata of a message, also of one pushed to a plain subscription."""
    if isinstance(msg, JetStreamMsg):
        return msg.metadata
    if not msg.reply.startswith("$JS.ACK."):
        return None
    try:
        return metadata_of(msg.reply.encode("utf-8", "surrogateescape"))
    except NotJSMessageError:
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
        raw.write(data)
    env.stdout.flush()
