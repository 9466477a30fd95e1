"""Which blocks to overwrite: prefill work against LRU's and an oracle's, on block traces of agent sessions.

    python -m benchmarks.eviction [FILE ...] [--quick] [--json] [--draws FIRST COUNT]

FILE is a workload of recorded sessions (docs/reference/workloads.md); without one, sessions of the same shape
are generated. Sessions arrive by chance, so many draws of it, their gaps are the recorded ones. Each turn
looks up the blocks of its prompt, computes those that are missing, and leaves prompt and answer. Policies, at
25, 50 and 75 % of the peak live working set: LRU (leaf first, as vLLM), WA-LRU as published (whole sessions,
by Eq. 1), the plugin's (`turnpike_vllm.eviction`), and Bélády's, which knows the future and keeps prefixes
whole. All know the same: a tool call runs (reuse 0.95), or not (0.5). The plugin's knows too when a session
is expected back, as a gateway learns it (the median of the gaps so far after the same tool, or after none);
`no_returns` does not. Figures are blocks computed, divided by LRU's, with 95 % intervals over the draws, and
by Bélády's, with first touches and without.
"""

import argparse
import heapq
import statistics
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.command import judged
from benchmarks.eviction_traces import Access, generated, peak_live, play, recorded
from benchmarks.plugin.engines import ABOUT, SEED
from benchmarks.verdict import Interval, Verdict
from turnpike_vllm.eviction import EvictionConfig, Evictor

ALPHA, BETA, GAMMA = 0.3, 0.5, 0.2


def main() -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("workloads", nargs="*", type=Path)
    own.add_argument("--draws", nargs=2, type=int, default=(SEED, 6), metavar=("FIRST", "COUNT"))
    asked, _ = own.parse_known_args()
    measured = partial(measure, asked.workloads, *asked.draws)
    return judged(
        __file__, __doc__, measured, quick="25 sessions instead of 100, one draw", about=ABOUT, own=own
    )


def measure(files: list[Path], first: int, draws: int, is_quick: bool, verdict: Verdict, say: Any) -> None:
    count = 25 if is_quick else 100
    sources: list[Path | None] = [*files] or [None]
    for file in sources:
        name = "generated" if file is None else file.name
        sessions = generated(count) if file is None else recorded(file, count)
        played = [play(sessions, first + number) for number in range(1 if is_quick else draws)]
        say(f"{name}: {len(played[0])} turns, peak {peak_live(played[0])} blocks live at first")
        for percent in (25, 50, 75):
            draws_of_it = [missed(each, percent) for each in played]
            judge(verdict, f"{name.partition('.')[0]}_{percent}", draws_of_it, is_recorded=bool(files))


