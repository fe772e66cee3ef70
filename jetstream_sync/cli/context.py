"""``jsm context``: manage named logins in the files of the ``nats`` command."""

from __future__ import annotations

import json
import operator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from ..address import parse_servers
from ..contexts import KEYS, fault_in
from ..errors import Error, InvalidOptionError
from .context_store import SECRETS, Contexts, complete_context, redacted
from .output import emit, emit_names, note, say
from .prompts import Asker
from .render import Block, Field, show_blocks, show_rows
from .settings import Login, Settings, chosen_context, command, read_password
from .status import CommandError, ExitStatus, one_line
from .values import force_option, names_option, option

#: Options that do not affect the login.
_KEPT = ("timeout", "trace")


def _with_context_only(settings: Settings, name: str) -> Settings:
    """Return settings with the login of a context, without login options and variables."""
    variables = {
        variable: value
        for variable, value in settings.env.variables.items()
        if variable != "SERVERS" and not variable.startswith("NATS_")
    }
    given: dict[str, Any] = {each: value for each, value in settings.given.items() if each in _KEPT}
    return Settings(
        env=replace(settings.env, variables=variables), given={**given, "context": name}
    )


def _contexts(settings: Settings) -> Contexts:
    return Contexts(settings.env.variables)


def _report(settings: Settings, document: dict[str, Any], text: str) -> None:
    emit(settings, document, lambda: say(settings, text))


#: The common option for each key.
_SET_BY: Final = {
    "url": "servers",
    "user": "user",
    "token": "token",
    "creds": "creds",
    "nkey": "nkey",
    "cert": "tlscert",
    "key": "tlskey",
    "ca": "tlsca",
    "tls_first": "tlsfirst",
    "jetstream_domain": "js_domain",
    "jetstream_api_prefix": "js_api_prefix",
    "inbox_prefix": "inbox_prefix",
}
#: Keys whose values are file names.
_FILES: Final = ("creds", "nkey", "cert", "key", "ca")


@command()
@click.argument("name")
@option("--description TEXT", "Describe its purpose.")
@option("--jwt TEXT", "Log in with this user JWT.")
@option("--seed TEXT", "Sign with this nkey seed.")
@option("--select", "Select the context.")
def add(
    settings: Settings,
    *,
    name: str,
    description: str | None,
    jwt: str | None,
    seed: str | None,
    select: bool,
) -> None:
    """
    Save the login options as a context, or change an existing context.

    Options that are not given remain unchanged. All login options are saved, such as --server, --user, --creds
    and --tlsca; see 'jsm help options'.
    """
    store = _contexts(settings)
    exists = name in store.names()
    fields = store.load(name) if exists else dict(KEYS)
    before = dict(fields) if exists else None
    for key, given in _SET_BY.items():
        if given in settings.given:
            fields[key] = settings.given[given]
    if isinstance(fields.get("url"), list):
        fields["url"] = ",".join(fields["url"])
    for key in _FILES:
        if _SET_BY[key] in settings.given and not fields[key].startswith(("~", "$")):
            # The context is used from other directories as well.
            fields[key] = str(Path(fields[key]).absolute())
    own_fields = {
        "password": read_password(settings),
        "description": description,
        "user_jwt": jwt,
        "user_seed": seed,
    }
    fields.update({key: value for key, value in own_fields.items() if value is not None})
    store.save(name, fields)
    try:
        parse_servers(_with_context_only(settings, name).login().servers)
    except (CommandError, InvalidOptionError) as error:
        if before is None:
            store.remove(name)
        else:
            store.save(name, before)
        text = f"context {name} was not saved, because other commands would refuse it: {error}"
        raise CommandError(text) from error
    if select:
        store.select(name)
    done = "changed" if exists else "created"
    document = {"context": name, done: True, "path": str(store.path(name))}
    _report(settings, document, f"Context {name} was {done}")


_NAME = click.argument("name", required=False, shell_complete=complete_context)

_LABELS: Final = {
    "url": "Server URLs",
    "nkey": "NKey",
    "ca": "Certificates",
    "cert": "Certificate",
    "nsc": "NSC",
    "user_jwt": "User JWT",
    "tls_first": "TLS First",
    "jetstream_domain": "JetStream Domain",
    "jetstream_api_prefix": "JetStream API Prefix",
    "jetstream_event_prefix": "JetStream Event Prefix",
}


def _ask(settings: Settings) -> str:
    with Asker(settings) as ask:
        return ask.select("Select a context", _contexts(settings).names(), "NAME")


_LIST: Final = (
    Field("Name", lambda each: f"{each['name']}{'*' * each['selected']}"),
    Field("Description", "description"),
    Field("URL", "url"),
)


@command()
@names_option
def ls(settings: Settings, *, names: bool) -> None:
    """List the contexts."""
    store = _contexts(settings)
    known, selected = store.names(), store.selected
    if names:
        emit_names(settings, known)
        return
    found: list[dict[str, Any]] = []
    for name in known:
        try:
            fields = store.load(name)
        except CommandError as error:  # an invalid file does not hide the others
            note(settings, f"warning: {error}")
            continue
        found.append(
            {
                "name": name,
                "selected": name == selected,
                "description": fields.get("description") or "",
                "url": redacted(fields).get("url") or "",
            }
        )

    show_rows(settings, found, _LIST, title="Contexts", none="No contexts defined")


