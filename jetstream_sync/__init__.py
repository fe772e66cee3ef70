"""
A synchronous client for NATS and JetStream: blocking calls, no event loop.

Example::

    import jetstream_sync

    with jetstream_sync.connect("nats://127.0.0.1:4222") as nc:
        js = nc.jetstream()
        stream = js.create_or_update_stream(name="ORDERS", subjects=["ORDERS.*"])
        js.publish("ORDERS.received", b"{}")
        for msg in stream.create_or_update_consumer(durable_name="billing").fetch(10, timeout=1.0):
            msg.ack()

The public names by topic:

* Connections: `connect`, `shared_connection`, `Connection`, `ConnectOptions`, `TLSOptions`,
  `ConnectionEvent`, `EventKind`, `ConnectionStatus`, `Server`, `ServerInfo`
* Core messages: `Msg`, `Headers`, `Status`, `Subscription`, `ReplyIterator`
* JetStream: `JetStream`, `JetStreamMsg`, `Metadata`, `PubAck`, `PubAckFuture`,
  `PublishOptions`, `Batch`, `BatchOptions`, `FastPublisher`, `FastPublishOptions`, `AccountInfo`
* Streams: `Stream`, `StreamConfig`, `StreamInfo`, `StreamState`, `StoredMsg`, `StreamSnapshot`
* Counters and schedules: `Counters`, `CounterEntry`, `Schedule`
* Pull consumers: `PullConsumer`, `ConsumerConfig`, `ConsumerInfo`, `MessageIterator`,
  `ConsumeHandle`, `PullOptions`, `PriorityOptions`, `FetchOptions`, `ContinuousOptions`
* Consumer groups: `ConsumerGroups`, `ConsumerGroup`, `StaticConsumerGroup`, `ElasticConsumerGroup`,
  `GroupConsumeHandle`, `GroupConfig`, `StaticGroupConfig`, `ElasticGroupConfig`
* Ordered consumers: `OrderedConsumer`, `OrderedMessages`, `OrderedOptions`
* Subscriptions to streams: `PushSubscription`, `OrderedSubscription`, `PullSubscription`,
  `SubscribeOptions`, `BindOptions`
* Key-value buckets: `KeyValue`, `KeyValueConfig`, `KeyValueStatus`, `KeyValueEntry`,
  `KeyValueOperation`, `Watch`, `WatchHandle`, `WatchOptions`, `KeyCodec`, `ValueCodec`, `Base64Keys`,
  `PathKeys`
* Object stores: `ObjectStore`, `ObjectStoreConfig`, `ObjectStoreStatus`, `ObjectInfo`, `ObjectMeta`,
  `ObjectMetaOptions`, `ObjectLink`, `ObjectReader`, `ObjectWriter`
* Policies: `AckPolicy`, `DeliverPolicy`, `DiscardPolicy`, `PersistMode`, `PriorityPolicy`,
  `ReplayPolicy`, `RetentionPolicy`, `StorageType`, `StoreCompression`
* Errors: all are subclasses of `Error`; see `jetstream_sync.errors`
"""

from __future__ import annotations

import os
from importlib import import_module

from . import errors as errors
from .errors import *  # noqa: F403 - every error of the tree
from .version import __version__ as __version__

