"""The methods of `JetStream` that manage streams and their consumers."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .. import errors
from ..api.consumer import ConsumerConfig, ConsumerInfo, ConsumerPause, ConsumerReset
from ..api.stream import StreamConfig, StreamInfo
from ..codec import encode
from ..differences import explained
from ..records import shows_fields
from ..subjects import check_stream_name, check_subject
from .api_requests import (
    APIRequests,
    info_of,
    names_by_subject,
    resolve_config,
    stream_info,
    stream_infos,
)
from .listing import Listing
from .ordered import OrderedConsumer
from .ordered_cursor import OrderedOptions
from .pull_consumer import PullConsumer
from .server_support import EchoCheck, require_level
from .stream import Stream, StreamConsumers

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.config_fields import ConsumerConfigFields, StreamConfigFields


#: Timeout of the question why there is no response to a message, in seconds.
_NAMES_TIMEOUT_S: Final = 0.25


class StreamAdmin:
    """The methods of `JetStream` that manage streams and their consumers."""

    _api: APIRequests

    @shows_fields((StreamConfig, ()))
    def create_stream(
        self,
        config: StreamConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[StreamConfigFields],
    ) -> Stream:
        """
        Create a stream.

        An existing stream with the same config is returned unchanged.

        Args:
            config: the config; or
            **fields: the fields of a `StreamConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            StreamNameInUseError: the stream exists with a different config.
            StreamSubjectOverlapError: another stream has one of the subjects.
            InvalidOptionError: config and fields are both given, or a value is invalid.
            InvalidNameError, BadSubjectError: the name or a subject is invalid.
            ServerTooOldError: the server does not support ``pedantic``, and nothing was sent; or it
                does not support some of the fields, which the error names. A stream that this call created
                is deleted; an existing one is unchanged.
            Error: otherwise as `account_info()`.

        """
        chosen = resolve_config(StreamConfig, config, fields)
        try:
            info, check = self._send("CREATE", chosen, pedantic)
        except errors.StreamNameInUseError as error:
            with suppress(errors.Error):  # the server's error is shown then
                current = stream_info(self._api, chosen.name).config
                text, values = explained(current, chosen)
                error.explain(
                    f"{chosen.name!r} has {text}; update_stream() changes it", differences=values
                )
            raise
        # Messages that were published in the meantime are not deleted; those of a mirror or source are
        # copies.
        empty = bool(chosen.mirror or chosen.sources) or not info.state.messages
        is_ours = empty and check.is_new(info.created, info.ts)
        check.verify(info.config, partial(self.delete_stream, chosen.name) if is_ours else None)
        return Stream(self._api, info)

    def update_stream(
        self,
        config: StreamConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[StreamConfigFields],
    ) -> Stream:
        """
        Update an existing stream.

        The config replaces the current one. Take that from `StreamInfo.config` and change it with
        `dataclasses.replace`, so that fields of newer servers are kept. Existing `Stream` objects
        stay valid, with their old `Stream.cached_info`.

        The server does not compare the config that was read with the current one: if two programs change a
        stream at the same time, the later update undoes the other. Read the config again afterwards.

        Args:
            config: the config; or
            **fields: the fields of a `StreamConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            StreamNotFoundError: there is no stream with that name.
            StreamSubjectOverlapError: another stream has one of the subjects.
            InvalidOptionError: config and fields are both given, or a value is invalid.
            InvalidNameError, BadSubjectError: the name or a subject is invalid.
            ServerTooOldError: the server does not support ``pedantic``, and nothing was sent; or it
                does not support some of the fields. It applied the others; the error names both.
            APIError: the server returned an error; some fields cannot be changed.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `account_info()`.

        """
        chosen = resolve_config(StreamConfig, config, fields)
        info, check = self._send("UPDATE", chosen, pedantic)
        check.verify(info.config, updated=True)
        return Stream(self._api, info)

    def create_or_update_stream(
        self,
        config: StreamConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[StreamConfigFields],
    ) -> Stream:
        """
        Update a stream, or create it if it does not exist.

        Args:
            config: the config; or
            **fields: the fields of a `StreamConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            StreamNameInUseError: another client created it with a different config at the same time.
            Error: otherwise as `update_stream()`.

        """
        chosen = resolve_config(StreamConfig, config, fields)
        try:
            return self.update_stream(chosen, pedantic=pedantic)
        except errors.StreamNotFoundError:
            return self.create_stream(chosen, pedantic=pedantic)

    def _send(
        self, action: str, config: StreamConfig, pedantic: bool
    ) -> tuple[StreamInfo, EchoCheck]:
        """Create or update a stream; return its info, and the check of its config."""
        # Configs that a server sent were not checked when they were read.
        name = check_stream_name(config.name)
        body: dict[str, Any] = encode(config)
        if pedantic:
            require_level(self._api, 1, "pedantic")  # another server would ignore it
            body["pedantic"] = True
        check = EchoCheck(self._api, f"stream {name!r}", config)
        try:
            with check.request():
                route = self._api.routes.to(f"STREAM.{action}", name)
                info = info_of(self._api.ask(route, body))
        except errors.StreamSubjectOverlapError as error:
            self._name_others(error, config)
            raise
        if info.config.name != name:
            text = f"asked for stream {name!r}, got {info.config.name!r:.60}"
            raise errors.InvalidResponseError(text)
        return info, check

    def _name_others(self, error: errors.StreamSubjectOverlapError, config: StreamConfig) -> None:
        """Add the names of the streams whose subjects overlap with those of a config to the server's error."""
        others: dict[str, str] = {}
        for subject in config.subjects or [config.name]:
            with suppress(errors.Error):
                for name in names_by_subject(self._api, subject):
                    others.setdefault(name, subject)
        others.pop(config.name, None)
        if others:
            text = " and ".join(
                f"{subject!r} of stream {config.name!r} overlaps with the subjects of stream {name!r}"
                for name, subject in others.items()
            )
            error.explain(text, streams=tuple(others))

    def get_stream(self, name: str) -> Stream:
        """
        Return an existing stream.

        Raises:
            StreamNotFoundError: there is no stream with that name.
            InvalidNameError: the name is invalid.
            Error: otherwise as `account_info()`.

        """
        return Stream(self._api, stream_info(self._api, check_stream_name(name)))

    def delete_stream(self, name: str) -> None:
        """
        Delete a stream with its messages and consumers.

        Raises:
            Error: as `get_stream()`.

        """
        self._api.command(self._api.routes.to("STREAM.DELETE", check_stream_name(name)))

    def stream_names(self, subject: str | None = None) -> list[str]:
        """
        Return the names of the account's streams, sorted.

        Args:
            subject: only streams with this subject, which may have wildcards;
                ``None``: all.

        Raises:
            BadSubjectError: the subject is invalid.
            APIError: the server returned an error.
            IncompleteListingError: the server counts more streams than it names.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `account_info()`.

        """
        return self._api.names(self._api.routes.to("STREAM.NAMES"), "streams", _filter(subject))

    def list_streams(
        self, subject: str | None = None, *, allow_incomplete: bool = False
    ) -> Listing[StreamInfo]:
        """
        Return the infos of the account's streams, sorted by name.

        Iterating over the result raises `IncompleteListingError` at its end if the server names streams
        whose state it does not know; see `Listing`.

        Args:
            subject: only streams with this subject, which may have wildcards;
                ``None``: all.
            allow_incomplete: whether the known streams are enough; `Listing.missing` names the others.

        Raises:
            Error: as `stream_names()`. A cluster waits 4 seconds for servers that do not reply, so that
                a shorter timeout of the context raises `TimeoutError`.

        """
        return stream_infos(self._api, _filter(subject), allow_incomplete=allow_incomplete)

    def find_stream_name_by_subject(self, subject: str) -> str:
        """
        Return the name of the stream that stores a subject.

        Args:
            subject: the subject, which may have wildcards; if several streams match, the first by name is
                returned.

        Raises:
            StreamNotFoundError: there is no such stream.
            Error: otherwise as `stream_names()`.

        """
        return names_by_subject(self._api, check_subject(subject))[0]

    # --- the consumers of a stream ----------------------------------------------------------------

    # Each method works as the method of `Stream` with the same name, which describes the arguments and errors. An
    # invalid name of the stream raises `InvalidNameError`.

    def _on(self, stream_name: str) -> StreamConsumers:
        return StreamConsumers(self._api, check_stream_name(stream_name))

    @shows_fields((ConsumerConfig, ()))
    def create_consumer(
        self,
        stream_name: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> PullConsumer:
        """Create a pull consumer; see `Stream.create_consumer`."""
        return self._on(stream_name).create_consumer(config, pedantic=pedantic, **fields)

    def update_consumer(
        self,
        stream_name: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> PullConsumer:
        """Update an existing pull consumer; see `Stream.update_consumer`."""
        return self._on(stream_name).update_consumer(config, pedantic=pedantic, **fields)

    def create_or_update_consumer(
        self,
        stream_name: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> PullConsumer:
        """Create a pull consumer, or update the one with that name; see `Stream.create_or_update_consumer`."""
        return self._on(stream_name).create_or_update_consumer(config, pedantic=pedantic, **fields)

    def create_push_consumer(
        self,
        stream_name: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> ConsumerInfo:
        """Create a push consumer; see `Stream.create_push_consumer`."""
        return self._on(stream_name).create_push_consumer(config, pedantic=pedantic, **fields)

    def update_push_consumer(
        self,
        stream_name: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> ConsumerInfo:
        """Update a push consumer; see `Stream.update_push_consumer`."""
        return self._on(stream_name).update_push_consumer(config, pedantic=pedantic, **fields)

    def get_consumer(self, stream_name: str, name: str) -> PullConsumer:
        """Return an existing pull consumer; see `Stream.get_consumer`."""
        return self._on(stream_name).get_consumer(name)

    def consumer_info(self, stream_name: str, name: str) -> ConsumerInfo:
        """Return the config and state of a consumer of any kind; see `Stream.consumer_info`."""
        return self._on(stream_name).consumer_info(name)

    def delete_consumer(self, stream_name: str, name: str) -> None:
        """Delete a consumer of any kind; threads that pull from it get `ConsumerDeletedError`; see `Stream.delete_consumer`."""
        self._on(stream_name).delete_consumer(name)

    def consumer_names(self, stream_name: str) -> list[str]:
        """Return the names of all consumers of a stream, sorted; see `Stream.consumer_names`."""
        return self._on(stream_name).consumer_names()

    def list_consumers(
        self, stream_name: str, *, allow_incomplete: bool = False
    ) -> Listing[ConsumerInfo]:
        """Return the infos of all consumers of a stream, sorted by name; see `Stream.list_consumers`."""
        return self._on(stream_name).list_consumers(allow_incomplete=allow_incomplete)

    def pause_consumer(self, stream_name: str, name: str, until: datetime) -> ConsumerPause:
        """Pause a consumer until a given time; needs server 2.11; see `Stream.pause_consumer`."""
        return self._on(stream_name).pause_consumer(name, until)

    def resume_consumer(self, stream_name: str, name: str) -> ConsumerPause:
        """Resume a paused consumer; needs server 2.11; see `Stream.resume_consumer`."""
        return self._on(stream_name).resume_consumer(name)

    def reset_consumer(self, stream_name: str, name: str, seq: int | None = None) -> ConsumerReset:
        """Reset a consumer of any kind; needs server 2.14 (ADR-60); see `Stream.reset_consumer`."""
        return self._on(stream_name).reset_consumer(name, seq)

    def unpin_consumer(self, stream_name: str, name: str, group: str) -> None:
        """Unpin the pinned client of a priority group; needs server 2.11 (ADR-42); see `Stream.unpin_consumer`."""
        self._on(stream_name).unpin_consumer(name, group)

    def ordered_consumer(
        self, stream_name: str, **options: Unpack[OrderedOptions]
    ) -> OrderedConsumer:
        """Return an ordered consumer of a stream; see `Stream.ordered_consumer`."""
        return self._on(stream_name).ordered_consumer(**options)


def _filter(subject: str | None) -> dict[str, str]:
    return {} if subject is None else {"subject": check_subject(subject)}
