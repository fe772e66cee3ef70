"""Contexts: named logins in files shared with the ``nats`` command (ADR-21)."""

# A context is a JSON file in ``$XDG_CONFIG_HOME/nats/context``, or ``~/.config/nats/context``.

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Final

from . import errors
from .address import DEFAULT_SERVER, parse_servers
from .exact import exact, masked
from .records import Frozen, frozen

#: The keys of a context, in the order of a file, with their defaults.
KEYS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(
        (
            *("description", "url", "socks_proxy", "token", "user", "password", "creds", "nkey"),
            *("cert", "key", "ca", "nsc"),
            *("jetstream_domain", "jetstream_api_prefix", "jetstream_event_prefix", "inbox_prefix"),
            *("user_jwt", "user_seed", "color_scheme", "tls_first", "windows_cert_store"),
            *("windows_cert_match_by", "windows_cert_match", "windows_ca_certs_match"),
        ),
        "",
    ),
    "tls_first": False,
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
#: The login methods, in the order of the ``nats`` command, which uses the first one only.
_METHODS: Final = (("user", "password"), ("creds",), ("nkey",), ("user_jwt", "user_seed"))
#: The keys of values that may be secrets.
SECRETS: Final = ("token", "password", "user_jwt", "user_seed", "creds", "nkey")
#: The options of `connect()` that log in.
_LOGINS: Final = frozenset(
    ("user", "token", "user_credentials", "nkeys_seed", "nkeys_seed_str", "nkey", "user_jwt_cb")
)
#: The arguments of `jetstream()`, and the ends of their keys.
_ROUTES: Final = {"domain": "domain", "prefix": "api_prefix"}
# The scheme of a value that names its secret, or holds it in base64.
_SCHEME: Final = r"(?i)data(?=:)|[a-z][a-z0-9+.-]+(?=://)"
#: The schemes of values that name a secret without holding it.
_REFERENCES: Final = ("file", "env", "op", "nsc")
#: The programs that print a secret, by scheme.
_PROGRAMS: Final = {"op": ("op", "read"), "nsc": ("nsc", "generate", "profile")}
#: Why there is no secret, by scheme.
_MISSING: Final = {
    "data": "expected data:;base64, and the secret in base64",
    "env": "the variable is not set or empty",
    "file": "the file is empty",
    **dict.fromkeys(_PROGRAMS, "the program printed nothing"),
}
#: How long such a program may run, in seconds: `op` may ask for a fingerprint.
_PROGRAM_TIMEOUT_S: Final = 60.0


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
    return (
        name.strip() != "" and name[0] != "." and name.isprintable() and not set(name) & set("/\\")
    )


