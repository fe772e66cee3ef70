"""What everything that is bound to one consumer can say of it."""

from __future__ import annotations

from datetime import timedelta

from ..api.consumer import ConsumerInfo
from ..net.clock import Deadline
from ..subjects import check_consumer_name, check_stream_name
from .api_requests import APIRequests

__all__ = ["ConsumerAccessors", "consumer_info"]


def consumer_info(
    api: APIRequests, stream: str, name: str, deadline: Deadline | None = None
) -> ConsumerInfo:
    """
    Ask for a consumer's config and state.

    Args:
        api: where to ask.
        stream: the stream's name.
        name: the consumer's.
        deadline: when to give up; ``None``: after the usual time.

    Raises:
        InvalidNameError: a name can not be one.
        StreamNotFoundError, ConsumerNotFoundError: it is not there.
        APIError, TimeoutError, ConnectionClosedError: as `APIRequests.ask()`.

    """
    check_stream_name(stream)
    check_consumer_name(name)
    return api.ask_for(ConsumerInfo, api.routes.consumer_info(stream, name), deadline=deadline)


class ConsumerAccessors:
    """The part of a subscription that knows its consumer."""

    _api: APIRequests
    _stream: str
    _consumer: str

    @property
    def stream_name(self) -> str:
        """The name of the stream."""
        return self._stream

    @property
    def consumer_name(self) -> str:
        """The name of the consumer."""
        return self._consumer

    def consumer_info(self, timeout: float | timedelta | None = None) -> ConsumerInfo:
        """
        Ask the server for the consumer's config and state.

        Args:
            timeout: in seconds; ``None``: that of the JetStream context.

        Raises:
            ConsumerNotFoundError, StreamNotFoundError: it is gone.
            TimeoutError: no answer in time.
            ConnectionClosedError: the connection is closed.

        """
        deadline = self._api.deadline(timeout)
        return consumer_info(self._api, self._stream, self.consumer_name, deadline)
