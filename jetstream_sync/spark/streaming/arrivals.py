"""
Notice new messages without a request to the server.

Spark asks an idle query every few milliseconds whether there is new data. In place of as many requests, the driver
subscribes to the subjects of the streams for one message each. Its arrival is a hint only: the streams are asked
at the latest after ``minPollInterval``, also where a message takes another way, as in a mirror.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Final

from ... import errors
from ...client.subscription import Subscription
from ...jetstream.connection import Connection
from ..options import ReadOptions
from ..streams import StreamView

#: Maximum number of subjects; a query for more only asks the server from time to time.
_MAX_SUBJECTS: Final = 64
#: Seconds after a message in which the stream may not have stored it yet.
_STORE_DELAY_S: Final = 0.2


class Arrivals:
    """One message on each subject of some streams; for one thread."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, Subscription] = {}
        self._is_denied = False
        self._hint_until = 0.0

    def watch(
        self, connection: Connection, views: Iterable[StreamView], options: ReadOptions
    ) -> None:
        """Subscribe to the subjects that are not subscribed to, if they are few."""
        subjects = {subject for view in views for subject in options.subjects or view.subjects}
        if options.min_poll_interval <= 0 or self._is_denied or len(subjects) > _MAX_SUBJECTS:
            subjects = set()
        for subject in self._subscriptions.keys() - subjects:
            self._subscriptions.pop(subject).unsubscribe()
        for subject in subjects - self._subscriptions.keys():
            # The limit ends the subscription on the server, however many messages follow.
            subscription = self._subscriptions[subject] = connection.subscribe(subject)
            subscription.unsubscribe(1)

    def seen(self) -> bool:
        """Return whether a message has arrived, so that the streams must be asked."""
        for subject, subscription in list(self._subscriptions.items()):
            if subscription.pending_msgs:
                self._hint_until = monotonic() + _STORE_DELAY_S
            elif subscription.is_valid:
                continue
            else:
                self._check(subscription)
            del self._subscriptions[subject]
        return monotonic() < self._hint_until

    def _check(self, subscription: Subscription) -> None:
        """Find out whether the user may not subscribe; a closed connection only needs a new subscription."""
        try:
            subscription.next_msg(0)
        except errors.PermissionsError:
            self._is_denied = True
        except errors.Error:
            pass
