"""Output of ``jsm consumer next`` and ``sub``: text, raw, formatted, or JSON."""

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
        settings: the settings of the command.
        raw: show only the bodies.
        layout: a format string for `MessageFormat`; ``None``: the default text.
        single: whether there is at most one message, shown as one JSON document.

    Raises:
        CommandError: both raw and layout are given.

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
    def is_text(self) -> bool:
        """Whether the output is the default text, which includes the acknowledgement."""
        return not (self._raw or self._layout is not None or self._settings.json)

    def show(self, msg: JetStreamMsg, *, acked: bool) -> None:
        """Show a message and flush the output."""
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
        # The reader of a pipe may wait for the message.
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
