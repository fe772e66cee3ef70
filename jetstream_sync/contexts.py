"""Contexts: named logins in files shared with the ``nats`` command (ADR-21)."""

# A context is a JSON file in ``$XDG_CONFIG_HOME/nats/context``, or ``~/.config/nats/context``.

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from typing import Any, Final

from . import errors

#: The keys of a context with their defaults.
KEYS: Final[Mapping[str, Any]] = {
    "description": "",
    "url": "",
    "socks_proxy": "",
    "token": "",
    "user": "",
    "password": "",
    "creds": "",
    "nkey": "",
    "cert": "",
    "key": "",
    "ca": "",
    "nsc": "",
    "jetstream_domain": "",
    "jetstream_api_prefix": "",
    "jetstream_event_prefix": "",
    "inbox_prefix": "",
    "user_jwt": "",
    "user_seed": "",
    "color_scheme": "",
    "tls_first": False,
    "windows_cert_store": "",
    "windows_cert_match_by": "",
    "windows_cert_match": "",
    "windows_ca_certs_match": None,
}
#: Keys that are not supported. Ignoring them would change the connection.
_UNSUPPORTED: Final = ("nsc", "socks_proxy", "windows_cert_store", "windows_cert_match")
#: The keys of files.
FILES: Final = ("creds", "nkey", "cert", "key", "ca")
#: The options of `connect()`, and those of its ``tls``, by key.
OPTIONS: Final = {
    **{key: key for key in ("user", "password", "token", "inbox_prefix")},
    "creds": "user_credentials",
    "nkey": "nkeys_seed",
}
TLS_OPTIONS: Final = {"ca": "ca_file", "cert": "cert_file", "key": "key_file"}


def contexts_root(variables: Mapping[str, str] = os.environ) -> str:
    """Return the directory of the contexts; the null device in containers without a home directory."""
    # Not pathlib: its import takes a tenth of the time until a command of jsm is connected.
    if config := variables.get("XDG_CONFIG_HOME"):
        return os.path.join(config, "nats")  # noqa: PTH118
    home = variables.get("HOME") or os.path.expanduser("~")  # noqa: PTH111
    if home == "~":
        home = os.devnull
    return os.path.join(home, ".config", "nats")  # noqa: PTH118


def is_context_name(name: str) -> bool:
    """Return whether a context may have this name, which is that of its file."""
    return bool(name) and name[0] != "." and name.isprintable() and not set(name) & set("/\\ ")


def fault_in(fields: object) -> str:
    """Return why the fields are not a valid context; empty when they are."""
    if not isinstance(fields, dict):
        return "expected a JSON object"
    for key, usual in KEYS.items():
        value = fields.get(key)
        # Boolean keys may be text as well.
        if isinstance(usual, str | bool) and not isinstance(value, str | type(usual) | None):
            return f"{key}: expected {'text' if isinstance(usual, str) else 'true or false'}, not {value!r}"
    return ""


def unsupported_key(fields: Mapping[str, Any]) -> str | None:
    """Return the first key with a value that this client does not support; ``None``: there is none."""
    return next((key for key in _UNSUPPORTED if fields.get(key)), None)


def connect_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `connect()` for the fields of a context, without its servers."""
    options = {option: fields[key] for key, option in OPTIONS.items() if fields.get(key)}
    files = {option: fields[key] for key, option in TLS_OPTIONS.items() if fields.get(key)}
    if files:
        # Imported late to keep the start of jsm fast.
        from .options import TLSOptions  # noqa: PLC0415

        options["tls"] = TLSOptions(**files)
    if str(fields.get("tls_first") or "").lower() not in ("", "0", "false", "no"):
        options["tls_handshake_first"] = True
    jwt, seed = fields.get("user_jwt"), fields.get("user_seed")
    if jwt and seed:
        options["user_credentials"] = functools.partial(_credentials, jwt, seed)
    elif jwt:
        options["user_jwt_cb"] = functools.partial(str, jwt)
    return options


def _credentials(jwt: str, seed: str) -> str:
    """Return a JWT and a seed in the format of a credentials file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def read_context(name: str) -> tuple[str | None, dict[str, Any]]:
    """
    Return the servers of a context, and the options of `connect()`.

    Raises:
        InvalidOptionError: there is no such context, its file is invalid, or it has a key that this client
            does not support.

    """
    if not isinstance(name, str) or not is_context_name(name):
        raise errors.InvalidOptionError("context", name, "is not the name of a context")
    path = os.path.join(contexts_root(), "context", f"{name}.json")  # noqa: PTH118
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            fields = json.load(file)
    except FileNotFoundError:
        raise errors.InvalidOptionError("context", name, f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise errors.InvalidOptionError("context", name, f"{path}: {error}") from error
    fault = fault_in(fields)
    if fault:
        raise errors.InvalidOptionError("context", name, f"{path}: {fault}")
    key = unsupported_key(fields)
    if key is not None:
        raise errors.InvalidOptionError("context", name, f"{key!r} is not supported")
    for key in FILES:
        if fields.get(key):
            fields[key] = os.path.expanduser(os.path.expandvars(fields[key]))  # noqa: PTH111 - text
    return fields.get("url") or None, connect_options(fields)
