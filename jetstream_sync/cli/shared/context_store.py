"""
Contexts: named logins in files shared with the ``nats`` command (ADR-21).

A file keeps unknown keys, and has all known keys so that it is easy to edit. Only the owner can read it,
since it may contain secrets.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from ... import errors
from ...address import parse_servers
from ...contexts import (
    FILES,
    KEYS,
    SECRETS,
    check_fields,
    contexts_root,
    is_context_name,
    is_reference,
    scheme_of,
)
from .env import json_text, parse_json
from .status import AbsentError, CommandError, FailedError, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

_MASK: Final = "*********"
#: The files with the names of the selected context, and of the one that was selected before.
_SELECTED: Final = "context.txt"
_PREVIOUS: Final = "previous-context.txt"


class Contexts:
    """The contexts of a user."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._root = contexts_root(variables)

    def _file(self, *names: str) -> Path:
        # Most commands read the name of the selected context only.
        from pathlib import Path  # noqa: PLC0415 - its import takes long

        return Path(self._root, *names)

    def path(self, name: str) -> Path:
        """Return the path of a context, which may not exist."""
        if not is_context_name(name):
            raise CommandError(
                f"context name {name!r} is invalid: use letters, digits, '-' and '_'"
            )
        return self._file("context", f"{name}.json")

    def names(self) -> list[str]:
        """Return the sorted names of all contexts."""
        names = []
        with contextlib.suppress(OSError):
            for path in self._file("context").glob("*.json"):
                # Skip hidden copies and dangling symbolic links of other programs.
                with contextlib.suppress(OSError, CommandError):
                    if path.stat().st_size:
                        names.append(self.path(path.stem).stem)
        return sorted(names)

    def must_exist(self, name: str) -> None:
        """Check that a context exists, without reading its file."""
        if not self.path(name).exists():
            raise self._missing(name)

    def _missing(self, name: str) -> CommandError:
        return AbsentError(
            f'context "{name}" not found{did_you_mean(name, self.names())}',
            hint="see 'jsm context ls'",
        )

    def load(self, name: str) -> dict[str, Any]:
        """Return the fields of a context."""
        path = self.path(name)
        try:
            return check_fields(parse_json(path.read_text("utf-8")))
        except FileNotFoundError:
            raise self._missing(name) from None
        except (OSError, ValueError) as error:
            raise CommandError(f"{path}: {error}") from error

    def save(self, name: str, fields: Mapping[str, Any]) -> None:
        """Write a context atomically."""
        order = {key: fields.get(key, value) for key, value in KEYS.items()}
        text = json_text({**order, **fields}, indent=2)
        self._write(self.path(name), text + "\n")

    def remove(self, name: str) -> None:
        """Delete a context and clear its selection."""
        self.must_exist(name)
        self.path(name).unlink(missing_ok=True)
        for file in (_SELECTED, _PREVIOUS):
            if self._read(file) == name:
                self._file(file).unlink(missing_ok=True)

    @property
    def selected(self) -> str | None:
        """The name of the selected context."""
        return self._read(_SELECTED)

    @property
    def previous(self) -> str | None:
        """The name of the previously selected context."""
        return self._read(_PREVIOUS)

    def select(self, name: str | None) -> None:
        """Select a context; ``None`` clears the selection."""
        if name is not None:
            self.load(name)
        before = self.selected
        if before == name:
            return
        if before is not None:
            self._write(self._file(_PREVIOUS), before)
        if name is None:
            self._file(_SELECTED).unlink(missing_ok=True)
        else:
            self._write(self._file(_SELECTED), name)

    def _read(self, name: str) -> str | None:
        path = os.path.join(self._root, name)  # noqa: PTH118 - without pathlib
        with (
            contextlib.suppress(OSError, UnicodeDecodeError),
            open(path, encoding="utf-8") as file,  # noqa: PTH123
        ):
            return file.read().strip() or None
        return None

    def _write(self, path: Path, text: str) -> None:
        import tempfile  # noqa: PLC0415 - only to save a context

        try:
            for directory in (self._file(), path.parent):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A symbolic link stays one: a second copy would keep an old login.
            path = self._file(os.path.realpath(path))
            # mkstemp creates a file that only its owner can read.
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                self._file(name).replace(path)
            except BaseException:
                self._file(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise FailedError(f"{path}: {error.strerror}") from error


def redacted(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with secrets masked, also those in URLs; a reference to a secret is shown."""
    from ...options import SEED_OR_JWT  # noqa: PLC0415 - its import takes long

    # A field of a newer ``nats`` may be a secret.
    shown = {
        key: value if key in KEYS or not value or isinstance(value, (int, float)) else _MASK
        for key, value in fields.items()
    }
    if proxy := shown.get("socks_proxy"):
        shown["socks_proxy"] = re.sub("[^/]*@", f"{_MASK}@", proxy)
    for key in SECRETS:
        value = shown.get(key)
        # A file of credentials is named by its path.
        is_path = (
            key in FILES and not scheme_of(value or "") and not re.match(SEED_OR_JWT, value or "")
        )
        if value and not is_path and not is_reference(value):
            shown[key] = _MASK
    if "@" in (url := shown.get("url") or ""):
        try:
            shown["url"] = ",".join(
                address.url.replace(
                    "://", f"://{_MASK}@" if address.user or address.token else "://"
                )
                for address in parse_servers(url)
            )
        except errors.InvalidOptionError:
            shown["url"] = _MASK
    return shown


def complete_context(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the matching context names; for ``shell_complete`` of a parameter."""
    del param
    settings: Any = ctx.find_root().obj  # the module of `Settings` imports this one
    if settings is None:
        return []
    return [
        name for name in Contexts(settings.env.variables).names() if name.startswith(incomplete)
    ]
