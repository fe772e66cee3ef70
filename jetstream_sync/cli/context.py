"""``jsm context``: manage named logins in the files of the ``nats`` command."""

from __future__ import annotations

import operator
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from .. import errors
from ..address import parse_servers
from ..contexts import KEYS, check_fields, scheme_of
from ..exit_status import ExitStatus
from .shared.context_store import Contexts, complete_context, redacted
from .shared.env import json_text, parse_json
from .shared.output import deletions, emit_names, emit_text
from .shared.render import Block, Field, Table, show_blocks, show_rows
from .shared.settings import (
    DEFAULT_SERVER,
    LOGIN_PARTS,
    EffectiveLogin,
    Settings,
    chosen_context,
    command,
    read_password,
)
from .shared.status import AbsentError, CommandError, one_line
from .shared.values import force_option, names_option, option


def _contexts(settings: Settings) -> Contexts:
    return Contexts(settings.env.variables)


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
    given = {**settings.given, "password": read_password(settings)}
    for part in LOGIN_PARTS.values():
        value = given.get(part.name)
        if value is None or not part.key:
            continue
        is_path = part.metavar == "FILE" and not scheme_of(value)
        if is_path and not value.startswith(("~", "$")):
            # The context is used from other directories as well.
            value = str(Path(value).absolute())
        fields[part.key] = ",".join(value) if isinstance(value, list) else value
    own_fields = {"description": description, "user_jwt": jwt, "user_seed": seed}
    fields.update({key: value for key, value in own_fields.items() if value is not None})
    try:
        parse_servers(fields.get("url") or DEFAULT_SERVER)
    except errors.InvalidOptionError as error:
        raise CommandError(f"context {name} was not saved: {error}") from error
    store.save(name, fields)
    if select:
        store.select(name)
    done = "changed" if exists else "created"
    document = {"context": name, done: True, "path": str(store.path(name))}
    emit_text(settings, document, f"Context {name} was {done}")


_NAME = click.argument("name", required=False, shell_complete=complete_context)


def _ask(settings: Settings) -> str:
    return settings.ask().choose("Select a context", _contexts(settings).names, "NAME")


_LIST: Final = (
    Field("Name", lambda item: f"{item['name']}{'*' * item['selected']}"),
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
            settings.note(f"warning: {error}")
            continue
        found.append(
            {
                "name": name,
                "selected": name == selected,
                "description": fields.get("description") or "",
                "url": redacted(fields).get("url") or "",
            }
        )

    show_rows(settings, found, Table(_LIST, "Contexts", "No contexts defined"))


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

    lines = [Field(key, operator.itemgetter(key), if_set=True) for key in shown]
    show_blocks(settings, shown, Block("", lines, shown), heading=f"Context {name}")


def _show_effective(settings: Settings, *, show_secrets: bool) -> None:
    login = settings.login
    values = login.values if show_secrets else _without_secrets(login)
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


def _without_secrets(login: EffectiveLogin) -> dict[str, Any]:
    keys = {part: LOGIN_PARTS[part].key or part for part in login.values}
    shown = redacted({key: login.values[part] for part, key in keys.items() if part != "url"})
    url = redacted({"url": ",".join(login.values["url"])})["url"].split(",")
    return {part: url if part == "url" else shown[key] for part, key in keys.items()}


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
        raise AbsentError("there is no previously selected context")
    _select(settings, before)


def _select(settings: Settings, name: str | None) -> None:
    store = _contexts(settings)
    store.select(name)
    now = store.selected
    text = f"Context {now} is selected" if now else "No context is selected"
    emit_text(settings, {"selected": now, "previous": store.previous}, text)


@command()
@_NAME
def edit(settings: Settings, *, name: str | None) -> None:
    """Edit a context with $VISUAL or $EDITOR."""
    store = _contexts(settings)
    name = name or chosen_context(settings) or _ask(settings)
    before = json_text({**KEYS, **store.load(name)}, indent=2)
    variables = settings.env.variables
    editor = variables.get("VISUAL") or variables.get("EDITOR")
    after = click.edit(before, editor=editor, extension=".json", env=dict(variables))
    changed = after is not None and after.strip() != before
    if changed:
        try:
            fields = check_fields(parse_json(after or ""))
        except ValueError as error:
            raise CommandError(f"nothing was saved: {error}") from error
        store.save(name, fields)
    text = f"Context {name} was changed" if changed else "Nothing was changed"
    emit_text(settings, {"context": name, "changed": changed}, text)


@command()
@_NAME
@option("--connect", "Also connect, with the login of each context only.", to="connecting")
def validate(settings: Settings, *, name: str | None, connecting: bool) -> None:
    """
    Check the file, the addresses and the named files of a context; without a name, of all contexts.

    The exit status is 1 if a context is invalid.
    """
    store = _contexts(settings)
    if name is not None:
        store.must_exist(name)
    results: dict[str, str] = {}
    for item in store.names() if name is None else [name]:
        try:
            _validate(settings, item, store.load(item), connecting=connecting)
        except (errors.Error, CommandError, OSError) as error:
            results[item] = one_line(error)
        else:
            results[item] = ""
    lines = [f"{item}: {fault or 'valid'}" for item, fault in results.items()]
    document = [
        {"context": item, "valid": not fault, **({"error": fault} if fault else {})}
        for item, fault in results.items()
    ]
    emit_text(settings, document, "\n".join(lines) or "No contexts defined")
    if any(results.values()):
        raise click.exceptions.Exit(ExitStatus.FAILED)


def _validate(settings: Settings, name: str, fields: dict[str, Any], *, connecting: bool) -> None:
    servers = fields.get("url") or DEFAULT_SERVER
    parse_servers(servers)
    for part in LOGIN_PARTS.values():
        value = fields.get(part.key or "")
        if value and part.metavar == "FILE" and not scheme_of(value):
            Path(os.path.expandvars(value)).expanduser().read_bytes()
    if connecting:
        # Without other logins: options and variables would send them to the servers of every context.
        login = {part.name for part in LOGIN_PARTS.values()}
        given = {key: value for key, value in settings.given.items() if key not in login}
        given |= {"context": name, "no_context": False, "servers": servers.split(",")}
        own = {
            key: text for key, text in settings.env.variables.items() if not key.startswith("NATS_")
        }
        alone = replace(settings, given=given, env=replace(settings.env, variables=own), kept={})
        with alone.connection():
            pass


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
    settings.ask().confirm(f"Delete {', '.join(names)}?", force=force)
    with deletions(settings, "jsm: context {} was deleted".format) as deleted:
        for name in names:
            store.remove(name)
            deleted.append(name)
