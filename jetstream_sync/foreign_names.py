"""Names of nats-py and nats.go that differ in this package, and the error that names the replacement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NoReturn

#: For each class the names of other clients, with their replacement.
FOREIGN_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "Connection": {
        "client_id": "use server_info.client_id",
        "client_ip": "use server_info.client_ip",
        "connect": "use jetstream_sync.connect(), which returns a connection",
        "connected_server_version": "use server_info.version",
        "force_reconnect": "use reconnect()",
        "is_connecting": "use status",
        "is_draining_pubs": "use status",
        "jet_stream": "use jetstream()",
        "jsm": "use jetstream(), which also manages streams and consumers",
        "options": "options are passed to connect() and cannot be read",
        "pending_data_size": "not available; the option pending_size limits it",
        "publish_msg": "use publish()",
        "queue_subscribe": "use subscribe(subject, queue=...)",
        "request_msg": "use request()",
        "ssl_context": "it is the tls option of connect()",
        "subscribe_sync": "use subscribe() without cb",
    },
    "JetStream": {
        "add_consumer": "use create_consumer(), update_consumer() or create_or_update_consumer()",
        "add_stream": "use create_stream()",
        "consumer": "use get_consumer()",
        "consumers_info": "use list_consumers(stream_name)",
        "delete_msg": "use get_stream(name).delete_msg(seq)",
        "get_last_msg": "use get_stream(name).get_msg(last_by_subject=...)",
        "get_msg": "use get_stream(name).get_msg(seq)",
        "key_value_stores": "use list_key_values()",
        "key_value_store_names": "use key_value_names()",
        "jsm": "the same object manages streams and consumers",
        "object_stores": "use list_object_stores()",
        "publish_async_complete": "use publish_async_completed()",
        "publish_msg": "use publish()",
        "publish_msg_async": "use publish_async()",
        "pull_subscribe_sync": "use pull_subscribe()",
        "purge_stream": "use get_stream(name).purge()",
        "queue_subscribe": "use subscribe(subject, queue=...)",
        "stream": "use get_stream(name)",
        "stream_info": "use get_stream(name).info()",
        "stream_name_by_subject": "use find_stream_name_by_subject()",
        "streams": "use list_streams()",
        "streams_info": "use list_streams()",
        "streams_info_iterator": "use list_streams()",
        "subscribe_sync": "use subscribe() without cb",
    },
    "ObjectStore": {
        "add_link_to_bucket": "use add_bucket_link()",
        "get": "use get_bytes(), get_file() or open()",
        "get_info": "use info()",
        "get_string": "use get_bytes().decode()",
        "put_bytes": "use put()",
        "put_string": "use put() with text.encode()",
    },
    "KeyValue": {
        "get_revision": "use get(key, revision=...)",
        "list_keys": "use iter_keys()",
        "list_keys_filtered": "use iter_keys(*patterns)",
        "put_string": "use put() with text.encode()",
        "watch_all": "use watch()",
        "watch_filtered": "use watch([pattern, ...])",
        "watchall": "use watch()",
    },
    "Stream": {
        "add_consumer": "use create_consumer(), update_consumer() or create_or_update_consumer()",
        "consumer": "use get_consumer(name)",
        "consumers_info": "use list_consumers()",
        "config": "use cached_info.config or info().config",
        "get_last_msg": "use get_msg(last_by_subject=...)",
        "get_last_msg_for_subject": "use get_msg(last_by_subject=...)",
        "secure_delete_msg": "use delete_msg(seq, secure=True)",
        "state": "use cached_info.state or info().state",
    },
}


class ForeignNames:
    """Base class that explains missing attributes known from other clients."""

    __slots__ = ()

    # Hidden from type checkers, which would otherwise accept every attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an error that names the replacement of the attribute."""
            for base in type(self).__mro__:
                hint = FOREIGN_NAMES.get(base.__name__, {}).get(name)
                if hint is not None:
                    text = f"{type(self).__name__!r} object has no attribute {name!r}: {hint}"
                    raise AttributeError(text, name=name, obj=self)
            # Raise the usual error, or the one raised in a property.
            return object.__getattribute__(self, name)
