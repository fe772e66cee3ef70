"""
Write the reference of the commands, ``docs/reference/jsm.rst`` and a page for each group, from their help.

The help has examples from the pages, and texts from the docstrings of fields; both are written as well.

    python tests/make_jsm_reference.py

``test_reference.py`` checks that the pages are up to date.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from jetstream_sync import ConsumerConfig, KeyValueConfig, ObjectStoreConfig, StreamConfig, cli
from jetstream_sync.cli.commands import Node, default_of, parameters, walk
from jetstream_sync.cli.main import is_example, jsm
from jetstream_sync.cli.shared import config
from jetstream_sync.cli.shared.config import FieldOption
from jetstream_sync.cli.shared.status import MEANINGS
from jetstream_sync.records import field_docs

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reference" / "jsm.rst"
_NOTE = (
    ".. This page is made by tests/make_jsm_reference.py, of what the commands say of themselves.\n"
)

#: The commands without a group that share a page.
MESSAGE_COMMANDS = frozenset({"pub", "req", "reply", "sub", "trace"})

HEAD = f"""\
jsm reference
=============

{_NOTE}
:doc:`../howto/jsm` shows how to use the commands, and what they have in common.
"""


def root() -> click.Context:
    """Return the context of the root command."""
    return click.Context(jsm, info_name="jsm", **jsm.context_settings)


def nodes() -> list[Node]:
    """Return all commands in the order of the help."""
    return list(walk(jsm, root()))


def pages() -> dict[Path, str]:
    """Return the pages: the common part with the commands without a group, and each group."""
    page = _Reference(nodes())
    common = [HEAD, *_exit_statuses(), *_common_options(), *page.shared_options()]
    groups = {"messages": [_title("jsm pub, req, reply, sub, trace", "=")]}
    for node in page.nodes:
        name = "messages" if node.path[0] in MESSAGE_COMMANDS else node.path[0]
        if _is_top_group(node):
            groups[name] = []
        section = groups.get(name, common)
        section += page.about(node)
    common += ["", ".. toctree::", "   :maxdepth: 1", "", *(f"   jsm/{name}" for name in groups)]
    found = {PAGE: common}
    for name, parts in groups.items():
        found[PAGE.with_suffix("") / f"{name}.rst"] = [*parts[:1], _NOTE, *parts[1:]]
    return {
        path: re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip() + "\n"
        for path, parts in found.items()
    }


class _Reference:
    """
    The descriptions of commands, with what several of them have in common described once.

    An option that three or more commands have is described in the section of the group of all these
    commands, or at the top of the first page; one that two commands have, at the first of them.
    """

    def __init__(self, found: list[Node]) -> None:
        self.nodes = found
        self._users: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
        self._flags: dict[str, str] = {}
        for node in found:
            for option in _own_options(node):
                if isinstance(option, FieldOption):
                    continue
                text = _option(option, node.context)
                self._users[text].append(node.path)
                self._flags[text] = max(option.opts, key=len)
        count = Counter((node.path[-1], node.aliases) for node in found if node.aliases)
        self._common_aliases = {name: aliases for (name, aliases), n in count.items() if n > 2}

    def shared_options(self) -> Iterator[str]:
        """Yield what commands of different groups have in common."""
        yield _title("Aliases", "-")
        yield "These commands have the same aliases in most groups:\n"
        for name, aliases in sorted(self._common_aliases.items()):
            yield f"* ``{name}``: {_literals(aliases)}"
        yield "\n.. _jsm-shared-options:\n"
        yield _title("Options of several commands", "-")
        yield from self._options_of_group(())

    def about(self, node: Node) -> Iterator[str]:
        """Yield the section of a command or group."""
        name = " ".join(("jsm", *node.path))
        yield _title(name, "=" if _is_top_group(node) else "-")
        if node.aliases and self._common_aliases.get(node.path[-1]) != node.aliases:
            yield f"Also: {_literals(node.aliases)}.\n"
        yield from _help(node.command)
        if node.is_group:
            if shared := list(self._options_of_group(node.path)):
                yield "Options of several of these commands:\n"
                yield from shared
            return
        arguments, _ = parameters(node.command)
        if arguments:
            usage = " ".join(
                [name, *(argument.make_metavar(node.context) for argument in arguments)]
            )
            yield f"``{usage}``\n"
        yield from self._options(node)

    def _place(self, text: str) -> tuple[str, ...]:
        """Return the group or command at which an option is described."""
        users = self._users[text]
        if len(users) < 3:
            return users[0]
        equal = [len(set(names)) == 1 for names in zip(*users, strict=False)]
        return users[0][: [*equal, False].index(False)]

    def _options_of_group(self, path: tuple[str, ...]) -> Iterator[str]:
        return (text for text, users in self._users.items() if self._place(text) == path)

    def _options(self, node: Node) -> Iterator[str]:
        elsewhere: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        for option in _own_options(node):
            text = _option(option, node.context)
            place = self._place(text) if text in self._users else node.path
            if place == node.path:
                yield text
            else:
                elsewhere[place].append(self._flags[text])
        if len(_own_options(node)) < len(parameters(node.command)[1]):
            yield f"Options of the config: those of ``jsm {node.path[0]} add``.\n"
        for place, flags in elsewhere.items():
            title = ":ref:`Shared options <jsm-shared-options>`"
            if place:
                title = f"Options of ``jsm {' '.join(place)}``"
            yield f"{title}: {_literals(flags)}.\n"


def _is_top_group(node: Node) -> bool:
    """Return whether a command is a group with a page of its own."""
    return node.is_group and len(node.path) == 1


def _literals(names: Iterable[str]) -> str:
    return ", ".join(f"``{name}``" for name in names)


def _own_options(node: Node) -> list[click.Option]:
    """Return the options of a command, without those for the config, which `add` describes."""
    if node.is_group:
        return []
    _, options = parameters(node.command)
    return [
        option
        for option in options
        if node.path[-1] == "add" or not isinstance(option, FieldOption)
    ]


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
            yield _option(param, root())


def _help(command: click.Command) -> Iterator[str]:
    examples = f"\n\n{command.epilog}" if (command.epilog or "").startswith("\b") else ""
    for paragraph in f"{command.help or ''}{examples}".strip().split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        if lines[0].strip() == "\b":
            yield "\n.. code-block:: text\n"
            yield from (f"   {line}".rstrip() for line in _dedented(lines[1:]))
            yield ""
        else:
            yield _escaped(" ".join(line.strip() for line in lines).strip()) + "\n"


def _dedented(lines: list[str]) -> list[str]:
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[indent:] for line in lines]


def _option(option: click.Option, context: click.Context) -> str:
    """Return the description of an option."""
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
    name = f"{flags}{f' ``{takes.strip()}``' if takes else ''}"
    return f"{name}\n   {text.strip() or 'Undocumented.'}\n"


def _escaped(text: str) -> str:
    """Return text without markup."""
    text = re.sub(r"'((?:jsm|nats)[^']*)'", r"``\1``", text)
    pieces = re.split(r"(``[^`]*``)", text)
    return "".join(
        piece if piece.startswith("``") else re.sub(r"([*`|\\]|(?<=\w)_(?!\w))", r"\\\1", piece)
        for piece in pieces
    )


#: The records whose fields have options.
_RECORDS = (StreamConfig, ConsumerConfig, KeyValueConfig, ObjectStoreConfig)
DATA = Path(cli.__file__).with_name("data")
HELP_FILE = DATA / "help.json"


def helps() -> str:
    """Return the help of the options for fields: the first sentence of each docstring, and its release."""
    found: dict[str, dict[str, str]] = {}
    for record in _RECORDS:
        for field in config.config_fields(record):
            text = field_docs(field.owner).get(field.name, "").replace("`", "")
            sentence = re.split(r"(?<=\.)\s(?=[A-Z])", " ".join(text.split()))[0]
            # An option accepts other units as well.
            sentence = sentence.replace(", in seconds", "").replace(" in seconds", "")
            sentence = sentence.replace("Seconds ", "Time ")
            since = field.metadata.get("since")
            release = f" ({since[0]}.{since[1]})" if since else ""
            found.setdefault(field.owner.__name__, {})[field.name] = f"{sentence}{release}"
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


EXAMPLES_FILE = DATA / "examples.txt"
#: The number of examples of a command, and the longest one.
_MAX_EXAMPLES = 2
_MAX_LENGTH = 110
#: A command line in a block of a page.
_LINE = re.compile(r"^   (?:\$ )?((?:[\w ./-]+ \| )?jsm .*)$", re.MULTILINE)
#: What is more than one command.
_SCRIPT = re.compile(r"&&|\$\(|\$HOSTNAME|[\\{;]$|; do$|>/dev/null")


def examples() -> str:
    """Return the examples of all commands, one a line: the first ones on the how-to pages."""
    first = ("streams", "consumers", "buckets", "messages", "operate")
    pages = [DOCS / "howto" / f"jsm-{name}.rst" for name in first]
    pages += sorted({*(DOCS / "howto").glob("*.rst")} - {*pages})
    text = "".join(path.read_text("utf-8") for path in pages)
    # The help is read at a terminal, which asks.
    lines = [line.replace(" --force", "") for line in _LINE.findall(text)]
    usable = [line for line in lines if len(line) <= _MAX_LENGTH and not _SCRIPT.search(line)]
    found: list[str] = []
    for path in (" ".join(node.path) for node in nodes() if not node.is_group):
        matching = (line for line in usable if is_example(path, line))
        found += list(dict.fromkeys(matching))[:_MAX_EXAMPLES]
    return "".join(f"{line}\n" for line in found)


if __name__ == "__main__":
    EXAMPLES_FILE.write_text(examples(), "utf-8")
    HELP_FILE.write_text(helps(), "utf-8")
    made = pages()
    for old in PAGE.with_suffix("").glob("*.rst"):
        old.unlink()
    PAGE.with_suffix("").mkdir(exist_ok=True)
    for path, text in made.items():
        path.write_text(text, "utf-8")
    sys.stdout.write(f"{PAGE}: {len(nodes())} commands\n")
