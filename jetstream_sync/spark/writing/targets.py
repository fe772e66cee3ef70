"""
The stream that is written to: what is checked of it, once, on the driver.

A task learns from it only what can not change what it does: which subjects the stream takes, and whether
it lets a message replace those before it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from ...api.enums import RetentionPolicy
from ...api.stream import StreamConfig
from ...errors import StreamNotFoundError
from ...jetstream.context import JetStream
from ...subjects import subject_matches
from ..options import WriteOptions
from .refusals import SinkError
from .rows import RowLayout

__all__ = ["Target", "check_target"]

log = logging.getLogger("jetstream_sync.spark")

#: Columns that an atomic batch can not have (ADR-50).
_NOT_IN_BATCHES: Final = ("expected_last_sequence", "expected_last_msg_id")
#: What was said once in this process.
_said: set[str] = set()


@dataclass(frozen=True, kw_only=True)
class Target:
    """A stream that was checked; it has no secrets."""

    subjects: tuple[str, ...]
    """The subjects that it takes, with wildcards."""

    allows_rollup: bool
    """Whether a message may replace those before it on its subject (``allow_rollup_hdrs``)."""

    end_seq: int
    """The sequence that its next message was going to have."""

    def takes(self, subject: str) -> bool:
        """Say whether it takes messages of a subject."""
        return any(subject_matches(each, subject) for each in self.subjects)


def check_target(
    js: JetStream, options: WriteOptions, layout: RowLayout, *, warns: bool = True
) -> Target:
    """
    Look whether a stream can take rows in the way that the options say.

    A duplicate window that is too short for ``delivery=window`` is logged, once in a process, or
    is an error, as ``onShortWindow`` says.

    Args:
        js: where the stream is.
        options: what the user wants.
        layout: the columns of the rows.
        warns: whether to log what is no error; once is enough.

    Raises:
        SinkError: it can not; the message says which setting is in the way.
        Error: as `JetStream.get_stream`.

    """
    name = options.stream
    try:
        info = js.get_stream(name).cached_info
    except StreamNotFoundError as error:
        raise SinkError(f"there is no stream {name!r}; make it before it is written to") from error
    config = info.config
    if config.mirror is not None:
        raise SinkError(f"stream {name!r} is a mirror, which takes no messages")
    if config.sealed:
        raise SinkError(f"stream {name!r} is sealed and takes no messages")
    if config.no_ack:
        raise SinkError(f"stream {name!r} acknowledges nothing (its no_ack), so nothing is certain")
    target = Target(
        subjects=tuple(config.subjects or ()),
        allows_rollup=bool(config.allow_rollup_hdrs),
        end_seq=max(info.state.last_seq + 1, info.state.first_seq),
    )
    if options.subject is not None and not target.takes(options.subject):
        raise SinkError(f"stream {name!r} does not take the subject {options.subject!r}")
    if options.subject is None and "subject" not in layout.names:
        raise SinkError("there is neither a column nor an option 'subject'")
    if "ttl" in layout.names and not config.allow_msg_ttl:
        raise SinkError(f"there is a column 'ttl', and stream {name!r} has no allow_msg_ttl")
    if options.delivery in {"transaction", "scan"}:
        _check_marked(target, options, config)
    if options.delivery == "transaction":
        _check_transactions(options, config, layout)
    if options.delivery == "window":
        _check_window(options, config, warns=warns)
    return target


def _check_marked(target: Target, options: WriteOptions, config: StreamConfig) -> None:
    """Check that the stream takes and keeps the notes of how far the sink has come."""
    name, subject = options.stream, options.marker_subject
    if subject is None:
        raise SinkError(f"delivery={options.delivery} needs the option markerSubject")
    if not target.takes(f"{subject}.query.0"):
        raise SinkError(
            f"stream {name!r} does not take {subject}.*.*, where delivery={options.delivery} notes "
            f"how far it has come; add that to its subjects"
        )
    if config.retention == RetentionPolicy.INTEREST:
        raise SinkError(
            f"stream {name!r} keeps a message only while somebody wants it, so the notes of "
            f"delivery={options.delivery} would be gone; use delivery=window"
        )
    reads_back = options.delivery == "scan" or options.ids == "content"
    if reads_back and config.retention == RetentionPolicy.WORK_QUEUE:
        raise SinkError(
            f"stream {name!r} lets go of what was worked on, so that nobody can see which rows it had; "
            "use delivery=transaction with ids=position, or delivery=window"
        )


def _check_transactions(options: WriteOptions, config: StreamConfig, layout: RowLayout) -> None:
    name = options.stream
    if not config.allow_atomic:
        raise SinkError(
            f"stream {name!r} takes no atomic batches: delivery=transaction needs its allow_atomic "
            "(nats-server 2.12)"
        )
    for column in _NOT_IN_BATCHES:
        if column in layout.names:
            raise SinkError(f"an atomic batch has no place for the column {column!r}")


def _check_window(options: WriteOptions, config: StreamConfig, *, warns: bool) -> None:
    window = config.duplicate_window
    seconds = window.total_seconds() if window is not None else 0.0
    if seconds >= options.expected_recovery:
        return
    text = (
        f"stream {options.stream!r} knows message ids for {seconds:g} s (its duplicate_window), and "
        f"expectedRecovery is {options.expected_recovery:g} s: what is written again after a longer "
        "outage will be there twice. Make the window longer, or use delivery=transaction or scan"
    )
    if options.on_short_window == "error":
        raise SinkError(text)
    if warns and text not in _said:
        _said.add(text)
        log.warning(text)
