"""What tenants used, by key and model; and the first words of sessions."""

import csv
import io
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gateway.config.tenants import StoredKey
from gateway.domain import records as rec
from gateway.domain.ids import ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.request import Protocol, Usage
from gateway.server.aggregator.merged_views import merge_usage
from gateway.server.auth.client_keys import hash_key
from gateway.telemetry import first_words
from gateway.telemetry.first_words import FirstWords
from gateway.telemetry.usage import MAX_USERS, Usages
from tests.server.bench import CHAT, DELTA, DONE, STREAM_HEAD, answer, bearer, chunk, get, post, sends
from tests.server.test_failures import metrics_of
from tests.server.test_reload import reload

PATH = b"/turnpike/usage"
SETTINGS = {
    "tenants": [{"name": name, "key_hashes": [hash_key(name)]} for name in "ab"],
    "prices": [{"model": "m", "input": 2.0, "cached_input": 0.5, "output": 10.0}],
}
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 40}}
COST = (60 * 2.0 + 40 * 0.5 + 20 * 10.0) / 1e6
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
WHOLE = answer(json.dumps({"id": "1", "choices": [CHOICE], "usage": USAGE}).encode())
COUNTED = b"data: %s\n\n" % json.dumps({"choices": [], "usage": USAGE}).encode()
STREAMED = STREAM_HEAD + chunk(DELTA) + chunk(COUNTED) + chunk(DONE) + b"0\r\n\r\n"


def asks(key: str = "a", model: str = "m", *, stream: bool = False) -> bytes:
    body = {**json.loads(CHAT), "model": model, "stream": stream}
    return post(json.dumps(body).encode(), headers=bearer(key))


async def usage(bench, query: bytes = b"") -> Any:
    return (await bench.control(get(PATH + query))).json()["usage"]


async def test_requests_tokens_and_cost_are_told_by_tenant_and_model(start):
    bench = await start(**SETTINGS)
    failed = answer(b"{}", b"500 Oops")
    chats = (STREAMED, asks(stream=True)), (WHOLE, asks()), (WHOLE, asks("b")), (failed, asks())
    for script, asked in chats:
        bench.backend.script = sends(script)
        await bench.ask(asked)
    of_b: dict[str, Any] = {
        "tenant": "b", "key": hash_key("b")[:15], "model": "m", "requests": 1, "failed": 0,
        "prompt_tokens": 100, "cached_tokens": 40, "output_tokens": 20, "estimated_tokens": 0, "cost": COST,
        "requests_per_minute": 1, "tokens_per_minute": 120,
    }  # fmt: skip
    of_a = {name: value if isinstance(value, str) else 2 * value for name, value in of_b.items()}
    of_a |= {"tenant": "a", "key": hash_key("a")[:15], "requests": 3, "failed": 1, "requests_per_minute": 3}
    assert await usage(bench) == [of_a, of_b]
    assert await usage(bench, b"?tenant=b&model=m") == [of_b] and not await usage(bench, b"?model=other")
    metrics, a, b = await metrics_of(bench), f'key="{of_a["key"]}"', f'key="{of_b["key"]}"'
    assert f'\nturnpike_tenant_requests_total{{{a},model="m",outcome="error",tenant="a"}} 1.0\n' in metrics
    assert f'\nturnpike_tenant_tokens_total{{{a},kind="cached",model="m",tenant="a"}} 80.0\n' in metrics
    assert f'\nturnpike_tenant_cost_total{{{b},model="m",tenant="b"}} {COST}\n' in metrics


async def test_each_key_of_a_tenant_is_told_apart_by_its_name_and_none_is_shown(start, tmp_path):
    now, keys = datetime.now(UTC), tmp_path / "keys"
    stored = [StoredKey(name=name, tenant="a", hash=hash_key(name), created=now) for name in ("ci-1", "ci-2")]
    keys.write_bytes(b"\n".join(map(msgspec.json.encode, stored)))
    bench = await start(**{**SETTINGS, "server": {"keys_path": str(keys)}}, script=sends(WHOLE))
    both = asks("ci-1").replace(b"\r\n", b"\r\nx-api-key: a\r\n", 1)  # two keys of one tenant
    for asked in (asks("ci-1"), asks("ci-2"), asks("ci-2"), asks("a"), both, asks("nobody's")):
        await bench.ask(asked)
    rows = await usage(bench)
    assert sum(row["requests"] for row in rows) == 5
    assert {row["key"] for row in rows} == {"ci-1", "ci-2", hash_key("a")[:15]}
    assert [row["requests"] for row in await usage(bench, b"?key=ci-2")] == [2]
    told = await metrics_of(bench) + json.dumps(rows)
    assert 'key="ci-2"' in told and hash_key("a")[:16] not in told and hash_key("ci-1") not in told


