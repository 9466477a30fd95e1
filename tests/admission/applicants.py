"""Applicants, rooms and outcomes, in few words."""

from typing import Any

import msgspec

from gateway.admission.pack_queue import Entry
from gateway.admission.session_admission import SessionAdmission
from gateway.admission.settings import AdmissionConfig
from gateway.admission.turn_request import ReplicaCapacity, TurnOutcome, TurnRequest
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.agent_key import UNKNOWN_AGENT, AgentKey
from gateway.domain.decision import Edge, SessionRef, SessionSource, Wait, WaitReason
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaLoad
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Answer, Protocol, RequestFacts, ToolCall, Transcript, Usage, Work
from gateway.workflow.conversations import Conversations, ConversationsConfig

POOL = PoolId("pool")
A = ReplicaId("a")
T, U = TenantId("t"), TenantId("u")
FULL = Wait(reason=WaitReason.WINDOW_FULL)


def config(**settings) -> AdmissionConfig:
    return msgspec.convert(settings, AdmissionConfig)


class Asked(TurnRequest, frozen=True, kw_only=True):
    thread: ThreadId


def applicant(request: str, session: str | None, **fields) -> Asked:
    tenant = TenantId(fields.pop("tenant", "t"))
    thread = fields.pop("thread", "main")
    fields.setdefault("is_background", fields.pop("background", False))
    fields.setdefault("prompt_tokens", fields.get("body_bytes", 0) / 4)
    return Asked(
        request=RequestId(request),
        pool=PoolId(fields.pop("pool", POOL)),
        tenant=tenant,
        agent=AgentKey(tenant, fields.pop("agent", 0)),
        session=SessionId(session) if session else None,
        thread=ThreadId(thread),
        **fields,
    )


def entry(name="s", tenant: str = "t", *, size=1000.0, arrived=0.0, since=0.0, **fields) -> Entry:
    return Entry(
        session=SessionId(name),
        tenant=TenantId(tenant),
        agent=UNKNOWN_AGENT,
        peak=size,
        work=size,
        task_arrived_s=arrived,
        since_s=since,
        **{"tool_s": 1.0, "lasts_s": 1e6, **fields},
    )


def room(*, running=(0,), must_queue=False, full=None) -> ReplicaCapacity:
    return ReplicaCapacity(
        candidates=[ReplicaLoad(ReplicaId(f"{n}"), load) for n, load in enumerate(running)],
        must_queue=must_queue,
        full=lambda: full,
    )


def answered(*, tokens=None, cached=None, output=0, calls=True, replica=A) -> TurnOutcome:
    return TurnOutcome(
        was_answered=True,
        has_calls=calls,
        replica=replica,
        usage=Usage(prompt_tokens=tokens, cached_tokens=cached, output_tokens=output),
    )


def _ref(asked: Asked) -> SessionRef:
    assert asked.session is not None
    return SessionRef(
        session=asked.session,
        source=SessionSource.CALL_ID,
        confidence=1.0,
        thread=ThreadId(f"{asked.session}.{asked.thread}"),
        edge=asked.edge,
    )


def _facts(asked: Asked) -> RequestFacts:
    return RequestFacts(
        protocol=Protocol.CHAT,
        work=Work.GENERATE,
        tool_count=1,
        body_bytes=asked.body_bytes,
        transcript=Transcript(agent_type=asked.agent.agent_type),
    )


