"""`JetStream.pull_subscribe` and `JetStream.pull_subscribe_bind`: the way to a pull subscription."""

from __future__ import annotations

from ..api.consumer import ConsumerConfig
from ..api.subscribing import SubscribeRequest
from ..subjects import check_consumer_name, check_stream_name, check_subject
from .api_requests import APIRequests
from .pull_subscription import PullSubscription
from .subscribe_resolution import ResolvedConsumer, release_consumer, resolve_pull_consumer

__all__ = ["PullSubscribeAPI"]


class PullSubscribeAPI:
    """The part of `JetStream` that makes pull subscriptions."""

    _api: APIRequests

    def pull_subscribe(
        self,
        subject: str,
        durable: str | None = None,
        stream: str | None = None,
        config: ConsumerConfig | None = None,
        delete_consumer: bool = True,
    ) -> PullSubscription:
        """
        Subscribe to a subject of a stream, to fetch messages.

        A durable consumer that exists is used as it is; anything asked for that it does not have is
        an error. One that does not exist is made, with the subject as its filter (ADR-15). So is an
        ephemeral one when no durable is named.

        Args:
            subject: what to fetch, with wildcards; may be empty when the stream is named.
            durable: the name of a durable consumer; ``None``: an ephemeral one.
            stream: the stream's name; ``None``: the one stream that takes the subject.
            config: what to make the consumer of, or has to be that of the one that exists;
                ``None``: the defaults.
            delete_consumer: whether `PullSubscription.unsubscribe` and `PullSubscription.drain`
                delete the consumer if this call made it, a durable one, too. One that was there
                before is never deleted.

        Raises:
            StreamNotFoundError: no stream takes the subject, or has that name.
            SubscribeError: the subscription and the consumer do not fit together, or the subject
                and the streams; see its subclasses.
            InvalidOptionError, InvalidNameError, BadSubjectError: an argument is not well formed.
            APIError: the server refused.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as
                `JetStream.account_info`.

        """
        wanted = SubscribeRequest.of(
            subject=subject if subject == "" else check_subject(subject),
            stream=stream,
            durable=durable,
            pull=True,
            config=config,
        )
        return self._subscribed(resolve_pull_consumer(self._api, wanted), delete_consumer)

    def pull_subscribe_bind(self, consumer: str, stream: str) -> PullSubscription:
        """
        Subscribe to a consumer that exists, to fetch its messages.

        It is looked up. Where that fails (it is not there yet, or this user may not look), it is
        believed in, and `PullSubscription.fetch` says what is wrong (ADR-15).

        Args:
            consumer: the consumer's name.
            stream: the name of its stream.

        Raises:
            PullOnPushConsumerError: it delivers to a subject.
            InvalidNameError: a name can not be a consumer's or a stream's.
            ConnectionClosedError: the connection is closed.

        """
        wanted = SubscribeRequest.of(
            stream=check_stream_name(stream), bind=check_consumer_name(consumer), pull=True
        )
        return self._subscribed(resolve_pull_consumer(self._api, wanted), delete_consumer=False)

    def _subscribed(self, found: ResolvedConsumer, delete_consumer: bool) -> PullSubscription:
        def delete() -> None:
            release_consumer(self._api, found.stream, found.consumer, shared=False)

        return PullSubscription(
            self._api,
            found.stream,
            found.consumer,
            found.config,
            delete if found.created and delete_consumer else None,
        )
