"""Codecs of the keys and values of a bucket."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final, Protocol

from ... import errors
from ...options import check_returned

_ROOT: Final = "_root_"


class KeyCodec(Protocol):
    """
    Encodes keys into valid keys of a bucket.

    A codec with a method ``encode_filter(pattern)``, which keeps wildcards, can also be used to watch and
    list keys.
    """

    def encode(self, key: str) -> str:
        """Return the stored form of a key."""
        ...

    def decode(self, key: str) -> str:
        """Return the key of a stored form; raise a ValueError if there is none."""
        ...


class ValueCodec(Protocol):
    """Encodes values, for example to compress or encrypt them."""

    def encode(self, value: bytes) -> bytes:
        """Return the stored form of a value."""
        ...

    def decode(self, value: bytes) -> bytes:
        """Return the value of a stored form; raise a ValueError if there is none."""
        ...


class Base64Keys:
    """Stores each token of a key as URL-safe Base64 without padding, so that it can have any text."""

    def encode(self, key: str) -> str:
        """Return the stored form of a key."""
        return ".".join(_encoded_token(token) for token in key.split("."))

    def encode_filter(self, pattern: str) -> str:
        """Return the stored form of a pattern; wildcards are kept."""
        parts = pattern.split(".")
        return ".".join(part if part in {"*", ">"} else _encoded_token(part) for part in parts)

    def decode(self, key: str) -> str:
        """
        Return the key of a stored form.

        Raises:
            InvalidNameError: it is not valid Base64, or not a text.

        """
        try:
            return ".".join(
                base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True).decode()
                for token in key.split(".")
            )
        except (binascii.Error, UnicodeDecodeError) as error:
            raise errors.InvalidNameError(
                "key", key, f"not the Base64 of a text: {error}"
            ) from None


def _encoded_token(token: str) -> str:
    return base64.urlsafe_b64encode(token.encode()).rstrip(b"=").decode()


#: Characters of a path that have another meaning in its stored form, and how they are stored.
_ESCAPES: Final = {".": "=2E", "=": "=3D"}

#: The stored form of a relative path that begins with the token of the root.
_ESCAPED_ROOT: Final = "=5Froot_"


class PathKeys:
    """
    Stores paths such as ``/a/b`` as ``_root_.a.b``, and ``a/b`` as ``a.b``; a final slash is dropped.

    A dot in a path is stored as ``=2E``, and ``=`` as ``=3D``, so no two paths have one stored form.
    """

    def encode(self, key: str) -> str:
        """Return the stored form of a path."""
        tokens = "".join(_ESCAPES.get(char, char) for char in key.removesuffix("/")).split("/")
        if key.startswith("/"):
            tokens[0] = _ROOT
        elif tokens[0] == _ROOT:
            tokens[0] = _ESCAPED_ROOT
        return ".".join(tokens)

    encode_filter = encode

    def decode(self, key: str) -> str:
        """
        Return the path of a stored form.

        Raises:
            InvalidNameError: it is not the stored form of a path.

        """
        first, *rest = key.split(".")
        first = "" if first == _ROOT else _ROOT if first == _ESCAPED_ROOT else first
        path = "/".join((first, *rest)).replace("=2E", ".").replace("=3D", "=") or "/"
        if self.encode(path) != key:
            raise errors.InvalidNameError("key", key, "not the stored form of a path")
        return path


class CodecChain:
    """Encodes keys or values with each of the given codecs in turn."""

    def __init__(self, codecs: Sequence[Any]) -> None:
        self._codecs = codecs

    def encode(self, item: Any) -> Any:
        """Return the stored form of a key or a value."""
        for codec in self._codecs:
            item = codec.encode(item)
            check_returned(item)
        return item

    def encode_filter(self, pattern: str) -> str:
        """Return the stored form of a pattern; raise `InvalidOptionError` if a codec has none."""
        for codec in self._codecs:
            encode = getattr(codec, "encode_filter", None)
            if encode is None and ("*" in pattern or ">" in pattern):
                reason = f"{type(codec).__name__} cannot encode patterns"
                raise errors.InvalidOptionError("pattern", pattern, reason)
            pattern = (encode or codec.encode)(pattern)
            check_returned(pattern)
        return pattern

    def decode(self, item: Any) -> Any:
        """Return the key or the value of a stored form."""
        for codec in reversed(self._codecs):
            item = codec.decode(item)
            check_returned(item)
        return item


def codec_of(option: str, given: Any) -> CodecChain | None:
    """Return one codec for the given ones, if any, which are applied in order."""
    codecs = given if isinstance(given, Sequence) else () if given is None else (given,)
    for codec in codecs:
        if isinstance(codec, type) or not (hasattr(codec, "encode") and hasattr(codec, "decode")):
            rule = "must be an object with the methods encode and decode"
            raise errors.InvalidOptionError(option, codec, rule)
    return CodecChain(codecs) if codecs else None
