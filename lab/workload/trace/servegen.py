"""ServeGen's clients: arrivals and lengths, drawn from what was fitted to production services.

**Source**: alibaba/ServeGen (Apache-2.0), `data`: for each client `chunk-N-trace.csv` (window's start, rate,
CV, distribution, its shape and scale) and, for some services, `chunk-N-dataset.json` (how often a prompt and
an output were how long, by window).

**Taken**: the parameters. A client is a tenant.

**Composed**: everything else is drawn from them. Gaps between a client's requests follow the window's
distribution, from the window's start on; with `rate` they are that much shorter. Every request is a session
of one turn. Where the corpus has no lengths, a prompt has 1,000 tokens and an output 300.

**Lost**: that a prompt's length and its output's may go together; turns of one conversation.
"""

import heapq
from ast import literal_eval
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from random import Random
from typing import Any, Final

import msgspec

from lab.workload.problems import Problems
from lab.workload.records import Member, whole_as
from lab.workload.sessions import rng_of
from lab.workload.trace.format import Session, Thread, Turn
from lab.workload.trace.importer import Choices, Corpus

WINDOW_S: Final = 600.0
PROMPT_TOKENS: Final = 1000
OUTPUT_TOKENS: Final = 300


class _Lengths:
    """How long texts are, as numbers with weights."""

    def __init__(self, weights: dict[int, float]) -> None:
        self._values = [max(1, int(value)) for value in weights]
        self._sums = list(accumulate(weights.values()))

    def draw(self, rng: Random) -> int:
        at = bisect_right(self._sums, rng.random() * self._sums[-1])
        return self._values[min(at, len(self._values) - 1)]


class _Window(msgspec.Struct):
    start_s: float
    distribution: str
    shape: float
    scale: float

    def gap_s(self, rng: Random) -> float:
        if self.distribution == "Gamma":
            return rng.gammavariate(self.shape, self.scale)
        return rng.weibullvariate(self.scale, self.shape)


class _Client(msgspec.Struct):
    name: str
    windows: list[_Window] = []
    lengths: list[tuple[float, _Lengths, _Lengths]] = []
    """From when, of prompts, of outputs."""


def _servegen(members: Iterable[Member], problems: Problems, choices: Choices) -> Iterator[Session]:
    clients: dict[str, _Client] = {}
    for member in members:
        path, _, part = member.name.rpartition("-")
        client = clients.setdefault(path, _Client(name=path.rpartition("/")[2].replace("chunk", "client")))
        if part == "trace":
            client.windows += _windows(member, problems)
        elif part == "dataset":
            client.lengths += _lengths(member, problems)
    drawn = [_requests(client, choices) for client in clients.values() if client.windows]
    return heapq.merge(*drawn, key=lambda session: session.arrival_s)


def _windows(member: Member, problems: Problems) -> Iterator[_Window]:
    for number, line in enumerate(member.lines, start=1):
        try:
            start, rate, _, name, shape, scale = line.decode().strip().split(",")
            window = _Window(float(start), name, float(shape), float(scale))
            if float(rate) > 0 and name not in ("Gamma", "Weibull"):
                raise ValueError(f"a distribution named {name!r}")
        except ValueError as error:
            problems.add(f"{member.name}, line {number}", error)
            continue
        if float(rate) > 0:
            yield window


def _lengths(member: Member, problems: Problems) -> Iterator[tuple[float, _Lengths, _Lengths]]:
    record = whole_as(dict[str, dict[str, Any]], member, problems)
    for start, of in sorted((record or {}).items(), key=lambda item: float(item[0])):
        try:
            prompts, outputs = (literal_eval(of[name]) for name in ("input_tokens", "output_tokens"))
            if prompts and outputs:
                yield float(start), _Lengths(prompts), _Lengths(outputs)
        except (ValueError, KeyError, SyntaxError, AttributeError) as error:
            problems.add(f"{member.name}, window {start}", error)


def _requests(client: _Client, choices: Choices) -> Iterator[Session]:
    rng = rng_of(choices.seed, client.name)
    number = 0
    for window in client.windows:
        at_s = window.start_s + window.gap_s(rng) / choices.rate
        while at_s < window.start_s + WINDOW_S:
            prompt, output = _drawn_lengths(client, at_s, rng)
            if choices.is_within(at_s):
                yield Session(
                    id=f"{client.name}:{number}",
                    tenant=client.name,
                    arrival_s=round(at_s - choices.start_s, 6),
                    agent_type="servegen",
                    threads=(Thread(turns=(Turn(input_tokens=prompt, output_tokens=output),)),),
                )
            number += 1
            at_s += window.gap_s(rng) / choices.rate


def _drawn_lengths(client: _Client, at_s: float, rng: Random) -> tuple[int, int]:
    """As of the latest window that has lengths; before the first one, as of that."""
    if not client.lengths:
        return PROMPT_TOKENS, OUTPUT_TOKENS
    at = bisect_right(client.lengths, at_s, key=lambda window: window[0])
    _, prompts, outputs = client.lengths[max(0, at - 1)]
    return prompts.draw(rng), outputs.draw(rng)


SERVEGEN: Final = Corpus(
    read=_servegen,
    origin="ServeGen (Apache-2.0)",
    how="clients are tenants; arrivals and lengths drawn from each one's fitted parameters",
    knows=frozenset({"seed", "start_s", "duration_s", "rate"}),
)
