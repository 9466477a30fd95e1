"""Which blocks to overwrite: prefill work against LRU's and an oracle's, on block traces of agent sessions.

    python -m benchmarks.eviction [FILE ...] [--quick] [--json] [--draws FIRST COUNT]

FILE is a workload of recorded sessions (docs/reference/workloads.md); without one, sessions of the same shape
are generated, and the output says so. Sessions arrive by chance, so many draws of it, their gaps
are the recorded ones. Each turn looks up the blocks of its prompt, computes those that are missing, and
leaves prompt and answer. Policies, at 25, 50 and 75 % of the peak live working set: LRU (leaf first, as
vLLM), WA-LRU as published (whole sessions, by Eq. 1), the plugin's (`turnpike_vllm.eviction`), and Bélády's,
who knows the future and keeps prefixes whole. All told policies know the same: a tool call runs (reuse
0.95), or nobody can say (0.5). The plugin's is told too when a session is expected back, as a gateway learns
it (the median of the gaps so far after the same tool, or after none); `no_returns` is not.
Between them and the oracle stands one that is told how these very gaps are distributed, where reuse is likely
and where not; `same_reuse` is told of one reuse for all. Figures are blocks computed, divided by LRU's, with
95 % intervals over the draws, and by Bélády's, with first touches and without.

FILE may hold recorded exchanges instead (docs/reference/exchanges.md), if its name has `.exchanges.` in it.
They come when they were recorded; told is what the workflow view says at each pause, as it learns from the
same traffic; the second half counts.
"""

import argparse
import heapq
import statistics
import sys
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.command import judged
from benchmarks.engine_bench import ABOUT, SEED
from benchmarks.eviction_traces import IDLE_REUSE, Access, exchanged, generated, peak_live, play, recorded
from benchmarks.verdict import Interval, Verdict
from lab.evaluation.recording import read_recording
from turnpike_vllm.eviction import Chain, EvictionConfig, Evictor

ALPHA, BETA, GAMMA = 0.3, 0.5, 0.2
NEVER_S = 600.0


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
        name, since = "generated" if file is None else file.name, 0
        if file is not None and ".exchanges." in file.name:
            played = [exchanged(read_recording(file))]
            since = len(played[0]) // 2
        else:
            sessions = generated(count) if file is None else recorded(file, count)
            played = [play(sessions, first + number) for number in range(1 if is_quick else draws)]
        say(f"{name}: {len(played[0])} turns, peak {peak_live(played[0])} blocks live at first")
        for percent in (25, 50, 75):
            draws_of_it = [missed(each, percent, since) for each in played]
            judge(verdict, f"{name.partition('.')[0]}_{percent}", draws_of_it, is_recorded=bool(files))


def missed(accesses: list[Access], percent: int, since: int) -> dict[str, int]:
    """By each policy, in a cache of so much of the peak. The turns from the number `since` on count."""
    largest = max(len(each.prompt) + len(each.answer) for each in accesses)
    size = max(peak_live(accesses) * percent // 100, largest)
    ours = Ours(size)
    before = {block for each in accesses[:since] for block in each.prompt}
    before |= {block for each in accesses for block in each.answer}
    return {
        "lru": simulate(Lru(size), accesses, since),
        "wa_lru": simulate(WaLru(size), accesses, since),
        "no_returns": simulate(Ours(size), [each._replace(back_in_s=None) for each in accesses], since),
        "same_reuse": simulate(Ours(size), [each._replace(reuse=0.5) for each in accesses], since),
        "ours": simulate(ours, accesses, since),
        "gap_distribution_known": simulate(Ours(size, evictor=Informed(accesses)), accesses, since),
        "belady": belady(size, accesses, since),
        "touched": len({block for each in accesses[since:] for block in each.prompt} - before),
        "named": ours.named,
    }


def judge(verdict: Verdict, label: str, draws: list[dict[str, int]], *, is_recorded: bool) -> None:
    for policy in ("lru", "wa_lru", "no_returns", "same_reuse", "ours", "gap_distribution_known"):
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


class Informed(Evictor[Cell]):
    """What is expected back last goes first, from how long it has been away, and from all gaps there are."""

    def __init__(self, accesses: list[Access]) -> None:
        super().__init__(EvictionConfig())
        self.gaps = gaps_by_reuse(accesses)
        self.left: dict[Chain[Cell], tuple[float, float]] = {}
        self.now = 0.0

    def claim(
        self, owner: Any, blocks: Any, *, reuse: float, back_in_s: float | None = None, now: float
    ) -> None:
        super().claim(owner, blocks, reuse=reuse, back_in_s=back_in_s, now=now)
        self.left[self._chains[owner]], self.now = (now, reuse), now

    def victims(self, count: int) -> list[Cell]:
        found: list[Cell] = []
        for chain in sorted(self._chains.values(), key=self.back_after_s, reverse=True):
            if len(found) == count:
                break
            while len(found) < count and self._take(chain, found, count):
                pass
            if not chain.blocks:
                del self._chains[chain.owner], self.left[chain]
        return found

    def back_after_s(self, chain: Chain[Cell]) -> float:
        at, reuse = self.left[chain]
        away_s = self.now - at
        gaps = self.gaps[reuse > IDLE_REUSE]
        later = gaps[bisect_right(gaps, away_s) :]
        return sum(later) / len(later) - away_s if later else NEVER_S


def gaps_by_reuse(accesses: list[Access]) -> dict[bool, list[float]]:
    """From a turn to the thread's next, where reuse is likely and where not; a long time for those that have
    none."""
    found: dict[bool, list[float]] = {}
    last: dict[tuple[int, int], Access] = {}
    for each in accesses:
        if (before := last.get(each.owner)) is not None:
            found.setdefault(before.reuse > IDLE_REUSE, []).append(min(each.at - before.at, NEVER_S))
        last[each.owner] = each
    for each in last.values():
        found.setdefault(each.reuse > IDLE_REUSE, []).append(NEVER_S)
    return {is_likely: sorted(gaps) for is_likely, gaps in found.items()}


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


def simulate(policy: Lru | WaLru | Ours, accesses: list[Access], since: int = 0) -> int:
    """Blocks of prompts that had to be computed, from that turn on."""
    missed = 0
    for number, access in enumerate(accesses):
        hit = next((n for n, block in enumerate(access.prompt) if not policy.has(block)), len(access.prompt))
        missed += (len(access.prompt) - hit) * (number >= since)
        policy.leave(access)
    return missed


def belady(size: int, accesses: list[Access], since: int = 0) -> int:
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
        missed += (len(access.prompt) - hit) * (number >= since)
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
