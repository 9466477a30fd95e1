"""Hints, and the API server's side, with an engine core that is pretended."""

import asyncio
import copy
import importlib
import json
import os
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnpike_vllm import hints, plugin, utilities
from turnpike_vllm.api import secret_keys
from turnpike_vllm.hints import Hint, Refusal, ServiceClass, parse
from turnpike_vllm.plugin import Endpoints

FULL = Hint(
    session="s-1",
    seq=7,
    thread="s-1.2",
    service=ServiceClass.PROACTIVE,
    age_s=12.5,
    retain_s=6.0,
    reuse=0.9,
    is_final=True,
    is_finished=True,
    prefetch_in_s=2.0,
)
FIELDS = sorted(FULL.as_dict())


def said(**more: Any) -> dict[str, Any]:
    return {"v": 1, "session": "s", "seq": 1, **more}


def test_a_full_hint_comes_back_as_it_was_sent() -> None:
    assert parse(FULL.as_json()) == FULL
    assert parse(FULL.as_dict()) == FULL
    assert len(FIELDS) == 1 + len(fields(Hint))


def test_what_is_not_said_is_left_out() -> None:
    assert Hint(session="s", seq=0).as_dict() == {"v": 1, "session": "s", "seq": 0}
    assert parse('{"v":1,"session":"s","seq":0}') == Hint(session="s", seq=0)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        3,
        "",
        "{",
        "[1]",
        b"\xff",
        "[" * 20_000,
        {"session": "s", "seq": 1},
        {"v": 1, "seq": 1},
        {"v": 1, "session": "s"},
        said(session=""),
        said(session="x" * 257),
        said(session="a\nb"),
        said(session=5),
        said(thread=""),
        said(seq=-1),
        said(seq=True),
        said(seq=1.0),
        said(seq=1 << 60),
        said(age_s=-1),
        said(retain_s=-0.1),
        said(retain_s=float("nan")),
        said(retain_s=float("inf")),
        said(retain_s="6"),
        said(reuse=1.01),
        said(**{"class": "urgent"}),
        said(**{"class": 1}),
        said(final=1),
        said(finish="yes"),
        json.dumps(said(thread="x" * 20_000)),
    ],
)
def test_malformed(raw: object) -> None:
    assert parse(raw) is Refusal.MALFORMED


@pytest.mark.parametrize("raw", [said(v=2), said(v="1"), said(v=True)])
def test_unknown(raw: object) -> None:
    assert parse(raw) is Refusal.UNKNOWN


def test_what_another_version_of_the_gateway_says_beside_it_is_ignored() -> None:
    more = said(retain_s=2.0, superseded=True, band=2, turn=7, tags=[["response", 0.5]], colour="red")
    assert parse(more) == Hint(session="s", seq=1, retain_s=2.0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON) | st.text(max_size=60) | st.binary(max_size=60))
def test_nothing_makes_a_reader_fail(raw: Any) -> None:
    assert isinstance(parse(raw), Hint | Refusal)
    assert isinstance(parse(said(**raw) if isinstance(raw, dict) and "v" not in raw else raw), Hint | Refusal)


def test_several_at_once() -> None:
    assert hints.parse_many({"hints": [said(), {}]}) == [Hint(session="s", seq=1), Refusal.MALFORMED]
    assert hints.parse_many(said()) == [Hint(session="s", seq=1)]
    assert hints.parse_many({"hints": {}}) == [Refusal.MALFORMED]
    assert hints.parse_many({"hints": [said()] * 257}) == [Refusal.MALFORMED]


KEY = "k" * 64
HINT = Hint(session="s", seq=1, retain_s=3.0)


def test_actions_of_an_envelope() -> None:
    ours = SimpleNamespace(
        action_type=hints.ACTION_TYPE,
        action_version=hints.ACTION_VERSION,
        payload={"hint": hints.sign(HINT.as_json(), KEY)},
    )
    forged, empty = copy.copy(ours), copy.copy(ours)
    forged.payload, empty.payload = {"hint": HINT.as_json()}, [HINT.as_json()]
    newer = SimpleNamespace(action_type=hints.ACTION_TYPE, action_version="2", payload={})
    others = SimpleNamespace(action_type="somebody.else", action_version="1", payload={})
    assert hints.parse_actions([others, ours, newer], KEY) == [HINT, Refusal.UNKNOWN]
    assert hints.parse_actions([forged, empty], KEY) == [Refusal.UNSIGNED] * 2
    assert hints.parse_actions([forged, empty], None) == [HINT, Refusal.MALFORMED]
    assert hints.parse_actions(None, KEY) == []


