"""What services and their clients exchange (ADR-32): records, subjects, names and error headers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from .. import errors
from ..client.core import ConnectionCore
from ..client.message import Msg
from ..client.replies import ReplyIterator
from ..codec import Record, decode, encodable, loads
from ..exact import exact
from ..net.clock import Deadline
from ..records import record
from ..subjects import SERVICES_PREFIX

#: The root of the subjects that services answer on.
DEFAULT_PREFIX: Final = SERVICES_PREFIX
#: The headers of an error reply.
ERROR_HEADER: Final = "Nats-Service-Error"
ERROR_CODE_HEADER: Final = "Nats-Service-Error-Code"

_NAME: Final = r"[A-Za-z0-9_-]+"
# The regular expression of semver.org.
_VERSION: Final = (
    r"(?a)(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?"
)


@record
class EndpointInfo(Record):
    """An endpoint of a service."""

    name: str
    """The name."""

    subject: str
    """The subject of its requests."""

    queue_group: str | None = None
    """The queue group, whose members share the requests; not set: every instance gets each request."""

    metadata: Mapping[str, str] | None = None
    """The metadata of the endpoint."""


@record
class EndpointStats(Record):
    """Statistics of an endpoint, since the start of the service or the last reset."""

    name: str
    """The name."""

    subject: str
    """The subject of its requests."""

    queue_group: str | None = None
    """The queue group; not set: none."""

    num_requests: int
    """Number of requests handled, including those refused because the endpoint was overloaded."""

    num_errors: int
    """Number of requests that were answered with an error."""

    last_error: str | None = None
    """Code and text of the last error, or the text of the handler's exception; empty: none."""

    processing_time: timedelta = timedelta(0)
    """Time spent in the handler."""

    average_processing_time: timedelta = timedelta(0)
    """Time spent in the handler per request; 0 without requests."""

    @property
    def data(self) -> Any:
        """The result of the service's ``stats_handler``, as decoded JSON."""
        return self.extra.get("data")


@record
class ServicePing(Record):
    """The identity of a service instance, which is its reply to a ping."""

    type: str = "io.nats.micro.v1.ping_response"
    """The type of the reply."""

    name: str
    """The name of the service, which all its instances share."""

    id: str
    """The unique id of the instance."""

    version: str
    """The version of the service."""

    metadata: Mapping[str, str] | None = None
    """The metadata of the service."""


@record
class ServiceInfo(ServicePing):
    """The description of a service instance."""

    type: str = "io.nats.micro.v1.info_response"
    """The type of the reply."""

    description: str | None = None
    """What the service does."""

    endpoints: Sequence[EndpointInfo] | None = None
    """Its endpoints."""


@record
class ServiceStats(ServicePing):
    """The statistics of a service instance."""

    type: str = "io.nats.micro.v1.stats_response"
    """The type of the reply."""

    started: datetime
    """When the service was started, or its statistics were reset."""

    endpoints: Sequence[EndpointStats] | None = None
    """Statistics of its endpoints."""


R = TypeVar("R", bound=ServicePing)


def check_service_name(name: str, kind: str = "service") -> str:
    """Return the name of a service or an endpoint; raise `InvalidNameError` if it is invalid."""
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        raise errors.InvalidNameError(
            kind, str(name), "must consist of letters, digits, '-' and '_', and must not be empty"
        )
    return exact(name)


def check_version(version: str) -> str:
    """Return the version of a service; raise `InvalidOptionError` if it is not a semantic version."""
    if not isinstance(version, str) or not re.fullmatch(_VERSION, version):
        raise errors.InvalidOptionError(
            "version", version, "must be a semantic version, such as '1.0.0'"
        )
    return exact(version)


def check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return a copy of metadata, ``None`` as empty; raise `InvalidOptionError` unless it maps texts to texts."""
    given = {} if metadata is None else metadata
    if not isinstance(given, Mapping):
        raise errors.InvalidOptionError("metadata", metadata, "must be a mapping of str to str")
    return {
        check_text("metadata", key): check_text("metadata", value) for key, value in given.items()
    }


def check_text(option: str, text: str) -> str:
    """Return a text of a description; raise `InvalidOptionError` if JSON cannot represent it."""
    plain = exact(text)
    if type(plain) is not str or encodable(plain) != plain:
        raise errors.InvalidOptionError(option, text, "must be a str without surrogates")
    return plain


def verb_subject(prefix: str, verb: str, *scope: str | None) -> str:
    """Return the subject of a verb for all services, for those of a name, or for a name and an id."""
    return ".".join(filter(None, (prefix, verb, *scope)))


def discover(
    core: ConnectionCore,
    cls: type[R],
    verb: str,
    name: str | None,
    instance: str | None,
    timeout: float | timedelta,
    stall: float | timedelta | None,
    prefix: str,
) -> list[R]:
    """Return the replies of service instances to a verb; see `Connection.service_ping`."""
    # A malformed reply is reported to ``error_cb``, so that one instance cannot hide the others. Without others
    # it is raised: an empty list says that there is no service.
    if name is not None:
        check_service_name(name)
    elif instance is not None:
        raise errors.InvalidOptionError("id", instance, "needs the name of the service")
    if instance is not None and not (isinstance(instance, str) and re.fullmatch(_NAME, instance)):
        raise errors.InvalidOptionError("id", instance, "must be the id of a service instance")
    found: list[R] = []
    failed: errors.Error | None = None
    subject = verb_subject(prefix, verb, name, instance)
    deadline = Deadline(timeout)
    core.flush(deadline)  # a server that is silent or lost says nothing about services
    reconnects = core.reconnects
    with ReplyIterator(core, subject, b"", deadline.left(), stall, None, None, None) as replies:
        try:
            for reply in replies:
                try:
                    found.append(decode(cls, loads(raise_for_error(reply).data)))
                except (errors.InvalidResponseError, errors.ServiceError) as error:
                    core.events.error(error)
                    failed = error
        except errors.NoRespondersError:
            return []
    if core.address is None or core.reconnects != reconnects:
        raise errors.ConnectionLostError("the connection was lost before all services replied")
    if failed is not None and not found:
        raise failed
    return sorted(found, key=lambda item: (item.name, item.id))


def raise_for_error(msg: Msg) -> Msg:
    """
    Return a reply of a service, or raise its error.

    Args:
        msg: the reply to a request.

    Raises:
        ServiceError: the reply is an error reply.

    """
    headers = msg.headers
    if headers and (ERROR_HEADER in headers or ERROR_CODE_HEADER in headers):
        code = headers.get(ERROR_CODE_HEADER, "")
        number = int(code) if re.fullmatch("[0-9]{1,9}", code) else 500
        raise errors.ServiceError(number, headers.get(ERROR_HEADER, ""), msg.data)
    return msg
