"""The subjects of the JetStream API."""

# `Routes` adds the prefix of a domain (ADR-19) or of an account import to every subject. The subjects are nats-server's (server/jetstream_api.go).

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import InvalidOptionError
from ..subjects import check_publish_subject, check_stream_name, fits_request

#: The API prefix without a domain or a custom prefix.
DEFAULT_PREFIX: Final = "$JS.API"
#: How the subjects of requests that change nothing begin, after the prefix.
_READING: Final = (
    "INFO",
    "STREAM.INFO.",
    "STREAM.LIST",
    "STREAM.MSG.GET.",
    "STREAM.NAMES",
    "CONSUMER.INFO.",
    "CONSUMER.LIST.",
    "CONSUMER.NAMES.",
)


@dataclass(frozen=True, slots=True)
class Routes:
    """The API's subjects under one prefix, without the final dot."""

    prefix: str = DEFAULT_PREFIX

    @classmethod
    def of(cls, domain: str | None = None, prefix: str | None = None) -> Routes:
        """Return the routes for a domain or a prefix."""
        if domain is not None and prefix is not None:
            raise InvalidOptionError("prefix", prefix, f"cannot be combined with domain={domain!r}")
        try:
            if domain is not None:
                return cls(f"$JS.{check_stream_name(domain)}.API")
            if prefix is not None:
                return cls(check_publish_subject(prefix.rstrip(".")))
        except ValueError as error:
            option = "domain" if domain is not None else "prefix"
            raise InvalidOptionError(option, domain or prefix, str(error)) from None
        return cls()

    @property
    def imported(self) -> bool:
        """Whether an account import defines the prefix, which is not the default or a domain's."""
        return not (self.prefix.startswith("$JS.") and self.prefix.endswith(".API"))

    def is_reading(self, route: str) -> bool:
        """Return whether a request to one of these subjects changes nothing, so that it can be repeated."""
        return route[len(self.prefix) + 1 :].startswith(_READING)

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
        """Delete a stream and its messages and consumers."""
        return f"{self.prefix}.STREAM.DELETE.{stream}"

    def stream_purge(self, stream: str) -> str:
        """Delete messages of a stream, all or some."""
        return f"{self.prefix}.STREAM.PURGE.{stream}"

    def stream_step_down(self, stream: str) -> str:
        """Elect another leader of a stream."""
        return f"{self.prefix}.STREAM.LEADER.STEPDOWN.{stream}"

    def stream_remove_peer(self, stream: str) -> str:
        """Move the replica of a stream from a server to another one."""
        return f"{self.prefix}.STREAM.PEER.REMOVE.{stream}"

    def stream_names(self) -> str:
        """The names of the streams, a page at a time."""
        return f"{self.prefix}.STREAM.NAMES"

    def stream_list(self) -> str:
        """The infos of the streams, a page at a time."""
        return f"{self.prefix}.STREAM.LIST"

    def stream_snapshot(self, stream: str) -> str:
        """Send a snapshot of a stream to a subject."""
        return f"{self.prefix}.STREAM.SNAPSHOT.{stream}"

    def stream_restore(self, stream: str) -> str:
        """Restore a stream from a snapshot, which is sent to the subject in the response."""
        return f"{self.prefix}.STREAM.RESTORE.{stream}"

    def msg_get(self, stream: str) -> str:
        """Get one message from the stream's leader."""
        return f"{self.prefix}.STREAM.MSG.GET.{stream}"

    def msg_delete(self, stream: str) -> str:
        """Delete one message."""
        return f"{self.prefix}.STREAM.MSG.DELETE.{stream}"

    def direct_get(self, stream: str) -> str:
        """Get one message from any replica (ADR-31)."""
        return f"{self.prefix}.DIRECT.GET.{stream}"

    def direct_get_last(self, stream: str, subject: str) -> str | None:
        """Get the last message of a subject from any replica (ADR-31); ``None``: it is too long for that."""
        route = f"{self.prefix}.DIRECT.GET.{stream}.{subject}"
        return route if fits_request(route) else None

    # --- consumers ------------------------------------------------------------------------------

    def consumer_create(self, stream: str, consumer: str, filter_subject: str | None) -> str:
        """Create or change a consumer."""
        # A single filter subject is part of the subject, so that permissions can depend on it;
        # several filters are not, and neither is one that is too long for that.
        route = f"{self.prefix}.CONSUMER.CREATE.{stream}.{consumer}"
        filtered = f"{route}.{filter_subject}"
        return filtered if filter_subject and fits_request(filtered) else route

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
        """Reset a consumer."""
        return f"{self.prefix}.CONSUMER.RESET.{stream}.{consumer}"

    def consumer_unpin(self, stream: str, consumer: str) -> str:
        """Unpin the pinned client of a priority group."""
        return f"{self.prefix}.CONSUMER.UNPIN.{stream}.{consumer}"

    def consumer_step_down(self, stream: str, consumer: str) -> str:
        """Elect another leader of a consumer."""
        return f"{self.prefix}.CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}"

    def consumer_names(self, stream: str) -> str:
        """The names of a stream's consumers, a page at a time."""
        return f"{self.prefix}.CONSUMER.NAMES.{stream}"

    def consumer_list(self, stream: str) -> str:
        """The infos of a stream's consumers, a page at a time."""
        return f"{self.prefix}.CONSUMER.LIST.{stream}"

    def next_msg(self, stream: str, consumer: str) -> str:
        """Pull messages."""
        return f"{self.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
