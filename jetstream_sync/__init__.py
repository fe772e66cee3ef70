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
  `ConsumeHandle`, `PullOptions`, `PriorityOptions`, `FetchOptions`, `ContinuousOptions`
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
* Errors: all are subclasses of `Error`; see `jetstream_sync.errors`
"""

from __future__ import annotations

import typing

from . import errors as errors
from .address import Server as Server
from .api.account import AccountInfo as AccountInfo
from .api.account import AccountLimits as AccountLimits
from .api.account import APIStats as APIStats
from .api.account import ClusterInfo as ClusterInfo
from .api.account import DesiredClusterInfo as DesiredClusterInfo
from .api.account import DesiredClusterOrigin as DesiredClusterOrigin
from .api.account import DesiredClusterStatus as DesiredClusterStatus
from .api.account import DesiredPeer as DesiredPeer
from .api.account import PeerInfo as PeerInfo
from .api.account import Placement as Placement
from .api.account import Tier as Tier
from .api.consumer import ConsumerConfig as ConsumerConfig
from .api.consumer import ConsumerInfo as ConsumerInfo
from .api.consumer import ConsumerPause as ConsumerPause
from .api.consumer import ConsumerReset as ConsumerReset
from .api.consumer import PriorityGroupState as PriorityGroupState
from .api.consumer import SequenceInfo as SequenceInfo
from .api.enums import AckPolicy as AckPolicy
from .api.enums import DeliverPolicy as DeliverPolicy
from .api.enums import DiscardPolicy as DiscardPolicy
from .api.enums import KeyValueOperation as KeyValueOperation
from .api.enums import PersistMode as PersistMode
from .api.enums import PriorityPolicy as PriorityPolicy
from .api.enums import ReplayPolicy as ReplayPolicy
from .api.enums import RetentionPolicy as RetentionPolicy
from .api.enums import StorageType as StorageType
from .api.enums import StoreCompression as StoreCompression
from .api.key_value import KeyValueConfig as KeyValueConfig
from .api.key_value import KeyValueStatus as KeyValueStatus
from .api.object_store import ObjectInfo as ObjectInfo
from .api.object_store import ObjectLink as ObjectLink
from .api.object_store import ObjectMeta as ObjectMeta
from .api.object_store import ObjectMetaOptions as ObjectMetaOptions
from .api.object_store import ObjectStoreConfig as ObjectStoreConfig
from .api.object_store import ObjectStoreStatus as ObjectStoreStatus
from .api.publish import BatchOptions as BatchOptions
from .api.publish import FastPublishOptions as FastPublishOptions
from .api.publish import PubAck as PubAck
from .api.publish import PublishOptions as PublishOptions
from .api.publish import Schedule as Schedule
from .api.pull import ContinuousOptions as ContinuousOptions
from .api.pull import FetchOptions as FetchOptions
from .api.pull import PriorityOptions as PriorityOptions
from .api.pull import PullOptions as PullOptions
from .api.stream import ExternalStream as ExternalStream
from .api.stream import LostStreamData as LostStreamData
from .api.stream import RePublish as RePublish
from .api.stream import SnapshotInfo as SnapshotInfo
from .api.stream import StreamAlternate as StreamAlternate
from .api.stream import StreamConfig as StreamConfig
from .api.stream import StreamConsumerLimits as StreamConsumerLimits
from .api.stream import StreamConsumerSource as StreamConsumerSource
from .api.stream import StreamInfo as StreamInfo
from .api.stream import StreamSource as StreamSource
from .api.stream import StreamSourceInfo as StreamSourceInfo
from .api.stream import StreamState as StreamState
from .api.stream import SubjectTransform as SubjectTransform
from .client.message import Msg as Msg
from .client.replies import ReplyIterator as ReplyIterator
from .client.state import ConnectionStatus as ConnectionStatus
from .client.subscription import Subscription as Subscription
from .errors import *  # noqa: F403 - every error of the tree
from .headers import Headers as Headers
from .headers import Status as Status
from .jetstream.api_requests import APICall as APICall
from .jetstream.batches import Batch as Batch
from .jetstream.buckets.codecs import Base64Keys as Base64Keys
from .jetstream.buckets.codecs import KeyCodec as KeyCodec
from .jetstream.buckets.codecs import PathKeys as PathKeys
from .jetstream.buckets.codecs import ValueCodec as ValueCodec
from .jetstream.buckets.entries import KeyValueEntry as KeyValueEntry
from .jetstream.buckets.key_value import KeyValue as KeyValue
from .jetstream.buckets.key_value import WatchOptions as WatchOptions
from .jetstream.buckets.lock import Lock as Lock
from .jetstream.buckets.object_reading import ObjectReader as ObjectReader
from .jetstream.buckets.object_store import ObjectStore as ObjectStore
from .jetstream.buckets.object_writing import ObjectWriter as ObjectWriter
from .jetstream.buckets.replica import Replica as Replica
from .jetstream.buckets.watch import Watch as Watch
from .jetstream.buckets.watch_handle import WatchHandle as WatchHandle
from .jetstream.connection import Connection as Connection
from .jetstream.connection import connect as connect
from .jetstream.consume_handle import ConsumeHandle as ConsumeHandle
from .jetstream.context import JetStream as JetStream
from .jetstream.continuous_pull import MessageIterator as MessageIterator
from .jetstream.counters import CounterEntry as CounterEntry
from .jetstream.counters import Counters as Counters
from .jetstream.direct_get import StoredMsg as StoredMsg
from .jetstream.fast_publish import FastPublisher as FastPublisher
from .jetstream.listing import Listing as Listing
from .jetstream.message import JetStreamMsg as JetStreamMsg
from .jetstream.ordered import OrderedConsumer as OrderedConsumer
from .jetstream.ordered import OrderedMessages as OrderedMessages
from .jetstream.ordered_cursor import OrderedOptions as OrderedOptions
from .jetstream.partitioned.groups import ConsumerGroup as ConsumerGroup
from .jetstream.partitioned.groups import ConsumerGroups as ConsumerGroups
from .jetstream.partitioned.groups import ElasticConsumerGroup as ElasticConsumerGroup
from .jetstream.partitioned.groups import StaticConsumerGroup as StaticConsumerGroup
from .jetstream.partitioned.members import GroupConsumeHandle as GroupConsumeHandle
from .jetstream.partitioned.records import ElasticGroupConfig as ElasticGroupConfig
from .jetstream.partitioned.records import GroupConfig as GroupConfig
from .jetstream.partitioned.records import MemberMapping as MemberMapping
from .jetstream.partitioned.records import PartitioningFilter as PartitioningFilter
from .jetstream.partitioned.records import StaticGroupConfig as StaticGroupConfig
from .jetstream.pull_consumer import PullConsumer as PullConsumer
from .jetstream.pull_subscription import PullSubscription as PullSubscription
from .jetstream.push import PushSubscription as PushSubscription
from .jetstream.shared_connection import shared_connection as shared_connection
from .jetstream.snapshots import StreamSnapshot as StreamSnapshot
from .jetstream.stream import Stream as Stream
from .jetstream.subscribe import BindOptions as BindOptions
from .jetstream.subscribe import SubscribeOptions as SubscribeOptions
from .options import ConnectionEvent as ConnectionEvent
from .options import ConnectOptions as ConnectOptions
from .options import EventKind as EventKind
from .options import TLSOptions as TLSOptions
from .protocol.parser import ServerInfo as ServerInfo
from .subjects import Metadata as Metadata
from .version import __version__ as __version__

# Type checkers take the aliases above as the public names.
if not typing.TYPE_CHECKING:
    __all__ = ["__version__", "errors"]
    __all__ += [
        name
        for name, value in globals().items()
        if getattr(value, "__module__", "").startswith(__name__)
    ]
    from .foreign_names import missing_name as __getattr__  # noqa: F401 - called for unknown names
