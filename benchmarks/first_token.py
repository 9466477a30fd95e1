"""How well the estimator predicts when a real engine's first tokens come, before a request is sent.

    python -m benchmarks.first_token [--quick] [--json]

One vLLM server on the CPU serves agents whose conversations grow turn by turn: first one agent, then two,
four and eight at once. A gateway stands before it; its information stream has what it expected of each turn
when it sent it, and what became of it. It starts from nothing: it knows neither the server nor how many bytes
make a token, has to find out which conversation a request goes on with, and learns from the usage that
answers report. What counts is what was predicted after the first 200 requests. Beside it stands a guess that
needs no model: the median of the last 50 delays.
"""

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.command import judged
from benchmarks.conversations import text
from benchmarks.gateway import gateway
from benchmarks.processes import Strangers
from benchmarks.verdict import Verdict, percentile
from gateway.domain.records import Expected, GpuEnd, GpuFirstToken, GpuSubmit, Record
from scripted_engine.process import EngineOptions, ScriptedEngine

SEED: Final = 7
LEARNING: Final = 200
"""Requests after which predictions count."""
MODEL: Final = "scripted"
SCRIPTS: Final = 40
SYSTEM_CHARACTERS: Final = 3_000
FIRST_CHARACTERS: Final = (2_000, 30_000)
LONGEST_BYTES: Final = 90_000
GAP_S: Final = 0.4
"""Between an agent's turns, on average: its tools."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One turn that was answered."""

    expected: Expected
    delay_s: float
    """To its first token, since it was sent."""
    duration_s: float
    prompt_tokens: int

    @property
    def error(self) -> float:
        return abs(self.expected.first_token_ms / 1e3 / self.delay_s - 1)

    @property
    def is_within(self) -> bool:
        return self.expected.first_token_p10_ms <= self.delay_s * 1e3 <= self.expected.first_token_p90_ms


class Traffic:
    """Agents that talk to one URL."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session = f"{url}/v1/chat/completions", session
        self._left = 0
        self._system = text(random.Random(SEED), SYSTEM_CHARACTERS)

    async def run(self, agents: int, requests: int) -> None:
        self._left = requests
        rngs = [random.Random(f"{SEED} {agents} {number}") for number in range(agents)]
        await asyncio.gather(*map(self._agent, rngs))

    async def _agent(self, rng: random.Random) -> None:
        messages: list[dict[str, Any]] = []
        size = 0
        await asyncio.sleep(rng.random() * GAP_S)
        while self._left > 0:
            self._left -= 1
            if not messages or size > LONGEST_BYTES:
                script, first = rng.randrange(SCRIPTS), rng.randint(*FIRST_CHARACTERS)
                task = f"[[script:s{script}]] {text(rng, first)}"
                messages = [{"role": "system", "content": self._system}, {"role": "user", "content": task}]
            size, answer = await self._turn(messages)
            messages.append({"role": "assistant", "content": answer})
            observed = text(rng, min(20_000, int(rng.lognormvariate(6.8, 1.1))))
            messages.append({"role": "user", "content": observed})
            await asyncio.sleep(rng.expovariate(1 / GAP_S))

    async def _turn(self, messages: list[dict[str, Any]]) -> tuple[int, str]:
        """The request's bytes, and the answer."""
        request = {"model": MODEL, "messages": messages, "stream": True, "temperature": 0.0}
        body = json.dumps({**request, "stream_options": {"include_usage": True}}).encode()
        answer = []
        headers = {"content-type": "application/json"}
        async with self._session.post(self._url, data=body, headers=headers) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:])["choices"]
                    answer += [choice["delta"].get("content") or "" for choice in choices]
        return len(body), "".join(answer)