def check_fields(fields: Any) -> dict[str, Any]:
    """Return the fields of a context; raise `ValueError`, without secrets, if they are not valid."""
    if not isinstance(fields, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004 - as for text that is no JSON
    for key, usual in KEYS.items():
        value = fields.get(key)
        # Boolean keys may be text as well.
        if isinstance(usual, str | bool) and not isinstance(value, str | type(usual) | None):
            kind = "text" if isinstance(usual, str) else "true or false"
            is_plain = isinstance(value, int | float) and key not in SECRETS
            shown = value if is_plain else type(value).__name__
            raise ValueError(f"{key}: expected {kind}, not {shown}")  # noqa: TRY004
    return fields


def used_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the fields that a connection uses: of several login methods the first one, as the ``nats`` command does.

    Raises:
        InvalidOptionError: a key with a value is not supported.

    """
    key = next((key for key in _UNSUPPORTED if fields.get(key)), None)
    if key is not None:
        raise errors.InvalidOptionError("context", "...", f"the key {key!r} is not supported")
    used = next((keys for keys in _METHODS if fields.get(keys[0])), ())
    unused = {key for keys in _METHODS if keys is not used for key in keys}
    return {key: value for key, value in fields.items() if key not in unused}


def is_server_of(fields: Mapping[str, Any], servers: str | Iterable[str]) -> bool:
    """Return whether all servers are those of a context, for which alone its login is."""
    own = {address.url for address in parse_servers(fields.get("url") or DEFAULT_SERVER)}
    return own.issuperset(address.url for address in parse_servers(servers))


def scheme_of(text: str) -> str:
    """Return the scheme of a value that names its secret, in lower case; empty: it is the value itself."""
    found = re.match(_SCHEME, text)
    return found[0].lower() if found else ""


def local_path(text: str) -> str | None:
    """Return the path that a value is, also as a ``file://`` URL; ``None``: it has another scheme."""
    if scheme_of(text) not in ("", "file"):
        return None
    path = text.partition("://")[2] if scheme_of(text) else text
    return os.path.expanduser(os.path.expandvars(path))  # noqa: PTH111 - text


@frozen()
class ContextSecret(Frozen):
    """Values of a context that are read when a connection logs in; ``repr`` omits them."""

    key: str
    """The key of the last value, for errors."""
    texts: tuple[str, ...] = field(repr=False)
    """A secret or its reference, or those of a JWT and its seed."""
    variables: Mapping[str, str] | None = field(default=None, repr=False, compare=False)
    """Environment variables that precede those of the process."""

    def __call__(self) -> str:
        """Return the secret; a JWT with its seed in the format of a credentials file."""
        *first, last = (masked(self._resolve(text)) for text in self.texts)
        if not first:
            return last
        return (
            f"-----BEGIN NATS USER JWT-----\n{first[0]}\n------END NATS USER JWT------\n"
            f"-----BEGIN USER NKEY SEED-----\n{last}\n------END USER NKEY SEED------\n"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # References may be sent to other processes, but no secret.
        kept = tuple(text if is_reference(text) else "data:" for text in self.texts)
        return type(self), (self.key, kept)

    def _resolve(self, text: str) -> str:
        scheme = scheme_of(text)
        if not scheme:
            return text
        missing = _MISSING.get(scheme, f"the scheme {scheme!r} is not supported")
        secret = ""
        try:
            secret = masked(self._content(scheme, text).decode().rstrip("\r\n"))
        except (OSError, ValueError) as error:
            # Not the text of a ValueError, which may have the secret.
            missing = (
                f"it cannot be read: {getattr(error, 'strerror', None) or type(error).__name__}"
            )
        if not secret:
            raise errors.CredentialsError(
                self.key, exact(text) if is_reference(text) else "...", missing
            )
        return secret

    def _content(self, scheme: str, text: str) -> bytes:
        """Return what a value names or holds; empty if there is none."""
        rest = text.partition(":")[2].removeprefix("//")
        if scheme == "data":
            # Imported late to keep the start of jsm fast.
            from base64 import b64decode  # noqa: PLC0415

            header, _, payload = rest.partition(",")
            return b64decode(payload, validate=True) if "base64" in header.split(";") else b""
        if scheme == "env":
            return ((self.variables or {}).get(rest) or os.environ.get(rest, "")).encode()
        if scheme == "file":
            return _read(local_path(text) or "")
        return _run(scheme, f"{scheme}://{rest}") if scheme in _PROGRAMS else b""


def is_reference(text: str) -> bool:
    """Return whether a value only names its secret, so that it may be shown and pickled."""
    return scheme_of(text) in _REFERENCES


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()


@functools.cache
def _run(scheme: str, reference: str) -> bytes:
    """Return the secret that a program prints, which runs once in a process; raise `OSError` if it fails."""
    import subprocess  # noqa: PLC0415 - for these references only

    program = _PROGRAMS[scheme]
    try:
        done = subprocess.run(
            [*program, reference],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROGRAM_TIMEOUT_S,
        )
    except FileNotFoundError:
        raise OSError(
            0, f"{scheme}:// needs the program {program[0]!r}, which is not found"
        ) from None
    except subprocess.TimeoutExpired:
        raise OSError(0, f"{program[0]!r} did not end in time") from None
    if done.returncode:
        raise OSError(0, f"{program[0]!r} failed with status {done.returncode}")
    if scheme != "nsc":
        return done.stdout
    # It prints the path of the credentials.
    found = json.loads(done.stdout)
    return (
        _read(found["user_creds"]) if isinstance(found, dict) and found.get("user_creds") else b""
    )


def connect_options(
    fields: Mapping[str, Any], variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """
    Return the options of `connect()` for the fields of a context, without its servers.

    Raises:
        InvalidOptionError: a file for TLS has a scheme other than ``file``, or a program failed that is
            to print a secret.

    """
    fields = masked(fields)

    def secret(*keys: str) -> ContextSecret:
        found = ContextSecret(keys[-1], tuple(fields[key] for key in keys), variables)
        # A program may ask for a password, which takes longer than a server waits for a login.
        if not {scheme_of(text) for text in found.texts}.isdisjoint(_PROGRAMS):
            found()
        return found

    given = {key: fields[key] for key in fields if fields.get(key)}
    options = {option: given[key] for key, option in OPTIONS.items() if key in given}
    for key in ("password", "token"):
        if key in given and scheme_of(given[key]):
            options[key] = secret(key)
    for key, function in (("creds", "user_credentials"), ("nkey", "nkeys_seed_str")):
        if key in given:
            path = local_path(options.pop(OPTIONS[key]))
            options |= {function: secret(key)} if path is None else {OPTIONS[key]: path}
    files = {option: local_path(given[key]) for key, option in TLS_OPTIONS.items() if key in given}
    if None in files.values():
        key = next(key for key, option in TLS_OPTIONS.items() if files.get(option, "") is None)
        rule = f"{key} must be a path; the scheme {scheme_of(given[key])!r} is not supported"
        raise errors.InvalidOptionError("context", "...", rule)
    if files:
        # Imported late to keep the start of jsm fast.
        from .options import TLSOptions  # noqa: PLC0415

        options["tls"] = TLSOptions(**files)
    if str(fields.get("tls_first") or "").lower() not in ("", "0", "false", "no"):
        options["tls_handshake_first"] = True
    if "user_jwt" in given and "user_seed" in given:
        options["user_credentials"] = secret("user_jwt", "user_seed")
    elif "user_jwt" in given:
        options["user_jwt_cb"] = secret("user_jwt")
    return options


def read_context(
    name: str, servers: str | Iterable[str] | None, options: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any], dict[str, str | None]]:
    """
    Return the servers of a context, the options of `connect()`, and the domain and prefix of `jetstream()`.

    The options that are given replace those of the context, and a login replaces its login.

    Raises:
        InvalidOptionError: there is no such context, its file is invalid, it has a key that this client
            does not support, or it has a login and a server is not one of its own.

    """
    if not isinstance(name, str) or not is_context_name(name):
        raise errors.InvalidOptionError("context", name, "is not the name of a context")
    path = os.path.join(contexts_root(), "context", f"{name}.json")  # noqa: PTH118
    try:
        fields = check_fields(masked(json.loads(_read(path))))
    except FileNotFoundError:
        raise errors.InvalidOptionError("context", name, f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        # Without its cause, which holds the text of the file.
        raise errors.InvalidOptionError("context", name, f"{path}: {error}") from None
    try:
        used = used_fields(fields)
        if _LOGINS & options.keys():
            used = {
                key: value for key, value in used.items() if key not in SECRETS and key != "user"
            }
        login = connect_options(used)
    except errors.CredentialsError:
        raise
    except errors.InvalidOptionError as error:
        raise errors.InvalidOptionError("context", name, error.reason) from None
    sent = login.keys() - options.keys() - {"tls_handshake_first"}
    if "tls" in sent and login["tls"].cert_file is None:
        sent.discard("tls")
    if servers is not None and sent and not is_server_of(fields, servers):
        rule = (
            f"is not for these servers, which would receive its {min(sent)}: leave out servers, or pass a login "
            "instead of the context"
        )
        raise errors.InvalidOptionError("context", name, rule)
    route = {key: fields.get(f"jetstream_{part}") or None for key, part in _ROUTES.items()}
    return fields.get("url"), {**login, **options}, route
