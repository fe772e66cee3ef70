"""What the replies of the servers say of the meta group, and which servers a request selects; no server is asked."""

from __future__ import annotations

from typing import Any

import pytest

from jetstream_sync.cli.shared.output import Missing
from jetstream_sync.cli.shared.status import CommandError
from jetstream_sync.cli.shared.system import MetaGroup, Selection, check_replies
from jetstream_sync.exit_status import ExitStatus


def reply(name: str, leader: str = "", size: int = 3, cluster: str = "C") -> dict[str, Any]:
    """Return the reply of a server of a group of a, b and c."""
    peers = [{"name": peer} for peer in "abc" if peer != name]
    meta = {"leader": leader, "cluster_size": size, "replicas": peers}
    return {"server": {"name": name, "cluster": cluster}, "data": {"meta_cluster": meta}}


@pytest.mark.parametrize(
    ("replies", "leader", "silent", "problem"),
    [
        ([], None, [], ""),
        ([reply(name, "b") for name in "abc"], "b", [], ""),
        ([reply("a", "a"), reply("b", "a")], "a", ["c"], ""),
        # The server that the others name as the leader does not answer.
        (
            [reply("a", "c"), reply("b", "c")],
            None,
            ["c"],
            "no meta leader: 2 of 3 servers answer; c do not",
        ),
        # A leader without a quorum still says that it is the leader.
        (
            [reply("a", "a")],
            None,
            ["b", "c"],
            "no meta leader: 1 of 3 servers answer, 2 are needed; b, c do not",
        ),
    ],
)
def test_the_leader_answers_and_has_a_quorum(replies, leader, silent, problem):
    """A leader counts only if it answers itself, with a majority; the others are known from the replies."""
    group = MetaGroup.of(replies)
    assert (group.leader, group.silent, group.problem()) == (leader, silent, problem)


def test_a_selection_is_by_name_and_by_cluster():
    """Without a name and a cluster all servers are asked."""
    found = [reply("a"), reply("b", cluster="D")]
    for selection, names in (
        (Selection(), ["a", "b"]),
        (Selection(host="b"), ["b"]),
        (Selection(cluster="C"), ["a"]),
        (Selection(host="b", cluster="C"), []),
    ):
        assert [item["server"]["name"] for item in found if selection.includes(item)] == names
    assert Selection(host="b").fields()["exact_match"] is True


def test_replies_are_complete_if_each_known_server_answered():
    """No answer is a timeout; a silent server and a problem are one error."""
    check_replies([reply("a")], [])
    with pytest.raises(CommandError, match="no server answered") as caught:
        check_replies([], [])
    assert caught.value.status is ExitStatus.TIMED_OUT
    silent = [Missing("b", {}, "offline", "it does not answer")]
    with pytest.raises(CommandError, match="no leader; 1 of 2 servers answered; b did not"):
        check_replies([reply("a")], silent, "no leader")
    with pytest.raises(CommandError, match="^1 of 3 servers answered$"):
        check_replies([reply("a")], [], expected=3)