def missed(accesses: list[Access], percent: int) -> dict[str, int]:
    """By each policy, in a cache of so much of the peak."""
    largest = max(len(each.prompt) + len(each.answer) for each in accesses)
    size = max(peak_live(accesses) * percent // 100, largest)
    ours, answers = Ours(size), {block for each in accesses for block in each.answer}
    return {
        "lru": simulate(Lru(size), accesses),
        "wa_lru": simulate(WaLru(size), accesses),
        "no_returns": simulate(Ours(size), [each._replace(back_in_s=None) for each in accesses]),
        "ours": simulate(ours, accesses),
        "belady": belady(size, accesses),
        "touched": len({block for each in accesses for block in each.prompt} - answers),
        "named": ours.named,
    }


def judge(verdict: Verdict, label: str, draws: list[dict[str, int]], *, is_recorded: bool) -> None:
    for policy in ("lru", "wa_lru", "no_returns", "ours"):
        best = statistics.fmean(each[policy] / each["belady"] for each in draws)
        if policy == "ours" and label.endswith("_50"):
            verdict.at_most(f"{policy}_{label}", best, 1.25)
        else:
            verdict.tell(f"{policy}_{label}", best)
        again = [
            (each[policy] - each["touched"]) / (each["belady"] - each["touched"])
            for each in draws
            if each["belady"] > each["touched"]
        ]
        verdict.tell(f"{policy}_{label}_without_first_touches", statistics.fmean(again) if again else None)
        if policy == "lru":
            continue
        to_lru = Interval.of([each[policy] / each["lru"] for each in draws])
        if policy == "ours" and is_recorded:
            verdict.at_most(f"{policy}_{label}_to_lru", to_lru.mean, 1.0)
        else:
            verdict.tell(f"{policy}_{label}_to_lru", to_lru.mean)
        if len(draws) > 1:
            verdict.tell(f"{policy}_{label}_to_lru_low", to_lru.low)
            verdict.tell(f"{policy}_{label}_to_lru_high", to_lru.high)
    verdict.at_least(f"named_{label}", min(each["named"] for each in draws), 1)


class Lru:
    def __init__(self, size: int) -> None:
        self.size = size
        self.there: OrderedDict[int, None] = OrderedDict()

    def has(self, block: int) -> bool:
        return block in self.there

    def leave(self, access: Access) -> None:
        for block in reversed(access.prompt + access.answer):
            self.there[block] = None
            self.there.move_to_end(block)
        while len(self.there) > self.size:
            self.there.popitem(last=False)


@dataclass
class Entry:
    blocks: list[int]
    at: float
    reuse: float


class WaLru:
    """Equation 1 as published: whole sessions, recency and size relative to the largest now."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.entries: dict[tuple[int, int], Entry] = {}
        self.counts: dict[int, int] = {}

    def has(self, block: int) -> bool:
        return block in self.counts

    def leave(self, access: Access) -> None:
        self.drop(access.owner)
        entry = Entry(access.prompt + access.answer, access.at, access.reuse)
        self.entries[access.owner] = entry
        for block in entry.blocks:
            self.counts[block] = self.counts.get(block, 0) + 1
        while len(self.counts) > self.size:
            others = [each for each in self.entries if each != access.owner]
            idle = max((access.at - self.entries[each].at for each in others), default=0.0) or 1.0
            largest = max(len(self.entries[each].blocks) for each in others)
            self.drop(max(others, key=lambda each: self.score(each, access.at, idle, largest)))

    def score(self, owner: tuple[int, int], now: float, idle: float, largest: int) -> float:
        entry = self.entries[owner]
        size = len(entry.blocks) / largest
        return ALPHA * (now - entry.at) / idle + BETA * (1 - entry.reuse) + GAMMA * size

    def drop(self, owner: tuple[int, int]) -> None:
        entry = self.entries.pop(owner, None)
        for block in entry.blocks if entry is not None else ():
            self.counts[block] -= 1
            if not self.counts[block]:
                del self.counts[block]


@dataclass(eq=False)
class Cell:
    block_id: int
    block_hash: int | None = None
    ref_cnt: int = 0


@dataclass
class Ours:
    """The plugin's evictor, on cells as an allocator has them."""

    size: int
    evictor: Evictor[Cell] = field(default_factory=lambda: Evictor(EvictionConfig()))
    there: dict[int, Cell] = field(default_factory=dict)
    named: int = 0
    made: int = 0

    def has(self, block: int) -> bool:
        return block in self.there

    def leave(self, access: Access) -> None:
        chain = access.prompt + access.answer
        used = [self.there[block] for block in chain if block in self.there]
        for cell in used:
            cell.ref_cnt = 1
        missing = [block for block in chain if block not in self.there]
        for block, cell in zip(missing, self.take(len(missing)), strict=True):
            cell.block_hash, cell.ref_cnt = block, 1
            self.there[block] = cell
        cells = [self.there[block] for block in chain]
        for cell in cells:
            cell.ref_cnt = 0
        self.evictor.claim(access.owner, cells, reuse=access.reuse, back_in_s=access.back_in_s, now=access.at)

    def take(self, count: int) -> list[Cell]:
        found: list[Cell] = []
        while len(found) < count and self.made < self.size:
            found.append(Cell(self.made))
            self.made += 1
        victims = self.evictor.victims(count - len(found))
        self.named += len(victims)
        return found + [self.empty(cell) for cell in victims]

    def empty(self, cell: Cell) -> Cell:
        assert cell.block_hash is not None
        del self.there[cell.block_hash]
        cell.block_hash = None
        return cell


def simulate(policy: Lru | WaLru | Ours, accesses: list[Access]) -> int:
    """Blocks of prompts that had to be computed."""
    missed = 0
    for access in accesses:
        hit = next((n for n, block in enumerate(access.prompt) if not policy.has(block)), len(access.prompt))
        missed += len(access.prompt) - hit
        policy.leave(access)
    return missed


def belady(size: int, accesses: list[Access]) -> int:
    """What is used again last goes first; a child is never used later than its parent, so prefixes stay
    whole."""
    uses: dict[int, list[int]] = {}
    for number, access in enumerate(accesses):
        for block in access.prompt:
            uses.setdefault(block, []).append(number)
    for each in uses.values():
        each.reverse()
    there: dict[int, int] = {}
    heap: list[tuple[int, int, int, int]] = []
    missed, never, count = 0, len(accesses), 0
    for number, access in enumerate(accesses):
        hit = next((n for n, block in enumerate(access.prompt) if block not in there), len(access.prompt))
        missed += len(access.prompt) - hit
        for depth, block in enumerate(access.prompt + access.answer):
            later = uses.get(block, [])
            while later and later[-1] <= number:
                later.pop()
            count += 1
            there[block] = count
            heapq.heappush(heap, (-(later[-1] if later else never), -depth, block, count))
        while len(there) > size:
            *_, block, version = heapq.heappop(heap)
            if there.get(block) == version:
                del there[block]
    return missed


if __name__ == "__main__":
    sys.exit(main())
