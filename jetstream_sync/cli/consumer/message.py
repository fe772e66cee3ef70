"""How ``jsm consumer next`` and ``sub`` show a message: for people, raw, formatted, or as JSON."""

from __future__ import annotations

from ... import JetStreamMsg
from ..message_format import FORMAT_HELP, MessageFormat
from ..messages.shown import header_fields, message_document, write_bytes
from ..output import count, emit_line, when
from ..render import to_json
from ..sanitize import readable
from ..settings import Settings
from ..status import CommandError, ExitStatus

__all__ = ["FORMAT_HELP", "MessageView"]


class MessageView:
    """
    Shows messages of a consumer.

    Args:
        settings: has the streams, and whether the output is JSON.
        raw: show the bodies, and nothing else.
        layout: how to show each; ``None``: as a person wants it. It is a format string of Python,
            whose fields are those of the JSON document, and ``headers[NAME]``.
        single: whether there is one message at most, which is one JSON document.

    Raises:
        CommandError: raw and a layout are both wanted.

    """

    def __init__(
        self, settings: Settings, *, raw: bool, layout: str | None, single: bool = False
    ) -> None:
        if raw and layout is not None:
            raise CommandError("--raw and --format exclude each other", ExitStatus.USAGE)
        self._settings = settings
        self._raw = raw
        self._layout = None if layout is None else MessageFormat(layout)
        self._single = single
        self._shown = 0

    @property
    def for_people(self) -> bool:
        """Whether what became of a message is said, too."""
        return not (self._raw or self._layout is not None or self._settings.json)

    def show(self, msg: JetStreamMsg, *, acked: bool) -> None:
        """Show a message, and flush."""
        out = self._settings.env.stdout
        if self._raw:
            write_bytes(self._settings.env, msg.data + b"\n")
            return
        if self._layout is not None:
            out.write(self._layout.fill(message_document(msg, acked=acked)))
        elif self._settings.json:
            document = message_document(msg, acked=acked)
            if self._single:
                out.write(to_json(document))
            else:
                emit_line(self._settings, document)
        else:
            out.write(self._text(msg))
        # Somebody may wait for it at the other end of a pipe.
        out.flush()

    def _text(self, msg: JetStreamMsg) -> str:
        about = msg.metadata
        headers: dict[str, list[str]] = header_fields(msg.headers).get("headers", {})
        said = [f"{name}: {readable(one)}" for name, each in headers.items() for one in each]
        where = " / ".join(
            (
                f"tries: {about.num_delivered}",
                f"consumer seq: {count(about.consumer_seq)}",
                f"stream seq: {count(about.stream_seq)}",
                f"pending: {count(about.num_pending)}",
                f"stored: {when(self._settings, about.timestamp)}",
            )
        )
        lines = [
            *([""] if self._shown else []),
            f"--- received on {readable(msg.subject)}",
            f"    {where}",
            *([*said, ""] if said else []),
            readable(msg.data),
        ]
        self._shown += 1
        return "\n".join(lines) + "\n"
