"""The parameters and documents of objects, for all commands of ``jsm object``."""

from __future__ import annotations

import base64
from typing import Any, Final

import click

from ... import ObjectInfo, ObjectStore
from ...codec import encode
from ..buckets import BUCKET_NAME, BucketKind, time_text
from ..completion import complete_object, complete_store
from ..output import Block, count, size, when, write_blocks
from ..sanitize import single_line
from ..settings import Settings
from ..values import Decorator

OBJECTS: Final = BucketKind[ObjectStore](
    noun="Object Store Bucket",
    open=lambda js, name: js.object_store(name),
    names=lambda js: js.object_store_names(),
    list=lambda js: js.list_object_stores(),
    delete=lambda js, name: js.delete_object_store(name),
    info=lambda status: status.stream_info,
)

bucket_argument: Decorator = click.argument(
    "bucket", type=BUCKET_NAME, shell_complete=complete_store
)
object_argument: Decorator = click.argument(
    "name", metavar="OBJECT", shell_complete=complete_object
)


def object_document(info: ObjectInfo) -> dict[str, Any]:
    """Return the JSON document of an object: its info as it is stored, and the time of the change."""
    document: dict[str, Any] = encode(info)
    document["mtime"] = time_text(info.mtime)
    return document


def write_object(settings: Settings, info: ObjectInfo) -> None:
    """Write the info of an object to ``stdout``."""
    block = Block()
    if info.description:
        block.add("Description", info.description)
    if info.link is not None:
        name = "" if info.link.name is None else f" > {info.link.name}"
        block.add("Link", f"{info.link.bucket}{name}")
    else:
        block.add("Size", f"{size(info.size)} ({count(info.size)} bytes)")
        block.add("Chunks", count(info.chunks))
        block.add("Digest", _digest_text(info.digest))
    if info.deleted:
        block.add("Deleted", "true")
    block.add("Modified", when(settings, info.mtime))
    headers = [f"{name}: {one}" for name, values in (info.headers or {}).items() for one in values]
    if headers:
        block.add("Headers", "\n".join(headers))
    labels = [f"{key}: {value}" for key, value in (info.metadata or {}).items()]
    if labels:
        block.add("Metadata", "\n".join(labels))
    heading = f"Information for object {info.bucket} > {single_line(info.name)}"
    write_blocks(settings.env, block, heading=heading)


def _digest_text(digest: str | None) -> str:
    """Return a digest with its bytes as hexadecimal digits, as ``sha256sum`` shows them."""
    algorithm, _, encoded = (digest or "-").partition("=")
    try:
        data = base64.urlsafe_b64decode(encoded.rstrip("=") + "==")
    except ValueError:
        return digest or "-"
    return f"{algorithm} {data.hex()}".rstrip()