async def test_what_an_engine_does_not_count_is_estimated_in_a_column_of_its_own(start):
    bench = await start(**SETTINGS)
    uncounted, chat = STREAM_HEAD + chunk(DELTA) + chunk(DONE) + b"0\r\n\r\n", asks(stream=True)
    background = {**json.loads(chat.partition(b"\r\n\r\n")[2]), "input": "hi " * 400, "background": True}
    queued = answer(b'{"id": "resp_1", "object": "response", "status": "queued", "output": []}')
    for script, asked in (
        (uncounted, chat),
        (queued, post(json.dumps(background).encode(), b"/v1/responses", headers=bearer("b"))),
        (answer(b"{}", b"500 Oops"), asks("b")),
    ):
        bench.backend.script = sends(script)
        await bench.ask(asked)
    of_a, of_b = await usage(bench)
    assert of_a["prompt_tokens"] == of_b["prompt_tokens"] == 0 and "cost" not in of_a
    assert 20 < of_a["estimated_tokens"] < 200 and 250 < of_b["estimated_tokens"] < 600
    assert of_a["tokens_per_minute"] == of_a["estimated_tokens"]
    assert f'kind="estimated",model="m",tenant="a"}} {of_a["estimated_tokens"]:.1f}' in await metrics_of(
        bench
    )


async def test_a_table_is_text_to_a_spreadsheet_whatever_a_model_s_name_is(start):
    bench = await start(**SETTINGS, script=sends(WHOLE))
    for name in ("=1+1", '+"x",y', "-a;=b", "@c", "m"):
        assert (await bench.ask(asks(model=name))).status == 200
    table = await bench.control(get(PATH, b"Accept: text/csv\r\n"))
    assert table.body == (await bench.control(get(PATH + b"?format=csv"))).body
    assert (await bench.control(get(PATH + b"?format=xml"))).status == 400
    rows = {row["model"]: row for row in csv.DictReader(io.StringIO(table.body.decode(), newline=""))}
    assert set(rows) == {"'=1+1", '\'+"x",y', "'-a;'=b", "'@c", "m"}
    assert (rows["m"]["cost"], rows["'@c"]["cost"], rows["m"]["prompt_tokens"]) == (str(COST), "", "100")


def end(model: str, at_s: float = 1.0, *, outcome: str = "finished", tenant: str = "t") -> rec.GpuEnd:
    counted = Usage(prompt_tokens=3, output_tokens=1) if outcome == "finished" else Usage()
    return rec.GpuEnd(
        at_s=at_s, outcome=outcome, status=None, usage=counted, finish_reason=None, tenant=TenantId(tenant),
        model=model, turn=RequestId("r"), session=None, replica=ReplicaId("r"), duration_ms=1.0,
    )  # fmt: skip


def test_names_that_no_engine_answered_for_take_nobody_s_place_and_others_give_way():
    usages = Usages()
    usages.ended([end(f"x{number}", outcome="cut") for number in range(2 * MAX_USERS)])
    usages.ended([end("m"), end("m", outcome="cut"), end("m", outcome="failed")])  # and is tried elsewhere
    told = [(row["model"], row["requests"], row["failed"]) for row in usages.rows(now=2.0)]
    assert told == [("", 2 * MAX_USERS, 2 * MAX_USERS), ("m", 2, 1)]
    usages.ended([end(f"y{number}") for number in range(MAX_USERS)])
    (other,) = (row for row in usages.rows(now=2.0) if row["model"] == "other")
    assert (other["tenant"], other["key"], other["requests"]) == ("t", "other", 2)
    usages.ended([end("new", at_s=9000.0 + second) for second in range(1000)])
    rows = {row["model"]: row for row in usages.rows(now=9999.5)}
    assert len(rows) == MAX_USERS + 1 and "new" in rows and "" not in rows
    assert (rows["new"]["requests_per_minute"], rows["new"]["tokens_per_minute"]) == (60, 240)
    assert sum(row["requests"] for row in rows.values()) == 3 * MAX_USERS + 1002, "what gave way counts on"


def test_no_tenant_takes_the_places_of_others():
    usages = Usages()
    usages.ended([end(f"x{number}", tenant="greedy") for number in range(2 * MAX_USERS)])
    for second in (2.0, 9000.0):  # also once the others' are old
        usages.ended([end(f"y{number}", second, tenant=f"t{number % 3}") for number in range(30)])
        usages.ended([end(f"z{number}", second + 4000, tenant="greedy") for number in range(300)])
        rows = usages.rows(now=second)
        assert {row["model"] for row in rows} >= {f"y{number}" for number in range(30)}
        places = [row for row in rows if row["model"] != "other"]
        assert len(places) == MAX_USERS and {row["tenant"] for row in rows} == {"greedy", "t0", "t1", "t2"}
    assert sum(row["requests"] for row in usages.rows(now=9000.0)) == 2 * MAX_USERS + 660
    usages.ended([end("m", 9000.0, tenant=f"c{number}") for number in range(3 * MAX_USERS)])
    assert len(usages.rows(now=9000.0)) <= 2 * MAX_USERS + 1


def test_several_gateways_are_added_up():
    a, b = ({"tenant": tenant, "key": "k", "model": "m", "requests": 2} for tenant in "ab")
    one, other = ({"at_s": at_s, "began_s": at_s - 1.0, "usage": [b]} for at_s in (3.0, 5.0))
    one["usage"] = [b, {**a, "cost": 0.5}]
    both = {"at_s": 5.0, "began_s": 2.0, "usage": [{**a, "cost": 0.5}, {**b, "requests": 4}]}
    assert merge_usage([one, other]) == both


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
