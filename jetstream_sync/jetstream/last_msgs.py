"""Read the last messages of many subjects (ADR-31): with batched direct gets, or from the leader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from .. import errors
from ..api.echo import release
from ..api.stream import MsgGetRequest
from ..headers import SEQUENCE, Headers, StatusCode, parse_headers, parse_status
from ..protocol.parser import HEADER, RawMessage
from ..subjects import Metadata, is_pattern, merge_patterns
from .api_requests import APIRequests, stream_info
from .direct_get import (
    ADDED,
    StoredMsg,
    StoredReply,
    collect,
    is_direct_status,
    is_unproven,
    leader_get,
    pop_last,
    read_direct,
    refusal,
    too_old,
)
from .message import JetStreamMsg
from .ordered import OrderedConsumer
from .server_support import require_level

_UP_TO: Final = "Nats-UpTo-Sequence"
_SEQUENCE: Final = SEQUENCE.encode() + b": "
#: Attempts for a page that another stream sent, or that has fewer messages than the one before announced, and
#: seconds between two: a mirror or a replica that is behind may have answered.
_PAGE_ATTEMPTS: Final = 5
_PAGE_RETRY_DELAY_S: Final = 0.05
#: Maximum number of messages, as the server has it for direct gets.
_MAX_RESULTS: Final = 1024
#: Messages that are read at once with a consumer.
_FETCH_SIZE: Final = 500


class _Page(NamedTuple):
    """Some of the last messages of many subjects."""

    messages: Sequence[StoredReply | StoredMsg]
    left: int
    """Number of messages that follow on other pages."""
    up_to: int
    """The sequence up to which messages count, on all pages."""


def direct_last_msgs(
    api: APIRequests, stream: str, request: MsgGetRequest
) -> Iterator[StoredReply | StoredMsg]:
    """
    Get the last messages of many subjects from any server that has the stream.

    The first page is requested by the call, the others by the iteration. `NoRespondersError`: no reply shows what the
    stream has: the leader has to be asked.
    """
    if (release(api.core.info.version) or (2, 11)) < (2, 11):
        # Such a server does not reply at all. Another one may have the stream.
        require_level(api, 1, "get_last_msgs()", api.deadline())
    return _iter_pages(api, stream, request, _last_page(api, stream, request))


def decoded(message: StoredReply | StoredMsg) -> StoredMsg:
    """Return a message with all of its fields decoded."""
    return message.decoded() if isinstance(message, StoredReply) else message


def leader_last_msgs(api: APIRequests, stream: str, subjects: Sequence[str]) -> Iterator[StoredMsg]:
    """Get the last messages of subjects from the leader, one after the other."""
    names: set[str] = set()
    for subject in subjects:
        if is_pattern(subject):
            names.update(stream_info(api, stream, subject).state.subjects or ())
        else:
            names.add(subject)
    for name in sorted(names):
        with suppress(errors.MessageNotFoundError):
            found = leader_get(api, stream, MsgGetRequest(last_by_subj=name), api.deadline())
            if found.subject == name:  # not a stored subject that is a pattern
                yield found


def proven_last_msgs(api: APIRequests, stream: str, request: MsgGetRequest) -> Iterator[StoredMsg]:
    """Get the same as `direct_last_msgs()` from the leader, by sequence."""
    if request.up_to_seq is not None or request.up_to_time is not None:
        return iter(_earlier_msgs(api, stream, request))
    found = list(leader_last_msgs(api, stream, request.multi_last or ()))
    if len(found) > _MAX_RESULTS:
        raise errors.TooManyResultsError.found_here("Too Many Results")
    return iter(sorted(found, key=lambda message: message.seq))


def _earlier_msgs(api: APIRequests, stream: str, request: MsgGetRequest) -> list[StoredMsg]:
    """Return the last messages of subjects at an earlier point, which are found by reading all of them."""
    subjects, matches = merge_patterns(request.multi_last or ())
    found = {
        message.subject: StoredMsg(
            stream,
            message.subject,
            metadata.stream_seq,
            message.data,
            message.headers or None,
            metadata.timestamp,
        )
        for message, metadata in _read_up_to(api, stream, subjects, request)
        if matches is None or matches(message.subject)
    }
    return sorted(found.values(), key=lambda message: message.seq)


def _read_up_to(
    api: APIRequests, stream: str, subjects: Sequence[str], request: MsgGetRequest
) -> Iterator[tuple[JetStreamMsg, Metadata]]:
    """Yield the messages up to the sequence or before the time of a request, with a consumer."""
    deadline = api.deadline()
    last = stream_info(api, stream, deadline=deadline).state.last_seq
    end = last if request.up_to_seq is None else min(request.up_to_seq, last)
    position = 0
    with OrderedConsumer(api, stream, filter_subjects=subjects) as consumer:
        while position < end:
            messages = consumer.fetch_no_wait(_FETCH_SIZE)
            for message in messages:
                metadata = message.metadata
                position, time = metadata.stream_seq, request.up_to_time
                if position > end or (time is not None and metadata.timestamp >= time):
                    return
                yield message, metadata
            if messages:
                deadline = api.deadline()
            elif not _has_next(api, stream, subjects, position, end):
                return
            elif deadline.expired():
                raise api.core.state.timed_out(f"a replica of the stream {stream!r} is behind")
            else:
                api.core.wait_closed(_PAGE_RETRY_DELAY_S)


def _has_next(
    api: APIRequests, stream: str, subjects: Sequence[str], position: int, end: int
) -> bool:
    """Return whether the leader has a message after a position, which the server of a consumer may not have yet."""
    for subject in subjects:
        request = MsgGetRequest(position + 1, next_by_subj=subject)
        with suppress(errors.MessageNotFoundError):
            if leader_get(api, stream, request, api.deadline()).seq <= end:
                return True
    return False


def _iter_pages(
    api: APIRequests, stream: str, request: MsgGetRequest, page: _Page
) -> Iterator[StoredReply | StoredMsg]:
    yield from page.messages
    # From the second page on the sequence says up to where.
    request = request._replace(up_to_time=None, up_to_seq=page.up_to)
    while page.left:
        expected, after = page.left, page.messages[-1].seq
        found, is_proven = 0, False
        for _ in range(_PAGE_ATTEMPTS):
            with suppress(errors.NoRespondersError):
                page = _last_page(api, stream, request._replace(seq=after + 1))
                is_proven = True
                found = len(page.messages) + page.left
            if found == expected:
                break
            api.core.wait_closed(_PAGE_RETRY_DELAY_S)
        if not is_proven:
            earlier = _earlier_msgs(api, stream, request)
            page = _Page([message for message in earlier if message.seq > after], 0, page.up_to)
            found = len(page.messages)
        if found != expected:
            raise errors.MessagesChangedError(
                f"{expected - found} messages of the stream {stream!r} were replaced or deleted while"
                " the last messages of its subjects were read in pages: read them again"
            )
        yield from page.messages


def _last_page(api: APIRequests, stream: str, request: MsgGetRequest) -> _Page:
    """Request a page until it arrives completely, and shows what the stream has."""
    route = api.routes.to("DIRECT.GET", stream)
    deadline = api.deadline()
    foreign = 0
    while True:
        items, error = collect(api, route, request, deadline)
        if error is None and is_unproven(stream, items[0]):
            foreign += 1
            # A reply without messages is the same each time, if it is true.
            if is_direct_status(items[0]) or foreign == _PAGE_ATTEMPTS:
                raise errors.NoRespondersError(route)
            continue
        if error is None and not _is_broken_off(items):
            return _page_of(api, route, items)
        if deadline.expired():
            raise error or api.core.state.timed_out(
                f"{route!r} was not answered completely in time"
            )
        api.core.wait_closed(_PAGE_RETRY_DELAY_S)


def _is_broken_off(items: list[RawMessage]) -> bool:
    """Return whether the server could not load one of the messages, which was deleted meanwhile."""
    status = parse_status(items[-1][HEADER])
    return len(items) > 1 and status is not None and status.code == StatusCode.NOT_FOUND


def _page_of(api: APIRequests, route: str, items: list[RawMessage]) -> _Page:
    """Return the page that the replies contain."""
    end = items.pop()
    if not is_direct_status(end):
        if _SEQUENCE in end[HEADER]:
            raise too_old(api, "multi_last")
        raise refusal(end[HEADER])
    status = parse_status(end[HEADER])
    if (
        status is not None
        and status.code == StatusCode.TIMEOUT
        and status.description == "Empty Request"
    ):
        raise too_old(api, "multi_last")
    try:
        # Not from the end: servers before 2.12 report 0 there even if more pages follow.
        left = _last_number(items[-1][HEADER], ADDED[0])
        up_to = _last_number(end[HEADER], _UP_TO)
    except (IndexError, ValueError, errors.InvalidResponseError):
        if status is not None and status.code == StatusCode.DONE:
            raise errors.InvalidResponseError(
                f"{route} replied without messages: {end[HEADER]!r}"
            ) from None
        raise refusal(end[HEADER]) from None
    try:
        messages = [read_direct(block, data, ADDED) for _, _, block, data in items]
    except errors.InvalidResponseError as malformed:
        raise errors.NoRespondersError(route) from malformed
    return _Page(messages, left, up_to)


def _last_number(block: bytes, name: str) -> int:
    """Return the number in a header that the server added."""
    return int(pop_last(parse_headers(block) or Headers(), name))
