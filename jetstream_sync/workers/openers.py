"""What workers and senders of calls open at its first use and change: streams and buckets that may be deleted at any time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from .. import KeyValueConfig, StreamConfig, errors
from ..subjects import KV_PREFIX

if TYPE_CHECKING:
    from .. import Connection, KeyValue, Stream

T = TypeVar("T")
R = TypeVar("R")
Resource = StreamConfig | KeyValueConfig
#: Creates what is missing of some streams and buckets, unless the worker must not.
Creator: TypeAlias = "Callable[[Connection, Sequence[Resource]], object]"


class Opener(Generic[T]):
    """
    Opens a stream or bucket of workers: for the first use of a connection, and again after it was deleted.

    Args:
        connection: returns the connection of this process; a forked process has another one.
        read: returns what is opened on a connection; raises `StreamNotFoundError` if it is missing.
        create: creates it, and perhaps more that is missing, unless the worker must not.

    """

    def __init__(
        self,
        connection: Callable[[], Connection],
        read: Callable[[Connection], T],
        create: Callable[[Connection], object] = lambda _nc: None,
    ) -> None:
        self._connection = connection
        self._create = create
        self._read = read
        self._opened: tuple[Connection, T] | None = None

    @property
    def is_open(self) -> bool:
        """Whether `open` makes no request."""
        return self._opened is not None and self._opened[0] is self._connection()

    def open(self) -> T:
        """Return what is opened; create it if it is missing."""
        nc = self._connection()
        opened = self._opened
        if opened is None or opened[0] is not nc:
            try:
                found = self._read(nc)
            except errors.StreamNotFoundError:
                self._create(nc)
                found = self._read(nc)
            opened = self._opened = nc, found
        return opened[1]

    def use(self, action: Callable[[T], R]) -> R:
        """Return what an action returns; if the stream was deleted, repeat the action once."""
        try:
            return action(self.open())
        except (errors.NoStreamResponseError, errors.StreamNotFoundError):
            self._opened = None
            return action(self.open())


BucketOpener: TypeAlias = "Opener[tuple[KeyValue, Stream]]"


def bucket_opener(
    connection: Callable[[], Connection],
    name: str,
    create: Callable[[Connection], object],
    timeout: float = 5.0,
) -> BucketOpener:
    """Return what opens a bucket and its stream; ``timeout``: of each request, in seconds."""

    def read(nc: Connection) -> tuple[KeyValue, Stream]:
        js = nc.jetstream(timeout=timeout)
        return js.key_value(name), js.get_stream(f"{KV_PREFIX}{name}")

    return Opener(connection, read, create)


def has_schedules(nc: Connection) -> bool:
    """Return whether the server publishes messages at a time (2.12)."""
    version = [int(number) for number in re.findall(r"\d+", nc.server_info.version)]
    return version[:2] >= [2, 12]


def delete_on_subject(stream: Stream, subject: str) -> bool:
    """Delete the messages of a subject; return whether there were any."""
    # Not with a purge: the server would forget other messages that a consumer has delivered.
    found = False
    with suppress(errors.MessageNotFoundError):
        while True:
            message = stream.get_msg(last_by_subject=subject, consistent=True)
            if message.subject != subject:
                return found  # another client has published under a pattern, which selects other messages
            with suppress(errors.MessageNotFoundError):  # it was acknowledged meanwhile
                stream.delete_msg(message.seq)
                found = True
    return found
