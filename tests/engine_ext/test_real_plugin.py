"""A real vLLM server on the CPU with the plugin loaded: hints by every way in, telemetry by every way out."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from scripted_engine.process import EngineOptions, ScriptedEngine
from turnpike_vllm.api import doctor
from turnpike_vllm.hints import XARGS_KEY, Hint, sign

pytestmark = [pytest.mark.heavy, pytest.mark.engine, pytest.mark.timeout(300)]

OPTIONS = EngineOptions(
    max_model_len=4096,
    extra_args=(
        *("--num-gpu-blocks-override", "160", "--max-num-batched-tokens", "512"),
        *("--scheduler-cls", "turnpike_vllm.scheduler.TurnpikeScheduler"),
        *("--additional-config", json.dumps({"turnpike": {"retention": {"grace_s": 0.5}}})),
    ),
    extra_env={"VLLM_PLUGINS": "turnpike", "VLLM_API_KEY": "key"},
)
LONG = " ".join(f"word{number}" for number in range(300))


class Client:
    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.seq = 0

    def open(self, path: str, body: Any = None, key: str | None = "key") -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        headers |= {} if key is None else {"authorization": f"Bearer {key}"}
        return urllib.request.urlopen(
            urllib.request.Request(self.engine.url + path, data, headers), timeout=120
        )

    def ask(self, path: str, body: Any = None) -> Any:
        with self.open(path, body) as answer:
            return json.load(answer)

    def kv(self) -> Any:
        return self.ask("/turnpike/kv")

    def signed(self, hint: Hint) -> str:
        return sign(hint.as_json(), self.ask("/turnpike/key")["key"])

    def hint(self, session: str, **more: Any) -> Hint:
        self.seq += 1
        return Hint(session=session, seq=self.seq, **more)

    def complete(self, prompt: str, hint: Hint | None = None, **more: Any) -> Any:
        extra = {} if hint is None else {"vllm_xargs": {XARGS_KEY: self.signed(hint)}}
        body = {"model": "scripted", "prompt": prompt, "max_tokens": 4, **more, **extra}
        return self.ask("/v1/completions", body)["usage"]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with ScriptedEngine({"scripts": {}}, OPTIONS) as engine:
        yield Client(engine)


def test_it_sleeps_until_somebody_hints(client: Client) -> None:
    client.complete("unhinted")
    told = client.kv()
    assert told["state"] == "asleep"
    assert set(told["features"].values()) == {"on"}
    assert told["blocks"] == {"total": 159, "free": 159, "used": 0, "retained": 0}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}),
    ],
)
def test_hints_travel_with_requests_of_every_kind(client: Client, path: str, body: dict[str, Any]) -> None:
    before = client.kv()["counters"]["hints"].get("followed", 0)
    hint = client.hint(f"by {path}")
    client.ask(path, {"model": "scripted", **body, "vllm_xargs": {XARGS_KEY: client.signed(hint)}})
    told = client.kv()
    assert told["counters"]["hints"]["followed"] == before + 1
    assert f"by {path}" in told["sessions"]


def test_hints_come_between_requests(client: Client) -> None:
    hint = client.hint("posted", age_s=5.0)
    assert client.ask("/turnpike/hints", hint.as_dict()) == {
        "state": "awake",
        "followed": 1,
        "stale": 0,
        "refused": {},
    }
    assert client.ask("/turnpike/hints", {"hints": [hint.as_dict(), {}]})["refused"] == {"malformed": 1}
    assert "posted" in client.kv()["sessions"]


@pytest.mark.parametrize(
    "given", ["}", Hint(session="forged", seq=2**53, retain_s=60.0).as_json(), 7, ["{}"]]
)
def test_what_no_gateway_signed_is_not_followed_and_harms_nobody(client: Client, given: Any) -> None:
    before = client.kv()["counters"]["hints"].get("unsigned", 0)
    body = {"model": "scripted", "prompt": "hi", "max_tokens": 2, "vllm_xargs": {XARGS_KEY: given}}
    assert client.ask("/v1/completions", body)["usage"]["completion_tokens"] > 0
    told = client.kv()
    assert told["counters"]["hints"]["unsigned"] == before + 1 and "forged" not in told["sessions"]


def test_a_pause_is_held_told_and_ended(client: Client) -> None:
    client.complete("first " + LONG, client.hint("pause", retain_s=600.0))
    told = client.kv()
    free, used, retained = (told["blocks"][name] for name in ("free", "used", "retained"))
    assert retained == told["sessions"]["pause"]["retained"] > 20
    assert (free, used) == (159 - retained, 0)
    client.ask("/turnpike/hints", client.hint("pause", retain_s=0.1).as_dict())
    while (told := client.kv())["blocks"]["retained"]:
        time.sleep(0.05)
    assert told["counters"]["releases"]["expired"] >= 1


def test_a_crowd_does_not_cost_a_paused_session_its_prefix(client: Client) -> None:
    held = {}
    for retain_s in (0.0, 600.0):
        start = f"turn {retain_s} "
        client.complete(start + LONG, client.hint(f"held {retain_s}", retain_s=retain_s, reuse=0.9))
        for number in range(8):
            client.complete(f"stranger {number} {retain_s} " + LONG)
        usage = client.complete(start + LONG + " and then", client.hint(f"held {retain_s}", retain_s=0.0))
        held[retain_s] = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
    assert held[0.0] < 0.1
    assert held[600.0] > 0.9


def test_metrics_and_the_doctor(client: Client) -> None:
    with client.open("/metrics") as answer:
        lines = answer.read().decode().splitlines()
    assert 'turnpike_engine_blocks{state="total"} 159.0' in lines
    assert all(each.is_fine for each in doctor._server(client.engine.url, "key"))
    assert not all(each.is_fine for each in doctor._server(client.engine.url))


def test_a_reset_lets_go(client: Client) -> None:
    client.complete("reset " + LONG, client.hint("reset", retain_s=60.0))
    assert client.kv()["blocks"]["retained"] > 0
    told = client.ask("/turnpike/hints", client.hint("reset", is_finished=True).as_dict())
    assert told["followed"] == 1
    assert client.kv()["blocks"]["retained"] == 0
