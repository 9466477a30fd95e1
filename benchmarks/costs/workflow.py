"""The workflow view: memory of a session; processor time of a request, from arrival to the hint at its pause.
pause.

10,000 live sessions, by agents of 50 types with a dozen tools each. How right the view is on recordings says
`turnpike eval workflow`.
"""

import gc
import random
import statistics
import time
from typing import Any, Final

from benchmarks.costs.identity import resident_bytes
from benchmarks.verdict import Verdict, percentile
from gateway.domain.decision import Edge, SessionRef, SessionSource
from gateway.domain.ids import ReplicaId, SessionId, ThreadId
from gateway.domain.request import Answer, Protocol, RequestFacts, ToolCall, Transcript, Usage, Work
from gateway.workflow.conversations import Conversations, ConversationsConfig
from gateway.workflow.engine_hints import Hints

SEED: Final = 7
TYPES: Final = 50
TOOLS: Final = 12
PAUSE_S: Final = 0.004
"""Between two requests."""
REPLICA: Final = ReplicaId("a")


class Agents:
    """Sessions that go on in turns, each by its type's own habits."""

    def __init__(self, sessions: int) -> None:
        self.rng = random.Random(SEED)
        self.now = 0.0
        self.known = Conversations(ConversationsConfig())
        self.hints = Hints(self.known.graphs)
        self.habits = [
            [
                self.rng.choices(
                    range(TOOLS + 1), weights=[self.rng.random() ** 4 for _ in range(TOOLS + 1)], k=4
                )
                for _ in range(TOOLS + 1)
            ]
            for _ in range(TYPES)
        ]
        self.facts = [
            RequestFacts(
                protocol=Protocol.CHAT,
                work=Work.GENERATE,
                tool_count=TOOLS,
                body_bytes=40_000,
                client=1,
                transcript=Transcript(agent_type=kind + 1),
            )
            for kind in range(TYPES)
        ]
        self.refs = [
            SessionRef(
                session=SessionId(f"s-{number}"),
                source=SessionSource.CALL_ID,
                confidence=1.0,
                thread=ThreadId(f"s-{number}.1"),
                edge=Edge.CONTINUES,
            )
            for number in range(sessions)
        ]
        self.last = [0] * sessions

    def turn(self, number: int) -> float:
        """One request of a session, and its answer; what telling that cost, in seconds."""
        kind, ref = number % TYPES, self.refs[number]
        facts = self.facts[kind]
        step = self.rng.choice(self.habits[kind][self.last[number]])
        calls = () if step == TOOLS else (ToolCall(f"c{self.now}", f"tool-{step}"),)
        answer = Answer(
            status=200,
            tool_calls=calls,
            usage=Usage(prompt_tokens=10_000, output_tokens=200),
            has_terminal=True,
        )
        self.last[number] = step
        self.now += PAUSE_S
        known, hints = self.known, self.hints
        start = time.thread_time()
        thread = known.arrived(ref, facts, now=self.now)
        assert thread is not None
        hints.with_request(ref, thread, REPLICA, age_s=1.0, service_class="reactive")
        pause = known.answered(ref, facts, answer, now=self.now)
        if pause is not None:
            hints.write(ref.session, ref.thread, hints.retention(thread, pause, REPLICA))
        return time.thread_time() - start


def measure(is_quick: bool, verdict: Verdict, _: Any) -> None:
    sessions = 1_000 if is_quick else 10_000
    agents = Agents(sessions)
    gc.collect()
    before = resident_bytes()
    for _ in range(3):
        for number in range(sessions):
            agents.turn(number)
    gc.collect()
    verdict.at_most("bytes_per_session", (resident_bytes() - before) / sessions, 40_000)
    took = [agents.turn(agents.rng.randrange(sessions)) * 1e6 for _ in range(5_000)]
    verdict.at_most("request_p50_us", statistics.median(took), 150.0)
    verdict.tell("request_p99_us", percentile(took, 99))
