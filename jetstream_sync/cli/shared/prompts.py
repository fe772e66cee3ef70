"""
Prompts for missing values, drawn by questionary, which has line editing, lists and validation.

Every prompt has a flag that provides its value. Without a terminal, defaults are used, and one error lists
all missing values. Prompts are written to standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from .env import Environment, single_line, unescaped
from .status import AbsentError, CommandError

T = TypeVar("T")


#: The answer that shows help.
_HELP = "?"


def _help_of(flag: str, label: str) -> str:
    """Return the help of the option that provides an answer."""
    context = click.get_current_context(silent=True)
    for param in context.command.params if context is not None else ():
        if flag in param.opts and isinstance(param, click.Option) and param.help:
            return f"{' '.join(param.help.split())} Settable using {flag}"
    return f"{label}; settable using {flag}"


class Asker:
    """Prompts for missing values, made by `Settings.ask`; call `done()` after the last one."""

    def __init__(self, env: Environment, *, interactive: bool) -> None:
        self._env = env
        self.interactive = interactive
        self.missing: list[str] = []

    def done(self) -> None:
        """Raise the error that lists the missing values, if there are any."""
        if self.missing:
            names = ", ".join(self.missing)
            raise CommandError(f"missing: {names}", hint="without a terminal, nothing is asked for")

    def value(
        self,
        label: str,
        flag: str,
        convert: Callable[[str], T],
        *,
        value: T | None = None,
        default: str | None = None,
        blank: T,
    ) -> T:
        """Return a value: the given one, else the converted answer."""
        if value is not None:
            return value
        if not self.interactive:
            if default is not None:
                return convert(default)
            self.missing.append(flag)
            return blank

        def problem(answer: str) -> bool | str:
            if answer.strip() == _HELP:
                return True
            if not answer and default is None:
                return "an answer is required"
            try:
                convert(answer.strip() or default or "")
            except (ValueError, click.BadParameter, CommandError) as error:
                return error.message if isinstance(error, click.BadParameter) else str(error)
            return True

        title = f"{label} ({default})" if default else label
        options: dict[str, Any] = {"validate": problem, "validate_while_typing": False}
        # Asked again with an empty line, so that the mark is no part of the answer.
        while (answer := self._ask("text", title, **options)).strip() == _HELP:
            self._env.stderr.write(f"{_help_of(flag, label)}\n")
        return convert(answer.strip() or default or "")

    def select(self, label: str, names: Callable[[], Sequence[str]], flag: str) -> str:
        """Return a name chosen from a list, or raise `CommandError` for an empty list."""
        if not self.interactive:
            self.missing.append(flag)
            return ""
        known = names()
        if not known:
            raise AbsentError(f"there is nothing to choose from: {label.lower()}")
        return str(
            self._ask(
                "select",
                label,
                # The names are chosen by other clients.
                choices=[{"name": single_line(name), "value": name} for name in known],
                instruction=f"(use arrow keys or type to filter; settable using {flag})",
                use_search_filter=True,
                use_jk_keys=False,
            )
        )

    def choose(self, label: str, names: Callable[[], Sequence[str]], flag: str) -> str:
        """Return a name chosen from a list; without a terminal, raise that it is missing."""
        name = self.select(label, names, flag)
        self.done()
        return name

    def agrees(self, text: str, *, default: bool = False) -> bool:
        """Return the answer to a question; the default without a terminal."""
        return bool(self._ask("confirm", text, default=default)) if self.interactive else default

    def confirm(self, text: str, *, force: bool) -> None:
        """Require confirmation, or raise `CommandError`."""
        if force:
            return
        if not self.interactive:
            raise CommandError(f"{text} Cannot prompt without a terminal: use --force to confirm")
        if not self.agrees(text):
            raise CommandError("nothing was done")

    def _ask(self, kind: str, label: str, **options: Any) -> Any:
        """Return the answer to one of questionary's prompts."""
        import questionary  # noqa: PLC0415 - slow to import
        from prompt_toolkit.output import create_output  # noqa: PLC0415

        output = create_output(stdout=unescaped(self._env.stderr))
        prompt = getattr(questionary, kind)(single_line(label), output=output, **options)
        try:
            return prompt.unsafe_ask()  # ask() would return None on Ctrl-C
        except EOFError:
            raise CommandError("the input ended before all prompts were answered") from None
