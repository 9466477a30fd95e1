"""First words of sessions: whose they are, how many, and that they are shown only where they may be."""

import json
from typing import Any

import pytest

from gateway.domain.ids import SessionId
from gateway.domain.request import Protocol
from gateway.server.tenants import hash_key
from gateway.telemetry import first_words
from gateway.telemetry.first_words import FirstWords
from tests.server.bench import bearer, get, post
from tests.server.test_reload import reload

REMINDER = {"type": "text", "text": "<system-reminder>Today is a day.</system-reminder>"}
ASKED = {"type": "text", "text": "Mend\n  the   test"}


def words_of(protocol: Protocol, body: Any) -> str:
    found = FirstWords()
    found.began(SessionId("s"), protocol, body if isinstance(body, bytes) else json.dumps(body).encode())
    return found[SessionId("s")]


@pytest.mark.parametrize(
    ("protocol", "body", "words"),
    [
        (Protocol.CHAT, {"messages": [{"role": "system"}, {"role": "user", "content": "Hi"}]}, "Hi"),
        (Protocol.MESSAGES, {"messages": [{"role": "user", "content": [REMINDER, ASKED]}]}, "Mend the test"),
        (Protocol.MESSAGES, {"messages": [{"role": "user", "content": [REMINDER]}]}, REMINDER["text"]),
        (Protocol.RESPONSES, {"input": "Look"}, "Look"),
        (Protocol.RESPONSES, {"input": [{"role": "user", "content": "Look"}]}, "Look"),
        (Protocol.COMPLETIONS, {"prompt": "Once"}, "Once"),
        (Protocol.COMPLETIONS, {"prompt": [1, 2]}, ""),
        (Protocol.CHAT, {"messages": [{"role": "user", "content": "x" * 5000}]}, "x" * 119 + "…"),
        (Protocol.CHAT, {"messages": [{"role": "user", "content": " \ud800 "}, {"role": "user"}, 3]}, ""),
        (Protocol.CHAT, {"messages": {"a": 1}}, ""),
        (Protocol.CHAT, b"\xff{", ""),
        (Protocol.CHAT, b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"x" * (1 << 20)), ""),
    ],
)  # fmt: skip
def test_they_are_the_users_own(protocol, body, words):
    assert words_of(protocol, body) == words


def test_the_first_turn_counts_and_so_many_sessions(monkeypatch):
    monkeypatch.setattr(first_words, "_MAX_SESSIONS", 2)
    found = FirstWords()
    for name in ("a", "b", "a", "c"):
        text = f"{name} {len(found)}"
        body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
        found.began(SessionId(name), Protocol.CHAT, body)
    assert dict(found) == {"b": "b 1", "c": "c 2"}


@pytest.mark.parametrize(
    ("is_set", "content", "seen"), [(True, True, "hi"), (False, True, ""), (True, False, "")]
)
async def test_they_are_in_the_dashboard_where_its_operator_and_tenant_allow_it(start, is_set, content, seen):
    tenant = {"name": "team", "key_hashes": [hash_key("k")], "content": content}
    bench = await start(server={"first_words": is_set}, tenants=[tenant])
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    assert (await bench.ask(post(body, headers=bearer("k")))).status == 200
    (session,) = (await bench.control(get(b"/turnpike/snapshot"))).json()["sessions"]
    assert session["first_words"] == seen
    await reload(bench)
    (session,) = (await bench.control(get(b"/turnpike/snapshot"))).json()["sessions"]
    assert session["first_words"] == seen, "a reload takes them from nobody"
    page = (await bench.control(get(b"/turnpike/sessions/" + session["id"].encode()))).json()
    assert page["session"]["first_words"] == seen
