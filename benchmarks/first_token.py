"""How well the estimator predicts when a real engine's first tokens come, before a request is sent.

Run with `python -m benchmarks.first_token [--quick] [--json]`. One vLLM server on the CPU serves agents
whose conversations grow turn by turn: first one agent, then two, four and eight at once. A gateway stands
before it; its information stream says what it expected of each turn when it sent it, and what became of it.
It starts from nothing: it knows neither the server nor how many bytes make a token, has to find out which
conversation a request goes on with, and learns from the usage that answers report.

What counts is what was predicted after the first 200 requests. Beside it stands a guess that needs no
model: the median of the last 50 delays. Load, gateway and server share the machine; how much of it others
took is told.

`--direct` leaves the gateway out: an estimator beside the load predicts, from the size of the request, what
the conversation's last turn was counted as, and what is in flight. On a machine that others use, `--clock
cpu` then counts the processor time that the server's processes have used instead of the time of day: delays
are those of a server that never waits for a core.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.conversations import text
from benchmarks.expected import Told, read_told
from benchmarks.gateway import gateway
from benchmarks.processes import machine, revision
from benchmarks.verdict import Verdict, percentile
from gateway.cost.estimator import Estimate, Estimator, Prediction, TurnWork
from gateway.cost.in_flight import InFlight
from gateway.cost.tokens import Counted, TokensPerByte
from scripted_engine.process import EngineOptions, ScriptedEngine

SEED: Final = 7
LEARNING: Final = 200
"""Requests after which predictions count."""
MODEL: Final = "scripted"
SCRIPTS: Final = 40
SYSTEM_CHARACTERS: Final = 3_000
FIRST_CHARACTERS: Final = (2_000, 30_000)
LONGEST_BYTES: Final = 90_000
BLOCK: Final = 32
GAP_S: Final = 0.4
"""Between an agent's turns, on average: its tools."""


class Seen(msgspec.Struct, kw_only=True):
    """One request."""

    agents: int
    first_token: Estimate
    completion: Estimate
    naive_s: float | None
    """The median of the last delays."""
    delay_s: float
    duration_s: float
    expected_tokens: float
    prompt_tokens: int
    cached_tokens: int

    @property
    def error(self) -> float:
        return abs(self.first_token.seconds / self.delay_s - 1)

    @property
    def is_within(self) -> bool:
        return self.first_token.p10_s <= self.delay_s <= self.first_token.p90_s