#: Module -> its public names, which are imported when they are used; ``__init__.pyi`` has their types.
_NAMES = {
    "address": "Server",
    "api.account": (
        "AccountInfo AccountLimits APIStats ClusterInfo DesiredClusterInfo "
        "DesiredClusterOrigin DesiredClusterStatus DesiredPeer PeerInfo Placement Tier"
    ),
    "api.consumer": (
        "ConsumerConfig ConsumerInfo ConsumerPause ConsumerReset PriorityGroupState SequenceInfo"
    ),
    "api.enums": (
        "AckPolicy DeliverPolicy DiscardPolicy KeyValueOperation PersistMode "
        "PriorityPolicy ReplayPolicy RetentionPolicy StorageType StoreCompression"
    ),
    "api.key_value": "KeyValueConfig KeyValueStatus",
    "api.object_store": (
        "ObjectInfo ObjectLink ObjectMeta ObjectMetaOptions ObjectStoreConfig ObjectStoreStatus"
    ),
    "api.publish": "BatchOptions FastPublishOptions PubAck PublishOptions Schedule",
    "api.pull": "ContinuousOptions FetchOptions PriorityOptions PullOptions",
    "api.stream": (
        "ExternalStream LostStreamData RePublish SnapshotInfo StreamAlternate StreamConfig "
        "StreamConsumerLimits StreamConsumerSource StreamInfo StreamSource "
        "StreamSourceInfo StreamState SubjectTransform"
    ),
    "client.message": "Msg",
    "client.replies": "ReplyIterator",
    "client.state": "ConnectionStatus",
    "client.subscription": "Subscription",
    "headers": "Headers Status",
    "jetstream.api_requests": "APICall",
    "jetstream.batches": "Batch",
    "jetstream.buckets.codecs": "Base64Keys KeyCodec PathKeys ValueCodec",
    "jetstream.buckets.entries": "KeyValueEntry",
    "jetstream.buckets.key_value": "KeyValue WatchOptions",
    "jetstream.buckets.lock": "Lock",
    "jetstream.buckets.object_reading": "ObjectReader",
    "jetstream.buckets.object_store": "ObjectStore",
    "jetstream.buckets.object_writing": "ObjectWriter",
    "jetstream.buckets.replica": "Replica",
    "jetstream.buckets.watch": "Watch",
    "jetstream.buckets.watch_handle": "WatchHandle",
    "jetstream.connection": "Connection connect",
    "jetstream.consume_handle": "ConsumeHandle",
    "jetstream.context": "JetStream",
    "jetstream.continuous_pull": "MessageIterator",
    "jetstream.counters": "CounterEntry Counters",
    "jetstream.direct_get": "StoredMsg",
    "jetstream.fast_publish": "FastPublisher",
    "jetstream.listing": "Listing",
    "jetstream.message": "JetStreamMsg",
    "jetstream.ordered": "OrderedConsumer OrderedMessages",
    "jetstream.ordered_cursor": "OrderedOptions",
    "jetstream.ordered_subscription": "OrderedSubscription",
    "jetstream.partitioned.groups": (
        "ConsumerGroup ConsumerGroups ElasticConsumerGroup StaticConsumerGroup"
    ),
    "jetstream.partitioned.members": "GroupConsumeHandle",
    "jetstream.partitioned.records": (
        "ElasticGroupConfig GroupConfig MemberMapping PartitioningFilter StaticGroupConfig"
    ),
    "jetstream.publish": "PubAckFuture",
    "jetstream.pull_consumer": "PullConsumer",
    "jetstream.pull_subscription": "PullSubscription",
    "jetstream.push": "PushSubscription",
    "jetstream.shared_connection": "shared_connection",
    "jetstream.snapshots": "StreamSnapshot",
    "jetstream.stream": "Stream",
    "jetstream.subscribe": "BindOptions SubscribeOptions",
    "options": "ConnectionEvent ConnectOptions EventKind TLSOptions",
    "protocol.parser": "ServerInfo",
    "subjects": "Metadata",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", "errors"]
__all__ += [*errors.__all__, *_MODULES]  # noqa: PLE0604 - both have strings


def __getattr__(name: str) -> object:
    """Import a public name on its first use."""
    if name not in _MODULES:
        from .foreign_names import missing_name  # noqa: PLC0415 - for errors only

        missing_name(name)
    value = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    """Return all names, including those that were not used yet."""
    return sorted({*globals(), *__all__})


def _import_all() -> None:
    # An import could block forever in the child, if another thread held the import lock during the fork.
    for name in _MODULES.keys() - globals().keys():
        __getattr__(name)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_import_all)
