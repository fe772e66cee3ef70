"""Read the last entries of many keys with batched direct gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ... import errors
from ...api.stream import MsgGetRequest
from ...subjects import is_pattern
from ..api_requests import APIRequests
from ..direct_get import MAX_BYTES, StoredMsg, StoredReply, leader_get
from ..last_msgs import direct_last_msgs
from ..stream import Stream
from .entries import BucketSubjects, KeyValueEntry, entry_of_message

#: Maximum number of keys that are read with one request, which the server sets.
MAX_READ_KEYS: Final = 1024
#: Attempts to read many keys while they change between two pages.
READ_ATTEMPTS: Final = 3


def last_entries(
    api: APIRequests,
    stream: Stream,
    subjects: BucketSubjects,
    patterns: Sequence[str],
    up_to_revision: int | None = None,
    also: Sequence[str] = (),
) -> list[KeyValueEntry] | None:
    """Return the last entries of keys, with markers, and of other subjects; ``None``: a watch has to read them."""
    names = [*(subjects.read + pattern for pattern in subjects.patterns(patterns)), *also]
    request = MsgGetRequest(multi_last=names, max_bytes=MAX_BYTES)
    # The batch has several replies.
    attempts = 0 if api.single_replies and up_to_revision is None else READ_ATTEMPTS
    for attempt in range(attempts):
        try:
            stored: Sequence[StoredReply | StoredMsg]
            if up_to_revision is None:
                stored = list(direct_last_msgs(api, stream.name, request))
            else:
                stored = list(stream.get_last_msgs(names, up_to_seq=up_to_revision))
        except errors.MessagesChangedError:
            if up_to_revision is not None and attempt == READ_ATTEMPTS - 1:
                raise
            continue
        except errors.NoRespondersError:
            # No reply proves what the bucket has.
            if up_to_revision is not None:
                raise
            return None if any(map(is_pattern, patterns)) else []
        except (errors.TooManyResultsError, errors.ServerTooOldError, errors.TimeoutError):
            # A bucket that does not exist on a server before 2.11 times out.
            if up_to_revision is not None:
                raise
            break
        return [entry_of_message(subjects, message) for message in stored]
    return None


def missing_entries(
    api: APIRequests, stream: Stream, subjects: BucketSubjects, keys: Sequence[str]
) -> list[KeyValueEntry] | None:
    """Return the last entries of keys that seemed to have none; ``None``: a watch has to read them."""
    if subjects.source is not None:
        return None  # the origin may have them
    try:
        # A replica that returns the leader's last message, or a later one of its subject, has all before it.
        newest = leader_get(api, stream.name, MsgGetRequest(last_by_subj=">"), api.deadline())
    except errors.MessageNotFoundError:
        return []
    except errors.PermissionsError:
        return None
    entries = last_entries(api, stream, subjects, keys, also=[newest.subject]) or ()
    if any(entry.subject == newest.subject and entry.revision >= newest.seq for entry in entries):
        wanted = {subjects.read + key for key in subjects.patterns(keys)}
        return [entry for entry in entries if entry.subject in wanted]
    return None
