"""``jsm context add``: save the login options of a command line as a context."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from ..login import read_password
from ..output import emit
from ..settings import Settings, common_options
from .store import KEYS, Contexts

__all__ = ["add"]

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


@click.command("add")
@click.argument("name")
@click.option("--description", metavar="TEXT", help="Describe its purpose.")
@click.option("--jwt", metavar="TEXT", help="Log in with this user JWT.")
@click.option("--seed", metavar="TEXT", help="Sign with this nkey seed.")
@click.option("--event-prefix", metavar="SUBJECT", help="Use this prefix for JetStream events.")
@click.option("--select", is_flag=True, help="Select the context.")
@common_options
def add(
    settings: Settings,
    *,
    name: str,
    description: str | None,
    jwt: str | None,
    seed: str | None,
    event_prefix: str | None,
    select: bool,
) -> None:
    """
    Save the login options as a context, or change an existing context.

    Options that are not given remain unchanged. All login options are saved, such as --server, --user, --creds
    and --tlsca; see 'jsm --help'.
    """
    store = Contexts(settings.env.variables)
    exists = name in store.names()
    fields = store.load(name) if exists else dict(KEYS)
    for key, option in _SET_BY.items():
        if option in settings.given:
            fields[key] = settings.given[option]
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
        "jetstream_event_prefix": event_prefix,
    }
    fields.update({key: value for key, value in own_fields.items() if value is not None})
    store.save(name, fields)
    if select:
        store.select(name)
    done = "changed" if exists else "created"
    emit(
        settings,
        {"context": name, done: True, "path": str(store.path(name))},
        lambda: settings.env.stdout.write(f"Context {name} was {done}\n"),
    )
