"""
Write tests/api.txt: every public name with its signature, as griffe reads it from the source.

    python tests/make_api_record.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import griffe

import jetstream_sync

RECORD = Path(__file__).with_name("api.txt")
COMMAND = "python tests/make_api_record.py"
#: The public modules besides the package itself, whose ``__all__`` is computed.
MODULES = (
    *("server", "services", "spark", "workers", "workers.metrics", "workers.schedules"),
    *("workers.testing", "filesystem", "pytest_plugin", "flask", "django", "django.cache"),
    *("django.models", "django.tasks", "durations"),
)


def lines() -> Iterator[str]:
    """Yield a line for each public name; of a class, the fields in their order, then the methods."""
    sources = Path(jetstream_sync.__file__).parents[1]
    # Whether the C extension was built makes no difference.
    package = griffe.load("jetstream_sync", search_paths=[sources], allow_inspection=False)
    for name in sorted(jetstream_sync.__all__):
        if name not in package.members:  # such as ``__version__``, which type checkers know
            continue
        yield from described(f"jetstream_sync.{name}", package[name])
    for module in MODULES:
        members = package[module]
        exported = members.exports
        for name in sorted(members.members if exported is None else exported):
            member = members[name]
            private = name.startswith("_") or (exported is None and member.is_alias)
            if not private and name in members.members:
                yield from described(f"jetstream_sync.{module}.{name}", member)


def is_public(base: griffe.Expr | str) -> bool:
    """Return whether a base class is a public one, or of another package."""
    path = base if isinstance(base, str) else base.canonical_path
    return (
        not path.startswith("jetstream_sync.") or path.rpartition(".")[2] in jetstream_sync.__all__
    )


def described(path: str, member: griffe.Object | griffe.Alias) -> Iterator[str]:
    """Yield the line of a name, and those of its members if it is a class."""
    target = member.final_target if member.is_alias else member
    if target.is_module:
        return
    if target.is_class:
        bases = ", ".join(str(base) for base in target.bases if is_public(base))
        yield f"class {path}({bases})"
        # A constructor is for users where its class describes the arguments.
        described_there = target.docstring is not None and "Args:" in target.docstring.value
        members = {
            name: part
            for name, part in target.all_members.items()
            if not name.startswith("_") or (name == "__init__" and described_there)
        }
        methods = sorted(name for name, part in members.items() if part.is_function)
        for name in [name for name in members if name not in methods] + methods:
            yield from described(f"{path}.{name}", members[name])
    elif target.is_function:
        for function in target.overloads or [target]:
            parameters = function.signature().partition("(")[2].rpartition(")")[0]
            yield f"{path}({parameters}) -> {function.returns}"
    else:
        value = str(target.value or "")
        default = f" = {value}" if value and "(" not in value and len(value) < 80 else ""
        annotation = "" if target.annotation is None else f": {target.annotation}"
        yield f"{path}{annotation}{default}"


def main() -> None:
    """Write the file."""
    RECORD.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")


if __name__ == "__main__":
    main()
