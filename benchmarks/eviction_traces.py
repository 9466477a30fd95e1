"""Block traces of agent sessions: what each turn asks for, what it leaves, and what is known then."""

import gzip
import random
from bisect import insort
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.plugin.engines import SEED

BLOCK = 64
TOOL_REUSE, IDLE_REUSE = 0.95, 0.5
TOKENS_PER_S = 100.0
"""Answers; a prompt takes a second."""


class Access(NamedTuple):
    """One turn: the blocks of its prompt, those that its answer adds, and what is known when it has ended."""

    at: float
    owner: tuple[int, int]
    prompt: list[int]
    answer: list[int]
    reuse: float
    step: str
    """The slowest tool that it calls."""
    back_in_s: float | None = None


def play(sessions: list[dict[str, Any]], seed: int) -> list[Access]:
    """All sessions on one clock."""
    rng = random.Random(seed)
    blocks = iter(range(1 << 60))
    shared: dict[str, list[int]] = {}
    found: list[Access] = []
    arrival = 0.0
    for number, session in enumerate(sessions):
        arrival += rng.expovariate(1 / 20.0)
        for thread_number, thread in enumerate(session["threads"][:1]):
            at = arrival
            chains: dict[int, list[int]] = {}
            for turn_number, turn in enumerate(thread["turns"]):
                at += turn.get("pause_s", 0.0)
                chain = beginning(turn, thread, chains, shared, blocks)
                wanted = turn["input_tokens"] // BLOCK
                prompt = chain[:wanted] + [next(blocks) for _ in range(wanted - len(chain))]
                answer_blocks = (turn["input_tokens"] + turn["output_tokens"]) // BLOCK - wanted
                answer = [next(blocks) for _ in range(answer_blocks)]
                chains[turn_number] = prompt + answer
                tools = turn.get("tools", ())
                reuse = TOOL_REUSE if tools else IDLE_REUSE
                slowest = max(tools, key=lambda tool: tool.get("duration_s", 0.0), default={"name": ""})
                found.append(Access(at, (number, thread_number), prompt, answer, reuse, slowest["name"]))
                at += 1.0 + turn["output_tokens"] / TOKENS_PER_S + slowest.get("duration_s", 0.0)
    return expected(sorted(found, key=lambda each: each.at))


def expected(accesses: list[Access]) -> list[Access]:
    """With what a gateway had learned of gaps by then."""
    gaps: dict[str, list[float]] = {}
    last: dict[tuple[int, int], Access] = {}
    found = []
    for each in accesses:
        if (before := last.get(each.owner)) is not None:
            insort(gaps.setdefault(before.step, []), each.at - before.at)
        last[each.owner] = each
        known = gaps.get(each.step)
        found.append(each._replace(back_in_s=known[len(known) // 2] if known else None))
    return found


def beginning(
    turn: dict[str, Any],
    thread: dict[str, Any],
    chains: dict[int, list[int]],
    shared: dict[str, list[int]],
    blocks: Iterable[int],
) -> list[int]:
    """The blocks that the prompt shares with an earlier turn, or with other sessions."""
    reference = turn.get("prefix_of")
    if reference is not None and reference[1] in chains:
        return chains[reference[1]][: turn.get("prefix_tokens", 0) // BLOCK]
    key = thread.get("shared_key")
    if key is None or reference is not None:
        return []
    size = thread.get("shared_tokens", 0) // BLOCK
    text = shared.setdefault(key, [])
    stream = iter(blocks)
    text += [next(stream) for _ in range(size - len(text))]
    return text[:size]


def peak_live(accesses: list[Access]) -> int:
    """Blocks of the sessions that have begun and not ended."""
    last = {each.owner: number for number, each in enumerate(accesses)}
    live: dict[tuple[int, int], int] = {}
    peak = 0
    for number, each in enumerate(accesses):
        live[each.owner] = len(each.prompt) + len(each.answer)
        peak = max(peak, sum(live.values()))
        if last[each.owner] == number:
            del live[each.owner]
    return peak


def recorded(path: Path, count: int) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = text.splitlines()[1:]
    return [msgspec.json.decode(line) for line in lines[:count]]


def generated(count: int) -> list[dict[str, Any]]:
    """Sessions shaped like recorded coding agents': 24 turns, 16k tokens at first, 1.5k more each turn, gaps
    of a second to a minute, now and then a person's, and sometimes a compaction."""
    rng = random.Random(SEED)
    sessions: list[dict[str, Any]] = []
    for _ in range(count):
        length, turns = rng.randrange(8_000, 30_000), []
        answer = 0
        for number in range(max(3, int(rng.expovariate(1 / 24)))):
            turn: dict[str, Any] = {"output_tokens": rng.randrange(60, 900)}
            if number and rng.random() < 0.03:
                turn |= {"prefix_of": [0, number - 1], "prefix_tokens": 6_000}
                length = rng.randrange(8_000, 16_000)
            elif number:
                turn |= {"prefix_of": [0, number - 1], "prefix_tokens": length + answer}
                length += answer + int(rng.expovariate(1 / 1_500)) + 20
            if rng.random() < 0.9:
                turn["tools"] = [{"name": "tool", "duration_s": 10 ** rng.uniform(-0.5, 1.8)}]
            else:
                turn["pause_s"] = rng.uniform(5, 60)
            turn["input_tokens"], answer = length, turn["output_tokens"]
            turns.append(turn)
        sessions.append({"threads": [{"turns": turns, "shared_key": "agent", "shared_tokens": 6_000}]})
    return sessions
