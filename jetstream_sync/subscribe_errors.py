"""
The errors of the subscribe workflow (ADR-15): what was asked for does not fit, or something is missing.

Each check of the document has a class of its own, whose fields are the two values that disagree::

    SubscribeError (an InvalidArgumentError and a JetStreamError)
    ├── SubjectRequiredError          neither a subject nor a stream was named
    ├── AmbiguousSubjectError         several streams take messages of the subject
    ├── QueueHeartbeatError           a queue subscription and an idle heartbeat
    ├── QueueFlowControlError         a queue subscription and flow control
    ├── PullAckPolicyError            a pull subscription and an ack policy of none or all
    ├── PullOnPushConsumerError       a pull subscription and a consumer that delivers
    ├── PushOnPullConsumerError       a push subscription and a consumer that is pulled from
    ├── DuplicateSubscriptionError    somebody else is bound to the push consumer
    ├── QueueRequiredError            no queue, and a consumer that was made for a group
    ├── QueueMismatchError            a queue, and a consumer that was made for another group
    ├── NoDeliverGroupError           a queue, and a consumer that was made without a group
    ├── SubjectMismatchError          the subject is not what the consumer filters
    └── ConfigMismatchError           an option is not what the consumer has

    ConsumerSequenceMismatchError (a JetStreamError)
                                      reported, not raised: messages of a push consumer are missing

They are apart from `errors`, whose tree they hang on, because no other part of the package raises them.
"""

from __future__ import annotations

from typing import ClassVar

from .errors import InvalidArgumentError, JetStreamError

__all__ = [
    "AmbiguousSubjectError",
    "ConfigMismatchError",
    "ConsumerSequenceMismatchError",
    "DuplicateSubscriptionError",
    "NoDeliverGroupError",
    "PullAckPolicyError",
    "PullOnPushConsumerError",
    "PushOnPullConsumerError",
    "QueueFlowControlError",
    "QueueHeartbeatError",
    "QueueMismatchError",
    "QueueRequiredError",
    "SubjectMismatchError",
    "SubjectRequiredError",
    "SubscribeError",
]


class SubscribeError(InvalidArgumentError, JetStreamError):
    """
    A subscription can not be made as it was asked for; nothing was changed on the server.

    ``asked`` is what the caller wants, ``found`` what that disagrees with: another argument, or
    what the server says.
    """

    _says: ClassVar[str] = "asked for {asked!r}, found {found!r}"

    def __init__(self, asked: object, found: object) -> None:
        super().__init__(asked, found)
        self.asked = asked
        self.found = found

    def __str__(self) -> str:
        return self._says.format(asked=self.asked, found=self.found)


class SubjectRequiredError(SubscribeError):
    """Neither a subject nor a stream is named, so no stream can be found."""

    _says = "subject={asked!r} and stream={found!r}: one of them is needed to find the stream"


class AmbiguousSubjectError(SubscribeError):
    """Several streams take messages of the subject; name the one that is meant."""

    _says = "subject {asked!r} is taken by several streams, {found!r}: say which with stream="


class QueueHeartbeatError(SubscribeError):
    """The server would send heartbeats to one random member of a queue group."""

    _says = "queue {asked!r} with an idle heartbeat of {found}: queues can not have heartbeats"


class QueueFlowControlError(SubscribeError):
    """The server would ask one random member of a queue group to confirm."""

    _says = "queue {asked!r} with flow_control={found!r}: queues can not have flow control"


class PullAckPolicyError(SubscribeError):
    """Messages that are pulled are acknowledged one by one."""

    _says = "{asked} with ack_policy={found!s}: a pull subscription needs explicit acks"


class PullOnPushConsumerError(SubscribeError):
    """The consumer delivers to a subject; it can not be pulled from."""

    _says = "can not pull from consumer {asked!r}: it delivers to {found!r}"


class PushOnPullConsumerError(SubscribeError):
    """The consumer delivers nowhere by itself; it has to be pulled from."""

    _says = (
        "consumer {asked!r} has deliver_subject={found!r}: it has to be pulled from, "
        "as pull_subscribe() does"
    )


class DuplicateSubscriptionError(SubscribeError):
    """The consumer has a subscription already, and is not for a group."""

    _says = (
        "duplicate subscription: somebody is bound to consumer {asked!r}, listening on {found!r}"
    )


class QueueRequiredError(SubscribeError):
    """The consumer was made for a queue group."""

    _says = "queue={asked!r}, but the consumer was made for queue group {found!r}"


class QueueMismatchError(SubscribeError):
    """The consumer was made for another queue group."""

    _says = "queue {asked!r}, but the consumer was made for another queue group, {found!r}"


class NoDeliverGroupError(SubscribeError):
    """The consumer was not made for a queue group."""

    _says = "queue {asked!r}, but the consumer was made without a group: deliver_group={found!r}"


class SubjectMismatchError(SubscribeError):
    """The consumer filters something else than the subject."""

    _says = "subject {asked!r} is not what the consumer filters: {found!r}"


class ConfigMismatchError(SubscribeError):
    """An option differs from what the existing consumer has; an existing consumer is not changed."""

    def __init__(self, option: str, asked: object, found: object) -> None:
        Exception.__init__(self, option, asked, found)
        self.option = option
        self.asked = asked
        self.found = found

    def __str__(self) -> str:
        return (
            f"{self.option}={_shown(self.asked)} was asked for, but the consumer has "
            f"{_shown(self.found)}, and is not changed"
        )


def _shown(value: object) -> str:
    """Return a config's value as people write it: enums are words, durations are not calls."""
    return f"'{value}'" if isinstance(value, str) else str(value)


class ConsumerSequenceMismatchError(JetStreamError):
    """
    Messages that a push consumer sent did not arrive.

    With acknowledgements they are delivered again after the consumer's ``ack_wait``; without them,
    ``stream_resume_sequence`` is where to read on: the stream sequence of the last message before.
    """

    def __init__(
        self, stream_resume_sequence: int, consumer_sequence: int, last_consumer_sequence: int
    ) -> None:
        super().__init__(stream_resume_sequence, consumer_sequence, last_consumer_sequence)
        self.stream_resume_sequence = stream_resume_sequence
        """The stream sequence of the last message before the gap; 0 when there was none."""
        self.consumer_sequence = consumer_sequence
        """The consumer sequence of that message."""
        self.last_consumer_sequence = last_consumer_sequence
        """The last consumer sequence that the server says it sent."""

    def __str__(self) -> str:
        missing = self.last_consumer_sequence - self.consumer_sequence
        return (
            f"{missing} of a consumer's messages are missing: the last one had consumer sequence "
            f"{self.consumer_sequence}, the server is at {self.last_consumer_sequence}"
        )
