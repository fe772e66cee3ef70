"""The consumers of a stream: create, read, change and delete them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..api.consumer import ConsumerConfig, ConsumerInfo, ConsumerPause, ConsumerReset
from ..durations import check_time, time_to_text
from ..subjects import check_consumer_name
from . import consumer_requests
from .api_requests import APIRequests, stream_info
from .consumer_requests import CREATE, CREATE_OR_UPDATE, UPDATE, add_push_consumer, consumer_info
from .listing import Listing
from .ordered import OrderedConsumer
from .ordered_cursor import OrderedOptions
from .pull_consumer import PullConsumer, add_pull_consumer, pull_consumer
from .server_support import require_level

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.config_fields import ConsumerConfigFields


class StreamConsumers:
    """The methods of `Stream` for its consumers."""

    def __init__(self, api: APIRequests, name: str) -> None:
        self._api = api
        self._name = name

    def create_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> PullConsumer:
        """
        Create a pull consumer.

        An existing consumer with the same config is returned unchanged. Without ``durable_name`` the
        consumer is ephemeral; without any name it gets a random one.

        Args:
            config: the config; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            ConsumerExistsError: the consumer exists with a different config.
            InvalidOptionError: config and fields are both given, a value is invalid, or
                ``deliver_subject`` is set.
            InvalidNameError, BadSubjectError: a name or subject is invalid.
            ServerTooOldError: the server does not support ``pedantic``, and nothing was sent; or it
                does not support some of the fields. The error names them. A consumer that this call
                created is deleted; an existing one is unchanged, and after an update the error states
                what was changed.
            StreamNotFoundError: the stream does not exist.
            MaxConsumersError: the stream or the account has reached its limit of consumers.
            Error: otherwise as `info()`.

        """
        return add_pull_consumer(self._api, self._name, config, fields, CREATE, pedantic)

    def update_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> PullConsumer:
        """
        Update an existing consumer.

        The config replaces the current one. Take that from `ConsumerInfo.config` and change it with
        `dataclasses.replace`. Existing `PullConsumer` objects stay valid.

        Args:
            config: the new config, with the consumer's name; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            ConsumerDoesNotExistError: there is no consumer with that name.
            InvalidOptionError: the config has no name; or as `create_consumer()`.
            APIError: the server returned an error; many fields cannot be changed.
            Error: otherwise as `create_consumer()`.

        """
        return add_pull_consumer(self._api, self._name, config, fields, UPDATE, pedantic)

    def create_or_update_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> PullConsumer:
        """
        Create a pull consumer, or update the one with that name.

        Args:
            config: the config; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            APIError: the server returned an error; many fields cannot be changed.
            Error: otherwise as `create_consumer()`.

        """
        return add_pull_consumer(self._api, self._name, config, fields, CREATE_OR_UPDATE, pedantic)

    def create_push_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> ConsumerInfo:
        """
        Create a push consumer, which delivers to a subject.

        An existing consumer with the same config is returned unchanged. Receive its messages with
        `JetStream.subscribe_bind`. Without ``durable_name``, the server deletes the consumer when its
        subject has no subscribers.

        Args:
            config: the config, with its ``deliver_subject``; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            InvalidOptionError: there is no ``deliver_subject``; or as `create_consumer()`.
            APIError: the server returned an error, for example because the subject is one of the stream's.
            Error: otherwise as `create_consumer()`.

        """
        return add_push_consumer(self._api, self._name, config, fields, CREATE, pedantic)

    def update_push_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> ConsumerInfo:
        """
        Update a push consumer; the ``deliver_subject`` can be changed as well.

        Args:
            config: the new config, with the consumer's name and its ``deliver_subject``; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            ConsumerDoesNotExistError: there is no consumer with that name.
            Error: otherwise as `create_push_consumer()`.

        """
        return add_push_consumer(self._api, self._name, config, fields, UPDATE, pedantic)

    def get_consumer(self, name: str) -> PullConsumer:
        """
        Return an existing pull consumer.

        Raises:
            ConsumerNotFoundError: there is no consumer with that name.
            StreamNotFoundError: the stream does not exist.
            ConsumerIsPushBasedError: it is a push consumer.
            InvalidNameError: the name is invalid.
            Error: otherwise as `info()`.

        """
        return pull_consumer(self._api, self._name, name)

    def consumer_info(self, name: str) -> ConsumerInfo:
        """
        Return the config and state of a consumer of any kind.

        Raises:
            Error: as `get_consumer()`, except for push consumers, which are supported.

        """
        return consumer_info(self._api, self._name, name)

    def delete_consumer(self, name: str) -> None:
        """
        Delete a consumer of any kind; threads that pull from it get `ConsumerDeletedError`.

        Raises:
            Error: as `get_consumer()`, except for push consumers, which are supported.

        """
        consumer_requests.delete_consumer(self._api, self._name, name)

    def consumer_names(self) -> list[str]:
        """
        Return the names of all consumers of the stream, sorted.

        Raises:
            StreamNotFoundError: the stream does not exist.
            APIError: the server returned an error.
            IncompleteListingError: the server counts more consumers than it names.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `info()`.

        """
        deadline = self._api.deadline()
        route = self._api.routes.to("CONSUMER.NAMES", self._name)
        names = self._api.names(route, "consumers", deadline=deadline)
        if not names:
            # A cluster sends an empty list for a stream that does not exist.
            stream_info(self._api, self._name, deadline=deadline)
        return names

    def list_consumers(self, *, allow_incomplete: bool = False) -> Listing[ConsumerInfo]:
        """
        Return the infos of all consumers of the stream, sorted by name.

        Iterating over the result raises `IncompleteListingError` at its end if the server names
        consumers whose state it does not know; see `Listing`.

        Args:
            allow_incomplete: whether the known consumers are enough; `Listing.missing` names the others.

        Raises:
            Error: as `consumer_names()`. A cluster waits 4 seconds for servers that do not reply, so
                that a shorter timeout of the context raises `TimeoutError`.

        """
        return consumer_requests.list_consumers(
            self._api, self._name, allow_incomplete=allow_incomplete
        )

    def pause_consumer(self, name: str, until: datetime) -> ConsumerPause:
        """
        Pause a consumer until a given time; needs server 2.11.

        Args:
            name: the name of the consumer.
            until: the end of the pause, with a time zone. A time in the past resumes the consumer.

        Raises:
            InvalidOptionError: the time has no time zone.
            ServerTooOldError: the server is older than 2.11; nothing was changed.
            Error: otherwise as `delete_consumer()`.

        """
        return self._pause(name, {"pause_until": time_to_text(check_time(until, "until"))})

    def resume_consumer(self, name: str) -> ConsumerPause:
        """
        Resume a paused consumer; does nothing if it is not paused. Needs server 2.11.

        Raises:
            ServerTooOldError: the server is older than 2.11; nothing was changed.
            Error: otherwise as `delete_consumer()`.

        """
        return self._pause(name, None)

    def _pause(self, name: str, body: dict[str, Any] | None) -> ConsumerPause:
        route = self._api.routes.to("CONSUMER.PAUSE", self._name, check_consumer_name(name))
        deadline = self._api.deadline()
        # Older servers do not reply at all.
        require_level(self._api, 1, "pausing a consumer", deadline)
        return self._api.ask_for(ConsumerPause, route, body, deadline)

    def reset_consumer(self, name: str, seq: int | None = None) -> ConsumerReset:
        """
        Reset a consumer of any kind; needs server 2.14 (ADR-60).

        Pending acknowledgements and redeliveries are cleared, the delivery counts start at 1, and messages
        that were delivered but not acknowledged are delivered again. Pull requests continue.

        Args:
            name: the name of the consumer.
            seq: the stream sequence to continue at, at least 1; ``None``: after the ack floor. It requires
                the deliver policy ``all``, ``by_start_sequence`` or ``by_start_time``, and must not be
                before the start of the config.

        Returns:
            The consumer in its new state, with the sequence at which it continues.

        Raises:
            ConsumerInvalidResetError: the config does not allow that sequence.
            ServerTooOldError: the server of the consumer is older than 2.14; nothing was changed.
            InvalidOptionError: the sequence is out of range.
            Error: otherwise as `delete_consumer()`.

        """
        return consumer_requests.reset_consumer(self._api, self._name, name, seq)

    def unpin_consumer(self, name: str, group: str) -> None:
        """
        Unpin the pinned client of a priority group; needs server 2.11 (ADR-42).

        If no client is pinned, nothing happens. A `PullConsumer.fetch` of the pinned client raises
        `PinIDMismatchError`; `PullConsumer.messages` and `PullConsumer.consume` send a new request.

        Args:
            name: the name of the consumer.
            group: one of the consumer's ``priority_groups``.

        Raises:
            BadRequestError: the consumer has no such group.
            ServerTooOldError: the server of the consumer is older than 2.11; nothing was changed.
            Error: otherwise as `delete_consumer()`.

        """
        consumer_requests.unpin_consumer(self._api, self._name, name, group)

    def ordered_consumer(self, **options: Unpack[OrderedOptions]) -> OrderedConsumer:
        """
        Return an ordered consumer, which delivers every message once and in order.

        Its messages are not acknowledged.

        Args:
            **options: see `OrderedOptions`.

        Raises:
            InvalidOptionError: an option is unknown or invalid.
            StreamNotFoundError, BadRequestError, TimeoutError, ConnectionClosedError: with the deliver
                policies ``new`` and ``last``, which ask the server for the position.

        """
        return OrderedConsumer(self._api, self._name, **options)
