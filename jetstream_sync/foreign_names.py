"""Names of nats-py that differ in this package, and the error that names the replacement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

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
