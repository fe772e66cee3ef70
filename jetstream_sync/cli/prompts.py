"""
Prompts for missing values.

Every prompt has a flag that provides its value. Without a terminal, defaults are used, and one error lists
all missing values. Prompts are written to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import click

from .sanitize import single_line, unescaped
from .status import CommandError, ExitStatus

if TYPE_CHECKING:
    from typing_extensions import Self

    from .env import CommonOptions

T = TypeVar("T")


class Asker:
    """
    Prompts for missing values; use it in a ``with`` block, or call `done()`.

    Args:
        settings: the settings of the command; `CommonOptions.interactive` decides whether to prompt.

    """

    def __init__(self, settings: CommonOptions) -> None:
        self._env = settings.env
        self.interactive: bool = settings.interactive
        self.missing: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.done()

    def done(self) -> None:
        """
        Check that no value is missing.

        Raises:
            CommandError: values are missing; the error lists them.

        """
        if self.missing:
            names = ", ".join(self.missing)
            raise CommandError(f"missing: {names}", ExitStatus.USAGE)

    # --- prompts ------------------------------------------------------------------------------

    def text(
        self,
        label: str,
        flag: str,
        *,
        value: str | None = None,
        default: str | None = None,
        help: str = "",  # noqa: A002 - the name used by click
    ) -> str:
        """
        Return a text: the given value, else the answer, else the default.

        Args:
            label: the prompt.
            flag: the option or argument with the value, such as ``--subjects`` or ``NAME``.
            value: the given value; ``None``: none was given.
            default: the value for an empty answer, and without a terminal; ``None``: a value is
                required, and a placeholder is returned without a terminal.
            help: the text shown for ``?``.

        """
        return self.value(label, flag, str, value=value, default=default, blank="", help=help)

    def value(
        self,
        label: str,
        flag: str,
        convert: Callable[[str], T],
        *,
        value: T | None = None,
        default: str | None = None,
        blank: T,
        help: str = "",  # noqa: A002
        hint: str | None = None,
    ) -> T:
        """
        Return a value: the given one, else the converted answer.

        Args:
            label: the prompt.
            flag: the option or argument with the value.
            convert: converts an answer; when it raises `ValueError`, `click.BadParameter` or
                `CommandError`, the prompt is repeated.
            value: the given value; ``None``: none was given.
            default: the text to convert for an empty answer; ``None``: an answer is required.
            blank: the placeholder returned when a required value is missing.
            help: the text shown for ``?``.
            hint: the text in brackets after the prompt; ``None``: the default.

        """
        if value is not None:
            return value
        if not self.interactive:
            if default is not None:
                return convert(default)
            self.missing.append(flag)
            return blank
        while True:
            answer = self._answer(label, default, help, flag, hint)
            if answer is None:
                self._say("an answer is required")
                continue
            try:
                return convert(answer)
            except (ValueError, click.BadParameter, CommandError) as error:
                text = error.message if isinstance(error, click.BadParameter) else str(error)
                self._say(text)

    def choice(
        self,
        label: str,
        options: Mapping[str, T] | Sequence[T],
        flag: str,
        *,
        value: T | None = None,
        default: str,
        help: str = "",  # noqa: A002
    ) -> T:
        """
        Return one of several values: the given one, else the answer, else the default.

        Args:
            label: the prompt.
            options: the value of each answer; or a sequence of values that are the answers.
            flag: the option or argument with the value.
            value: the given value; ``None``: none was given.
            default: the answer used for an empty one.
            help: the text shown for ``?``.

        """
        known = options if isinstance(options, Mapping) else {str(each): each for each in options}

        def one_of(answer: str) -> T:
            folded = answer.strip().lower()
            close = [name for name in known if name.lower().startswith(folded)]
            exact = [name for name in close if name.lower() == folded]
            chosen = exact or close
            if len(chosen) != 1:
                raise CommandError(f"choose one of {', '.join(known)}", ExitStatus.USAGE)
            return known[chosen[0]]

        shown = f"{label} ({', '.join(known)})"
        return self.value(
            shown, flag, one_of, value=value, default=default, blank=known[default], help=help
        )

    def select(
        self, label: str, names: Sequence[str] | Callable[[], Sequence[str]], flag: str
    ) -> str:
        """
        Return a name chosen from a list.

        Args:
            label: the prompt.
            names: the names; a function is called only when the prompt is shown.
            flag: the option or argument with the name.

        Raises:
            CommandError: there is nothing to choose from.

        """
        if not self.interactive:
            self.missing.append(flag)
            return ""
        known = list(names() if callable(names) else names)
        if not known:
            raise CommandError(
                f"there is nothing to choose from: {label.lower()}", ExitStatus.NOT_FOUND
            )
        if self._can_draw():
            return self._drawn_select(label, known, flag)
        for number, name in enumerate(known, 1):
            self._say(f"  {number}) {name}")

        def one_of(answer: str) -> str:
            if answer in known:
                return answer
            if answer.isdecimal() and 0 < int(answer) <= len(known):
                return known[int(answer) - 1]
            raise CommandError("choose a name or number from the list", ExitStatus.USAGE)

        only = known[0] if len(known) == 1 else None
        return self.value(label, flag, one_of, default=only, blank="", help="Choose from the list.")

    def confirm(self, text: str, *, force: bool, flag: str = "--force") -> None:
        """
        Require confirmation.

        Args:
            text: the prompt; it names what will be lost.
            force: whether the flag was given, which skips the prompt.
            flag: the flag that confirms.

        Raises:
            CommandError: there is no terminal to prompt on, or the answer was no.

        """
        if force:
            return
        if not self.interactive:
            raise CommandError(
                f"{text} Cannot prompt without a terminal: use {flag} to confirm", ExitStatus.USAGE
            )
        answers = {"y": True, "yes": True, "n": False, "no": False}

        def yes_or_no(answer: str) -> bool:
            if answer.lower() not in answers:
                raise CommandError("answer y or n", ExitStatus.USAGE)
            return answers[answer.lower()]

        if not self.value(
            text, flag, yes_or_no, default="n", blank=False, help="Answer y or n.", hint="y/N"
        ):
            raise CommandError("nothing was done", ExitStatus.USAGE)

    def secret(self, label: str, flag: str) -> str:
        """
        Return a text that is typed without echo.

        Args:
            label: the prompt.
            flag: the option with the value.

        """
        if not self.interactive:
            self.missing.append(flag)
            return ""
        if sys.__stdin__ is None or self._env.stdin is not sys.__stdin__.buffer:
            return self.text(label, flag)
        import getpass  # noqa: PLC0415 - for terminals only

        try:
            return getpass.getpass(f"? {label} ", stream=self._env.stderr)
        except EOFError:
            self._say("")
            raise self._ended() from None

    # --- the terminal ---------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._env.stderr.write(f"{text}\n")
        self._env.stderr.flush()

    def _answer(
        self, label: str, default: str | None, help_text: str, flag: str, hint: str | None
    ) -> str | None:
        """Return the next answer that is not ``?``, or the default for an empty one."""
        hint = hint if hint is not None else default
        shown = f" ({hint})" if hint else ""
        while True:
            self._env.stderr.write(f"? {label}{shown} ")
            self._env.stderr.flush()
            line = self._env.stdin.readline()
            if not line:
                self._say("")
                raise self._ended()
            answer = line.decode("utf-8", "replace").strip()
            if answer != "?":
                return answer or default
            self._say(f"  {help_text or label}. Settable using {flag}".replace("..", "."))

    def _ended(self) -> CommandError:
        return CommandError("the input ended before all prompts were answered", ExitStatus.USAGE)

    def _can_draw(self) -> bool:
        """Return whether a list with arrow key selection can be shown."""
        if sys.__stdin__ is None or self._env.stdin is not sys.__stdin__.buffer:
            return False
        if self._env.variables.get("TERM", "dumb") in ("dumb", "unknown"):
            return False
        try:
            import questionary  # noqa: F401, PLC0415 - an extra
        except ModuleNotFoundError:
            return False
        return True

    def _drawn_select(self, label: str, names: Sequence[str], flag: str) -> str:
        import questionary  # noqa: PLC0415 - an extra, and slow to import
        from prompt_toolkit.output import create_output  # noqa: PLC0415 - comes with it

        question = questionary.select(
            label,
            choices=[questionary.Choice(single_line(name), value=name) for name in names],
            instruction=f"(use arrow keys or type to filter; settable using {flag})",
            use_search_filter=True,
            use_jk_keys=False,
            output=create_output(stdout=unescaped(self._env.stderr)),
        )
        # ask() would return None on Ctrl-C.
        return str(question.unsafe_ask())
