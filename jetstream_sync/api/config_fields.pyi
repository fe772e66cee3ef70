# Types of the config fields that `create_stream()`, `create_consumer()` and similar calls accept by
# keyword; durations are a `timedelta` or seconds. Made by tests/make_config_fields.py from the records,
# which document the fields. Type checkers reject an unknown or misspelled field. There is no such module
# at run time.

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from .account import Placement
from .enums import (
    AckPolicy,
    DeliverPolicy,
    DiscardPolicy,
    PersistMode,
    PriorityPolicy,
    ReplayPolicy,
    RetentionPolicy,
    StorageType,
    StoreCompression,
)
from .stream import RePublish, StreamConsumerLimits, StreamSource, SubjectTransform

class StreamConfigFields(TypedDict, total=False):
    name: str
    description: str | None
    subjects: Sequence[str] | None
    retention: RetentionPolicy | str | None
    max_consumers: int | None
    max_msgs: int | None
    max_bytes: int | None
    max_age: timedelta | float | None
    max_msgs_per_subject: int | None
    max_msg_size: int | None
    discard: DiscardPolicy | str | None
    discard_new_per_subject: bool | None
    storage: StorageType | str | None
    num_replicas: int | None
    no_ack: bool | None
    duplicate_window: timedelta | float | None
    placement: Placement | None
    mirror: StreamSource | None
    sources: Sequence[StreamSource] | None
    sealed: bool | None
    deny_delete: bool | None
    deny_purge: bool | None
    allow_rollup_hdrs: bool | None
    allow_direct: bool | None
    mirror_direct: bool | None
    republish: RePublish | None
    subject_transform: SubjectTransform | None
    compression: StoreCompression | str | None
    first_seq: int | None
    consumer_limits: StreamConsumerLimits | None
    metadata: Mapping[str, str] | None
    allow_msg_ttl: bool | None
    subject_delete_marker_ttl: timedelta | float | None
    allow_msg_counter: bool | None
    allow_atomic: bool | None
    allow_msg_schedules: bool | None
    persist_mode: PersistMode | str | None
    allow_batched: bool | None
    extra: Mapping[str, Any]

class KeyValueConfigFields(TypedDict, total=False):
    bucket: str
    description: str | None
    ttl: timedelta | float | None
    max_bytes: int | None
    storage: StorageType | str | None
    replicas: int | None
    placement: Placement | None
    compression: bool | None
    metadata: Mapping[str, str] | None
    max_value_size: int | None
    history: int | None
    limit_marker_ttl: timedelta | float | None
    republish: RePublish | None
    mirror: StreamSource | None
    sources: Sequence[StreamSource] | None
    extra: Mapping[str, Any]

class ConsumerConfigFields(TypedDict, total=False):
    durable_name: str | None
    name: str | None
    description: str | None
    deliver_policy: DeliverPolicy | str
    opt_start_seq: int | None
    opt_start_time: datetime | None
    ack_policy: AckPolicy | str
    ack_wait: timedelta | float | None
    max_deliver: int | None
    backoff: Sequence[timedelta | float] | None
    filter_subject: str | None
    filter_subjects: Sequence[str] | None
    replay_policy: ReplayPolicy | str
    rate_limit_bps: int | None
    sample_freq: str | None
    max_waiting: int | None
    max_ack_pending: int | None
    flow_control: bool | None
    idle_heartbeat: timedelta | float | None
    headers_only: bool | None
    max_batch: int | None
    max_expires: timedelta | float | None
    max_bytes: int | None
    deliver_subject: str | None
    deliver_group: str | None
    inactive_threshold: timedelta | float | None
    num_replicas: int | None
    mem_storage: bool | None
    direct: bool | None
    sourcing: bool | None
    metadata: Mapping[str, str] | None
    pause_until: datetime | None
    priority_groups: Sequence[str] | None
    priority_policy: PriorityPolicy | str | None
    priority_timeout: timedelta | float | None
    extra: Mapping[str, Any]

class ObjectStoreConfigFields(TypedDict, total=False):
    bucket: str
    description: str | None
    ttl: timedelta | float | None
    max_bytes: int | None
    storage: StorageType | str | None
    replicas: int | None
    placement: Placement | None
    compression: bool | None
    metadata: Mapping[str, str] | None
    extra: Mapping[str, Any]
