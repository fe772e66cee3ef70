"""
Write the types of the config fields and connection options, from the records that declare them.

    python tests/make_config_fields.py

``unit/api/test_config_fields.py`` checks that the files are up to date.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from jetstream_sync.api import account, enums, stream
from jetstream_sync.api.consumer import ConsumerConfig
from jetstream_sync.api.key_value import KeyValueConfig
from jetstream_sync.api.object_store import ObjectStoreConfig
from jetstream_sync.options import ConnectionOptions, keyword_types
from jetstream_sync.records import field_docs

FILE = Path(__file__).parents[1] / "jetstream_sync" / "api" / "config_fields.pyi"
CONNECT_FILE = Path(__file__).parents[1] / "jetstream_sync" / "connect_options.pyi"
RECORDS = (stream.StreamConfig, KeyValueConfig, ConsumerConfig, ObjectStoreConfig)
#: What a field accepts whose declared type is a descriptor.
ACCEPTED = {
    "Duration": "timedelta | float | None",
    "Durations": "Sequence[timedelta | float] | None",
}
HEAD = """\
# Types of the config fields that `create_stream()`, `create_consumer()` and similar calls accept by
# keyword; durations are a `timedelta` or seconds. Made by tests/make_config_fields.py from the records,
# which document the fields. Type checkers reject an unknown or misspelled field. There is no such module
# at run time.

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict
"""
CONNECT_HEAD = """\
# Types of the keyword arguments of `connect()`. Made by tests/make_config_fields.py from
# `jetstream_sync.options.ConnectionOptions`. There is no such module at run time.

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from ssl import SSLContext
from typing import TypedDict

from .address import Secret
from .options import Dialer, ErrorCallback, EventCallback, FilePath, ReconnectTo, TLSOptions

class ConnectOptions(TypedDict, total=False):
"""


def contents() -> str:
    """Return the text of the file."""
    classes = "".join(map(_typed_dict, RECORDS))
    words = set(re.findall(r"\b[A-Z]\w+", re.sub(r"`\w+`|class \w+", "", classes)))
    imports = ""
    for module in (account, enums, stream):
        names = sorted(
            name
            for name, value in vars(module).items()
            if name in words and getattr(value, "__module__", "") == module.__name__
        )
        text = f"from .{module.__name__.rpartition('.')[2]} import {', '.join(names)}\n"
        if len(text) > 101:
            listed = "".join(f"    {name},\n" for name in names)
            text = f"{text.partition('import')[0]}import (\n{listed})\n"
        imports += text
    return f"{HEAD}\n{imports}{classes}"


def _typed_dict(record: type[Any]) -> str:
    name = record.__name__
    lines = [f"\nclass {name}Fields(TypedDict, total=False):"]
    declared = sorted(fields(record), key=lambda field: field.name == "extra")
    lines += [f"    {item.name}: {ACCEPTED.get(item.type, item.type)}" for item in declared]
    return "\n".join(lines) + "\n"


def connect_options() -> str:
    """Return the text of the stub with the keyword arguments of `connect()`."""
    docs = field_docs(ConnectionOptions)
    lines = []
    for name, kind in keyword_types().items():
        lines += [f"    {name}: {kind}", f'    """{docs[name]}"""']
    return CONNECT_HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(contents(), encoding="utf-8")
    CONNECT_FILE.write_text(connect_options(), encoding="utf-8")
