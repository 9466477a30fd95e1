"""A stub of an LLM server: real bytes, a real prefix cache of blocks, a script instead of a model.

Time goes by as on a small GPU: prompts are prefilled one after another, answers are decoded side by side, and
what the cache holds of a prompt's beginning costs nothing. The script calls a tool some times and then is
done; a conversation's first question says how often. It speaks chat completions, and reports itself as vLLM
does, so that the gateway sees its load.

    python -m gateway.tryout.engine PORT
"""

import asyncio
import json
import secrets
import sys
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from random import Random
from typing import Any, Final

from aiohttp import web

from gateway.tryout import end_with_parent

MODEL: Final = "stub"
BLOCK_TOKENS: Final = 16
_TOKEN_BYTES: Final = 4
_CAPACITY_BLOCKS: Final = 4_000
_MAX_RUNNING: Final = 8
_PREFILL_TOKENS_PER_S: Final = 6_000.0
_DECODE_TOKENS_PER_S: Final = 40.0
_MAX_BODY_BYTES: Final = 4 << 20
_WORDS: Final = (
    "the file reads tests then parser fails on empty input so I look at what calls it next".split()
)
_COMMANDS: Final = ("ls src", "grep -rn parse src", "pytest -x", "sed -n 1,80p src/parser.py", "git diff")
_PAGES: Final[dict[str, Any]] = {
    "/health": {},
    "/version": {"version": "0.32.0"},
    "/v1/models": {"object": "list", "data": [{"id": MODEL}]},
}


class BlockCache:
    """Blocks of prompts, by the hash of all that is before their end; the one that was used longest ago goes
    first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def take(self, prompt: bytes) -> int:
        """Tokens of the prompt that were there; all of it is there now."""
        found, is_prefix = 0, True
        for block in _blocks_of(prompt):
            is_prefix = is_prefix and block in self._blocks
            found += is_prefix
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return found * BLOCK_TOKENS


def _blocks_of(prompt: bytes) -> Iterator[bytes]:
    size, chain = BLOCK_TOKENS * _TOKEN_BYTES, b""
    for start in range(0, len(prompt) - size + 1, size):
        chain = blake2b(chain + prompt[start : start + size], digest_size=16).digest()
        yield chain


class Engine:
    def __init__(self) -> None:
        self.cache = BlockCache(_CAPACITY_BLOCKS)
        self._slots, self._prefilling = asyncio.Semaphore(_MAX_RUNNING), asyncio.Lock()
        self._running = self._waiting = self._held_tokens = self._queried_tokens = self._found_tokens = 0
        self._answers = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        for path in _PAGES:
            app.router.add_get(path, self._page)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def _page(self, request: web.Request) -> web.Response:
        return web.json_response(_PAGES[request.path])

    async def _metrics(self, _: web.Request) -> web.Response:
        blocks = _CAPACITY_BLOCKS
        used = min(1.0, self._held_tokens / BLOCK_TOKENS / blocks)
        lines = {
            f'cache_config_info{{block_size="{BLOCK_TOKENS}",num_gpu_blocks="{blocks}",'
            'enable_prefix_caching="True"}': 1,
            "kv_cache_usage_perc": used,
            "num_requests_running": self._running,
            "num_requests_waiting": self._waiting,
            "prefix_cache_queries_total": self._queried_tokens,
            "prefix_cache_hits_total": self._found_tokens,
        }
        return web.Response(text="".join(f"vllm:{name} {value}\n" for name, value in lines.items()))

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await request.read())
            messages, is_stream = list(body["messages"]), bool(body.get("stream"))
            answer = _answer(messages)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            fault = {"message": f"no chat completion: {error!r}", "type": "invalid_request_error"}
            return web.json_response({"error": fault}, status=400)
        self._answers += 1
        number, prompt = self._answers, json.dumps([body.get("tools"), *messages]).encode()
        tokens = len(prompt) // _TOKEN_BYTES
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        self._running, self._held_tokens = self._running + 1, self._held_tokens + tokens
        try:
            async with self._prefilling:
                found = self.cache.take(prompt)
                self._queried_tokens += tokens
                self._found_tokens += found
                await asyncio.sleep((tokens - found) / _PREFILL_TOKENS_PER_S)
            return await self._send(request, answer, number, _usage(tokens, found, answer), is_stream)
        finally:
            self._slots.release()
            self._running, self._held_tokens = self._running - 1, self._held_tokens - tokens

    async def _send(
        self, request: web.Request, answer: dict[str, Any], number: int, usage: Any, is_stream: bool
    ) -> web.StreamResponse:
        head = {"id": f"chatcmpl-{number}", "created": 0, "model": MODEL}
        for each in answer.get("tool_calls", ()):
            each["id"] = f"call_{secrets.token_hex(12)}"
        finish = "tool_calls" if "tool_calls" in answer else "stop"
        words = answer["content"].split(" ")
        if not is_stream:
            await asyncio.sleep(len(words) / _DECODE_TOKENS_PER_S)
            choice = {"index": 0, "message": answer, "finish_reason": finish}
            return web.json_response(
                head | {"object": "chat.completion", "choices": [choice], "usage": usage}
            )
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)

        async def send(delta: dict[str, Any], finish: str | None = None, **more: Any) -> None:
            choices = [{"index": 0, "delta": delta, "finish_reason": finish}] if delta or finish else []
            chunk = head | {"object": "chat.completion.chunk", "choices": choices} | more
            await response.write(b"data: %s\n\n" % json.dumps(chunk).encode())

        for at, word in enumerate(words):
            await send({"role": "assistant", "content": word} if at == 0 else {"content": f" {word}"})
            await asyncio.sleep(1 / _DECODE_TOKENS_PER_S)
        if "tool_calls" in answer:
            await send({"tool_calls": [{"index": 0, **each} for each in answer["tool_calls"]]})
        await send({}, finish)
        await send({}, usage=usage)
        await response.write(b"data: [DONE]\n\n")
        return response


def _answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What the script answers: the same to the same conversation."""
    question = next((str(each.get("content")) for each in messages if each.get("role") == "user"), "")
    done = sum(each.get("role") == "tool" for each in messages)
    calls = Random(question).randint(3, 9)
    rng = Random(f"{question} {done}")
    content = " ".join(rng.choices(_WORDS, k=rng.randint(8, 40)))
    if done >= calls:
        return {"role": "assistant", "content": f"Done: {content}."}
    function = {"name": "bash", "arguments": json.dumps({"command": rng.choice(_COMMANDS)})}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"type": "function", "function": function}],
    }


def _usage(prompt: int, found: int, answer: dict[str, Any]) -> dict[str, Any]:
    output = len(answer["content"].split(" "))
    details = {"cached_tokens": min(found, prompt)}
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return {**counts, "prompt_tokens_details": details}


if __name__ == "__main__":
    end_with_parent()
    web.run_app(Engine().app(), host="127.0.0.1", port=int(sys.argv[1]), print=None)
