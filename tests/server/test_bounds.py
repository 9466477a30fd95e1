"""Bounds on real sockets: what a client is told, what an engine is spared, what a restart remembers."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.config.load import ConfigError, load_config
from gateway.requests.facts import TRANSCRIPTS
from gateway.server.auth.client_keys import hash_key
from lab.simulator.replay import replay
from tests.server.bench import Bench, answer, completion, get, post, sends
from tests.server.test_reload import reload
from tests.workflow.world import call, result, said, user

KEYS = {"red": "key-of-red", "blue": "key-of-blue"}
TENANTS = [{"name": name, "key_hashes": [hash_key(key)]} for name, key in KEYS.items()]
PRICES = [{"model": "m", "input": 1000.0, "output": 10_000.0}]


@pytest.fixture(autouse=True)
def silent():
    yield
    TRANSCRIPTS.reads_steps = False


def bearer(tenant: str) -> bytes:
    return b"Authorization: Bearer %s\r\n" % KEYS[tenant].encode()


def chat(*messages: dict[str, Any], tenant: str | None = None, session: str | None = None) -> bytes:
    headers = bearer(tenant) if tenant is not None else b""
    if session is not None:
        headers += b"x-turnpike-session: %s\r\n" % session.encode()
    return post(json.dumps({"model": "m", "messages": messages or [user("go")]}).encode(), headers=headers)


async def says(exchange) -> None:
    await exchange.send(completion())


# --- what a client is told -----------------------------------------------------------------------------


async def test_a_picture_costs_what_a_picture_costs(start):
    """Half a megabyte of base64, and an engine that does not count."""
    bench = await start(bounds=[{"name": "short", "tokens": 5000}])
    choice = {"index": 0, "message": {"role": "assistant", "content": "A cat."}, "finish_reason": "stop"}
    bench.backend.script = sends(answer(json.dumps({"id": "1", "choices": [choice]}).encode()))
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo+" * 40_000}}
    turn = chat({"role": "user", "content": [picture]}, session="x")
    turns = [await bench.ask(turn) for _ in range(4)]
    assert [turn.status for turn in turns] == [200, 200, 200, 403], "some 1,300 tokens each"


async def test_a_refusal_is_one_that_no_sdk_repeats(start):
    bench = await start(bounds=[{"name": "short", "turns": 1}], script=says)
    assert (await bench.ask(chat(session="x"))).status == 200
    response = await bench.ask(chat(session="x"))
    assert response.status == 403
    assert response.get(b"x-should-retry") == b"false" and response.get(b"retry-after") is None
    assert response.get(b"x-turnpike-bound") == b"short turns"
    assert response.json() == {
        "error": {
            "message": "This session has reached the bound `short`: 1 turns.",
            "type": "permission_error",
            "param": None,
            "code": "bound_reached",
        }
    }
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": [user("go")]}).encode()
    told = await bench.ask(post(body, b"/v1/messages", b"x-turnpike-session: x\r\n"))
    assert told.status == 403
    assert told.json()["type"] == "error" and told.json()["error"]["type"] == "permission_error"
    assert len(bench.backend.seen) == 1, "an engine is spared"


async def test_a_warning_stands_in_a_header_and_in_the_metrics(start):
    bench = await start(bounds=[{"name": "short", "turns": 1, "action": "warn"}], script=says)
    assert (await bench.ask(chat(session="x"))).get(b"x-turnpike-bound") is None
    assert (await bench.ask(chat(session="x"))).get(b"x-turnpike-bound") == b"short turns"
    metrics = (await bench.control(b"GET /metrics HTTP/1.1\r\nHost: c\r\n\r\n")).body.decode()
    assert 'turnpike_bounds_total{action="warn",bound="short",limit="turns"} 1.0' in metrics


@pytest.mark.slow
async def test_sdks_do_not_repeat_it(start):
    """The real ones, with their usual two retries."""
    import anthropic
    import openai

    bench = await start(bounds=[{"name": "short", "tokens": 1}])
    url = f"http://127.0.0.1:{bench.gateway.listener.port}"
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client:
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "go"}])
        assert refused.value.code == "bound_reached"
        with pytest.raises(openai.PermissionDeniedError):
            await client.responses.create(model="m", input="go")
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k") as client:
        with pytest.raises(anthropic.PermissionDeniedError) as denied:
            await client.messages.create(
                model="m", max_tokens=9, messages=[{"role": "user", "content": "go"}]
            )
        body: Any = denied.value.body
        assert body["error"]["message"] == "This session has reached the bound `short`: 1 tokens."
    assert _refusals(bench) == 3, "each asked once"
    assert bench.backend.seen == []


def _refusals(bench: Bench) -> int:
    bench.gateway.telemetry._handover.flush()  # else it happens a moment later
    metrics = bench.gateway.telemetry.metrics
    (family,) = [each for each in metrics.collect() if each.name == "turnpike_refusals"]
    return int(sum(sample.value for sample in family.samples if sample.name.endswith("_total")))


# --- loops ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_reloaded", [False, True])
async def test_a_nameless_agent_that_goes_round_in_circles_is_stopped(start, is_reloaded):
    bounds = [{"name": "loop", "repeats": 4}]
    bench = await start(bounds=[] if is_reloaded else bounds)
    if is_reloaded:
        bench.settings["bounds"] = bounds
        await reload(bench)
    messages = [user("fix it")]
    statuses, sessions = [], set()
    for number in range(6):
        answered = said("Once more.", call(f"call_{number}_abcdefgh"))

        async def says_so(exchange, answered=answered) -> None:
            await exchange.send(completion(answered))

        bench.backend.script = says_so
        response = await bench.ask(chat(*messages))
        statuses.append(response.status)
        sessions.add(response.get(b"x-turnpike-session"))
        if response.status == 200:
            messages += [answered, result(f"call_{number}_abcdefgh", "the same as ever")]
    assert statuses == [200, 200, 200, 200, 403, 403]
    messages += [user("Stop. Do something else.")]
    response = await bench.ask(chat(*messages))
    assert response.status == 200, "a person said something"
    assert sessions == {response.get(b"x-turnpike-session")}


# --- budgets -------------------------------------------------------------------------------------------


def budget(tmp_path: Path, **bound: Any) -> dict[str, Any]:
    return {
        "tenants": TENANTS,
        "prices": PRICES,
        "server": {"state_path": str(tmp_path / "state")},
        "bounds": [{"name": "b", "scope": "tenant", "period": "month", **bound}],
    }


async def test_a_tenant_spends_its_own_budget_alone(start, tmp_path):
    bench = await start(**budget(tmp_path, cost=0.5), script=says)
    statuses = [(await bench.ask(chat(user(f"task {n}"), tenant="red"))).status for n in range(4)]
    assert statuses == [200, 200, 403, 403], "0.19 each, and 0.05 for a prompt that says nothing"
    assert (await bench.ask(chat(tenant="blue"))).status == 200
    metrics = (await bench.control(b"GET /metrics HTTP/1.1\r\nHost: c\r\n\r\n")).body.decode()
    (share,) = [
        line
        for line in metrics.splitlines()
        if line.startswith("turnpike_bound_used_ratio{") and "red" in line
    ]
    assert float(share.split()[1]) == pytest.approx(0.76)


async def test_requests_at_once_do_not_all_have_the_last_of_it(start, tmp_path):

    async def slowly(exchange) -> None:
        await asyncio.sleep(0.1)
        await exchange.send(completion())

    bench = await start(**budget(tmp_path, turns=5), script=slowly)
    responses = await asyncio.gather(*(bench.ask(chat(user(f"task {n}"), tenant="red")) for n in range(20)))
    assert sorted(each.status for each in responses) == [200] * 5 + [403] * 15


async def test_a_restart_keeps_what_was_used(tmp_path):
    settings, statuses = budget(tmp_path, tokens=410), []
    for life in range(3):
        bench = Bench()
        events = tmp_path / f"of-life-{life}"
        await bench.start(**settings, recording={"path": str(events)})
        bench.backend.script = says
        for number in range(2):
            response = await bench.ask(chat(user(f"task {number}"), tenant="red"))
            statuses.append(response.status)
        assert (await bench.ask(chat(tenant="blue"))).status == 200
        await bench.finish()
        assert (tmp_path / "state.spent").stat().st_mode & 0o777 == 0o600
        assert replay(events).events > 0, "another brain that is told the same decides the same"
    assert statuses == [200, 200, 200, 200, 403, 403]


async def test_half_a_line_of_what_was_used_says_nothing(start, tmp_path):
    (tmp_path / "state.spent").write_bytes(b'[["red",0,"2026-1')
    bench = await start(**budget(tmp_path, turns=1), script=says)
    assert (await bench.ask(chat(tenant="red"))).status == 200


# --- bounds that change while it runs ------------------------------------------------------------------


async def test_bounds_of_sessions_come_change_and_go_and_counts_go_on(start):
    bench = await start(script=says)
    ask = partial(bench.ask, chat(session="x"))
    assert [(await ask()).status for _ in range(3)] == [200] * 3
    bench.settings["bounds"] = [{"name": "s", "turns": 4}]
    told = await reload(bench)
    assert {"bounds", "bounds[s].turns"} <= {each["key"] for each in told["changes"]}
    assert [(await ask()).status for _ in range(2)] == [200, 403], "the three before count"
    bench.settings["bounds"] = [{"name": "s", "turns": 9, "action": "warn"}, {"name": "loop", "repeats": 2}]
    await reload(bench)
    assert (await ask()).get(b"x-turnpike-bound") is None
    bench.settings["bounds"] = [{"name": "s", "turns": 5, "action": "warn"}]
    await reload(bench)
    assert (await ask()).get(b"x-turnpike-bound") == b"s turns", "a lower one acts at once"
    del bench.settings["bounds"]
    await reload(bench)
    assert (await ask()).get(b"x-turnpike-bound") is None
    bench.settings["bounds"] = [{"name": "s", "turns": 5, "period": "day"}]
    assert "not per day" in (await reload(bench, 409))["error"]


async def test_budgets_and_prices_change_and_what_was_used_stays_used(start, tmp_path):
    settings, events = budget(tmp_path, cost=0.5), tmp_path / "events"
    bounds, prices = settings.pop("bounds"), settings.pop("prices")
    bench = await start(**settings, recording={"path": str(events)})
    bench.backend.script = says

    async def asked(count: int, tenant: str = "red") -> list[int]:
        return [(await bench.ask(chat(user(f"task {n}"), tenant=tenant))).status for n in range(count)]

    assert await asked(3) == [200] * 3 and not (tmp_path / "state.spent").exists()
    bench.settings |= {"bounds": bounds, "prices": prices}
    await reload(bench)
    assert await asked(4) == [200, 200, 403, 403], "what cost nothing yet is not charged later"
    bench.settings["prices"] = [{"model": "m", "input": 1.0}]
    await reload(bench)
    assert await asked(1) == [200]
    del bench.settings["bounds"]
    await reload(bench)
    assert await asked(2) == [200] * 2
    of_agents = {"name": "a", "scope": "agent", "period": "day", "turns": 9, "agents": ["00000000000000ab"]}
    bench.settings["bounds"] = [{**bounds[0], "cost": 0.3}, of_agents]
    await reload(bench)
    assert await asked(1) == [403] and await asked(1, "blue") == [200]
    rows = (await bench.control(get(b"/turnpike/usage?tenant=red"))).json()["usage"]
    assert rows[0]["cost"] == pytest.approx(0.38, abs=0.01), "by the prices of their time"
    await bench.finish()
    assert replay(events).events > 0 and b"00000000000000ab" not in events.read_bytes()
    again = await start(**budget(tmp_path, cost=0.3))
    assert (await again.ask(chat(tenant="red"))).status == 403, "and a restart remembers it"


async def test_two_gateways_count_together_from_the_reload_on(start, store_url):
    shared, secret = {"url": store_url, "deadline_ms": 1000}, b"s" * 32
    gateways = [await start(fleet_secret=secret, shared=shared, tenants=TENANTS) for _ in range(2)]
    for bench in gateways:
        bench.backend.script = says
        bench.settings["bounds"] = [{"name": "b", "scope": "tenant", "period": "day", "turns": 5}]
        await reload(bench)
    asks = [(each, chat(user(f"{n}"), tenant="red")) for n in range(4) for each in gateways]
    statuses = [(await bench.ask(asked)).status for bench, asked in asks]
    assert sorted(statuses) == [200] * 5 + [403] * 3


# --- settings ------------------------------------------------------------------------------------------

_FILE = '[[pools]]\nreplicas = [{ url = "http://a" }]\n[[bounds]]\nname = "b"\n'
_OF_A_DAY = 'scope = "tenant"\nperiod = "day"\nturns = 1\n'
_TENANT = f'[[tenants]]\nname = "red"\nkey_hashes = ["{hash_key("x")}"]\n'


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("", "b: it bounds nothing"),
        ('turns = 1\ntenants = ["green"]\n', "there is no tenant 'green'"),
        ("cost = 1.0\n", "a cost needs [[prices]]"),
        (_OF_A_DAY, "per day needs [[tenants]]"),
        (_OF_A_DAY + _TENANT, "needs server.state_path or shared.url"),
        ('turns = 1\n[[bounds]]\nname = "b"\nturns = 1\n', "bounds: the name 'b' is there twice"),
        ('turns = 1\n[[prices]]\nmodel = "m"\ninput = -1\n', "prices"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, settings, why):
    path = tmp_path / "t.toml"
    path.write_text(_FILE + settings)
    with pytest.raises(ConfigError) as refused:
        load_config(str(path), {}, {})
    assert why in str(refused.value)


# --- without bounds ------------------------------------------------------------------------------------
