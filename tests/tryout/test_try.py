"""A newcomer without a GPU: one command, and sessions are there."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from gateway.tryout.engine import BLOCK_TOKENS, MODEL, BlockCache, Engine
from scripted_engine.ports import free_port

QUESTION = {"role": "user", "content": "Fix the failing test"}


def test_the_cache_holds_what_a_prompt_begins_with_and_forgets_the_oldest_blocks():
    cache = BlockCache(8)
    first = bytes(range(256))
    assert cache.take(first) == 0
    assert cache.take(first + b"more" * 16) == 4 * BLOCK_TOKENS
    assert cache.take(b"other" + first) == 0, "all that is before a block counts"
    assert len(cache) == 8 and cache.take(first) < 4 * BLOCK_TOKENS


@pytest.mark.parametrize("stream", [True, False])
async def test_the_stub_calls_tools_until_it_is_done_and_reports_what_its_cache_held(stream):
    async with TestClient(TestServer(Engine().app())) as http:
        messages: list[Any] = [{"role": "system", "content": "x" * 2000}, QUESTION]
        cached, finish = [], None
        while finish != "stop":
            body = {"model": MODEL, "messages": messages, "stream": stream}
            async with http.post("/v1/chat/completions", json=body) as response:
                assert response.status == 200
                text = await response.text()
            if not stream:
                chunks = [json.loads(text)]
            else:
                *events, last = text.removesuffix("\n\n").split("\n\n")
                assert last == "data: [DONE]"
                chunks = [json.loads(each.removeprefix("data: ")) for each in events]
            [choice] = [c for each in chunks for c in each["choices"] if c["finish_reason"]]
            calls = [
                call
                for each in chunks
                for c in each["choices"]
                for call in (c.get("message") or c["delta"]).get("tool_calls", ())
            ]
            finish = choice["finish_reason"]
            assert bool(calls) == (finish == "tool_calls")
            usage = chunks[-1]["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
            messages = [
                *messages,
                {"role": "assistant", "content": "", "tool_calls": calls},
                *({"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls),
            ]
        assert cached[0] == 0 and cached == sorted(cached) and len(cached) > 3
        async with http.post("/v1/chat/completions", data=b"[") as response:
            assert response.status == 400 and "error" in await response.json()


def test_one_command_shows_sessions_with_their_tools_within_two_minutes():
    port, control = free_port(), free_port()
    listen = ("--listen", f"127.0.0.1:{port}", "--control", f"127.0.0.1:{control}")
    command = [sys.executable, "-m", "gateway", "try", "--agents", "4", "--no-browser", *listen]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            until_s = time.monotonic() + 120
            while True:
                assert process.poll() is None and time.monotonic() < until_s
                try:
                    url = f"http://127.0.0.1:{control}/turnpike/snapshot"
                    with urllib.request.urlopen(url, timeout=5) as response:
                        snapshot = json.load(response)
                except OSError:
                    snapshot = {"sessions": []}
                if any(each["turns"] > 3 and each["cached_tokens"] for each in snapshot["sessions"]):
                    break
                time.sleep(0.3)
            assert snapshot["session_count"] <= 8, "a turn belongs to the session of the last"
            children = subprocess.check_output(["pgrep", "-P", str(process.pid)], text=True).split()
            assert len(children) == 2
            process.send_signal(signal.SIGINT)
            log = process.communicate(timeout=30)[1]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert f"http://127.0.0.1:{control}/turnpike/" in log and "Traceback" not in log
    for each in children:
        assert not Path(f"/proc/{each}").exists()
