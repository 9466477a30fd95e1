"""A made-up fleet with agents on it, as records: what the page is shown in tests and while it is built.

No policy of ours decides here; only the records' form and order are real. Equal seeds give equal records.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gateway.domain import records as rec
from gateway.domain.admission_records import WindowUpdated
from gateway.domain.decision import Edge, PlacementReason, RefusalReason, SessionSource, WaitReason
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Protocol, Usage

POOL = PoolId("coder")
CLIENTS = (
    ("claude-code", Protocol.MESSAGES),
    ("codex", Protocol.RESPONSES),
    ("mini-swe-agent", Protocol.CHAT),
)
TENANTS = (("team-a", 2.0), ("team-b", 1.0), ("nightly", 1.0), ("research", 0.5))
TOOLS = ("bash", "read_file", "edit", "grep", "run_tests", "web_search")
MODEL = "qwen3-coder-30b"
KV_TOKENS = 420_000
PREFILL_TOKENS_PER_S = 9000.0
DECODE_TOKENS_PER_S = 55.0
PLACES = 6


@dataclass(eq=False)
class Agent:
    session: SessionId
    tenant: TenantId
    client: tuple[str, Protocol]
    thread: ThreadId
    turns_left: int
    context: int
    edge: Edge = Edge.OPENS
    parent: RequestId | None = None
    cached: int = 0
    home: ReplicaId | None = None
    after: Callable[[], None] | None = None
    """What goes on when a sub-agent is done; None for a session's main conversation."""
    turns: int = 0
    waits: bool = False


@dataclass(eq=False)
class Replica:
    id: ReplicaId
    is_up: bool = True
    running: int = 0