class Traffic:
    """Agents against one engine, and the estimator beside them."""

    def __init__(self, url: str, session: aiohttp.ClientSession, clock: Callable[[], float]) -> None:
        self.url, self.session, self.clock = url, session, clock
        self.estimator, self.in_flight, self.tokens = Estimator(), InFlight(), TokensPerByte()
        self.seen: list[Seen] = []
        self.left = 0
        self._system = text(random.Random(SEED), SYSTEM_CHARACTERS)

    async def run(self, agents: int, requests: int) -> None:
        self.left = requests
        rngs = [random.Random(f"{SEED} {agents} {number}") for number in range(agents)]
        await asyncio.gather(*(self._agent(agents, rng) for rng in rngs))

    async def _agent(self, agents: int, rng: random.Random) -> None:
        messages: list[dict[str, Any]] = []
        before: Counted | None = None
        cached = 0.0
        await asyncio.sleep(rng.random() * GAP_S)
        while self.left > 0:
            self.left -= 1
            if before is None or before.bytes > LONGEST_BYTES:
                script, first = rng.randrange(SCRIPTS), rng.randint(*FIRST_CHARACTERS)
                task = f"[[script:s{script}]] {text(rng, first)}"
                messages = [{"role": "system", "content": self._system}, {"role": "user", "content": task}]
                before, cached = None, 0.0
            answer, before, cached = await self._turn(agents, messages, before, cached)
            messages.append({"role": "assistant", "content": answer})
            observed = text(rng, min(20_000, int(rng.lognormvariate(6.8, 1.1))))
            messages.append({"role": "user", "content": observed})
            await asyncio.sleep(rng.expovariate(1 / GAP_S))

    async def _turn(
        self, agents: int, messages: list[dict[str, Any]], before: Counted | None, cached: float
    ) -> tuple[str, Counted, float]:
        """Returns the answer, what the prompt was counted as, and what should be cached of the next one."""
        request = {"model": MODEL, "messages": messages, "stream": True, "temperature": 0.0}
        body = json.dumps({**request, "stream_options": {"include_usage": True}}).encode()
        expected = self.tokens.guess(len(body), before).tokens
        work = TurnWork(new_tokens=max(1.0, expected - cached), cached_tokens=min(cached, expected))
        sent_s = self.clock()
        prediction = self.estimator.predict(work, self.in_flight.load(now=sent_s))
        recent = [seen.delay_s for seen in self.seen[-50:]]
        key = object()
        self.in_flight.sent(key, prediction, now=sent_s)
        first_s, answer, usage = None, [], None
        headers = {"content-type": "application/json"}
        async with self.session.post(
            f"{self.url}/v1/chat/completions", data=body, headers=headers
        ) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                if first_s is None:
                    first_s = self.clock() - sent_s
                    self.in_flight.first_token(key, now=sent_s + first_s)
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                answer += [choice["delta"].get("content") or "" for choice in event["choices"]]
        self.in_flight.ended(key)
        duration_s = self.clock() - sent_s
        if first_s is None or usage is None:
            raise RuntimeError("the engine answered without tokens, or without usage")
        seen = Seen(
            agents=agents,
            first_token=prediction.first_token,
            completion=prediction.completion,
            naive_s=statistics.median(recent) if recent else None,
            delay_s=first_s,
            duration_s=duration_s,
            expected_tokens=expected,
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        )
        counted = Counted(len(body), seen.prompt_tokens)
        self._learn(seen, prediction, counted, before, usage["completion_tokens"])
        next_cached = (seen.prompt_tokens + usage["completion_tokens"]) // BLOCK * BLOCK
        return "".join(answer), counted, float(next_cached)

    def _learn(
        self,
        seen: Seen,
        prediction: Prediction,
        counted: Counted,
        before: Counted | None,
        output_tokens: int,
    ) -> None:
        actual = TurnWork(
            new_tokens=seen.prompt_tokens - seen.cached_tokens,
            cached_tokens=seen.cached_tokens,
            output_tokens=output_tokens,
        )
        self.seen.append(seen)
        self.tokens.observe(counted, before)
        self.estimator.observe_first_token(prediction, seen.delay_s, actual)
        self.estimator.observe_end(
            prediction,
            duration_s=seen.duration_s,
            output_tokens=output_tokens,
            first_token_s=seen.delay_s,
            actual=actual,
        )


def scripts(rng: random.Random) -> dict[str, Any]:
    """Answers of different lengths, each agent's own for every turn."""
    return {
        "scripts": {
            f"s{number}": {"turns": [{"text": text(rng, rng.randint(40, 500))} for _ in range(60)]}
            for number in range(SCRIPTS)
        }
    }


def judge(seen: list[Seen], verdict: Verdict) -> None:
    counted = seen[LEARNING:]
    errors = [each.error for each in counted]
    verdict.at_most("first_token_median_error", statistics.median(errors), 0.20)
    coverage = statistics.mean(each.is_within for each in counted)
    verdict.at_least("p10_to_p90_covers_at_least", coverage, 0.75)
    verdict.at_most("p10_to_p90_covers_at_most", coverage, 0.90)
    verdict.tell("first_token_p90_error", percentile(errors, 90))
    naive = [abs(each.naive_s / each.delay_s - 1) for each in counted if each.naive_s is not None]
    verdict.tell("first_token_median_error_of_the_last_50", statistics.median(naive))
    verdict.tell("first_200_median_error", statistics.median(each.error for each in seen[:LEARNING]))
    for agents in sorted({each.agents for each in counted}):
        of_these = [each for each in counted if each.agents == agents]
        verdict.tell(f"median_error_{agents}_agents", statistics.median(each.error for each in of_these))
        verdict.tell(f"median_delay_{agents}_agents_s", statistics.median(each.delay_s for each in of_these))
    verdict.tell(
        "completion_median_error",
        statistics.median(abs(each.completion.seconds / each.duration_s - 1) for each in counted),
    )
    verdict.tell(
        "prompt_tokens_median_error",
        statistics.median(abs(each.expected_tokens / each.prompt_tokens - 1) for each in counted),
    )
    verdict.tell("requests", len(seen))


