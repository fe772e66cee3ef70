"""
Many messages of a stream with one request: direct gets in batches (ADR-31), of nats-server 2.11 and later.

Any replica may answer, as for a single direct get. Older servers do not know of batches, and answer with
one message; for streams without ``allow_direct`` nobody answers. Then messages are to be got one by one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from ... import StoredMsg
from ...api.routes import Routes
from ...codec import dumps
from ...errors import MessageNotFoundError, TimeoutError
from ...headers import SEQUENCE, STREAM, SUBJECT, TIMESTAMP, Headers
from ...nanos import time_from_text
from ...net.clock import Deadline
from ..waiting import in_slices

if TYPE_CHECKING:
    from ... import Connection, Msg, Stream
    from ..settings import Settings

__all__ = ["Batches"]

#: Messages and bytes of one answer; it ends with the message that reaches one of them.
_MOST: Final = 500
_BYTES: Final = 1_000_000
#: Seconds for the first message, before they are asked for one by one: who has the stream may be down.
_PATIENCE: Final = 1.0
#: What only members of a batch have: how many are to come.
_PENDING: Final = "Nats-Num-Pending"
#: The status of an answer without any message.
_NOT_FOUND: Final = 404
#: What the server adds to the headers of each.
_ADDED: Final = (STREAM, SUBJECT, SEQUENCE, TIMESTAMP, _PENDING, "Nats-Last-Sequence")


class Batches:
    """
    Asks for many messages of a stream at a time.

    Args:
        settings: has the domain or the prefix, and how long to wait.
        nc: the connection.
        stream: which one.

    """

    def __init__(self, settings: Settings, nc: Connection, stream: Stream) -> None:
        login = settings.login()
        self._nc = nc
        self._route = Routes.of(login.domain, login.api_prefix).direct_get(stream.name)
        self._timeout = settings.timeout
        #: Whether there is anybody who answers.
        self._possible = bool(stream.cached_info.config.allow_direct)

    def get(self, seq: int, subject: str, most: int | None) -> list[StoredMsg]:
        """
        Return the messages from a sequence on, one at least; nothing: they have to be got one by one.

        Args:
            seq: where to start.
            subject: only messages of it, which may have wildcards.
            most: how many are wanted; ``None``: as many as one answer has.

        Raises:
            MessageNotFoundError: there is none.
            ConnectionClosedError: the connection is closed.

        """
        found: list[StoredMsg] = []
        if not self._possible:
            return found
        body: dict[str, Any] = {"seq": seq, "next_by_subj": subject, "max_bytes": _BYTES}
        body["batch"] = _MOST if most is None else min(most, _MOST)
        inbox = self._nc.new_inbox()
        patience = min(self._timeout, _PATIENCE)
        with self._nc.subscribe(inbox) as answers, contextlib.suppress(TimeoutError):
            self._nc.publish(self._route, dumps(body), inbox)
            while (msg := in_slices(answers.next_msg, Deadline(patience))).status is None:
                if msg.headers is None or _PENDING not in msg.headers:
                    break  # a single message, of an older server
                found.append(_stored(msg, msg.headers))
                patience = self._timeout
            if not found and msg.status is not None and msg.status.code == _NOT_FOUND:
                raise MessageNotFoundError(_NOT_FOUND, 10037, "no message found")
        self._possible = bool(found)
        return found


def _stored(msg: Msg, headers: Headers) -> StoredMsg:
    """Return a message of an answer, without what the server added to its headers."""
    added = {}
    for name in _ADDED:
        # One that was republished has such headers of its own, before those of the server.
        *own, added[name] = headers.get_all(name)
        del headers[name]
        for value in own:
            headers.add(name, value)
    return StoredMsg(
        added[STREAM],
        added[SUBJECT],
        int(added[SEQUENCE]),
        msg.data,
        headers or None,
        time_from_text(added[TIMESTAMP]),
    )
