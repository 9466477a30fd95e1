"""Real engines that share a store: one computes prompts, others decode, and the tokens are one engine's.

vLLM's `ExampleConnector` loads a prompt only as a whole, and only what an engine wrote to its end; so here an
engine that is to die in the middle of a leg is stopped before it can begin to write.
"""

import json
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests.gateways import gateway_with
from tests.server.shared_store import MODEL, StoreEngines

TOKENS: Final = 24
PREFILL, DECODE, OTHER = "pool-0", "pool-1", "pool-2"
SHAPES: Final = {
    "chat": ("/v1/chat/completions", False),
    "chat, streamed": ("/v1/chat/completions", True),
    "completions": ("/v1/completions", False),
    "completions, streamed": ("/v1/completions", True),
    "messages": ("/v1/messages", False),
    "messages, streamed": ("/v1/messages", True),
    "responses": ("/v1/responses", False),
    "responses, streamed": ("/v1/responses", True),
}
DYING: Final = ("the prompt of a decode engine that dies", "the prompt of a prefill engine that dies")


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreEngines]:
    with ExitStack() as stack:
        yield StoreEngines(stack, tmp_path_factory.mktemp("engines"), replicas=3)


def settings(engines: StoreEngines, decode: int, more: str) -> str:
    return (
        '[server]\nlisten = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\n'
        f"[disaggregation]\nthreshold_tokens = 300\npatience_s = 60.0\n{engines.pool(decode)}{more}"
    )


def prompt(about: str) -> str:
    return " ".join(f"{about} {number}" for number in range(150))


def body(path: str, said: str, *, stream: bool) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0.0, "stream": stream}
    if path == "/v1/completions":
        return {**asked, "prompt": said}
    if path == "/v1/responses":
        del asked["max_tokens"]
        return {**asked, "input": said, "max_output_tokens": TOKENS, "store": False}
    return {**asked, "messages": [{"role": "user", "content": said}]}


class Told:
    def __init__(self, url: str, path: str, said: str, *, stream: bool = False) -> None:
        sent = json.dumps(body(path, said, stream=stream)).encode()
        request = urllib.request.Request(url + path, sent, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            read = answer.read()
            self.replica = answer.headers["x-turnpike-replica"]
        parts = (
            [json.loads(read)]
            if not stream
            else [
                json.loads(line.removeprefix(b"data: "))
                for line in read.splitlines()
                if line.startswith(b"data: {")
            ]
        )
        self.text = "".join(map(_text, parts))
        self.usage: dict[str, Any] = next((each["usage"] for each in parts if each.get("usage")), {})


def _text(part: dict[str, Any]) -> str:
    if "choices" in part:
        return "".join(
            each.get("text") or (each.get("message") or each.get("delta") or {}).get("content") or ""
            for each in part["choices"]
        )
    if part.get("object") == "response":
        return "".join(text["text"] for each in part["output"] for text in each["content"])
    if part.get("type", "").startswith("response."):
        return part["delta"] if part["type"] == "response.output_text.delta" else ""
    if "content" in part:
        return "".join(each["text"] for each in part["content"])
    return str((part.get("delta") or {}).get("text", ""))


def eventually(is_true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until, what
        time.sleep(0.02)


class Gateway:
    def __init__(self, port: int, at: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._at = at
        control = (at / "log").read_text().partition("control on port ")[2].split()[0]
        self._control = f"http://127.0.0.1:{control}/turnpike"

    def running(self) -> dict[str, int]:
        with urllib.request.urlopen(f"{self._control}/snapshot?sessions=0", timeout=60) as answer:
            return {each["id"]: each["running"] for each in json.load(answer)["replicas"]}

    def until_running(self, replica: str) -> None:
        eventually(lambda: self.running()[replica] > 0, f"nothing came to {replica}")

    def until_quiet(self) -> None:
        eventually(lambda: not any(self.running().values()), "something is left in the books")

    def drain(self, replica: str, *, is_draining: bool) -> None:
        told = json.dumps({"draining": is_draining}).encode()
        request = urllib.request.Request(f"{self._control}/replicas/{replica}/drain", told)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200

    def legs(self) -> list[dict[str, Any]]:
        records = map(json.loads, (self._at / "stream.jsonl").read_text().splitlines())
        return [record for record in records if record["type"] == "prefill_leg"]


def while_asked(url: str, said: str, happens: Callable[[], None]) -> Told:
    found: list[Told] = []
    asking = threading.Thread(target=lambda: found.append(Told(url, "/v1/chat/completions", said)))
    asking.start()
    try:
        happens()
    finally:
        asking.join(120)
    [told] = found
    return told


@pytest.mark.heavy
@pytest.mark.engine
@pytest.mark.timeout(600)
def test_tokens_are_those_of_one_engine_and_a_death_costs_nobody_an_answer(
    engines: StoreEngines, tmp_path: Path
):
    alone = engines.urls[2]
    expected = {
        name: Told(alone, path, prompt(name), stream=stream) for name, (path, stream) in SHAPES.items()
    }
    expected |= {said: Told(alone, "/v1/chat/completions", prompt(said)) for said in DYING}
    assert len({each.text for each in expected.values()}) == len(expected), (
        "what is said depends on the prompt"
    )
    engines.forget()

    at = tmp_path / "two"
    stream = f'[stream]\npath = "{at}/stream.jsonl"\n'
    with gateway_with(settings(engines, 1, stream), at) as port:
        two = Gateway(port, at)
        for name, (path, is_streamed) in SHAPES.items():
            told = Told(two.url, path, prompt(name), stream=is_streamed)
            assert told.replica == DECODE and told.text == expected[name].text, name
            if path == "/v1/chat/completions" and not is_streamed:
                found = told.usage["prompt_tokens_details"]["cached_tokens"]
                assert found > 0.85 * told.usage["prompt_tokens"], "it was loaded"
        two.until_quiet()
    legs = two.legs()
    assert [each["outcome"] for each in legs] == ["ready"] * len(SHAPES)
    assert {each["replica"] for each in legs} == {PREFILL}

    at = tmp_path / "three"
    stream = f'[stream]\npath = "{at}/stream.jsonl"\n'
    with gateway_with(settings(engines, 2, stream), at) as port:
        three = Gateway(port, at)
        three.drain(OTHER, is_draining=True)
        engines.tell(1, signal.SIGSTOP)

        def decoder_dies() -> None:
            three.until_running(DECODE)
            three.drain(OTHER, is_draining=False)
            engines.tell(1, signal.SIGKILL)

        told = while_asked(three.url, prompt(DYING[0]), decoder_dies)
        assert told.replica == OTHER and told.text == expected[DYING[0]].text
        engines.tell(0, signal.SIGSTOP)

        def prefiller_dies() -> None:
            three.until_running(PREFILL)
            engines.tell(0, signal.SIGKILL)

        told = while_asked(three.url, prompt(DYING[1]), prefiller_dies)
        assert told.replica == OTHER and told.text == expected[DYING[1]].text
        three.until_quiet()
    assert [each["outcome"] for each in three.legs()] == ["ready", "failed"]
