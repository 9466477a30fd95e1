"""What do clients notice when a replica dies, slows down and comes back?

    python -m benchmarks.failover [--quick] [--json]

Live: the gateway in front of three real vLLM servers on the CPU with a tiny model, and agents that hold
conversations: each turn's prompt is the last one, its answer and something new. While they do,

- one server is ended by SIGKILL, as often as there are states in which a request may meet that (every state
  of `core/turns/lifecycle.py` that is not final;
  what waits does so because replicas may run few turns at a time),
  and started again;
- each server in turn, twice, is stopped for nine tenths of the time (SIGSTOP, SIGCONT): it is ten times
  slower, or four to five times where servers share the cores.

Counted is what clients see: whether a turn of which no byte had come was lost; how the other turns fare; how
much of its prefix a turn finds.
"""

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.command import judged
from benchmarks.gateway import gateway
from benchmarks.live import MODEL, SCRIPT, launch
from benchmarks.verdict import Verdict, percentile
from gateway.core.turns.lifecycle import FINAL_STATES, State
from scripted_engine import process as scripted

REPLICAS: Final = 3
BLOCK: Final = 32
AGENTS: Final = 9
AT_EASE: Final = 4
"""As many as three servers on two cores serve without being slow by themselves. With more, turns now and then
take several times as long as usual on each of them, and nobody could tell which one is slow."""
TURNS: Final = 8
OUTPUT: Final = 32
STATES: Final = tuple(state for state in State if state not in FINAL_STATES and state is not State.UNDECIDED)
"""A request is undecided only while the brain looks at it, so nothing can happen to it then."""
NARROW: Final = """
[admission]
shadow = true
max_running_per_replica = 2
"""
CHECKS: Final = """
[upstream]
health_period_s = 0.5
health_timeout_s = 2.0
"""
RECOVERS_WITHIN_S: Final = 5.0
SLOWER: Final = 10
ROUNDS: Final = 2
"""In which each server is slowed down once."""


class Seen(msgspec.Struct):
    """A turn, as its client saw it. Times are the loop's."""

    session: str
    turn: int
    began_s: float
    head_s: float | None = None
    """Of the response: from here on it is too late to go elsewhere."""
    first_s: float | None = None
    end_s: float | None = None
    replica: str = ""
    reusable: int = 0
    cached: int = 0
    status: int = 0
    is_whole: bool = False


