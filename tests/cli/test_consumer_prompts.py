"""The prompts of ``jsm consumer``, on a real terminal, in the order of the document of 2020."""

from __future__ import annotations

import pytest
from fixtures.jsm import CLEAR_LINE, Terminal

pytestmark = pytest.mark.usefixtures("orders")


def questions(text: str) -> list[str]:
    return [line[2:] for line in text.splitlines() if line.startswith("? ")]


def test_a_pull_consumer_is_asked_for_as_in_2020(terminal, orders):
    """The prompts, their order and their answers are those of the document."""
    shown = terminal("obs", "add", "--sample", "100")
    shown.answer("? Select a stream", "")
    shown.answer("? Consumer name", "NEW")
    shown.answer("? Delivery Subject", "")
    shown.answer("? Deliver Policy", "all")
    shown.answer("? Filter Subjects", "ORDERS.received")
    shown.answer("? Maximum Deliveries", "20")
    shown.expect("Information for consumer ORDERS > NEW")
    assert shown.wait() == 0
    assert len(questions(shown.text)) == 6
    config = orders.config("NEW")
    assert config["durable_name"] == "NEW"
    assert "deliver_subject" not in config
    assert (config["filter_subject"], config["max_deliver"]) == ("ORDERS.received", 20)
    assert (config["sample_freq"], config["ack_policy"]) == ("100", "explicit")


def test_a_push_consumer_is_asked_for_as_in_2020(terminal, orders):
    """A target adds two prompts, where the document has them."""
    shown = terminal("obs", "add")
    shown.answer("? Select a stream", "")
    shown.answer("? Consumer name", "MONITOR")
    shown.answer("? Delivery Subject", "monitor.ORDERS")
    shown.answer("? Deliver Policy", "last")
    shown.answer("? Ack Policy", "none")
    shown.answer("? Replay Policy", "instant")
    shown.answer("? Filter Subjects", "")
    shown.answer("? Maximum Deliveries", "-1")
    assert shown.wait() == 0
    config = orders.config("MONITOR")
    assert (config["deliver_subject"], config["deliver_policy"]) == ("monitor.ORDERS", "last")
    assert (config["ack_policy"], config["replay_policy"]) == ("none", "instant")
    assert "filter_subject" not in config
    assert config["max_deliver"] == -1


def test_flags_replace_prompts(terminal, orders):
    """Each flag replaces its prompt; an empty filter is an answer, too."""
    shown = terminal(
        "con", "add", "ORDERS", "A", "--pull", "--deliver", "5", "--max-deliver", "3",
        "--filter", "",
    )  # fmt: skip
    assert shown.wait() == 0
    assert questions(shown.text) == []
    assert orders.config("A")["opt_start_seq"] == 5
    shown = terminal(
        "con", "add", "ORDERS", "B", "--pull", "--deliver", "all", "--filter", "", "--ack", "none"
    )
    assert shown.wait() == 0
    assert questions(shown.text) == [], "without acknowledgements there are no redeliveries"


def test_the_answer_pull_is_not_a_subject(terminal, orders):
    """The answer ``pull`` to the prompt for the delivery target creates a pull consumer."""
    shown = terminal("con", "add", "ORDERS", "A", "--deliver", "all", "--filter", "")
    shown.answer("? Delivery Subject", "pull")
    shown.answer("? Maximum Deliveries", "")
    assert shown.wait() == 0
    assert "deliver_subject" not in orders.config("A")


def test_a_wrong_answer(terminal, orders):
    """A prompt stays until its answer is valid."""
    shown = terminal("con", "add", "ORDERS", "A", "--pull", "--filter", "")
    shown.answer("? Deliver Policy", "whenever")
    shown.expect("invalid start")
    shown.send(f"{CLEAR_LINE}new\n")
    shown.answer("? Maximum Deliveries", "few")
    shown.expect("-1 for no limit")
    shown.send(f"{CLEAR_LINE}7\n")
    assert shown.wait() == 0
    config = orders.config("A")
    assert (config["deliver_policy"], config["max_deliver"]) == ("new", 7)


def test_the_mark_for_help_is_no_part_of_an_answer(terminal, js):
    """At each prompt, ``?`` shows the help, and the answer that is typed next is taken as it is."""

    def ask(child: Terminal, question: str, answer: str) -> None:
        child.answer(f"? {question}", "?")
        child.expect("ettable using")
        child.forget()
        child.answer(f"? {question}", answer)
        child.forget()

    child = terminal("stream", "add")
    for question, answer in (
        ("Stream name", "QQ"),
        ("Subjects to consume", "qq.*"),
        ("Storage", "memory"),
        ("Retention", "limits"),
        ("Maximum Messages", "7"),
        ("Maximum Bytes", "1MB"),
        ("Maximum Age", "1h"),
        ("Maximum Message Size", "1KB"),
    ):
        ask(child, question, answer)
    assert child.wait() == 0, child.text
    config = js.get_stream("QQ").cached_info.config
    assert (config.subjects, config.max_msgs, config.max_bytes) == (["qq.*"], 7, 1_000_000)
    assert (str(config.storage.value), config.max_msg_size) == ("memory", 1000)
    child = terminal("consumer", "add", "QQ")
    for question, answer in (
        ("Consumer name", "C"),
        ("Delivery Subject", ""),
        ("Deliver Policy", "all"),
        ("Filter Subjects", "qq.a"),
        ("Maximum Deliveries", "9"),
    ):
        ask(child, question, answer)
    assert child.wait() == 0, child.text
    found = js.consumer_info("QQ", "C").config
    assert (found.filter_subject, found.max_deliver) == ("qq.a", 9)