def test_what_was_signed_is_read_with_the_same_key_alone() -> None:
    signed = hints.sign(HINT.as_json(), KEY)
    assert hints.parse_signed(signed, KEY) == HINT
    assert hints.parse_signed(signed, "another") is Refusal.UNSIGNED
    assert hints.parse_signed(hints.sign("{}", KEY), KEY) is Refusal.MALFORMED
    assert hints.parse_signed(hints.sign("\ud800", KEY), KEY) is Refusal.MALFORMED


@given(
    st.one_of(
        st.text(st.characters(codec=None)),
        st.binary(),
        st.integers(),
        st.none(),
        st.lists(st.text()),
        st.builds(
            lambda mac, text: f"{mac} {text}",
            st.text("0123456789abcdef", min_size=64, max_size=64),
            st.text(),
        ),
        st.builds(lambda seq: Hint(session="s", seq=seq, retain_s=0.0).as_json(), st.integers(0, 2**53)),
        st.builds(lambda at: _changed(hints.sign(HINT.as_json(), KEY), at), st.integers(0, 90)),
    )
)
def test_what_was_not_signed_is_no_hint(raw: object) -> None:
    assert hints.parse_signed(raw, KEY) is Refusal.UNSIGNED


def _changed(text: str, at: int) -> str:
    return text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]


SNAPSHOT = {
    "state": "awake",
    "next_deadline_s": None,
    "blocks": {"total": 9, "free": 5, "used": 3, "retained": 1},
    "running": {"reactive": 1},
    "waiting": {"reactive": 2},
    "counters": {"holds": {"held": 4}},
    "acted": {"retention": 4},
    "saved_s": {"retention": 1.5},
    "failures": 0,
}


