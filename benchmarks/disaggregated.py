"""Prompts that one engine computes and another one decodes: does it work, and what does it take?

    python -m benchmarks.disaggregated [--quick] [--json]

Two real vLLM servers on the CPU with a tiny model that share a KV store (`ExampleConnector`, a debugging
connector that writes files), and a gateway as a user starts it; then the same by `NixlConnector`, where the
package `nixl` is installed, under names that begin with `nixl_`. Some clients read long streams; meanwhile
long prompts come one after the other. `alone`: each engine computes what it decodes; `apart`: the first one
computes the long prompts, the second one decodes all; `predicted`: the same engines, where the gateway finds
out which prompts that pays for. A model this small on shared processors says nothing of the speed of any of
it: the figures that have targets say whether it works.

`apart_ready`: of the long prompts, those that came over; `apart_found`: the share of their tokens that the
second engine did not compute, as it counts itself (over NIXL, usage says what the first one found); `same`:
of the answers, those that are what one engine says alone.
"""

import asyncio
import importlib.util
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.command import judged
from benchmarks.gateway import gateway
from benchmarks.shared_store import MODEL, StoreEngines
from benchmarks.verdict import Verdict, percentile
from gateway.wire.kv_transfer import TransferName

STREAMS: Final = 3
OUTPUT_TOKENS: Final = 12
PROMPT_WORDS: Final = 1_000
ROUNDS: Final = 24
QUICK_ROUNDS: Final = 6
THRESHOLD: Final = "[disaggregation]\nthreshold_tokens = 500\npatience_s = 60.0\n"


class Seen:
    """Of one kind."""

    def __init__(self) -> None:
        self.gaps_s: list[float] = []
        """Between two pieces of a stream, while a long prompt is asked."""
        self.first_s: list[float] = []
        self.found = 0.0
        """Tokens of prompts that the second engine did not compute."""
        self.prompt_tokens = 0
        self.said: list[str] = []
        self.legs: list[dict[str, Any]] = []


def prompt(kind: str, number: int) -> str:
    return " ".join(f"{kind}{number} {word}" for word in range(PROMPT_WORDS))


async def ask(client: aiohttp.ClientSession, url: str, said: str, tokens: int, **more: Any) -> Any:
    body = {"model": MODEL, "prompt": said, "max_tokens": tokens, "temperature": 0.0, **more}
    async with client.post(f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        return await answer.json()


async def reads(client: aiohttp.ClientSession, url: str, number: int, gaps_s: list[float]) -> None:
    """One long stream after the other, until it is cancelled."""
    body = {
        "model": MODEL, "prompt": f"stream {number}", "max_tokens": 2_000, "stream": True, "ignore_eos": True,
    }  # fmt: skip
    while True:
        async with client.post(f"{url}/v1/completions", json=body) as answer:
            last_s = None
            async for _ in answer.content.iter_any():
                now_s = time.monotonic()
                if last_s is not None:
                    gaps_s.append(now_s - last_s)
                last_s = now_s


async def run(url: str, kind: str, rounds: int) -> Seen:
    seen = Seen()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as client:
        streams = [
            asyncio.ensure_future(reads(client, url, number, seen.gaps_s)) for number in range(STREAMS)
        ]
        try:
            await asyncio.sleep(1.0)
            seen.gaps_s.clear()
            for number in range(rounds):
                began_s = time.monotonic()
                answer = await ask(client, url, prompt(kind, number), OUTPUT_TOKENS)
                seen.first_s.append(time.monotonic() - began_s)
                seen.prompt_tokens = answer["usage"]["prompt_tokens"]
                seen.said.append(answer["choices"][0]["text"])
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
    return seen


def cached_tokens(url: str) -> float:
    """Of all prompts so far, tokens that an engine did not compute."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("vllm:prompt_tokens_cached_total")
    )


async def alone_says(url: str, kind: str, rounds: int) -> list[str]:
    async with aiohttp.ClientSession() as client:
        answers = [await ask(client, url, prompt(kind, number), OUTPUT_TOKENS) for number in range(rounds)]
    return [answer["choices"][0]["text"] for answer in answers]


def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    rounds = QUICK_ROUNDS if is_quick else ROUNDS
    measure_by("shared_storage", "", rounds, verdict, tell)
    if importlib.util.find_spec("nixl") is not None:
        measure_by("nixl", "nixl_", rounds, verdict, tell)


def measure_by(transfer: TransferName, prefix: str, rounds: int, verdict: Verdict, tell: Any) -> None:
    """`prefix`: of the figures' names."""
    found: dict[str, Seen] = {}
    with ExitStack() as stack:
        at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="disaggregated-")))
        engines = StoreEngines(stack, at, replicas=3, transfer=transfer)
        expected = asyncio.run(alone_says(engines.urls[2], "apart", rounds))
        engines.forget()
        apart = engines.pool(1)
        for kind, pool, more in (("alone", None, ""), ("apart", apart, THRESHOLD), ("predicted", apart, "")):
            records = at / f"{kind}.jsonl"
            settings = f'[stream]\npath = "{records}"\n{more}'
            with gateway(engines.urls[:2], at / f"gateway-{kind}", settings, pool=pool) as url:
                before = cached_tokens(engines.urls[1])
                seen = found[kind] = asyncio.run(run(url, kind, rounds))
                seen.found = cached_tokens(engines.urls[1]) - before
            written = map(json.loads, records.read_text().splitlines())
            seen.legs = [each for each in written if each["type"] == "prefill_leg"]
            answer_s = statistics.mean(seen.first_s)
            tell(f"{prefix}{kind}: {answer_s:.2f} s an answer, {len(seen.legs)} prefill legs")
    judge(verdict, prefix, found, expected)


def judge(verdict: Verdict, prefix: str, found: dict[str, Seen], expected: list[str]) -> None:
    alone, apart = found["alone"], found["apart"]
    ready = [each for each in apart.legs if each["outcome"] == "ready"]
    verdict.at_least(f"{prefix}apart_ready", len(ready) / len(expected), 1.0)
    verdict.at_least(f"{prefix}apart_found", apart.found / (len(expected) * apart.prompt_tokens), 0.95)
    same = [said == wanted for said, wanted in zip(apart.said, expected, strict=True)]
    verdict.at_least(f"{prefix}same", sum(same) / len(same), 1.0)
    verdict.at_most(f"{prefix}alone_legs", len(alone.legs), 0)
    verdict.tell(f"{prefix}prompt_tokens", apart.prompt_tokens)
    verdict.tell(f"{prefix}predicted_legs", len(found["predicted"].legs) / len(expected))
    for kind, seen in found.items():
        verdict.tell(f"{prefix}{kind}_answer_s", statistics.mean(seen.first_s))
        verdict.tell(f"{prefix}{kind}_gap_p50_ms", 1e3 * percentile(seen.gaps_s, 50))
        verdict.tell(f"{prefix}{kind}_gap_p99_ms", 1e3 * percentile(seen.gaps_s, 99))
        verdict.tell(f"{prefix}{kind}_gap_max_ms", 1e3 * max(seen.gaps_s))
    if ready:
        verdict.tell(f"{prefix}apart_leg_s", statistics.mean(each["duration_ms"] for each in ready) / 1e3)


if __name__ == "__main__":
    sys.exit(judged(__file__, __doc__, measure, quick="6 long prompts instead of 24"))