@dataclass
class World:
    seed: int = 1
    replicas: int = 3
    arrivals_per_s: float = 0.25
    began_s: float = 0.0
    turns: tuple[int, int] = (4, 18)
    tools_s: float = 3.0
    has_faults: bool = True
    now: float = 0.0
    fleet: list[Replica] = field(default_factory=list)
    sessions: int = 0
    held: dict[str, int] = field(default_factory=dict)
    """Of tenants: sessions that are in."""
    inside: dict[SessionId, int] = field(default_factory=dict)
    """Sessions that are in, and the tokens that they hold."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.now = self.began_s
        self.fleet = [Replica(ReplicaId(f"coder-{n}")) for n in range(self.replicas)]
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._out: list[rec.Record] = []
        self._waiting: deque[tuple[Agent, RequestId, float]] = deque()
        self._requests = 0
        self._busy_tools = 0
        self._window = 24.0
        self.budget = 0.9 * KV_TOKENS * self.replicas
        self._in(0.0, self._open)
        self._in(2.0, self._look)
        if self.has_faults:
            self._in(45.0, self._fail)

    def until(self, at_s: float) -> Iterator[rec.Record]:
        while self._heap and self._heap[0][0] <= at_s:
            self.now, _, happens = heapq.heappop(self._heap)
            happens()
            yield from self._out
            self._out.clear()
        self.now = max(self.now, at_s)

    def gauges(self) -> dict[str, object]:
        """What a snapshot says beside the sessions."""
        waits = {tenant: sum(agent.tenant == tenant for agent, *_ in self._waiting) for tenant, _ in TENANTS}
        return {
            "outcome": {
                "sessions": 120,
                "in_time": 100,
                "judged": 110,
                "turns_in_time": 900,
                "turns_judged": 1000,
                "cached_tokens": 9_100_000,
            },
            "running": sum(replica.running for replica in self.fleet),
            "waiting": len(self._waiting),
            "active_tools": self._busy_tools,
            "session_count": self.sessions,
            "replicas": [self._view(replica) for replica in self.fleet],
            "pools": [{"id": POOL, **self._readings(), "window": self._window, "updates": []}],
            "tenants": [
                {
                    "id": t,
                    "pool": POOL,
                    "weight": w,
                    "entitlement": w * 1.2,
                    "admitted": self.held.get(t, 0),
                    "lately": 0.8 * self.held.get(t, 0),
                    "waiting": waits[t],
                }
                for t, w in TENANTS
                if self.held.get(t, 0) + waits[t]
            ],
        }

    def _view(self, replica: Replica) -> dict[str, object]:
        return {
            "id": replica.id,
            "pool": POOL,
            "is_up": replica.is_up,
            "running": replica.running,
            "engine_running": replica.running,
            "engine_waiting": max(0, replica.running - 6),
            "kv_used": min(0.9, replica.running * 0.11),
            "kv_retained": 0.1,
            "kv_tokens": KV_TOKENS,
            "sessions": sum(self.held.values()) // len(self.fleet),
            "engine": "vllm",
            "version": "0.32.0",
            "models": [MODEL],
        }

    def _readings(self) -> dict[str, float]:
        busy = sum(replica.running for replica in self.fleet) / (len(self.fleet) * PLACES)
        return {
            "gpu_pressure": round(
                max(0.0, 0.6 * busy + 0.5 * self._demand() / self.budget + self.rng.uniform(-0.04, 0.04)), 3
            ),
            "cpu_pressure": round(min(2.0, self._busy_tools / 34 + self.rng.uniform(0, 0.05)), 3),
            "admitted": sum(self.held.values()),
            "demand": self._demand(),
            "kv_budget": self.budget,
            "waiting": len(self._waiting),
        }

    def _in(self, after_s: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + after_s, len(self._heap) + self._requests * 1000, happens))
        self._requests += 1

    def _say(self, record: rec.Record) -> None:
        self._out.append(record)

    def _open(self) -> None:
        self._in(self.rng.expovariate(self.arrivals_per_s), self._open)
        self.sessions += 1
        tenant = TenantId(self.rng.choices([t for t, _ in TENANTS], [5, 3, 3, 1])[0])
        session = SessionId(f"s-{self.rng.getrandbits(28):07x}")
        client = self.rng.choice(CLIENTS)
        agent = Agent(session, tenant, client, ThreadId(f"{session}.1"), self.rng.randint(*self.turns), 6000)
        self._say(
            rec.SessionStarted(
                at_s=self.now,
                session=session,
                tenant=tenant,
                source=SessionSource.NEW,
                confidence=1.0,
                schema=client[0],
                parent=None,
            )
        )
        self._arrive(agent)

    def _arrive(self, agent: Agent) -> None:
        turn = RequestId(f"r-{self.rng.getrandbits(40):010x}")
        agent.turns += 1
        self._say(
            rec.TurnArrived(
                at_s=self.now,
                turn=turn,
                session=agent.session,
                tenant=agent.tenant,
                protocol=agent.client[1],
                model=MODEL,
                source=SessionSource.CALL_ID if agent.turns > 1 else SessionSource.NEW,
                confidence=0.99,
                body_bytes=agent.context * 4,
                message_count=2 * agent.turns,
                tool_count=len(TOOLS),
                thread=agent.thread,
                edge=agent.edge if agent.turns == 1 else Edge.CONTINUES,
                parent=agent.parent,
            )
        )
        agent.parent = turn
        free = [replica for replica in self.fleet if replica.is_up and replica.running < PLACES]
        if self.has_faults and self.rng.random() < 0.012:
            reason = self.rng.choice((RefusalReason.TENANT_QUOTA, RefusalReason.QUEUE_FULL))
            self._say(
                rec.Refused(
                    at_s=self.now,
                    turn=turn,
                    session=agent.session,
                    tenant=agent.tenant,
                    reason=reason,
                    waited_ms=0.0,
                )
            )
            self._in(4.0, lambda: self._arrive(agent))
        elif not free or not self._may_enter(agent):
            self._waiting.append((agent, turn, self.now))
            cause = WaitReason.CONCURRENCY_FULL if not free else WaitReason.WINDOW_FULL
            self._say(
                rec.TurnWaited(
                    at_s=self.now, turn=turn, session=agent.session, reason=cause, waiting=len(self._waiting)
                )
            )
            self._in(0.8, self._admit)
        else:
            self._send(agent, turn, 0.0)

    def _may_enter(self, agent: Agent) -> bool:
        return agent.session in self.inside or len(self.inside) < self._window

    def _demand(self) -> float:
        return float(sum(self.inside.values()) + 12_000 * len(self.inside))

    def _admit(self) -> None:
        for entry in tuple(self._waiting):
            agent, turn, since_s = entry
            if self._may_enter(agent) and any(one.is_up and one.running < PLACES for one in self.fleet):
                self._waiting.remove(entry)
                self._send(agent, turn, (self.now - since_s) * 1e3)
        if self._waiting:
            self._in(0.4, self._admit)

    def _send(self, agent: Agent, turn: RequestId, waited_ms: float) -> None:
        up = [one for one in self.fleet if one.is_up]
        home = next((one for one in up if one.id == agent.home), None)
        least = min(up, key=lambda one: one.running)
        replica, reason = (
            (home, PlacementReason.SESSION_LIVES_THERE)
            if home is not None and home.running < PLACES
            else (least, PlacementReason.HOME_IS_BUSY if agent.home else PlacementReason.LEAST_LOADED)
        )
        cached = agent.cached if replica is home else 0
        output = int(self.rng.lognormvariate(4.6, 0.6))
        first_s = 0.05 + (agent.context - cached) / PREFILL_TOKENS_PER_S * (1 + replica.running / PLACES)
        whole_s = first_s + output / DECODE_TOKENS_PER_S
        told: dict[str, object] = {"turn": turn, "session": agent.session, "replica": replica.id}
        expected = rec.Expected(
            prompt_tokens=agent.context, cached_tokens=cached, output_tokens=110, first_token_ms=first_s *
            1100, first_token_p10_ms=first_s * 800, first_token_p90_ms=first_s * 1500, completion_ms=whole_s
            * 950, completion_p10_ms=whole_s * 600, completion_p90_ms=whole_s * 1700,
        )  # fmt: skip
        self._say(rec.Routed(at_s=self.now, reason=reason, waited_ms=waited_ms, **told))  # type: ignore[arg-type]
        self._say(
            rec.GpuSubmit(at_s=self.now, prompt_bytes=agent.context * 4, attempt=1, expected=expected, **told)  # type: ignore[arg-type]
        )
        replica.running += 1
        agent.home = replica.id
        if agent.session not in self.inside:
            self.held[agent.tenant] = self.held.get(agent.tenant, 0) + 1
        self.inside[agent.session] = agent.context
        self._in(
            first_s,
            lambda: self._say(rec.GpuFirstToken(at_s=self.now, launch_delay_ms=first_s * 1e3, **told)),  # type: ignore[arg-type]
        )
        self._in(whole_s, lambda: self._end(agent, turn, replica, told, cached, output, whole_s))

    def _end(
        self,
        agent: Agent,
        turn: RequestId,
        replica: Replica,
        told: dict[str, object],
        cached: int,
        output: int,
        whole_s: float,
    ) -> None:
        replica.running -= 1
        is_cut = self.has_faults and (not replica.is_up or self.rng.random() < 0.006)
        self._say(
            rec.GpuEnd(
                at_s=self.now,
                outcome="cut" if is_cut else "finished",
                status=200,
                usage=Usage(prompt_tokens=agent.context, cached_tokens=cached, output_tokens=output),
                finish_reason=None if is_cut else "tool_calls",
                duration_ms=whole_s * 1e3,
                **told,  # type: ignore[arg-type]
            )
        )
        agent.cached = agent.context
        agent.context += output + self.rng.randint(200, 2600)
        agent.turns_left -= 1
        if agent.turns_left > 0:
            self._call_tools(agent, turn)
        elif agent.after is not None:
            agent.after()
        else:
            self._in(self.rng.uniform(1, 12), lambda: self._close(agent))

    def _call_tools(self, agent: Agent, turn: RequestId) -> None:
        names = tuple(self.rng.sample(TOOLS, 1 if self.rng.random() < 0.8 else 2))
        spawns = agent.after is None and agent.turns_left > 3 and self.rng.random() < 0.08
        if spawns:
            names = ("Task",)
        self._busy_tools += 1
        self._say(rec.ToolStart(at_s=self.now, session=agent.session, turn=turn, names=names))
        self._say(rec.ToolNum(at_s=self.now, active=self._busy_tools))
        began_s = self.now

        def done() -> None:
            self._busy_tools -= 1
            self._arrive(agent)
            assert agent.parent is not None
            self._say(
                rec.ToolEnd(
                    at_s=self.now,
                    session=agent.session,
                    turn=agent.parent,
                    names=names,
                    duration_ms=(self.now - began_s) * 1e3,
                )
            )
            self._say(rec.ToolNum(at_s=self.now, active=self._busy_tools))

        if not spawns:
            self._in(self.rng.lognormvariate(0, 1.0) * self.tools_s, done)
            return
        number = 2 + self.rng.getrandbits(8)
        child = Agent(
            agent.session, agent.tenant, agent.client, ThreadId(f"{agent.session}.{number}"),
            self.rng.randint(2, 5), 4000, edge=Edge.SPAWNED, parent=turn, home=agent.home, after=lambda:
            self._in(0.3, done),
        )  # fmt: skip
        self._in(0.2, lambda: self._arrive(child))

    def _close(self, agent: Agent) -> None:
        self.sessions -= 1
        self.held[agent.tenant] -= 1
        self.inside.pop(agent.session, None)
        self._say(
            rec.SessionEnded(at_s=self.now, session=agent.session, turns=agent.turns, reason="finished")
        )

    def _look(self) -> None:
        """The window moves."""
        self._in(self.rng.uniform(3, 7), self._look)
        readings = self._readings()
        reason = ""
        if readings["gpu_pressure"] >= 1.0:
            self.budget, reason = (
                max(0.5 * KV_TOKENS, self.budget * 0.85),
                self.rng.choice(("preemptions", "state_lost")),
            )
        elif readings["cpu_pressure"] >= 1.0:
            self._window, reason = max(4.0, self._window * 0.7), "tools_slow"
        elif readings["gpu_pressure"] < 0.7 and self._waiting:
            self._window, reason = min(60.0, self._window + 1), "healthy"
            self.budget = min(self.budget * 1.03, KV_TOKENS * self.replicas)
        if reason:
            self._say(
                WindowUpdated(
                    at_s=self.now,
                    pool=POOL,
                    sessions=self._window,
                    kv_budget=self.budget,
                    reason=reason,
                    admitted=int(readings["admitted"]),
                    waiting=int(readings["waiting"]),
                    demand=readings["demand"],
                    gpu_pressure=readings["gpu_pressure"],
                    cpu_pressure=readings["cpu_pressure"],
                )
            )

    def _fail(self) -> None:
        self._in(self.rng.uniform(80, 140), self._fail)
        replica = self.rng.choice(self.fleet)
        if not replica.is_up or sum(one.is_up for one in self.fleet) < 2:
            return
        replica.is_up = False
        self._say(
            rec.ReplicaChanged(at_s=self.now, replica=replica.id, state="down", why="connection refused")
        )

        def back() -> None:
            replica.is_up = True
            self._say(rec.ReplicaChanged(at_s=self.now, replica=replica.id, state="up", why="answers again"))

        self._in(25.0, back)
