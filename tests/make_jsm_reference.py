"""
Write the reference of the commands, ``docs/reference/jsm.rst`` and a page for each group, from their help.

    python tests/make_jsm_reference.py

``test_reference.py`` checks that the pages are up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from jetstream_sync.cli.commands import Node, default_of, parameters, walk
from jetstream_sync.cli.fields import FieldOption
from jetstream_sync.cli.main import jsm
from jetstream_sync.cli.status import MEANINGS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "jsm.rst"
_NOTE = (
    ".. This page is made by tests/make_jsm_reference.py, of what the commands say of themselves.\n"
)

HEAD = f"""\
jsm reference
=============

{_NOTE}
``jsm ms`` is ``jsm stream`` and ``jsm obs`` is ``jsm consumer``, as in 2020.
What is common to all commands, and how to use it in scripts, is in :doc:`../howto/jsm`.
"""


#: The groups with a page of their own.
OWN_PAGES = frozenset({"stream", "consumer", "kv", "object"})


def root() -> click.Context:
    """Return the context of the root command."""
    return click.Context(jsm, info_name="jsm", **jsm.context_settings)


def nodes() -> list[Node]:
    """Return all commands in the order of the help."""
    return list(walk(jsm, root()))


def pages() -> dict[Path, str]:
    """Return the pages: the common part with the commands without a group, and each group."""
    common = [HEAD, *_exit_statuses(), *_common_options()]
    groups: dict[str, list[str]] = {}
    for node in nodes():
        name = node.path[0]
        if node.is_group and len(node.path) == 1 and name in OWN_PAGES:
            groups[name] = []
        if name in groups:
            groups[name] += _about(node)
        else:
            common += _about(node)
    common += ["", ".. toctree::", "   :maxdepth: 1", "", *(f"   jsm/{name}" for name in groups)]
    found = {PAGE: common}
    for name, parts in groups.items():
        found[PAGE.with_suffix("") / f"{name}.rst"] = [*parts[:1], _NOTE, *parts[1:]]
    return {
        path: re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip() + "\n"
        for path, parts in found.items()
    }


def _title(text: str, line: str) -> str:
    return f"\n{text}\n{line * len(text)}\n"


def _exit_statuses() -> Iterator[str]:
    yield _title("Exit statuses", "-")
    yield ".. list-table::\n   :header-rows: 1\n\n   * - Status\n     - Meaning"
    for status, meaning in MEANINGS.items():
        yield f"   * - {int(status)}\n     - {meaning}"


def _common_options() -> Iterator[str]:
    yield _title("Options of every command", "-")
    yield "They may stand before or after the command's name; the one nearest to it counts.\n"
    for param in jsm.params:
        if isinstance(param, click.Option):
            yield from _option(param, root())


def _about(node: Node) -> Iterator[str]:
    name = " ".join(("jsm", *node.path))
    own_page = len(node.path) == 1 and name.removeprefix("jsm ") in OWN_PAGES
    yield _title(name, "=" if own_page else "-")
    if node.aliases:
        yield "Also: " + ", ".join(f"``{alias}``" for alias in node.aliases) + ".\n"
    yield from _help(node.command)
    if node.is_group:
        return
    arguments, options = parameters(node.command)
    usage = " ".join([name, *(each.make_metavar(node.context) for each in arguments)])
    if options:
        usage += " [OPTIONS]"
    yield f"\n.. code-block:: text\n\n   {usage}\n"
    config = [option for option in options if isinstance(option, FieldOption)]
    if config and node.path[-1] != "add":
        yield f"The options for the config are those of ``jsm {node.path[0]} add``.\n"
        options = [option for option in options if option not in config]
    for option in options:
        yield from _option(option, node.context)


def _help(command: click.Command) -> Iterator[str]:
    for paragraph in (command.help or "").strip().split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        if lines[0].strip() == "\b":
            yield "\n.. code-block:: text\n"
            yield from (f"   {line}".rstrip() for line in _dedented(lines[1:]))
            yield ""
        else:
            yield _escaped(" ".join(line.strip() for line in lines)) + "\n"


def _dedented(lines: list[str]) -> list[str]:
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[indent:] for line in lines]


def _option(option: click.Option, context: click.Context) -> Iterator[str]:
    takes = "" if option.is_flag or option.count else f" {option.make_metavar(context)}"
    flags = ", ".join(f"``{flag}``" for flag in option.opts)
    if option.secondary_opts:
        flags += " / " + ", ".join(f"``{flag}``" for flag in option.secondary_opts)
    text = _escaped(" ".join((option.help or "").split()))
    default = default_of(option)
    if default is not None and not isinstance(default, bool):
        text += f" Default: ``{default}``."
    elif option.secondary_opts and isinstance(option.default, bool):
        chosen = option.opts if option.default else option.secondary_opts
        text += f" Default: ``{chosen[0]}``."
    if option.multiple:
        text += " Repeatable."
    yield f"{flags}{f' ``{takes.strip()}``' if takes else ''}"
    yield f"   {text.strip() or 'Undocumented.'}\n"


def _escaped(text: str) -> str:
    """Return text without markup."""
    text = re.sub(r"'((?:jsm|nats)[^']*)'", r"``\1``", text)
    pieces = re.split(r"(``[^`]*``)", text)
    return "".join(
        piece if piece.startswith("``") else re.sub(r"([*`|\\]|(?<=\w)_(?!\w))", r"\\\1", piece)
        for piece in pieces
    )


if __name__ == "__main__":
    for old in PAGE.with_suffix("").glob("*.rst"):
        old.unlink()
    PAGE.with_suffix("").mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, "utf-8")
    sys.stdout.write(f"{PAGE}: {len(nodes())} commands\n")
