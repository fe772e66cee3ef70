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
* JetStream: `JetStream`, `JetStreamMsg`, `Metadata`, `PubAck`, `PublishOptions`, `Batch`,
  `BatchOptions`, `FastPublisher`, `FastPublishOptions`, `AccountInfo`
* Streams: `Stream`, `StreamConfig`, `StreamInfo`, `StreamState`, `StoredMsg`, `StreamSnapshot`
* Counters and schedules: `Counters`, `CounterEntry`, `Schedule`
* Pull consumers: `PullConsumer`, `ConsumerConfig`, `ConsumerInfo`, `MessageIterator`,
  `ConsumeHandle`, `ContinuousOptions`, `PriorityOptions`
* Consumer groups: `ConsumerGroups`, `ConsumerGroup`, `StaticConsumerGroup`, `ElasticConsumerGroup`,
  `GroupConsumeHandle`, `GroupConfig`, `StaticGroupConfig`, `ElasticGroupConfig`
* Ordered consumers: `OrderedConsumer`, `OrderedMessages`, `OrderedOptions`
* Subscriptions to streams: `PushSubscription`, `PullSubscription`, `SubscribeOptions`, `BindOptions`
* Key-value buckets: `KeyValue`, `KeyValueConfig`, `KeyValueStatus`, `KeyValueEntry`,
  `KeyValueOperation`, `Watch`, `WatchHandle`, `WatchOptions`, `KeyCodec`, `ValueCodec`, `Base64Keys`,
  `PathKeys`
* Object stores: `ObjectStore`, `ObjectStoreConfig`, `ObjectStoreStatus`, `ObjectInfo`, `ObjectMeta`,
  `ObjectMetaOptions`, `ObjectLink`, `ObjectReader`, `ObjectWriter`
* Policies: `AckPolicy`, `DeliverPolicy`, `DiscardPolicy`, `PersistMode`, `PriorityPolicy`,
  `ReplayPolicy`, `RetentionPolicy`, `StorageType`, `StoreCompression`
