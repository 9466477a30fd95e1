"""Session identity: memory per live session, and what it costs to identify a request beyond parsing it.

Sessions of nine turns, each with a call and a result, fill the real books; then, beside all of them, sessions
of two sizes go on: with tool calls, and without (`talk`); one body comes again and again (`same`), and
conversations open that nobody goes on with (`openings`). The cost is `read_facts` plus the books' `arrived`,
less the decoding of the same body, which any gateway that reads the model's name has to do.
"""

import gc
import json
import os
import random
import statistics
import time
from typing import Any, Final

from benchmarks.verdict import Verdict, percentile
from gateway.domain.ids import RequestId, TenantId
from gateway.domain.request import RequestFacts
from gateway.domain.session_ids import numbered_ids
from gateway.identity.transcript import TranscriptReader
from gateway.requests import facts
from gateway.requests.facts import read_facts
from gateway.responses.observed import ObservedResponse
from gateway.wire.body import decoding_body
from gateway.wire.endpoints import classify
from gateway.wire.slices import finish
from gateway.workflow.sessions import Sessions, SessionsConfig
from gateway.workflow.turns import Outcome

SEED: Final = 7
TURNS: Final = 9
TENANTS: Final = 50
CHAT: Final = classify("POST", "/v1/chat/completions")
AGENT: Final = [(b"user-agent", b"bench/1")]
_WORDS: Final = "parser file test read write bug the a fix line error path token value return list".split()


class Bench:
    def __init__(self, sessions: int) -> None:
        self.rng = random.Random(SEED)
        self.books = Sessions(SessionsConfig(max_sessions=10**6), numbered_ids())
        self.sessions = sessions
        self.count = 0
        self.now = 0.0

    def words(self, count: int) -> str:
        return " ".join(self.rng.choices(_WORDS, k=count))

    def step(self, name: str, step: int, words: int) -> list[dict[str, Any]]:
        """A call and its result."""
        function = {"name": "bash", "arguments": json.dumps({"cmd": self.words(4), "why": self.words(9)})}
        call = {"id": f"call_{name}_{step}_{'a' * 8}", "type": "function", "function": function}
        return [
            {"role": "assistant", "content": f"{self.words(12)} {name} {step}", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": self.words(words)},
        ]

    def talk(self, words: int) -> list[dict[str, Any]]:
        """An answer without calls, and what its reader says to that."""
        return [
            {"role": "assistant", "content": self.words(24)},
            {"role": "user", "content": self.words(words)},
        ]

    def opening(self, name: str) -> list[dict[str, Any]]:
        system = {"role": "system", "content": "You are a coding agent, and you are careful."}
        return [system, {"role": "user", "content": f"{self.words(24)} {name}"}]

    def take(self, found: RequestFacts, tenant: TenantId, answer: dict[str, Any]) -> float:
        """A turn arrives and is answered; returns the seconds that its identification took."""
        self.count += 1
        self.now += 0.001
        request = RequestId(str(self.count))
        start = time.thread_time()
        self.books.arrived(request, tenant, found, now=self.now)
        took = time.thread_time() - start
        sighting = ObservedResponse()
        sighting.add_text(answer["content"])
        for call in answer.get("tool_calls", ()):
            self.books.learn_id(request, call["id"], is_call=True)
            sighting.add_arguments(0, call["function"]["arguments"])
        sighting.has_terminal = True
        self.books.ended(request, sighting.answer(200), Outcome.ANSWERED, now=self.now)
        return took

    def fill(self) -> None:
        """So many sessions, all of them alive."""
        for number in range(self.sessions):
            name, tenant = f"s{number}", TenantId(f"t{number % TENANTS}")
            messages = self.opening(name)
            for step in range(TURNS):
                added = self.step(name, step, 6)
                self.take(read_facts(CHAT, AGENT, encode(messages)), tenant, added[0])
                messages += added

    def go_on(self, size: int, requests: int, *, has_tools: bool = True) -> tuple[list[float], list[float]]:
        """Identification beyond parsing, in milliseconds: of requests that continue, of such that open."""
        continued: list[float] = []
        opened: list[float] = []
        for number in range(requests // 20):
            name, tenant = f"x{size}-{number}", TenantId(f"t{number % TENANTS}")
            messages = self.opening(name)
            length = len(encode(messages))
            words = max(6, size // 3000)
            while length < size - 20 * 60:
                added = self.step(name, len(messages), words) if has_tools else self.talk(words)
                length += len(encode(added))
                messages += added
            for step in range(20):
                body = encode(messages)
                added = self.step(name, 10**6 + step, 3) if has_tools else self.talk(3)
                (continued if step else opened).append(self._cost(body, tenant, added[0]))
                messages += added
        return continued, opened

    def repeat(self, size: int, requests: int) -> list[float]:
        """The same for one body over and over, as a load generator sends it."""
        body = encode(self.opening(self.words(size // 6)))
        return [self._cost(body, TenantId("t"), self.talk(3)[0]) for _ in range(requests)]

    def open(self, size: int, requests: int) -> list[float]:
        """The same for conversations that nobody has seen, and that nobody goes on with."""
        return [
            self._cost(encode(self.opening(self.words(size // 6))), TenantId("t"), self.talk(3)[0])
            for _ in range(requests)
        ]

    def _cost(self, body: bytes, tenant: TenantId, answer: dict[str, Any]) -> float:
        parse = []
        for _ in range(3):
            start = time.thread_time()
            finish(decoding_body(body, is_responses=False))
            parse.append(time.thread_time() - start)
        start = time.thread_time()
        found = read_facts(CHAT, AGENT, body)
        read = time.thread_time() - start
        return (read - min(parse) + self.take(found, tenant, answer)) * 1e3


def encode(messages: list[dict[str, Any]]) -> bytes:
    return json.dumps({"model": "m", "messages": messages}).encode()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    bench = Bench(5_000 if is_quick else 100_000)
    tell(f"seed {SEED}, {bench.sessions} sessions of {TURNS} turns")
    gc.collect()
    before = resident_bytes()
    # What is remembered of items does not grow with the sessions; it is left out of their account.
    facts.TRANSCRIPTS, remembering = TranscriptReader(max_known=1000), facts.TRANSCRIPTS
    bench.fill()
    facts.TRANSCRIPTS = remembering
    gc.collect()
    verdict.at_most("bytes_per_session", (resident_bytes() - before) / bench.sessions, 10_000)
    gc.freeze()
    for name, size, bound in (("2kb", 2_000, 0.3), ("400kb", 400_000, 1.0)):
        continued, opened = bench.go_on(size, 1_000 if is_quick else 4_000)
        verdict.tell(f"identify_{name}_p50_ms", statistics.median(continued))
        verdict.at_most(f"identify_{name}_p99_ms", percentile(continued, 99), bound)
        verdict.tell(f"identify_{name}_unseen_p99_ms", percentile(opened, 99))
        requests = 200 if is_quick else 1_000
        talking, _ = bench.go_on(size, requests, has_tools=False)
        verdict.tell(f"identify_{name}_talk_p50_ms", statistics.median(talking))
        verdict.tell(f"identify_{name}_same_p50_ms", statistics.median(bench.repeat(size, requests)))
        verdict.tell(f"identify_{name}_openings_p50_ms", statistics.median(bench.open(size, requests)))
