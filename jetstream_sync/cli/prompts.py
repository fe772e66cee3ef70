"""
Questions to a person, and what becomes of them when there is nobody to ask.

Every question has a flag that answers it beforehand. When nobody can be asked, defaults are taken,
and all values that are missing are named in one error. Questions are written to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import click

from .status import CommandError, ExitStatus

if TYPE_CHECKING:
    from typing_extensions import Self

    from .settings import Settings

__all__ = ["Asker"]

T = TypeVar("T")


class Asker:
    """
    Asks a person for what was not given; use it in a ``with`` block, or call `done()`.

    Args:
        settings: of the command; they say whether there is a person.

    """

    def __init__(self, settings: Settings) -> None:
        self._env = settings.env
        self.interactive = settings.interactive
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
        Go on only when nothing is missing.

        Raises:
            CommandError: it names everything that is.

        """
        if self.missing:
            names = ", ".join(self.missing)
            raise CommandError(f"missing: {names}", ExitStatus.USAGE)

    # --- questions ------------------------------------------------------------------------------

    def text(
        self,
        label: str,
        flag: str,
        *,
        value: str | None = None,
        default: str | None = None,
        help: str = "",  # noqa: A002 - it is the help
    ) -> str:
        """
        Return a text: the value that was given, else the answer, else the default.

        Args:
            label: the question.
            flag: what would have answered it, such as ``--subjects`` or ``NAME``.
            value: what was given; ``None``: nothing was.
            default: what an empty answer means, and what is taken when nobody can be asked;
                ``None``: it is required, and what is returned without it is of no use.
            help: what ``?`` shows.

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
        Return a value: the one that was given, else what the answer stands for.

        Args:
            label: the question.
            flag: what would have answered it.
            convert: reads an answer, and raises `ValueError`, `click.BadParameter` or
                `CommandError` when it makes no sense; then the question is asked again.
            value: what was given; ``None``: nothing was.
            default: the answer that an empty one stands for; ``None``: it is required.
            blank: what is returned when it is required, and missing.
            help: what ``?`` shows.
            hint: what stands in brackets behind the question; ``None``: the default.

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
                self._say("an answer is needed")
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
            label: the question.
            options: what each answer stands for; or the answers, which stand for themselves.
            flag: what would have answered it.
            value: what was given; ``None``: nothing was.
            default: the answer that an empty one stands for.
            help: what ``?`` shows.

        """
        known = options if isinstance(options, Mapping) else {str(each): each for each in options}

        def one_of(answer: str) -> T:
            folded = answer.strip().lower()
            close = [name for name in known if name.lower().startswith(folded)]
            exact = [name for name in close if name.lower() == folded]
            chosen = exact or close
            if len(chosen) != 1:
                raise CommandError(f"one of {', '.join(known)}", ExitStatus.USAGE)
            return known[chosen[0]]

        shown = f"{label} ({', '.join(known)})"
        return self.value(
            shown, flag, one_of, value=value, default=default, blank=known[default], help=help
        )

    def select(
        self, label: str, names: Sequence[str] | Callable[[], Sequence[str]], flag: str
    ) -> str:
        """
        Return one of the names, chosen from a list.

        Args:
            label: the question.
            names: what there is; a function is called only when somebody is asked.
            flag: what would have answered it.

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
            raise CommandError("a name or number of the list", ExitStatus.USAGE)

        only = known[0] if len(known) == 1 else None
        return self.value(label, flag, one_of, default=only, blank="", help="Choose from the list.")

    def confirm(self, text: str, *, force: bool, flag: str = "--force") -> None:
        """
        Go on only when it is allowed to.

        Args:
            text: the question; it says what will be lost.
            force: whether the flag was given: nothing is asked then.
            flag: which one it is.

        Raises:
            CommandError: nobody can be asked, or the answer was no.

        """
        if force:
            return
        if not self.interactive:
            raise CommandError(f"{text} Nobody can be asked: use {flag} to do it", ExitStatus.USAGE)
        answers = {"y": True, "yes": True, "n": False, "no": False}

        def yes_or_no(answer: str) -> bool:
            if answer.lower() not in answers:
                raise CommandError("y or n", ExitStatus.USAGE)
            return answers[answer.lower()]

        if not self.value(
            text, flag, yes_or_no, default="n", blank=False, help="Answer y or n.", hint="y/N"
        ):
            raise CommandError("nothing was done", ExitStatus.USAGE)

    def secret(self, label: str, flag: str) -> str:
        """
        Return what is typed without being shown.

        Args:
            label: the question.
            flag: what would have answered it.

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
        """Return the next answer that is not ``?``; ``None``: it is empty, and must not be."""
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
        return CommandError("the input ended before all was answered", ExitStatus.USAGE)

    def _can_draw(self) -> bool:
        """Say whether a list can be drawn that is chosen from with the arrow keys."""
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
            choices=list(names),
            instruction=f"(arrows or typing choose; settable using {flag})",
            use_search_filter=True,
            use_jk_keys=False,
            output=create_output(stdout=self._env.stderr),
        )
        # ask() would make a None of Ctrl-C.
        return str(question.unsafe_ask())