class Play:
    """A policy, the execution graphs that it reads, a clock, and who waits for a place in it."""

    def __init__(self, subject: SessionAdmission | None = None, /, **settings) -> None:
        self.workflow = Conversations(ConversationsConfig())
        self.policy = subject or SessionAdmission(config(**settings), graphs=self.workflow.graphs)
        self.now = 1000.0
        self.count = 0
        self.waiting: dict[str, Asked] = {}
        self.running: dict[str, Asked] = {}
        self.known: set[str] = set()
        self.left: dict[ThreadId, tuple[float, ReplicaId | None]] = {}
        """Tokens of each conversation's last prompt, and where they are cached."""

    def has(self, *, kv_tokens=None, host=None, **signals) -> "Play":
        self.policy.fleet_changed(POOL, [A], now=self.now)
        told = EngineSignals(kv_tokens=kv_tokens, host_kv_tokens=host, **signals)
        self.policy.engine_reported(POOL, A, told, now=self.now)
        return self

    def ask(self, session: str | None, **fields) -> Any:
        self.count += 1
        request = f"r{self.count}"
        fields.setdefault("edge", Edge.CONTINUES if session in self.known else Edge.OPENS)
        fields.setdefault("task_arrived_s", self.now)
        there = fields.pop("room", room())
        asked = applicant(request, session, **fields)
        if session is not None:
            self.workflow.arrived(_ref(asked), _facts(asked), asked.tenant, now=self.now)
        decision = self.policy.decide(asked, there, now=self.now)
        self.known.add(session or "")
        match type(decision).__name__:
            case "Admit":
                self.running[request] = asked
            case "Wait":
                self.waiting[request] = asked
            case _:
                self.policy.turn_over(asked.request, None, now=self.now)
        return decision

    def is_admitted(self, session: str, **fields) -> bool:
        return type(self.ask(session, **fields)).__name__ == "Admit"

    def end(self, session: str, outcome: TurnOutcome | None = None, **answer) -> list[str]:
        for request in [r for r, each in self.running.items() if each.session == session]:
            self.end_one(request, outcome or answered(**answer))
        return self.drain_queue()

    def end_one(self, request: str, outcome: TurnOutcome) -> None:
        asked = self.running.pop(request)
        if asked.session is not None:
            outcome = self._with_what_follows(asked, asked.session, outcome)
        self.policy.turn_over(RequestId(request), outcome, now=self.now)

    def _with_what_follows(self, asked: Asked, session: SessionId, outcome: TurnOutcome) -> TurnOutcome:
        answer = Answer(
            status=200 if outcome.was_answered else 500,
            tool_calls=(ToolCall("c", "bash"),) if outcome.has_calls else (),
            has_terminal=True,
            usage=outcome.usage,
        )
        ref, facts = _ref(asked), _facts(asked)
        self.workflow.answered(ref, facts, answer, now=self.now)
        outcome = self._with_what_it_holds(ref, outcome)
        return msgspec.structs.replace(outcome, silence=self.workflow.silence(session, now=self.now))

    def _with_what_it_holds(self, ref: SessionRef, outcome: TurnOutcome) -> TurnOutcome:
        prompt = outcome.usage.prompt_tokens
        thread = self.workflow.thread(ref.thread)
        if not outcome.was_answered or thread is None or prompt is None:
            return outcome
        before = self.left.get(ref.thread, (0.0, None))
        self.left[ref.thread] = float(prompt), outcome.replica
        return msgspec.structs.replace(
            outcome,
            held=self.workflow.held(ref.session),
            grown=thread.grown,
            left=before[0] if before[1] == outcome.replica else None,
        )

    def leave(self, session: str) -> list[str]:
        for request in [r for r, each in self.waiting.items() if each.session == session]:
            del self.waiting[request]
            self.policy.turn_over(RequestId(request), None, now=self.now)
        return self.drain_queue()

    def told(self) -> Any:
        """What the policy said of its windows since the last time."""
        return [each for each in self.said() if isinstance(each, WindowUpdated)]

    def said(self) -> Any:
        out = self.policy.records.copy()
        self.policy.records.clear()
        return out

    def finish(self, session: str) -> list[str]:
        self.workflow.session_over(SessionId(session))
        self.policy.session_over(SessionId(session), now=self.now)
        return self.drain_queue()

    def over(self, session: str) -> list[str]:
        """The session's turns end, and then it does; who is let in then."""
        self.end(session)
        return self.finish(session)

    def drain_queue(self) -> list[str]:
        entered = self.policy.drain_queue(now=self.now)
        for request in entered:
            self.running[request] = self.waiting.pop(request)
        return [str(self.running[request].session) for request in entered]

    def later(self, seconds: float) -> list[str]:
        """Time passes, and the policy's deadlines with it; who is let in meanwhile."""
        until = self.now + seconds
        entered = []
        while (due := self.policy.next_deadline_s()) is not None and due <= until:
            self.now = max(self.now, due)
            entered += self.drain_queue()
            assert (after := self.policy.next_deadline_s()) is None or after > self.now
        self.now = until
        return entered + self.drain_queue()

    def turn(self, session: str, *, lasts=1.0, then=0.0, **answer) -> bool:
        """A whole turn, with a pause behind it; whether it was let in."""
        if not self.is_admitted(session):
            return False
        self.now += lasts
        self.end(session, **answer)
        self.now += then
        return True

    @property
    def pool(self) -> Any:
        return self.policy.pools[POOL]


def capped(cap: int, **settings) -> Play:
    return Play(policy="session-cap", session_cap=cap, **settings)


def in_by_tenant(play: Play) -> dict[str, int]:
    return {str(tenant): len(sessions) for tenant, sessions in play.pool.places.by_tenant.items()}