@command()
@_NAME
@option("--show-secrets", "Show passwords, tokens and keys.")
def info(settings: Settings, *, name: str | None, show_secrets: bool) -> None:
    """
    Show a context; without a name, the effective login.

    The effective login lists the source of each value: an option, a variable, the context, or the default.
    """
    if name is None:
        _show_effective(settings, show_secrets=show_secrets)
        return
    fields = _contexts(settings).load(name)
    shown = fields if show_secrets else redacted(fields)

    lines = [
        Field(
            _LABELS.get(key, key.replace("_", " ").title()), operator.itemgetter(key), if_set=True
        )
        for key in shown
    ]
    show_blocks(settings, shown, Block("", lines, shown), heading=f"Context {name}")


def _show_effective(settings: Settings, *, show_secrets: bool) -> None:
    login = settings.login()
    values = dict(login.values)
    if not show_secrets:
        values = _without_secrets(login)
    parts = {
        part: {"value": value, "source": login.sources[part]} for part, value in values.items()
    }
    show_blocks(
        settings,
        {"context": login.context, "settings": parts},
        Block("", [Field(part, part, _with_source) for part in parts], parts),
        heading=f"Context {login.context}" if login.context else "No context",
    )


def _with_source(part: dict[str, Any]) -> str:
    value = part["value"]
    text = ", ".join(value) if isinstance(value, list) else str(value)
    return f"{text} ({part['source']})"


def _without_secrets(login: Login) -> dict[str, Any]:
    secrets = SECRETS | {"jwt", "seed"}
    masked = {part: redacted({"token": "x"})["token"] for part in login.values if part in secrets}
    url = redacted({"url": ",".join(login.values["url"])})["url"].split(",")
    return {**login.values, **masked, "url": url}


@command()
@_NAME
def select(settings: Settings, *, name: str | None) -> None:
    """Select the context to use by default."""
    _select(settings, name or _ask(settings))


@command()
def unselect(settings: Settings) -> None:
    """Clear the selection, so that no context is used by default."""
    _select(settings, None)


@command()
def previous(settings: Settings) -> None:
    """Select the previously selected context."""
    before = _contexts(settings).previous
    if before is None:
        raise CommandError("there is no previously selected context", ExitStatus.NOT_FOUND)
    _select(settings, before)


def _select(settings: Settings, name: str | None) -> None:
    store = _contexts(settings)
    store.select(name)
    now = store.selected
    text = f"Context {now} is selected" if now else "No context is selected"
    _report(settings, {"selected": now, "previous": store.previous}, text)


@command()
@click.argument("source", shell_complete=complete_context)
@click.argument("name")
def copy(settings: Settings, *, source: str, name: str) -> None:
    """Copy a context."""
    store = _contexts(settings)
    fields = store.load(source)
    if name in store.names():
        raise CommandError(f'context "{name}" exists', ExitStatus.FAILED)
    store.save(name, fields)
    document = {"context": name, "created": True, "path": str(store.path(name))}
    _report(settings, document, f"Context {name} was created")


@command()
@_NAME
def edit(settings: Settings, *, name: str | None) -> None:
    """Edit a context with $VISUAL or $EDITOR."""
    store = _contexts(settings)
    name = name or chosen_context(settings) or _ask(settings)
    before = json.dumps({**KEYS, **store.load(name)}, indent=2, ensure_ascii=False)
    variables = settings.env.variables
    editor = variables.get("VISUAL") or variables.get("EDITOR")
    after = click.edit(before, editor=editor, extension=".json", env=dict(variables))
    changed = after is not None and after.strip() != before
    if changed:
        try:
            fields = json.loads(after or "")
        except ValueError as error:
            raise CommandError(f"nothing was saved: {error}") from error
        if reason := fault_in(fields):
            raise CommandError(f"nothing was saved: {reason}")
        store.save(name, fields)
    text = f"Context {name} was changed" if changed else "Nothing was changed"
    _report(settings, {"context": name, "changed": changed}, text)


@command()
@click.argument(
    "names", nargs=-1, required=True, shell_complete=complete_context, metavar="NAME..."
)
@force_option
def rm(settings: Settings, *, names: tuple[str, ...], force: bool) -> None:
    """Delete contexts."""
    store = _contexts(settings)
    for name in names:
        store.must_exist(name)
    Asker(settings).confirm(f"Delete {', '.join(names)}?", force=force)
    for name in names:
        store.remove(name)
        if not settings.json:
            note(settings, f"context {name} was deleted")
    emit(settings, {"deleted": list(names)}, lambda: None)


@command()
@click.argument("names", nargs=-1, shell_complete=complete_context, metavar="[NAME]...")
@option("--connect", "Connect with each context as well.")
def validate(settings: Settings, *, names: tuple[str, ...], connect: bool) -> None:
    """
    Check that contexts are usable; without names, check all of them.

    The exit status is 1 when a check fails.
    """
    results = [
        {"name": name, **_checked(settings, name, connect=connect)}
        for name in names or _contexts(settings).names()
    ]

    def human() -> None:
        for each in results:
            text = each.get("server") or each.get("error") or ""
            say(settings, f"{each['name']}: {'OK' if each['ok'] else 'ERROR'} {text}".rstrip())

    emit(settings, results, human)
    if bad := [str(each["name"]) for each in results if not each["ok"]]:
        raise CommandError(f"unusable contexts: {', '.join(bad)}", ExitStatus.FAILED)


def _checked(settings: Settings, name: str, *, connect: bool) -> dict[str, Any]:
    """Return whether a context is usable, as the fields of a JSON document."""
    settings = _with_context_only(settings, name)
    try:
        for path in settings.login().files():
            with path.open("rb"):
                pass
        if not connect:
            return {"ok": True}
        with settings.connection() as nc:
            return {"ok": True, "server": nc.connected_url}
    except (Error, CommandError, OSError) as error:
        return {"ok": False, "error": one_line(error)}