def watched(told: list[Told], phases: list[tuple[int, int]]) -> list[Seen]:
    """What the gateway said, as if it had been seen here."""
    agents = [agents for agents, requests in phases for _ in range(requests)]
    seen: list[Seen] = []
    for of, turn in zip(agents, told, strict=True):
        expected, usage = turn.expected, turn.usage
        assert usage.prompt_tokens is not None
        recent = [each.delay_s for each in seen[-50:]]
        seen.append(
            Seen(
                agents=of,
                first_token=_estimate(
                    expected.first_token_ms, expected.first_token_p10_ms, expected.first_token_p90_ms
                ),
                completion=_estimate(
                    expected.completion_ms, expected.completion_p10_ms, expected.completion_p90_ms
                ),
                naive_s=statistics.median(recent) if recent else None,
                delay_s=turn.first_token_s,
                duration_s=turn.end_s,
                expected_tokens=expected.prompt_tokens,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens or 0,
            )
        )
    return seen


def _estimate(ms: float, p10_ms: float, p90_ms: float) -> Estimate:
    return Estimate(ms / 1e3, p10_ms / 1e3, p90_ms / 1e3)


def measure_through_gateway(engine: str, phases: list[tuple[int, int]], tell: Any) -> list[Seen]:
    with tempfile.TemporaryDirectory(prefix="first-token-") as name:
        stream = Path(name) / "stream.jsonl"
        with gateway([engine], Path(name) / "gateway", f'[stream]\npath = "{stream}"\n') as url:
            asyncio.run(measure(url, phases, time.perf_counter, tell))
        return watched(read_told(stream), phases)


async def measure(
    url: str, phases: list[tuple[int, int]], clock: Callable[[], float], tell: Any
) -> list[Seen]:
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=1 << 20) as session:
        traffic = Traffic(url, session, clock)
        for agents, requests in phases:
            start_s = time.perf_counter()
            await traffic.run(agents, requests)
            seen = traffic.seen[-requests:]
            tell(
                f"{agents} agents, {requests} requests in {time.perf_counter() - start_s:.0f} s: median "
                f"delay {statistics.median(each.delay_s for each in seen) * 1e3:.0f} ms, median error "
                f"{statistics.median(each.error for each in seen):.1%} as predicted beside the load"
            )
        return traffic.seen


def processor_time_of(processes: list[int]) -> float:
    """Seconds that they have run, all threads together (see clock_getcpuclockid(3))."""
    return sum(time.clock_gettime(~process << 3 | 2) for process in processes)


def descendants(process: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended while we looked
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = children.get(process, [])
    return found + [further for child in found for further in descendants(child)]


def machine_busy_s() -> float:
    """Processor time that was used since the machine started, by anybody."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description="How well first tokens of a real engine are predicted.")
    parser.add_argument("--quick", action="store_true", help="400 requests instead of 1,000")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    parser.add_argument("--direct", action="store_true", help="without a gateway in front of the server")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="what delays are measured by, with --direct"
    )
    arguments = parser.parse_args()
    if arguments.clock == "cpu" and not arguments.direct:
        parser.error("--clock cpu: a gateway has the time of day; say --direct")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all that runs is ended
    tell = (lambda *_: None) if arguments.json else print
    tell(f"seed {SEED}, {machine()}, revision {revision()}, {arguments.clock} clock")
    each = 80 if arguments.quick else 200
    phases = [(1, each), (2, each), (4, each), (8, 2 * each)]
    start_s, busy_s = time.perf_counter(), machine_busy_s()
    with ScriptedEngine(scripts(random.Random(SEED)), EngineOptions(block_size=BLOCK)) as engine:
        clock: Callable[[], float] = time.perf_counter
        if arguments.clock == "cpu":
            clock = functools.partial(processor_time_of, descendants(os.getpid()))
        if arguments.direct:
            seen = asyncio.run(measure(engine.url, phases, clock, tell))
        else:
            seen = measure_through_gateway(engine.url, phases, tell)
    verdict = Verdict()
    judge(seen, verdict)
    strangers_s = machine_busy_s() - busy_s - sum(os.times()[:4])
    verdict.tell("cores_used_by_strangers", max(0.0, strangers_s) / (time.perf_counter() - start_s))
    for name, figure in verdict.figures.items():
        tell(f"{name:<42}{figure.value:>12g}   {figure.target or '':<12}{'' if figure.ok else 'MISSED'}")
    print(verdict.as_json())
    return verdict.exit_status


if __name__ == "__main__":
    sys.exit(main())
