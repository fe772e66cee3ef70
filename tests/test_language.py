"""
The wording rules of the contributing page, as far as patterns can check them.

Each pattern is refused in code, tests and documentation. The list is short on purpose: a pattern
belongs here only if every use of it is a mistake.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
THIS_FILE = Path(__file__).resolve()

# Pattern -> what to write instead. All patterns ignore case.
REFUSED: dict[str, str] = {
    r"\b(?:some|no|every)body\b": "name the thing: the caller, a thread, the server, no responders",
    r"\bwho(?:ever|m)\b": "threads and calls are things: 'which', 'that', or a noun",
    r"\bwho (?:\w+s|has|is|was)\b": "threads and calls are things: 'which', 'that', or a noun",
    r"\bsay whether\b": "a summary line begins with 'Return whether'",
    r"\bthe house\b|\bhouse rules?\b": "'architecture', 'package', 'rules'",
    r"\bso-manieth\b": "'n-th'",
    r"\bis no (?:size|time|duration|number|name|subject)\b": "name the value, the rule and the remedy",
    r"\bon and on\b": "'continuously'",
    r"\bgoes? on (?:trying|reading|waiting)\b": "'continues to'",
    r"\bin vain\b": "'without success', 'failed'",
    r"\banew\b": "'again'",
    r"\b(?:tells?|told) of\b": "'reports', 'announces', 'discovered'",
    r"\bcan not\b": "'cannot'",
    r"\blet go\b": "'release', 'close'",
    r"\b(?:server|stream|leader|consumer|API)'s answers?\b": "'reply' or 'response'",
    r"\banswers? (?:of|from) (?:the |a )?(?:server|leader|stream)s?\b": "'reply' or 'response'",
    r"\banswers? to (?:a|the|each|every|one) (?:\w+ )?(?:request|ping|pull|get|purge)\b": "'reply'",
    r"\bwithout an answer\b|\banswer\.(?:get|pop)\(|\banswer\[": "'reply' or 'response'",
    r"\bfor each in\b|\blambda each\b": "name the variable for what it holds",
    r"\b(?:on|in) any doubt\b": "'if in doubt'",
    r"\bsome times\b": "'a few times'",
    r"\bas far as there (?:is|are)\b": "'if there is one'",
    r"\bcomes? on top\b": "'in addition'",
    r"\bof the own\b": "'of your', 'of its'",
    r"\babout so many\b|\bso many (?:may|can|are)\b": "'about this many', or name the things",
    r"\bha(?:s|ve) to do with\b": "'involves'",
    r"\bwhich is no (?:mistake|fault)\b": "'did not cause this'",
    r"\bor why there are none\b": "'or the reason why the list is empty'",
    r"\bmay be another than\b": "'may differ from', 'may be older than'",
    r"\bsome more after\b": "'more if'",
    r"\bkeep those of all others\b": "name what is blocked",
}

# Patterns that are refused in the README and the pages only; docstrings still use some of them.
REFUSED_IN_PAGES: dict[str, str] = {
    r"\b(?:server|database|worker|cluster)s? (?:is|are) away\b": "'unavailable', or what happened to it",
    r"\b(?:outcome|status) tells what\b": "'shows what'",
    r"\bone message after the other\b": "'one message at a time'",
    r"\bof the moment\b": "'current'",
    r"\bin a script never\b": "give the sentence its usual order",
    r"\bthat of the \w+ (?:was|were|is measured)\b": "repeat the noun instead of 'that'",
    r"\btakes? a timeout\b": "say which calls have a time limit",
}


def compiled(patterns: dict[str, str]) -> list[tuple[re.Pattern[str], str]]:
    """Return the patterns with their reasons; a space matches a line break in text or comments, too."""
    return [
        (re.compile(pattern.replace(" ", r"\s+(?:#:?\s+)?"), re.IGNORECASE), reason)
        for pattern, reason in patterns.items()
    ]


_COMPILED = compiled(REFUSED)
_COMPILED_FOR_PAGES = compiled(REFUSED | REFUSED_IN_PAGES)


def checked_files() -> list[Path]:
    """Return the files that are written by hand, without data files and recorded replies."""
    found = [ROOT / "README.md"]
    for folder, suffix in (("jetstream_sync", ".py"), ("tests", ".py"), ("docs", ".rst")):
        found += sorted((ROOT / folder).rglob(f"*{suffix}"))
    return [path for path in found if path.resolve() != THIS_FILE]


def refused_phrases(text: str, *, of_a_page: bool = False) -> list[str]:
    """Return one line for each use of a refused pattern."""
    return [
        f"{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}: {reason}"
        for pattern, reason in (_COMPILED_FOR_PAGES if of_a_page else _COMPILED)
        for match in pattern.finditer(text)
    ]


@pytest.mark.parametrize("folder", ["README.md", "jetstream_sync", "tests", "docs"])
def test_wording(folder):
    """No text uses a phrase that the wording rules refuse."""
    problems = [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in checked_files()
        if path.relative_to(ROOT).parts[0] == folder
        for problem in refused_phrases(
            path.read_text(encoding="utf-8"), of_a_page=path.suffix in {".rst", ".md"}
        )
    ]
    assert not problems, f"{len(problems)} phrases:\n" + "\n".join(problems[:50])


def test_a_refused_phrase_is_reported_with_its_reason():
    """A refused phrase is reported with its line and the reason."""
    (problem,) = refused_phrases("first line\nThe thread wakes whoever waits.\n")
    assert problem.startswith("2: 'whoever'")
    (problem,) = refused_phrases("#: Read it. In any\n    #: doubt it fails.\n")
    assert problem.startswith("1: ")
    assert problem.endswith("'if in doubt'")


def test_a_phrase_that_only_pages_refuse():
    """A phrase that only pages refuse is reported there, and not in code."""
    text = "The worker pauses while the database is away.\n"
    (problem,) = refused_phrases(text, of_a_page=True)
    assert problem.startswith("1: 'database is away'")
    assert refused_phrases(text) == []
