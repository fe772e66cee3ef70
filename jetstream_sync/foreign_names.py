"""Names of nats-py that differ in this package, and the error that names the replacement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NoReturn

#: For each class the names of nats-py, with their replacement.
FOREIGN_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "Connection": {
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
    "KeyValue": {"watchall": "use watch()"},
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