class Core:
    """Answers as `utilities` would."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.told: dict[str, Any] = dict(SNAPSHOT)
        self.is_broken = False

    async def call_utility_async(self, method: str, *arguments: Any) -> Any:
        self.asked.append((method, arguments))
        if self.is_broken:
            raise Exception("no such method")
        if method == utilities.HINT:
            return {"state": "awake", "followed": len(arguments[0]), "stale": 0}
        return self.told


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "turnpike")


@pytest.fixture
async def core() -> Core:
    return Core()


@asynccontextmanager
async def serving(core: Core) -> AsyncIterator[Endpoints]:
    found = Endpoints()
    await found.init_state(SimpleNamespace(engine_core=core), None, Namespace(api_key=None))
    yield found
    assert found._refreshing is not None
    found._refreshing.cancel()


@pytest.fixture
async def endpoints(core: Core, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Endpoints]:
    monkeypatch.setattr(plugin, "GAUGES_S", 0.01)
    async with serving(core) as found:
        yield found


async def test_hints_are_read_here_and_followed_there(endpoints: Endpoints, core: Core) -> None:
    hint = Hint(session="s", seq=1, retain_s=3.0)
    status, body = await endpoints.take_hints(json.dumps({"hints": [hint.as_dict(), {"v": 7}, 5]}).encode())
    assert (status, body["followed"], body["refused"]) == (200, 1, {"unknown": 1, "malformed": 1})
    assert (utilities.HINT, ([hint.as_dict()], {"unknown": 1, "malformed": 1})) in core.asked


@pytest.mark.parametrize("raw", [b"{", b"[" * 100_000, b"\xff", b'{"v": 1}'])
async def test_a_body_without_any_hint_is_refused_and_counted(
    endpoints: Endpoints, core: Core, raw: bytes
) -> None:
    status, body = await endpoints.take_hints(raw)
    assert (status, body["refused"]) == (400, {"malformed": 1})
    assert (utilities.HINT, ([], {"malformed": 1})) in core.asked


async def test_without_an_engine_it_says_so(core: Core, endpoints: Endpoints) -> None:
    alone = Endpoints()
    await alone.init_state(None, None, Namespace())
    assert (await alone.snapshot())[0] == 503
    assert (await alone.take_hints(b'{"v":1,"session":"s","seq":1}'))[0] == 503
    core.is_broken = True
    assert (await endpoints.snapshot())[0] == 503


async def test_the_gauges_follow(endpoints: Endpoints) -> None:
    from prometheus_client import REGISTRY

    await endpoints.snapshot()
    assert REGISTRY.get_sample_value("turnpike_engine_blocks", {"state": "retained"}) == 1
    labels = {"place": "waiting", "class": "reactive"}
    assert REGISTRY.get_sample_value("turnpike_engine_requests", labels) == 2
    assert REGISTRY.get_sample_value("turnpike_engine_feature", {"feature": "holds", "what": "held"}) == 4
    assert REGISTRY.get_sample_value("turnpike_engine_acted", {"feature": "retention"}) == 4
    assert REGISTRY.get_sample_value("turnpike_engine_saved_seconds", {"feature": "retention"}) == 1.5
    await asyncio.sleep(0.05)  # the refreshing goes on
    assert endpoints._refreshing is not None and not endpoints._refreshing.done()


async def test_a_gauge_says_how_the_plugin_is_and_what_is_off(endpoints: Endpoints, core: Core) -> None:
    from prometheus_client import REGISTRY

    def state(of: str, how: str) -> float | None:
        return REGISTRY.get_sample_value("turnpike_engine_state", {"of": of, "state": how})

    core.told = {**SNAPSHOT, "features": {"retention": "on", "classes": "LoRA: not tried"}}
    await endpoints.snapshot()
    assert (state("plugin", "awake"), state("retention", "on"), state("classes", "LoRA: not tried")) == (
        1,
        1,
        1,
    )
    core.told = {**SNAPSHOT, "state": "inert", "features": {"retention": "given up: KeyError"}}
    await endpoints.snapshot()
    assert (state("plugin", "inert"), state("retention", "given up: KeyError")) == (1, 1)
    assert (state("plugin", "awake"), state("retention", "on")) == (0, 0)


class Ranks(Core):
    """Two schedulers behind one API server."""

    core_engines = (b"0", b"1")

    async def call_utility_all_async(self, method: str, *arguments: Any) -> list[Any]:
        self.asked.append((method, arguments))
        other = {**SNAPSHOT, "next_deadline_s": 3.0, "sessions": {"s": {"retained": 2}}}
        return [self.told, other]


async def test_all_ranks_are_told_together() -> None:
    core = Ranks()
    core.told = {
        **SNAPSHOT,
        "state": "inert",
        "features": {"retention": "given up: KeyError"},
        "sessions": {},
    }
    async with serving(core) as found:
        status, told = await found.snapshot()
    assert (status, told["state"], told["next_deadline_s"]) == (200, "inert", 3.0)
    assert told["blocks"] == {"total": 18, "free": 10, "used": 6, "retained": 2}
    assert told["waiting"] == {"reactive": 4}
    assert told["counters"] == {"holds": {"held": 8}}
    assert told["sessions"] == {"s": {"retained": 2}}
    assert [each["state"] for each in told["ranks"]] == ["inert", "awake"]


async def test_where_vllm_answers_for_the_first_rank_alone_that_is_said(core: Core) -> None:
    core.core_engines = (b"0", b"1")  # type: ignore[attr-defined]
    core.told = {**SNAPSHOT, "features": {"retention": "on"}}
    async with serving(core) as found:
        assert (await found.snapshot())[1]["features"]["telemetry"] == "of the first of 2 ranks alone"


async def test_the_refreshing_ends_where_no_scheduler_answers(core: Core) -> None:
    core.told = {"state": "absent"}
    async with serving(core) as found:
        assert found._refreshing is not None
        await asyncio.wait_for(found._refreshing, 1)
        assert (await found.take_hints(b'{"v":1,"session":"s","seq":1}'))[0] == 200


async def test_deadlines_pass_while_the_engine_idles(core: Core) -> None:
    core.told = {**SNAPSHOT, "running": {"reactive": 0}, "next_deadline_s": 0.0}
    async with serving(core):
        await asyncio.sleep(0.2)  # without a deadline it looks again after `GAUGES_S`
    assert len(core.asked) > 2


def app_of(endpoints: Endpoints) -> Any:
    fastapi = pytest.importorskip("fastapi")
    app = fastapi.FastAPI()
    endpoints.attach_router(app)
    return app


@pytest.mark.parametrize(
    ("flag", "variable", "key"),
    [
        (None, "of-the-environment", "of-the-environment"),
        (["another", "of-the-flag", ""], "of-the-environment", "of-the-flag"),
        ("of-the-flag", None, "of-the-flag"),
        ([], "of-the-environment", "of-the-environment"),
    ],
)
async def test_every_route_wants_the_key_of_the_server_however_it_is_given(
    core: Core, monkeypatch: pytest.MonkeyPatch, flag: Any, variable: str | None, key: str
) -> None:
    testclient = pytest.importorskip("httpx")
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    if variable is not None:
        monkeypatch.setenv("VLLM_API_KEY", variable)
    core.told = {"state": "absent"}
    found = Endpoints()
    app = app_of(found)
    await found.init_state(SimpleNamespace(engine_core=core), None, Namespace(api_key=flag))
    transport = testclient.ASGITransport(app=app)
    async with testclient.AsyncClient(transport=transport, base_url="http://engine") as client:
        routes = [
            (method, route.path)
            for route in app.routes
            if route.path.startswith("/turnpike/")
            for method in route.methods
        ]
        assert len(routes) == 3
        for method, path in routes:
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer "}):
                assert (await client.request(method, path, headers=headers)).status_code == 401
            allowed = {"authorization": f"Bearer {key}"}
            assert (await client.request(method, path, headers=allowed, content=b"{}")).status_code != 401


async def test_the_hint_key_is_one_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(secret_keys.HINT_KEY, raising=False)
    key = secret_keys.hint_key()
    assert len(key) == 64 and os.environ[secret_keys.HINT_KEY] == key == secret_keys.hint_key()
    found = Endpoints()
    await found.init_state(None, None, Namespace())
    assert found._hint_key == key
    unsigned = Namespace(additional_config={"turnpike": {"signed_hints": False}})
    await found.init_state(None, None, unsigned)
    assert found._hint_key is None
    await found.init_state(None, None, Namespace(additional_config={"turnpike": {"no such": 1}}))
    assert found._hint_key == key


async def test_a_body_has_a_bound() -> None:
    async def stream() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * (1 << 19)

    assert await plugin._read(SimpleNamespace(stream=stream)) is None


def test_the_engine_core_without_our_scheduler() -> None:
    core = SimpleNamespace(scheduler=SimpleNamespace())
    assert utilities.read(core)["state"] == "absent"
    assert utilities.hint(core, [], {})["state"] == "absent"


@pytest.mark.parametrize("plugins", [None, "", "another"])
async def test_without_being_named_nothing_is_touched(
    core: Core, monkeypatch: pytest.MonkeyPatch, plugins: str | None
) -> None:
    """Without VLLM_PLUGINS vLLM loads whatever is installed."""
    if plugins is None:
        monkeypatch.delenv("VLLM_PLUGINS")
    else:
        monkeypatch.setenv("VLLM_PLUGINS", plugins)
    monkeypatch.delenv(secret_keys.HINT_KEY, raising=False)
    engine_core = type("EngineCore", (), {})
    monkeypatch.setattr(importlib, "import_module", lambda _: SimpleNamespace(EngineCore=engine_core))
    plugin.register()
    found, app = Endpoints(), SimpleNamespace()  # any attribute of which would be an error
    found.attach_router(app)
    await found.init_state(SimpleNamespace(engine_core=core), None, Namespace(api_key=None))
    assert secret_keys.HINT_KEY not in os.environ
    assert not set(utilities.METHODS) & set(vars(engine_core)) and found._refreshing is None
    monkeypatch.setenv("VLLM_PLUGINS", "another,turnpike")
    plugin.register()
    assert set(utilities.METHODS) <= set(vars(engine_core))
