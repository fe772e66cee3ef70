"""Names of other clients that differ in this package, and the errors that name the replacement."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, NoReturn

#: For each class, and for the package ("jetstream_sync"), names of nats-py, nats.go and kafka-python, with their
#: replacement.
FOREIGN_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "Connection": {
        "Close": "use close()",
        "Drain": "use drain()",
        "Flush": "use flush()",
        "JetStream": "use jetstream()",
        "Publish": "use publish()",
        "QueueSubscribe": "use subscribe(subject, queue)",
        "Request": "use request()",
        "Subscribe": "use subscribe()",
        "add_stream": "use jetstream().create_stream()",
        "client_id": "use server_info.client_id",
        "client_ip": "use server_info.client_ip",
        "connect": "use jetstream_sync.connect(), which returns a connection",
        "connected_server_version": "use server_info.version",
        "force_reconnect": "use reconnect()",
        "is_connecting": "use status",
        "is_draining_pubs": "use status",
        "jsm": "use jetstream(), which also manages streams and consumers",
        "pending_data_size": "not available; the option pending_size limits it",
        "ssl_context": "it is the tls option of connect()",
    },
    "JetStream": {
        "CreateKeyValue": "use create_key_value()",
        "CreateOrUpdateConsumer": "use create_or_update_consumer()",
        "CreateOrUpdateStream": "use create_or_update_stream()",
        "CreateStream": "use create_stream()",
        "KeyValue": "use key_value()",
        "ObjectStore": "use object_store()",
        "Publish": "use publish()",
        "PublishAsync": "use publish_async()",
        "PublishMsg": "use publish()",
        "Stream": "use get_stream(name)",
        "consumer": "use get_consumer(stream_name, name)",
        "kv": "use key_value(bucket)",
        "publish_msg": "use publish()",
        "send": "use publish()",
        "stream": "use get_stream(name)",
        "streams": "use list_streams() or stream_names()",
        "add_consumer": "use create_consumer(), update_consumer() or create_or_update_consumer()",
        "add_stream": "use create_stream()",
        "consumers_info": "use list_consumers(stream_name)",
        "delete_msg": "use get_stream(name).delete_msg(seq)",
        "get_last_msg": "use get_stream(name).get_msg(last_by_subject=...)",
        "get_msg": "use get_stream(name).get_msg(seq)",
        "purge_stream": "use get_stream(name).purge()",
        "stream_info": "use get_stream(name).info()",
        "streams_info": "use list_streams()",
        "streams_info_iterator": "use list_streams()",
    },
    "ObjectStore": {"get": "use get_bytes(), get_file() or open()", "get_info": "use info()"},
    "KeyValue": {"watchall": "use watch()", "set": "use put()", "list_keys": "use keys()"},
    "Stream": {
        "consumer": "use get_consumer(name)",
        "consumers": "use list_consumers() or consumer_names()",
        "add_consumer": "use create_consumer()",
        "messages": "use ordered_consumer().messages(), or get_msgs()",
        "publish": "use publish() of the JetStream context",
        "delete": "use delete_stream(name) of the JetStream context",
        "update": "use update_stream() of the JetStream context",
    },
    "PullConsumer": {
        "pull": "use fetch(), or messages() to pull continuously",
        "poll": "use fetch(batch, timeout)",
        "commit": "acknowledge each message: msg.ack()",
        "seek": "use reset(seq), or an ordered consumer with opt_start_seq",
        "subscribe": "use messages() or consume(callback)",
        "next_msg": "use next()",
    },
    "jetstream_sync": {
        "Celery": "use jetstream_sync.workers.Worker",
        "Client": "use jetstream_sync.connect(), which returns a Connection",
        "Consumer": "use PullConsumer, or JetStream.create_consumer()",
        "JetStreamContext": "use JetStream, which Connection.jetstream() returns",
        "KafkaConsumer": "use JetStream.create_consumer()",
        "KafkaProducer": "use JetStream.publish() or publish_async()",
        "Message": "use Msg or JetStreamMsg, which calls return; publish() takes a subject and bytes",
        "NATS": "use jetstream_sync.connect(), which returns a Connection",
        "Nats": "use jetstream_sync.connect(), which returns a Connection",
        "Producer": "use JetStream.publish() or publish_async()",
        "Worker": "use jetstream_sync.workers.Worker",
        "create_stream": "use create_stream() of connect().jetstream()",
        "nats": "use jetstream_sync.connect()",
    },
}

#: Names of errors of nats-py, nats.go and kafka-python, with what is raised here.
FOREIGN_ERRORS: Final[Mapping[str, str]] = {
    "BadBucketError": "BucketNotFoundError",
    "BadHeaderError": "InvalidHeaderError",
    "BadObjectMetaError": "InvalidArgumentError",
    "BadTimeoutError": "InvalidOptionError",
    "ConnectionReconnectingError": "ConnectionLostError",
    "FetchTimeoutError": "TimeoutError; fetch() returns an empty list",
    "FlushTimeoutError": "TimeoutError",
    "InvalidBucketNameError": "InvalidNameError",
    "InvalidCallbackTypeError": "InvalidOptionError",
    "InvalidKeyError": "InvalidNameError",
    "InvalidObjectNameError": "InvalidNameError",
    "InvalidUserCredentialsError": "CredentialsError",
    "JsonParseError": "InvalidResponseError",
    "KafkaError": "Error",
    "KafkaTimeoutError": "TimeoutError",
    "KeyDeletedError": "KeyNotFoundError",
    "KeyHistoryTooLargeError": "InvalidOptionError",
    "KeyValueError": "JetStreamError",
    "KeyValueLimitMarkerTTLNotSupportedError": "ServerTooOldError",
    "KeyWrongLastSequenceError": "WrongLastRevisionError",
    "LinkIsABucketError": "ObjectLinkError",
    "NoKeysError": "no error; keys() returns an empty list",
    "ObjectAlreadyExists": "ObjectExistsError",
    "SecureConnFailedError": "SecureConnectionError",
    "SecureConnRequiredError": "SecureConnectionError",
    "SecureConnWantedError": "SecureConnectionError",
    "ServerNotInPoolError": "InvalidOptionError",
    "UnexpectedEOF": "ConnectionLostError",
}

#: Words of options of nats-py, nats.go, kafka-python, Celery and dramatiq, with the spellings here. The
#: spelling for a call is the one that begins with an option of the call.
FOREIGN_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "ack": ("ack_policy",),
    "auto_offset_reset": ("deliver_policy", "starting_offsets"),
    "bootstrap_servers": ("servers",),
    "ca_file": ("tls=TLSOptions(ca_file=...)",),
    "cert": ("tls=TLSOptions(cert_file=..., key_file=...)",),
    "cert_file": ("tls=TLSOptions(cert_file=..., key_file=...)",),
    "client_id": ("name",),
    "closed_handler": ("closed_cb",),
    "consumer_timeout_ms": ("expires", "timeout"),
    "creds": ("user_credentials",),
    "creds_file": ("user_credentials",),
    "credentials": ("user_credentials",),
    "deliver": ("deliver_policy",),
    "deliver_group": ("queue",),
    "discard_policy": ("discard",),
    "disconnect_cb": ("disconnected_cb",),
    "durable": ("durable_name",),
    "error_handler": ("error_cb",),
    "expected_last_seq": ("expected_last_sequence",),
    "filter": ("filter_subject", "filter_subjects"),
    "group_id": ("durable_name", "queue"),
    "inbox": ("inbox_prefix",),
    "jwt": ("user_jwt_cb", "user_credentials"),
    "key_file": ("tls=TLSOptions(cert_file=..., key_file=...)",),
    "marker_ttl": ("limit_marker_ttl",),
    "max_poll_records": ("max_messages", "batch"),
    "max_reconnects": ("max_reconnect_attempts",),
    "max_retries": ("max_deliver", "retry=Backoff(attempts=...)", "retry_attempts"),
    "max_size": ("max_bytes",),
    "message_ttl": ("msg_ttl",),
    "nak_delay": ("backoff",),
    "nats_url": ("servers",),
    "nkey_seed": ("nkeys_seed", "nkeys_seed_str"),
    "nkeys_seed_file": ("nkeys_seed",),
    "no_randomize": ("dont_randomize",),
    "on_error": ("error_cb",),
    "passwd": ("password",),
    "reconnect_wait": ("reconnect_time_wait",),
    "replicas": ("num_replicas",),
    "retention_ms": ("max_age",),
    "retention_policy": ("retention",),
    "retries": ("max_deliver", "retry=Backoff(attempts=...)", "retry_attempts"),
    "seed": ("nkeys_seed_str",),
    "start_seq": ("opt_start_seq",),
    "start_time": ("opt_start_time",),
    "subject": ("subjects", "filter_subject", "filter_subjects"),
    "subject_filter": ("filter_subject", "filter_subjects"),
    "subscriptions": ("subjects",),
    "timeout": ("connect_timeout", "expires", "ack_wait"),
    "ttl": ("max_age", "msg_ttl", "inactive_threshold"),
    "url": ("servers",),
    "urls": ("servers",),
    "username": ("user",),
    "wait": ("timeout", "expires"),
}


def spelling_of(option: str, known: Collection[str]) -> str | None:
    """Return what an option of another client is called in a call with some options; ``None``: it has no counterpart."""
    words = FOREIGN_OPTIONS.get(option, ())
    return next((word for word in words if re.findall(r"\w+", word)[0] in known), None)


def missing_error(name: str) -> NoReturn:
    """Raise `AttributeError` for a name that `jetstream_sync.errors` does not have."""
    text = f"module 'jetstream_sync.errors' has no attribute {name!r}"
    if name in FOREIGN_ERRORS:
        text += f": use {FOREIGN_ERRORS[name]}"
    raise AttributeError(text, name=name)


def missing_name(name: str) -> NoReturn:
    """Raise `AttributeError` for a name that the package does not have."""
    text = f"module 'jetstream_sync' has no attribute {name!r}"
    if name in FOREIGN_NAMES["jetstream_sync"]:
        text += f": {FOREIGN_NAMES['jetstream_sync'][name]}"
    raise AttributeError(text, name=name)


class _ForeignName:
    """An attribute that does not exist, whose error names the replacement."""

    def __init__(self, hint: str) -> None:
        self._hint = hint

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: object, owner_type: type) -> NoReturn:
        text = f"{owner_type.__name__!r} object has no attribute {self._name!r}: {self._hint}"
        raise AttributeError(text, name=self._name, obj=owner)


class ForeignNames:
    """Base class that explains missing attributes known from other clients."""

    # Not by `__getattr__`: with that, Python does not cache the lookup of any attribute of the class.

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in FOREIGN_NAMES.get(cls.__name__, {}).keys() - vars(cls).keys():
            foreign = _ForeignName(FOREIGN_NAMES[cls.__name__][name])
            foreign.__set_name__(cls, name)
            setattr(cls, name, foreign)

    def __dir__(self) -> list[str]:
        """Return the names that exist."""
        return [name for name in super().__dir__() if hasattr(type(self), name)]
