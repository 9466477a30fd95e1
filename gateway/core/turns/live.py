"""A request while it lives in the brain, and the one place that changes its state."""

import msgspec

from gateway.admission.turn_request import TurnRequest
from gateway.core.turns.lifecycle import TRANSITIONS, State, Step, advance
from gateway.core.turns.waiting_room import Lane
from gateway.cost.estimator import IsolatedCost
from gateway.domain.agent_key import UNKNOWN_AGENT, AgentKey
from gateway.domain.decision import Edge, SessionRef, WaitReason
from gateway.domain.ids import NOBODYS, Body, PoolId, ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.model_choice import Choice, Fallback, Target
from gateway.domain.request import Answer, RequestFacts, ToolCall, Usage
from gateway.routing.models import NamedModel


class Route(msgspec.Struct, kw_only=True, eq=False):
    """Of a request for a name of the operator's: which model runs it."""

    named: NamedModel
    choice: Choice
    """Of its session, if it has one."""
    tried: list[Target] = []
    """What it is not sent to again."""
    why: Fallback | None = None
    """If it fell back itself."""

    @property
    def fallback(self) -> Fallback | None:
        return self.why or (Fallback.EARLIER if self.choice.is_fallback else None)

    @property
    def patience_s(self) -> float | None:
        """How long it waits before it falls back; None: until it would be refused."""
        return None if self.choice.begun else self.named.fallback_after_s


class LiveRequest(msgspec.Struct, kw_only=True):
    request: RequestId
    tenant: TenantId
    key: str = ""
    owner: TenantId = NOBODYS
    """Whose what it teaches is."""
    facts: RequestFacts
    session: SessionRef | None = None
    """None for requests that are no turns."""
    session_id: SessionId | None = None
    """Of that."""
    text_bytes: int
    """Of its body, without media."""
    pool: PoolId | None
    """None only for a request that is refused at the door."""
    home: ReplicaId | None
    """The only replica that may run it, because the state it builds on lives there."""
    model: str | None = None
    """What a replica has to serve to run it, if some of its pool do not."""
    route: Route | None = None
    """None where it names its model itself."""
    arrived_s: float
    state: State = State.UNDECIDED
    steps: list[Step] = []
    """The steps so far, oldest first; bounded by the number of attempts."""
    replica: ReplicaId | None = None
    without: tuple[ReplicaId, ...] = ()
    """Where it is never sent."""
    tried: list[ReplicaId] = []
    """Where it is not sent again."""
    attempts: int = 0
    unanswered: int = 0
    """Times that it was sent, and the replica failed before the head of an answer; those of requests of the
    same body, too, of whose answers' breaking off as well."""
    submitted_s: float = 0.0
    parked_s: float = 0.0
    """When it last entered the waiting room."""
    waited_s: float = 0.0
    """In the waiting room, all visits together."""
    calls_seen: list[ToolCall] = []
    """Those of its answer whose ids were learned."""
    saw_first_token: bool = False
    first_token_s: float = 0.0
    left: float | None = None
    """Tokens of its prompt that the turn before it left on its replica, if that was not lost since."""
    alone: IsolatedCost | None = None
    """What its last attempt would have taken alone, once that is known."""
    had_leg: bool = False
    """A prefill leg was begun for it; there is no second one."""
    handed_over: float = 0.0
    """Tokens of its prompt that a prefill leg computed, for the replica that runs it next."""
    leg_left: tuple[ReplicaId, Usage] | None = None
    """What its leg left where, until its session has a place in the books of placement."""
    bound: str | None = None
    """The operator's bound that it is beyond, and which of its limits: for its client."""
    is_deprioritized: bool = False
    """Others go first because of that."""
    waits_for: WaitReason | None = None
    """The last reason to wait."""
    task_arrived_s: float = 0.0
    """When its session's first turn came."""
    agent: AgentKey = UNKNOWN_AGENT
    """Of its conversation: one key for whoever learns of its type."""
    is_hinted: bool = False
    """Its forecast stands in the replica's books."""

    @property
    def draw_key(self) -> str | None:
        """What a model is drawn by for it: its session; by itself, if it may be of one that nobody knows."""
        return self.request if self.facts.is_relayed else self.session_id

    @property
    def runs_on(self) -> str | None:
        return self.route.choice.target.model if self.route is not None else self.facts.model

    @property
    def body(self) -> Body:
        return self.tenant, self.facts.body or self.facts.transcript.body, self.facts.model or ""

    @property
    def lane(self) -> Lane:
        assert self.pool is not None
        without = frozenset(self.tried).union(self.without)
        return Lane(pool=self.pool, home=self.home, without=without, model=self.model)

    def applicant(self, prompt_tokens: float) -> TurnRequest:
        assert self.pool is not None
        facts, session = self.facts, self.session
        return TurnRequest(
            request=self.request,
            pool=self.pool,
            tenant=self.tenant,
            body_bytes=facts.body_bytes,
            prompt_tokens=prompt_tokens,
            session=session.session if session is not None else None,
            edge=session.edge if session is not None else Edge.OPENS,
            agent=self.agent,
            task_arrived_s=self.task_arrived_s,
            claims=facts.claims,
            is_background=facts.is_background,
            is_deprioritized=self.is_deprioritized,
        )

    def is_served_by(self, answer: Answer) -> bool:
        """An engine has worked for it, to the end or not."""
        some = self.saw_first_token or bool(answer.content_bytes)
        return answer.is_good or (answer.status < 400 and some)

    def step(self, step: Step) -> None:
        """Raises `LifecycleError` if the table does not allow it."""
        after = TRANSITIONS[self.state].get(step)
        self.state = after if after is not None else advance(self.state, step)
        self.steps.append(step)
