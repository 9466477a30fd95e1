"""KV events of a real engine: what the index says each session has there is what its next turn finds."""

import asyncio
import contextlib
import json
import random
import urllib.request

import pytest

from gateway.config.upstream import KvEventsConfig
from gateway.domain.ids import ReplicaId
from gateway.upstream.kv_events import KvIndex
from gateway.upstream.kv_feed import KvFeed
from scripted_engine.process import EngineOptions, ScriptedEngine

BLOCK, SESSIONS, TURNS = 32, 12, 4


class Lossy(KvIndex):
    """Every fifth batch is lost the first time that it comes."""

    def __init__(self):
        super().__init__()
        self.dropped = set()

    def apply(self, number, events):
        if number % 5 == 4 and number not in self.dropped:
            self.dropped.add(number)
            return
        super().apply(number, events)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    at = tmp_path_factory.mktemp("kv")
    events, replay = f"ipc://{at}/events", f"ipc://{at}/replay"
    publishes = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": events,
        "replay_endpoint": replay,
        "buffer_steps": 10_000,
    }
    options = EngineOptions(
        max_model_len=4096,
        block_size=BLOCK,
        extra_args=("--num-gpu-blocks-override", "300", "--kv-events-config", json.dumps(publishes)),
    )
    with ScriptedEngine({"default": {"turns": [{"text": " and so on" * 50}]}, "scripts": {}}, options) as one:
        yield one, KvEventsConfig(endpoint=events, replay=replay)


def ask(url, session, prompt, tokens):
    body = {
        "model": "scripted", "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens,
        "ignore_eos": True, "temperature": 0.0, "return_token_ids": True,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "x-session-id": session},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        told = json.load(answer)
    return told["choices"][0]["token_ids"], told["usage"]["prompt_tokens_details"]["cached_tokens"] or 0


@contextlib.asynccontextmanager
async def listening(config, index):
    told = []
    feed = KvFeed(ReplicaId("a"), config, lambda _, tokens: told.append(tokens))
    feed.index = index
    task = asyncio.create_task(feed.run())
    try:
        yield feed, told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.engine
@pytest.mark.parametrize("index", [KvIndex, Lossy], ids=["all events come", "every fifth is lost"])
async def test_the_index_agrees_with_what_the_next_turn_finds(engine, index, caplog):
    server, config = engine
    dice = random.Random(index.__name__)
    prompts: dict[str, list[int]] = {}
    async with listening(config, index()) as (feed, told):
        await asyncio.sleep(0.5)  # to subscribe
        for _ in range(TURNS):
            for number in range(SESSIONS):
                name = f"{index.__name__}-{number}"
                prompt = prompts.get(name, []) + [dice.randrange(300, 900) for _ in range(300)]
                answer, _ = await asyncio.to_thread(ask, server.url, name, prompt, 16)
                prompts[name] = prompt + answer
        off = whole = 0
        for name, prompt in prompts.items():
            await asyncio.sleep(0.2)
            believed = min(feed.index.tokens.get(name, 0.0), (len(prompt) - 1) // BLOCK * BLOCK)
            _, found = await asyncio.to_thread(ask, server.url, name, [*prompt, 7], 1)
            off += abs(believed - found)
            whole += len(prompt)
        agreement = 1 - off / whole
        print(f"agreement {agreement:.4f}")
        assert agreement >= 0.98
        assert told and "its index begins anew" not in caplog.text
        assert getattr(feed.index, "dropped", {1}), "nothing was lost"