* Errors: all are subclasses of `Error`; `jetstream_sync.errors` lists the hierarchy
"""

from __future__ import annotations

from . import errors
from .address import Server
from .api.account import AccountInfo, AccountLimits, APIStats, Tier
from .api.cluster import ClusterInfo, PeerInfo, Placement
from .api.consumer import (
    ConsumerConfig,
    ConsumerInfo,
    ConsumerPause,
    ConsumerReset,
    PriorityGroupState,
    SequenceInfo,
)
from .api.enums import (
    AckPolicy,
    DeliverPolicy,
    DiscardPolicy,
    KeyValueOperation,
    PersistMode,
    PriorityPolicy,
    ReplayPolicy,
    RetentionPolicy,
    StorageType,
    StoreCompression,
)
from .api.groups import (
    ElasticGroupConfig,
    GroupConfig,
    MemberMapping,
    PartitioningFilter,
    StaticGroupConfig,
)
from .api.key_codecs import Base64Keys, KeyCodec, PathKeys, ValueCodec
from .api.key_value import KeyValueConfig, KeyValueEntry, KeyValueStatus
from .api.object_store import (
    ObjectInfo,
    ObjectLink,
    ObjectMeta,
    ObjectMetaOptions,
    ObjectStoreConfig,
    ObjectStoreStatus,
)
from .api.publish import BatchOptions, FastPublishOptions, PubAck, PublishOptions
from .api.reply import Metadata
from .api.schedules import Schedule
from .api.stream import (
    ExternalStream,
    LostStreamData,
    RePublish,
    SnapshotInfo,
    StreamAlternate,
    StreamConfig,
    StreamConsumerLimits,
    StreamConsumerSource,
    StreamInfo,
    StreamSource,
    StreamSourceInfo,
    StreamState,
    SubjectTransform,
)
from .client.message import Msg
from .client.replies import ReplyIterator
from .client.subscription import Subscription
from .errors import *  # noqa: F403 - every error of the tree, by its own __all__
from .events import ConnectionEvent, EventKind
from .headers import Headers, Status
from .jetstream.api_requests import APICall
from .jetstream.batches import Batch
from .jetstream.connection import Connection, connect, shared_connection
from .jetstream.consume import ConsumeHandle
from .jetstream.consumer import ContinuousOptions, PriorityOptions, PullConsumer
from .jetstream.context import JetStream
from .jetstream.counters import CounterEntry, Counters
from .jetstream.direct_get import StoredMsg
from .jetstream.fast_publish import FastPublisher
from .jetstream.group_members import GroupConsumeHandle
from .jetstream.groups import (
    ConsumerGroup,
    ConsumerGroups,
    ElasticConsumerGroup,
    StaticConsumerGroup,
)
from .jetstream.key_value import KeyValue, WatchOptions
from .jetstream.key_value_lock import Lock
from .jetstream.key_value_replica import Replica
from .jetstream.message import JetStreamMsg
from .jetstream.messages import MessageIterator
from .jetstream.object_store import ObjectStore
from .jetstream.object_store_reading import ObjectReader
from .jetstream.object_store_writing import ObjectWriter
from .jetstream.ordered import OrderedConsumer, OrderedMessages
from .jetstream.ordered_cursor import OrderedOptions
from .jetstream.pull_subscription import PullSubscription
from .jetstream.push import PushSubscription
from .jetstream.snapshots import StreamSnapshot
from .jetstream.stream import Stream
from .jetstream.subscribe import BindOptions, SubscribeOptions
from .jetstream.watch import Watch, WatchHandle
from .options import ConnectOptions, TLSOptions
from .protocol.session import ServerInfo
from .protocol.state import ConnectionStatus
from .version import __version__

__all__ = [
    "APICall",
    "APIStats",
    "AccountInfo",
    "AccountLimits",
    "AckPolicy",
    "Base64Keys",
    "Batch",
    "BatchOptions",
    "BindOptions",
    "ClusterInfo",
    "ConnectOptions",
    "Connection",
    "ConnectionEvent",
    "ConnectionStatus",
    "ConsumeHandle",
    "ConsumerConfig",
    "ConsumerGroup",
    "ConsumerGroups",
    "ConsumerInfo",
    "ConsumerPause",
    "ConsumerReset",
    "ContinuousOptions",
    "CounterEntry",
    "Counters",
    "DeliverPolicy",
    "DiscardPolicy",
    "ElasticConsumerGroup",
    "ElasticGroupConfig",
    "EventKind",
    "ExternalStream",
    "FastPublishOptions",
    "FastPublisher",
    "GroupConfig",
    "GroupConsumeHandle",
    "Headers",
    "JetStream",
    "JetStreamMsg",
    "KeyCodec",
    "KeyValue",
    "KeyValueConfig",
    "KeyValueEntry",
    "KeyValueOperation",
    "KeyValueStatus",
    "Lock",
    "LostStreamData",
    "MemberMapping",
    "MessageIterator",
    "Metadata",
    "Msg",
    "ObjectInfo",
    "ObjectLink",
    "ObjectMeta",
    "ObjectMetaOptions",
    "ObjectReader",
    "ObjectStore",
    "ObjectStoreConfig",
    "ObjectStoreStatus",
    "ObjectWriter",
    "OrderedConsumer",
    "OrderedMessages",
    "OrderedOptions",
    "PartitioningFilter",
    "PathKeys",
    "PeerInfo",
    "PersistMode",
    "Placement",
    "PriorityGroupState",
    "PriorityOptions",
    "PriorityPolicy",
    "PubAck",
    "PublishOptions",
    "PullConsumer",
    "PullSubscription",
    "PushSubscription",
    "RePublish",
    "ReplayPolicy",
    "Replica",
    "ReplyIterator",
    "RetentionPolicy",
    "Schedule",
    "SequenceInfo",
    "Server",
    "ServerInfo",
    "SnapshotInfo",
    "StaticConsumerGroup",
    "StaticGroupConfig",
    "Status",
    "StorageType",
    "StoreCompression",
    "StoredMsg",
    "Stream",
    "StreamAlternate",
    "StreamConfig",
    "StreamConsumerLimits",
    "StreamConsumerSource",
    "StreamInfo",
    "StreamSnapshot",
    "StreamSource",
    "StreamSourceInfo",
    "StreamState",
    "SubjectTransform",
    "SubscribeOptions",
    "Subscription",
    "TLSOptions",
    "Tier",
    "ValueCodec",
    "Watch",
    "WatchHandle",
    "WatchOptions",
    "__version__",
    "connect",
    "errors",
    "shared_connection",
]
__all__ += errors.__all__