class Agents:
    def __init__(self, client: aiohttp.ClientSession, url: str) -> None:
        self._client = client
        self._url = f"{url}/v1/completions"
        self._sessions = 0
        self._dice = random.Random(7)
        self.turns: list[Seen] = []
        self.is_over = False

    async def run(self, count: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._agent())

    async def _agent(self) -> None:
        while not self.is_over:
            self._sessions += 1
            await self._session(f"run-{self._sessions}")

    async def _session(self, name: str) -> None:
        prompt = [self._dice.randrange(300, 900) for _ in range(self._dice.randrange(600, 1200))]
        before = 0
        for number in range(TURNS):
            if self.is_over:
                return
            seen = Seen(name, number, asyncio.get_running_loop().time(), reusable=before // BLOCK * BLOCK)
            self.turns.append(seen)
            answer = await self._ask(seen, prompt, is_final=number == TURNS - 1)
            before = len(prompt) + len(answer) - 1  # the last token is sampled, and not computed
            prompt = [*prompt, *answer, *(self._dice.randrange(300, 900) for _ in range(100))]
            if not seen.is_whole:
                return
            await asyncio.sleep(self._dice.uniform(0.05, 0.4))

    async def _ask(self, seen: Seen, prompt: list[int], *, is_final: bool) -> list[int]:
        clock = asyncio.get_running_loop().time
        body = {
            "model": MODEL, "prompt": prompt, "max_tokens": OUTPUT, "min_tokens": OUTPUT, "ignore_eos": True,
            "temperature": 0.0, "stream": True, "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }  # fmt: skip
        headers = {"x-turnpike-session": seen.session} | ({"x-turnpike-final": "true"} if is_final else {})
        tokens: list[int] = []
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._client.post(self._url, json=body, headers=headers) as response:
                seen.head_s, seen.status = clock(), response.status
                seen.replica = response.headers.get("x-turnpike-replica", "")
                async for line in response.content:
                    if seen.first_s is None:
                        seen.first_s = clock()
                    if line.startswith(b"data: {"):
                        event = msgspec.json.decode(line[6:])
                        for choice in event.get("choices") or ():
                            tokens += choice.get("token_ids") or ()
                        details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
                        seen.cached = details.get("cached_tokens") or seen.cached
                    seen.is_whole |= line.startswith(b"data: [DONE]")
        seen.end_s = clock()
        return tokens


class Fleet:
    def __init__(self, stack: ExitStack) -> None:
        options = scripted.EngineOptions(
            served_model_names=(MODEL,),
            max_model_len=8_192,
            block_size=BLOCK,
            extra_args=("--num-gpu-blocks-override", "2000", "--max-num-seqs", "32"),
        )
        self.engines = [scripted.ScriptedEngine(SCRIPT, options) for _ in range(REPLICAS)]
        launch(stack, self.engines, are_pinned=False)

    def signal(self, number: int, sent: signal.Signals) -> None:
        """To the server and all its processes."""
        process = self.engines[number]._process  # noqa: SLF001 - to end it as nobody should
        assert process is not None
        os.killpg(process.pid, sent)

    async def restart(self, number: int) -> None:
        engine = self.engines[number]
        await asyncio.to_thread(engine.stop)
        await asyncio.to_thread(engine.launch)
        await asyncio.to_thread(engine.wait_healthy)

    async def slow_down(self, number: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.signal(number, signal.SIGSTOP)
            await asyncio.sleep(0.1 * (1 - 1 / SLOWER))
            self.signal(number, signal.SIGCONT)
            await asyncio.sleep(0.1 / SLOWER)


async def fare(fleet: Fleet, url: str, verdict: Verdict, tell: Any, *, quick: bool) -> None:
    """Nothing happens; then a server becomes slow."""
    async with holding(url, AT_EASE) as agents:
        usual = await as_usual(agents, learns_s=15 if quick else 30, seconds=10 if quick else 20)
        verdict.tell("turns", len(usual))
        again = [turn for turn in usual if turn.turn]
        reused = sum(min(turn.cached, turn.reusable) for turn in again) / sum(turn.reusable for turn in again)
        verdict.at_least("prefix_reused", reused, 0.95)
        tell(f"{len(usual)} turns, {reused:.3f} of the reusable prefix reused")
        await slow(fleet, agents, verdict, tell)


async def suffer(fleet: Fleet, url: str, verdict: Verdict, tell: Any, *, quick: bool) -> None:
    """Servers die."""
    async with holding(url, AGENTS) as agents:
        usual = await as_usual(agents, learns_s=5, seconds=10 if quick else 20)
        verdict.tell("first_byte_p99_before_s", first_byte_p99_s(usual))
        for number, state in enumerate(STATES):
            await kill(fleet, agents, number % REPLICAS, state, first_byte_p99_s(usual), verdict, tell)


async def as_usual(agents: Agents, *, learns_s: float, seconds: float) -> list[Seen]:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(learns_s)
    began_s = loop.time()
    await asyncio.sleep(seconds)
    return finished(agents.turns, began_s, loop.time())


def first_byte_p99_s(turns: Sequence[Seen]) -> float:
    return percentile([turn.first_s - turn.began_s for turn in turns if turn.first_s], 99)


@asynccontextmanager
async def holding(url: str, count: int) -> AsyncIterator[Agents]:
    """So many agents at work."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as client:
        agents = Agents(client, url)
        running = asyncio.create_task(agents.run(count))
        yield agents
        agents.is_over = True
        await running


async def kill(
    fleet: Fleet, agents: Agents, number: int, state: State, p99_s: float, verdict: Verdict, tell: Any
) -> None:
    """While a request is in that state; the others are there, too."""
    loop, name = asyncio.get_running_loop(), f"default-{number}"
    for _ in range(400):
        if in_state(agents.turns, state, name):
            break
        await asyncio.sleep(0.005)
    met = {id(turn) for turn in agents.turns if turn.end_s is None}
    killed_s = loop.time()
    fleet.signal(number, signal.SIGKILL)
    await asyncio.sleep(RECOVERS_WITHIN_S + 10.0)
    broken = [
        turn
        for turn in agents.turns
        if turn.end_s is not None and not turn.is_whole and (id(turn) in met or turn.began_s >= killed_s)
    ]
    lost = sum(turn.status != 200 for turn in broken)
    after = finished(agents.turns, killed_s + RECOVERS_WITHIN_S, loop.time())
    tell(f"killed {name} ({state.value}): {lost} lost, {len(broken) - lost} cut")
    verdict.at_most(f"lost_{state.value}", lost, 0)
    verdict.tell(f"cut_{state.value}", len(broken) - lost)
    verdict.at_most(f"first_byte_p99_after_to_before_{state.value}", first_byte_p99_s(after) / p99_s, 1.5)
    await fleet.restart(number)
    verdict.tell(f"used_again_after_s_{state.value}", await until_used(agents, name, loop.time()))
    await asyncio.sleep(12.0)


async def slow(fleet: Fleet, agents: Agents, verdict: Verdict, tell: Any) -> None:
    """Each server, one after the other: what happens to one hangs on which turns were under way."""
    loop = asyncio.get_running_loop()
    late, back, there, everywhere = 0, list[float](), 0, 0
    for number in [*range(REPLICAS)] * ROUNDS:
        name = f"default-{number}"
        began_s = loop.time()
        await fleet.slow_down(number, 4.0)
        slow_until_s = loop.time()
        sent = [turn for turn in on(agents.turns, name) if began_s + 2.0 < turn.began_s < slow_until_s]
        back_s = await until_used(agents, name, slow_until_s)
        await asyncio.sleep(3.0)
        since_s = slow_until_s + (back_s or 0.0)
        first = finished(agents.turns, since_s, since_s + 3.0)
        tell(f"slow: {name}, {len(sent)} late; after {back_s} s {len(on(first, name))} of {len(first)}")
        late, there, everywhere = late + len(sent), there + len(on(first, name)), everywhere + len(first)
        back.append(float("inf") if back_s is None else back_s)
        await asyncio.sleep(5.0)
    verdict.at_most("sent_to_the_slow_one_after_2_s", late / (ROUNDS * REPLICAS), 1)
    verdict.tell("slow_one_used_again_after_s", max(back))
    verdict.at_most("its_share_of_the_first_3_s", there / max(1, everywhere), 1 / REPLICAS)


def in_state(turns: Sequence[Seen], state: State, name: str) -> bool:
    """As far as clients can tell: one that got no byte waits or was submitted."""
    open_turns = [turn for turn in turns if turn.end_s is None]
    answering = sum(turn.head_s is not None for turn in open_turns)
    if state is State.ANSWERING:
        return any(turn.head_s is not None and turn.replica == name for turn in open_turns)
    if state is State.WAITING:
        return len(open_turns) > 2 * REPLICAS
    return len(open_turns) > answering


def finished(turns: Sequence[Seen], from_s: float, to_s: float) -> list[Seen]:
    return [turn for turn in turns if from_s <= turn.began_s <= to_s and turn.is_whole]


def on(turns: Sequence[Seen], name: str) -> list[Seen]:
    return [turn for turn in turns if turn.replica == name]


async def until_used(agents: Agents, name: str, since_s: float) -> float | None:
    """Seconds until a turn runs there that began since."""
    for _ in range(600):
        for turn in agents.turns:
            if turn.replica == name and turn.began_s >= since_s:
                return turn.began_s - since_s
        await asyncio.sleep(0.1)
    return None


def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="failover-")))
        fleet = Fleet(stack)
        urls = [engine.url for engine in fleet.engines]
        with gateway(urls, folder / "at-ease", CHECKS) as url:
            asyncio.run(fare(fleet, url, verdict, tell, quick=is_quick))
        with gateway(urls, folder / "narrow", NARROW + CHECKS) as url:
            asyncio.run(suffer(fleet, url, verdict, tell, quick=is_quick))


if __name__ == "__main__":
    sys.exit(judged(__file__, __doc__, measure, quick="look for a shorter time before anything happens"))
