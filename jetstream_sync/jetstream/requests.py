"""Ask the JetStream API, and read what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from ..api.routes import Routes
from ..client.core import ConnectionCore
from ..codec import Record, decode, dumps, loads
from ..errors import (
    APIError,
    InvalidResponseError,
    JetStreamNotEnabledError,
    NoRespondersError,
)
from ..net.clock import Deadline

__all__ = ["APIRequests", "listed", "names_in"]

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
        core: ConnectionCore,
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
        if refusal is not None:
            raise InvalidResponseError(f"{route} answered with error={refusal!r:.60}")
        return answer

    def command(
        self, route: str, body: Mapping[str, Any] | None = None, deadline: Deadline | None = None
    ) -> None:
        """
        Send a request that is answered with ``success``; raises as `ask()`.

        Raises:
            InvalidResponseError: also for an answer that does not say that it was done.

        """
        success = self.ask(route, body, deadline).get("success")
        if success is not True:
            raise InvalidResponseError(f"{route} answered with success={success!r:.60}")

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

    def names(self, route: str, items: str, body: Mapping[str, Any] | None = None) -> list[str]:
        """Ask for a list of names, and return all of them; args and errors are those of `pages()`."""
        found = []
        for page in self.pages(route, items, body):
            for name in page:
                if not isinstance(name, str):
                    raise InvalidResponseError(f"{route}: expected a name, got {name!r:.60}")
                found.append(name)
        return found

    def pages(
        self, route: str, items: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[list[Any]]:
        """
        Ask for a list page by page, and yield each page's items.

        Nothing comes twice: where the list changed between two pages, they may overlap.

        Args:
            route: the subject, of `Routes`.
            items: the key under which an answer has its items: names, or infos.
            body: sent with every request, beside the offset.

        Raises:
            InvalidResponseError: an answer has no such list, or no total.
            APIError, PermissionsError, TimeoutError, ConnectionClosedError: as `ask()`.

        """
        known: set[str] = set()
        offset = 0
        while True:
            answer = self.ask(route, {**(body or {}), "offset": offset})
            page = listed(answer, items, route)
            # What a cluster could not get an info of is named in "missing", and counted like the rest.
            missing = listed(answer, "missing", route) if "missing" in answer else []
            total = answer.get("total")
            if type(total) is not int:
                raise InvalidResponseError(f"{route} answered with total={total!r:.60}")
            before = len(known)
            new = [item for item in page if not _noted(_name_of(item, items, route), known)]
            known.update(_name_of(name, "missing", route) for name in missing)
            if new:
                yield new
            offset += len(page) + len(missing)
            # The total may change while we read, or be wrong: a page without anything new ends it.
            if len(known) == before or offset >= total:
                return


def listed(answer: Mapping[str, Any], items: str, route: str) -> list[Any]:
    """
    Return the list that an answer has under a key; ``null`` is an empty one.

    Raises:
        InvalidResponseError: it has none.

    """
    found = answer.get(items, answer)
    if found is None:
        return []
    if not isinstance(found, list):
        said = f"{found!r:.60}" if items in answer else "nothing"
        raise InvalidResponseError(f"{route}: expected a list of {items}, got {said}")
    return found


def names_in(answer: Mapping[str, Any], items: str, route: str) -> list[str]:
    """Return the names that an answer has under a key; raises as `listed()`."""
    return [_name_of(name, items, route) for name in listed(answer, items, route)]


def _name_of(item: Any, items: str, route: str) -> str:
    """Return the name that an item of a list is or has; an info has it, or its config does."""
    name = item
    if isinstance(item, dict):
        config = item.get("config")
        name = item.get("name", config.get("name") if isinstance(config, dict) else None)
    if not isinstance(name, str):
        raise InvalidResponseError(f"{route}: one of the {items} has no name: {item!r:.60}")
    return name


def _noted(name: str, known: set[str]) -> bool:
    """Note a name, and return whether it was known before."""
    before = len(known)
    known.add(name)
    return len(known) == before
