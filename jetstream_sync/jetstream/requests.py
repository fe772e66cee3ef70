"""Ask the JetStream API, and read what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from ..api.routes import Routes
from ..client.core import Core
from ..codec import Record, decode, dumps, loads
from ..errors import APIError, InvalidResponseError, JetStreamNotEnabledError, NoRespondersError
from ..net.clock import Deadline

__all__ = ["APIRequests"]

R = TypeVar("R", bound=Record)

# What nats-server says where JetStream is off. Nobody answers there at all, so this is said for it.
_NOT_ENABLED: Final = JetStreamNotEnabledError(503, 10076, "JetStream is not enabled here")


class APIRequests:
    """
    Requests to the JetStream API.

    Args:
        core: the connection.
        routes: where the API is.
        timeout: seconds to wait for an answer where a call names none; ``None``: for ever.
        ends_with_link: give a request up with `ConnectionLostError` when the link breaks, for a
            caller that then asks again.

    Any thread may call its methods.
    """

    def __init__(
        self,
        core: Core,
        routes: Routes,
        timeout: float | timedelta | None,
        *,
        ends_with_link: bool = False,
    ) -> None:
        self.core = core
        self.routes = routes
        self.timeout = timeout
        self._ends_with_link = ends_with_link

    def ending_with_link(self) -> APIRequests:
        """Return the same, whose requests are given up when the link breaks."""
        return APIRequests(self.core, self.routes, self.timeout, ends_with_link=True)

    def deadline(self, timeout: float | timedelta | None = None) -> Deadline:
        """Return the deadline of a call that starts now; ``None``: after the usual time."""
        return Deadline(self.timeout if timeout is None else timeout)

    def ask(
        self, route: str, body: Mapping[str, Any] | None = None, deadline: Deadline | None = None
    ) -> dict[str, Any]:
        """
        Send a request and return the decoded answer.

        Args:
            route: the subject, of `Routes`.
            body: sent as JSON; ``None``: an empty request.
            deadline: when to give up; ``None``: after the usual time.

        Raises:
            APIError: the server refused; the class says why.
            JetStreamNotEnabledError: nobody answers there.
            InvalidResponseError: the answer is not what the API gives.
            PermissionsError: this user may not ask that, or may not have answers.
            TimeoutError: no answer in time.
            ConnectionClosedError: the connection is closed.

        """
        payload = b"" if body is None else dumps(body)
        try:
            # As bytes it is not checked as a subject to publish to: the filter in a consumer's route
            # may have wildcards. What goes into a route was checked before.
            delivery = self.core.request(
                route.encode(),
                payload,
                deadline or self.deadline(),
                ends_with_link=self._ends_with_link,
            )
        except NoRespondersError as error:
            raise JetStreamNotEnabledError(*_NOT_ENABLED.args) from error
        answer = loads(delivery[3])
        if not isinstance(answer, dict):
            raise InvalidResponseError(f"{route} answered something that is not an object")
        refusal = answer.get("error")
        if isinstance(refusal, dict):
            raise APIError.from_response(refusal)
        return answer

    def ask_for(
        self,
        record: type[R],
        route: str,
        body: Mapping[str, Any] | None = None,
        deadline: Deadline | None = None,
    ) -> R:
        """Send a request and return the answer as a record; raises as `ask()`."""
        answer = self.ask(route, body, deadline)
        answer.pop("type", None)
        return decode(record, answer)

    def pages(
        self, route: str, items: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[list[Any]]:
        """
        Ask for a list page by page, and yield each page's items.

        Args:
            route: the subject, of `Routes`.
            items: the key under which an answer has its items.
            body: sent with every request, beside the offset.

        Raises:
            APIError, PermissionsError, TimeoutError, ConnectionClosedError: as `ask()`.

        """
        offset = 0
        while True:
            answer = self.ask(route, {**(body or {}), "offset": offset})
            page = answer.get(items) or []
            if page:
                yield page
            # What a cluster could not get an info of is named in "missing", and counted like the rest.
            seen = len(page) + len(answer.get("missing") or ())
            offset += seen
            # The total may change while we read; an empty page ends it in any case.
            if not seen or offset >= int(answer.get("total", 0)):
                return
