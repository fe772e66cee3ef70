"""Wrong usage is one line of error and status 2, before a connection is opened."""

from __future__ import annotations

import shlex

import pytest
from fixtures.jsm import run_jsm


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--nonsense", "--nonsense"),
        ("nonsense", "nonsense"),
        ("demo --workers 0", "--workers"),
        ("demo --keep", "--keep needs --server"),
        ("demo --stream a.b", "'a.b'"),
        ("demo --input no-such-file.jsonl", "no-such-file.jsonl"),
        ("bench pub --msgs 0", "--msgs"),
        ("bench js fetch --clients 3 --msgs 2", "3 clients"),
        ("bench pub --subject a.*", "a.*"),
        ("consumer add S C --pull --target out", "exclude each other"),
        ("consumer add S C --deliver tomorrow", "invalid start"),
        ("consumer add S C --deliver 0", "the first sequence is 1"),
        ("consumer add S C --ack maybe", "is not one of none, all, explicit"),
        ("consumer add S C --max-deliver few", "-1 for no limit"),
        ("consumer add S C --wait soon", "invalid duration"),
        ("consumer add S C --metadata team", "KEY=VALUE"),
        ("events --filter (", "--filter"),
        ("events --subjects 'a b'", "a b"),
        ("events --count 0", "--count"),
        ("kv add A.B", "A.B"),
        ("kv add", "BUCKET"),
        ("kv add A --history 65", "history"),
        ("kv add A --mirror-domain hub", "mirror"),
        ("kv add A --marker-ttl 10ms", "--marker-ttl"),
        ("kv get CONFIG k --revision 0", "--revision"),
        ("kv update CONFIG k v", "REVISION"),
        ("kv watch CONFIG --count 0", "--count"),
        ("kv compact CONFIG -f --older-than x", "--older-than"),
        ("kv ls -v", "--verbose needs a BUCKET"),
        ("object put FILES", "--name is required"),
        ("object put FILES none.bin", "none.bin"),
        ("object put FILES .", "."),
        ("object get FILES", "OBJECT"),
        ("pub a x -H 'no colon'", "no colon"),
        ("pub a x --send-on newline", "leave the body out"),
        ("pub a --send-on newline --count 2", "--count"),
        ("pub a {{Nope}} --templates", "{{Nope}}"),
        ("pub a x --count 0", "--count"),
        ("pub a x --sleep soon", "soon"),
        ("pub a x --atomic --sleep 1s", "exclude each other"),
        ("pub a x --schedule-every 1h", "--schedule-dest is missing"),
        ("pub a x --schedule-dest b --schedule-at 1h --atomic", "--atomic excludes"),
        ("reply a", "give either BODY or --echo"),
        ("reply a x --echo", "give either BODY or --echo"),
        ("stream view L --id 1 --last 1", "exclude each other"),
        ("stream view L --grep (", "--grep"),
        ("stream view L --raw --format x", "exclude each other"),
        ("stream view L --id 0", "--id"),
        ("stream add S --update --if-not-exists", "exclude each other"),
        ("sub", "SUBJECT"),
        ("sub a..b", "a..b"),
        ("sub x --all --new", "--all and --new exclude each other"),
        ("sub x --since 1h --start-sequence 3", "exclude each other"),
        ("sub x --all --queue g", "--queue"),
        ("sub x -T", "-T"),
        ("sub x --match-replies --queue q", "--match-replies excludes"),
        ("sub x --match-replies --stream S", "--match-replies excludes"),
        ("sub --stream a.b", "a.b"),
        ("sub x --wait soon", "soon"),
    ],
)
def test_wrong_usage(line, said):
    """The error names the option or the value."""
    result = run_jsm(*shlex.split(line), NATS_URL="nats://127.0.0.1:1")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1), result
    assert result.err.startswith("jsm: ")
    assert said in result.err
