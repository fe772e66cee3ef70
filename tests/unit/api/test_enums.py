"""Policies are strings, in every Python version."""

import copy
import json
import pickle

import pytest

from jetstream_sync.api import enums

POLICIES = [item for item in enums.StrEnum.__subclasses__() if item.__module__ == enums.__name__]
WORDS = [word for policy in POLICIES for word in policy]


@pytest.mark.parametrize("word", WORDS)
def test_a_policy_is_its_word(word):
    """A policy equals, prints, formats and dumps as the string of the protocol."""
    assert isinstance(word, str)
    assert word == word.value
    assert str(word) == word.value
    assert f"{word}" == word.value
    assert f"{word:>20}" == word.value.rjust(20)
    assert json.dumps(word) == json.dumps(word.value)
    assert type(word)(word.value) is word
    assert pickle.loads(pickle.dumps(word)) is word
    assert copy.deepcopy(word) is word


@pytest.mark.parametrize("policy", POLICIES)
def test_names_are_the_words_in_capitals(policy):
    """The name of a member is its string in capitals."""
    for member in policy:
        word = "DELETE" if member.value == "DEL" else member.value
        assert member.name.replace("_", "") == word.replace("_", "").upper()


def test_an_unknown_word_is_no_policy():
    """An enum rejects an unknown string."""
    with pytest.raises(ValueError, match="explict"):
        enums.AckPolicy("explict")
