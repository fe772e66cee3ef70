"""The subjects of the JetStream API."""

# `Routes` adds the prefix of a domain (ADR-19) or of an account import to every subject. The subjects are nats-server's (server/jetstream_api.go).

from __future__ import annotations

from typing import Final

from .. import errors
from ..records import Frozen, frozen
from ..subjects import API_PREFIX, MAX_CONTROL_LINE, check_publish_subject, check_stream_name

#: The API prefix without a domain or a custom prefix.
DEFAULT_PREFIX: Final = API_PREFIX
#: Length in bytes up to which the subject of a request always fits into a command, with headers, payload
#: and the reply inbox of any usual length.
MAX_REQUEST_SUBJECT: Final = MAX_CONTROL_LINE - 256
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


def fits_request(subject: str) -> bool:
    """Return whether a subject is within `MAX_REQUEST_SUBJECT`."""
    # Without encoding: a character has at most four bytes.
    limit = MAX_REQUEST_SUBJECT
    return 4 * len(subject) <= limit or len(subject.encode("utf-8", "surrogatepass")) <= limit


@frozen()
class Routes(Frozen):
    """The API's subjects under one prefix, without the final dot."""

    prefix: str = DEFAULT_PREFIX

    @classmethod
    def of(cls, domain: str | None = None, prefix: str | None = None) -> Routes:
        """Return the routes for a domain or a prefix."""
        if domain is not None and prefix is not None:
            raise errors.InvalidOptionError(
                "prefix", prefix, f"cannot be combined with domain={domain!r}"
            )
        try:
            if domain is not None:
                return cls(f"$JS.{check_stream_name(domain)}.API")
            if prefix is not None:
                return cls(check_publish_subject(prefix.rstrip(".")))
        except ValueError as error:
            option = "domain" if domain is not None else "prefix"
            raise errors.InvalidOptionError(option, domain or prefix, str(error)) from None
        return cls()

    @property
    def imported(self) -> bool:
        """Whether an account import defines the prefix, which is not the default or a domain's."""
        return not (self.prefix.startswith("$JS.") and self.prefix.endswith(".API"))

    def is_reading(self, route: str) -> bool:
        """Return whether a request to one of these subjects changes nothing, so that it can be repeated."""
        return route[len(self.prefix) + 1 :].startswith(_READING)

    def to(self, action: str, *names: str) -> str:
        """Return the subject of a request: ``STREAM.INFO`` and the name of the stream, for example."""
        return ".".join((self.prefix, action, *names))

    def direct_get_last(self, stream: str, subject: str) -> str | None:
        """Get the last message of a subject from any replica (ADR-31); ``None``: it is too long for that."""
        route = f"{self.prefix}.DIRECT.GET.{stream}.{subject}"
        return route if fits_request(route) else None

    def consumer_create(self, stream: str, consumer: str, filter_subject: str | None) -> str:
        """Create or change a consumer."""
        # A single filter subject is part of the subject, so that permissions can depend on it;
        # several filters are not, and neither is one that is too long for that.
        route = f"{self.prefix}.CONSUMER.CREATE.{stream}.{consumer}"
        filtered = f"{route}.{filter_subject}"
        return filtered if filter_subject and fits_request(filtered) else route