def read_stream(stream: Path) -> list[Seen]:
    """In the order in which they were sent."""
    decoder = msgspec.json.Decoder(Record)
    submits: dict[str, GpuSubmit] = {}
    first_tokens: dict[str, GpuFirstToken] = {}
    ends: dict[str, GpuEnd] = {}
    for line in stream.read_bytes().splitlines():
        match decoder.decode(line):
            case GpuSubmit() as record:
                submits[record.turn] = record
            case GpuFirstToken() as record:
                first_tokens[record.turn] = record
            case GpuEnd() as record:
                ends[record.turn] = record
            case _:
                pass
    return [
        Seen(
            expected=submit.expected,
            delay_s=first_tokens[turn].launch_delay_ms / 1e3,
            duration_s=ends[turn].duration_ms / 1e3,
            prompt_tokens=ends[turn].usage.prompt_tokens or 0,
        )
        for turn, submit in submits.items()
        if submit.expected is not None and turn in first_tokens and turn in ends
    ]


def scripts(rng: random.Random) -> dict[str, Any]:
    """Answers of different lengths, each agent's own for every turn."""
    return {
        "scripts": {
            f"s{number}": {"turns": [{"text": text(rng, rng.randint(40, 500))} for _ in range(60)]}
            for number in range(SCRIPTS)
        }
    }


def judge(seen: list[Seen], phases: list[tuple[int, int]], verdict: Verdict) -> None:
    counted = seen[LEARNING:]
    errors = [each.error for each in counted]
    verdict.at_most("first_token_median_error", statistics.median(errors), 0.20)
    coverage = statistics.mean(each.is_within for each in counted)
    verdict.at_least("p10_to_p90_covers_at_least", coverage, 0.75)
    verdict.at_most("p10_to_p90_covers_at_most", coverage, 0.90)
    verdict.tell("first_token_p90_error", percentile(errors, 90))
    naive = [
        abs(statistics.median(each.delay_s for each in seen[at - 50 : at]) / seen[at].delay_s - 1)
        for at in range(LEARNING, len(seen))
    ]
    verdict.tell("first_token_median_error_of_the_last_50", statistics.median(naive))
    verdict.tell("first_200_median_error", statistics.median(each.error for each in seen[:LEARNING]))
    agents = [agents for agents, requests in phases for _ in range(requests)][LEARNING:]
    for number in sorted(set(agents)):
        of_these = [each for each, of in zip(counted, agents, strict=True) if of == number]
        verdict.tell(f"median_error_{number}_agents", statistics.median(each.error for each in of_these))
        verdict.tell(f"median_delay_{number}_agents_s", statistics.median(each.delay_s for each in of_these))
    verdict.tell(
        "completion_median_error",
        statistics.median(abs(each.expected.completion_ms / 1e3 / each.duration_s - 1) for each in counted),
    )
    verdict.tell(
        "prompt_tokens_median_error",
        statistics.median(abs(each.expected.prompt_tokens / each.prompt_tokens - 1) for each in counted),
    )
    verdict.tell("requests", len(seen))


async def talk(url: str, phases: list[tuple[int, int]], tell: Any) -> None:
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=1 << 20) as session:
        traffic = Traffic(url, session)
        for agents, requests in phases:
            start_s = time.perf_counter()
            await traffic.run(agents, requests)
            tell(f"{agents} agents, {requests} requests in {time.perf_counter() - start_s:.0f} s")


def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    each = 80 if is_quick else 200
    phases = [(1, each), (2, each), (4, each), (8, 2 * each)]
    others = Strangers()
    with (
        tempfile.TemporaryDirectory(prefix="first-token-") as name,
        ScriptedEngine(scripts(random.Random(SEED)), EngineOptions(block_size=32)) as engine,
    ):
        stream = Path(name) / "stream.jsonl"
        with gateway([engine.url], Path(name) / "gateway", f'[stream]\npath = "{stream}"\n') as url:
            asyncio.run(talk(url, phases, tell))
        judge(read_stream(stream), phases, verdict)
    verdict.tell("strangers_share", others.share)


if __name__ == "__main__":
    sys.exit(judged(__file__, __doc__, measure, quick="400 requests instead of 1,000", about=f"seed {SEED}"))
