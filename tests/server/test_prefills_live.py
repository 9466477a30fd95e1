"""A stolen session on two real engines: what went ahead to the second, computed or loaded, is what its next
turn finds there."""

import json
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from tests.engines import MODEL, Fleet
from tests.gateways import running_gateway
from turnpike_vllm.scripted.process import EngineOptions, ScriptedEngine

LONG = " ".join(f"word{number}" for number in range(300))
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
SCRIPTS = {
    "stolen": {
        "turns": [{"text": "Looking.", "tool_calls": [{"name": "ls", "arguments": {}}]}, {"text": "Done."}]
    },
    "held": {"turns": [{"text": " and so on" * 8_000}]},
    "other": {"turns": [{"text": "Yes."}]},
}

_HELD = 6


class Chat:
    def __init__(self, gateway: Path, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/v1/chat/completions"
        self._stream = gateway / "stream.jsonl"
        control_port = (gateway / "log").read_text().partition("control on port ")[2].split()[0]
        self._control = f"http://127.0.0.1:{control_port}/turnpike"

    def drain(self, *, is_draining: bool) -> None:
        post(f"{self._control}/replicas/default-1/drain", {"draining": is_draining})

    def running(self) -> dict[str, int]:
        """Turns, by replica."""
        with urllib.request.urlopen(f"{self._control}/snapshot?sessions=0", timeout=120) as answer:
            return {replica["id"]: replica["running"] for replica in json.load(answer)["replicas"]}

    def ask(self, session: str, *messages: Any, **headers: str) -> tuple[Any, Mapping[str, str]]:
        said = messages or (user(session.partition("-")[0]),)
        body = {"model": MODEL, "messages": said, "tools": TOOLS}
        return post(self._url, body, **{"x-turnpike-session": session, **headers})

    def hold(self, session: str) -> HTTPResponse:
        """An answer that has begun; it goes on until it is closed, or for thousands of tokens."""
        body = {"model": MODEL, "messages": [user(session.partition("-")[0])], "stream": True}
        told = {"content-type": "application/json", "x-turnpike-session": session}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), told)
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=120)
        return answer

    def moves(self) -> list[Any]:
        records = map(json.loads, self._stream.read_text().splitlines())
        return [record for record in records if record["type"] == "prefix_move"]


def user(script: str) -> dict[str, str]:
    return {"role": "user", "content": f"[[script:{script}]] {LONG}"}


def post(url: str, body: Any, **headers: str) -> tuple[Any, Mapping[str, str]]:
    told = {"content-type": "application/json", **headers}
    request = urllib.request.Request(url, json.dumps(body).encode(), told)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer), answer.headers


class Moved:
    """What happened to `stolen`, which paused on the first replica, where others run."""

    def __init__(self, backends: Sequence[str], at: Path) -> None:
        settings = (
            f'[stream]\npath = "{at / "stream.jsonl"}"\n'
            "[routing.stealing]\nenabled = true\nidle_s = 0.0\nratio = 1.0\n"
        )
        with running_gateway(backends, at, more_settings=settings) as port, ExitStack() as held:
            chat = Chat(at, port)
            chat.drain(is_draining=True)
            self.first, sent = chat.ask("stolen")
            assert sent["x-turnpike-replica"] == "default-0"
            others = [held.enter_context(chat.hold(f"held-{number}")) for number in range(_HELD)]
            chat.drain(is_draining=False)
            # Whenever a turn ends it is asked who steals; the second replica idles between these.
            # That may take some seventy turns: until then a slow first turn may count for its replica's pace.
            moves: list[Any] = []
            while not moves:
                assert chat.running()["default-0"] == _HELD, "the first replica is to be busy"
                chat.ask("other", **{"x-turnpike-final": "true"})
                time.sleep(0.05)
                moves = chat.moves()
            asked = self.first["choices"][0]["message"]
            result = {"role": "tool", "tool_call_id": asked["tool_calls"][0]["id"], "content": "main.py"}
            self.second, self.sent = chat.ask("stolen", user("stolen"), asked, result)
            assert all(each.readline() for each in others), "they were not cut off"
        assert [(each["outcome"], each["replica"]) for each in moves] == [("ready", "default-1")]
        self.ahead = moves[0]["usage"]
        """Of the request that went ahead."""

    @property
    def prompt_tokens(self) -> int:
        tokens: int = self.first["usage"]["prompt_tokens"]
        return tokens

    def check(self) -> None:
        assert self.ahead["prompt_tokens"] == self.prompt_tokens
        assert (self.sent["x-turnpike-replica"], self.sent["x-turnpike-reason"]) == ("default-1", "stolen")
        assert self.second["choices"][0]["message"]["content"] == "Done."
        found = self.second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert found > 0.85 * self.prompt_tokens, "all full blocks of it"


@pytest.mark.alone
@pytest.mark.engine
@pytest.mark.timeout(300)
def test_what_went_ahead_is_found(fleet: Fleet, tmp_path: Path) -> None:
    fleet.play({"scripts": SCRIPTS})
    moved = Moved([engine.url for engine in fleet.scripted], tmp_path / "gateway")
    moved.check()
    assert moved.ahead["cached_tokens"] < 0.5 * moved.prompt_tokens, "it was computed"


@pytest.mark.alone
@pytest.mark.engine
@pytest.mark.timeout(300)
def test_what_engines_share_is_loaded_instead(tmp_path: Path) -> None:
    store = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "store")},
    }
    options = EngineOptions(
        max_model_len=32_768,
        extra_args=("--num-gpu-blocks-override", "4000", "--kv-transfer-config", json.dumps(store)),
    )
    engines = [ScriptedEngine({"scripts": SCRIPTS}, options) for _ in range(2)]
    with ExitStack() as stack:
        for engine in engines:
            stack.callback(engine.stop)
            engine.launch()
        for engine in engines:
            engine.wait_healthy()
        moved = Moved([engine.url for engine in engines], tmp_path / "gateway")
    moved.check()
    assert moved.ahead["cached_tokens"] > 0.85 * moved.prompt_tokens, "the other one had computed it"
