"""
Every subject of the JetStream API, named.

A `Routes` knows the prefix, so that a domain (ADR-19) or an import under another prefix is honoured
everywhere. The subjects are nats-server's (``server/jetstream_api.go``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import InvalidOptionError
from ..subjects import check_publish_subject, check_stream_name

__all__ = ["DEFAULT_PREFIX", "Routes"]

#: Where the API is when neither a domain nor a prefix is given.
DEFAULT_PREFIX: Final = "$JS.API"


@dataclass(frozen=True, slots=True)
class Routes:
    """The API's subjects under one prefix, without the final dot."""

    prefix: str = DEFAULT_PREFIX

    @classmethod
    def of(cls, domain: str | None = None, prefix: str | None = None) -> Routes:
        """
        Return the routes for a domain or a prefix.

        Args:
            domain: a JetStream domain; its API is at ``$JS.<domain>.API``.
            prefix: another place for the API, as an account import makes it.

        Raises:
            InvalidOptionError: both are given, or one is not well formed.

        """
        if domain is not None and prefix is not None:
            raise InvalidOptionError("prefix", prefix, f"excludes domain={domain!r}")
        try:
            if domain is not None:
                return cls(f"$JS.{check_stream_name(domain)}.API")
            if prefix is not None:
                return cls(check_publish_subject(prefix.rstrip(".")))
        except ValueError as error:
            option = "domain" if domain is not None else "prefix"
            raise InvalidOptionError(option, domain or prefix, str(error)) from None
        return cls()

    # --- the account ----------------------------------------------------------------------------

    def account_info(self) -> str:
        """Usage and limits of the account."""
        return f"{self.prefix}.INFO"

    # --- streams --------------------------------------------------------------------------------

    def stream_create(self, stream: str) -> str:
        """Create a stream; the body is its config."""
        return f"{self.prefix}.STREAM.CREATE.{stream}"

    def stream_update(self, stream: str) -> str:
        """Change a stream's config."""
        return f"{self.prefix}.STREAM.UPDATE.{stream}"

    def stream_info(self, stream: str) -> str:
        """Config and state of a stream."""
        return f"{self.prefix}.STREAM.INFO.{stream}"

    def stream_delete(self, stream: str) -> str:
        """Delete a stream with all that is in it."""
        return f"{self.prefix}.STREAM.DELETE.{stream}"

    def stream_purge(self, stream: str) -> str:
        """Delete messages of a stream, all or some."""
        return f"{self.prefix}.STREAM.PURGE.{stream}"

    def stream_names(self) -> str:
        """The names of the streams, a page at a time."""
        return f"{self.prefix}.STREAM.NAMES"

    def stream_list(self) -> str:
        """The infos of the streams, a page at a time."""
        return f"{self.prefix}.STREAM.LIST"

    def stream_snapshot(self, stream: str) -> str:
        """Have a stream's data sent to a subject."""
        return f"{self.prefix}.STREAM.SNAPSHOT.{stream}"

    def stream_restore(self, stream: str) -> str:
        """Make a stream of such data, which goes to a subject that the answer names."""
        return f"{self.prefix}.STREAM.RESTORE.{stream}"

    def msg_get(self, stream: str) -> str:
        """Get one message, answered by the stream's leader."""
        return f"{self.prefix}.STREAM.MSG.GET.{stream}"

    def msg_delete(self, stream: str) -> str:
        """Delete one message."""
        return f"{self.prefix}.STREAM.MSG.DELETE.{stream}"

    def direct_get(self, stream: str) -> str:
        """Get one message from any replica (ADR-31)."""
        return f"{self.prefix}.DIRECT.GET.{stream}"

    def direct_get_last(self, stream: str, subject: str) -> str:
        """Get the last message of a subject from any replica (ADR-31)."""
        return f"{self.prefix}.DIRECT.GET.{stream}.{subject}"

    # --- consumers ------------------------------------------------------------------------------

    def consumer_create(self, stream: str, consumer: str, filter_subject: str | None) -> str:
        """
        Create or change a consumer.

        A single filter subject is part of the route, so that permissions can be given by filter;
        several are not.
        """
        if filter_subject:
            return f"{self.prefix}.CONSUMER.CREATE.{stream}.{consumer}.{filter_subject}"
        return f"{self.prefix}.CONSUMER.CREATE.{stream}.{consumer}"

    def consumer_info(self, stream: str, consumer: str) -> str:
        """Config and state of a consumer."""
        return f"{self.prefix}.CONSUMER.INFO.{stream}.{consumer}"

    def consumer_delete(self, stream: str, consumer: str) -> str:
        """Delete a consumer."""
        return f"{self.prefix}.CONSUMER.DELETE.{stream}.{consumer}"

    def consumer_pause(self, stream: str, consumer: str) -> str:
        """Pause a consumer until a time, or resume it."""
        return f"{self.prefix}.CONSUMER.PAUSE.{stream}.{consumer}"

    def consumer_reset(self, stream: str, consumer: str) -> str:
        """Let a consumer start over; it answers itself."""
        return f"{self.prefix}.CONSUMER.RESET.{stream}.{consumer}"

    def consumer_unpin(self, stream: str, consumer: str) -> str:
        """Take the pin of a priority group from the client that has it."""
        return f"{self.prefix}.CONSUMER.UNPIN.{stream}.{consumer}"

    def consumer_names(self, stream: str) -> str:
        """The names of a stream's consumers, a page at a time."""
        return f"{self.prefix}.CONSUMER.NAMES.{stream}"

    def consumer_list(self, stream: str) -> str:
        """The infos of a stream's consumers, a page at a time."""
        return f"{self.prefix}.CONSUMER.LIST.{stream}"

    def next_msg(self, stream: str, consumer: str) -> str:
        """Pull messages."""
        return f"{self.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
