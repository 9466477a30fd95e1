"""Budgets: how much may one session, one agent type, or one tenant use?

Invariants: a turn's expected use is reserved at its arrival and settled at its end, so concurrent turns never
share the last of it; a turn counts against its own tenant's bounds alone; memory is bounded by the known
sessions, and by `MAX_ACCOUNTS` a tenant; bounds may change at any time, and counts go on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from gateway.budgets.repeats import Repeats
from gateway.cost.tokens import UsualTurns
from gateway.domain.ids import RequestId, SessionId, TenantId, ThreadId
from gateway.domain.request import Usage
from gateway.domain.spending import ALL_AGENTS, NOTHING, OTHER_AGENTS, Account, Amounts, Reserved, Spent

# Of agent types, per tenant and period; further types share one.
MAX_ACCOUNTS: Final = 64
# Of a session, with counted repeats; the oldest goes first.
_MAX_THREADS: Final = 32
_ANY_MODEL: Final = "*"
_MILLION: Final = 1e6
_DAY_S: Final = 86_400.0

Action = Literal["warn", "deprioritize", "refuse"]
_SEVERITY: Final = {"warn": 0, "deprioritize": 1, "refuse": 2}
_RECORDED: Final = Meta(extra={"recorded": True})
# In a recording an agent type has another name.
_KEYED: Final = Meta(extra={"recorded": False})
_Count = Annotated[int, Meta(ge=1)]
_Price = Annotated[float, Meta(ge=0)]


class PriceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a million tokens of a model, in any currency."""

    model: Annotated[str, _RECORDED, Meta(min_length=1)]
    """As its replicas know it; `*` for all others, which are free without it."""
    input: _Price = 0.0
    """Of prompts."""
    cached_input: _Price | None = None
    """Of cached prompt tokens, as the engine reports them; by default as `input`."""
    output: _Price = 0.0
    """Of outputs, reasoning included."""

    def cost(self, usage: Usage) -> float:
        prompt, cached = usage.prompt_tokens or 0, usage.cached_tokens or 0
        cached = min(cached, prompt)
        of_cached = self.input if self.cached_input is None else self.cached_input
        output = (usage.output_tokens or 0) * self.output
        return ((prompt - cached) * self.input + cached * of_cached + output) / _MILLION


def price_of(prices: Mapping[str, PriceConfig], model: str | None) -> PriceConfig | None:
    return prices.get(model or "") or prices.get(_ANY_MODEL)


class BoundConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of use, and the action beyond them (docs/reference/bounds.md)."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}\Z"), _RECORDED]
    """In refusals, headers, records and metrics."""
    scope: Literal["session", "agent", "tenant"] = "session"
    """Per session, per agent type of a tenant, or per tenant."""
    period: Literal["day", "month"] | None = None
    """For an agent type or a tenant, in UTC."""
    tenants: tuple[Annotated[str, _RECORDED], ...] = ()
    """Only for these; by default for all."""
    agents: tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z"), _KEYED], ...] = ()
    """For these agent types alone, as `turnpike sessions --json` names them; by default for each."""
    turns: _Count | None = None
    """Requests with work for an engine."""
    tokens: _Count | None = None
    """Of prompts and outputs, as engines report them; cached ones count, too."""
    cost: Annotated[float, Meta(gt=0)] | None = None
    """By `[[prices]]`."""
    max_duration_s: Annotated[float, Meta(gt=0)] | None = None
    """Since the session's first turn. Of a session only, like `repeats` and `same_calls`."""
    repeats: Annotated[int, Meta(ge=2)] | None = None
    """The same calls with the same results in a row; also in a cycle of two or three steps."""
    same_calls: Annotated[int, Meta(ge=2)] | None = None
    """The same calls in a row, with any results."""
    action: Action = "refuse"
    """`warn` adds a header, a record and a metric; `deprioritize` lets others go first; `refuse` answers 403,
    which clients do not retry."""
    shadow: bool = False
    """Only record and count."""

    def __post_init__(self) -> None:
        if self.scope == "session" and self.period is not None:
            raise ValueError(f"bound {self.name}: a session is counted as a whole, not per {self.period}")
        if self.scope != "session":
            if self.period is None:
                raise ValueError(f"bound {self.name} is of {self.scope}: set period to day or month")
            if self.max_duration_s is not None or self.counts_repeats:
                what = "max_duration_s, repeats and same_calls are of a session only"
                raise ValueError(f"bound {self.name}: {what}")

    @property
    def is_empty(self) -> bool:
        limits = (self.turns, self.tokens, self.cost, self.max_duration_s, self.repeats, self.same_calls)
        return all(limit is None for limit in limits)

    @property
    def counts_repeats(self) -> bool:
        return self.repeats is not None or self.same_calls is not None

    def is_for(self, tenant: TenantId, agent: int) -> bool:
        is_of_tenant = not self.tenants or tenant in self.tenants
        return is_of_tenant and (not self.agents or f"{agent:016x}" in self.agents)


class TurnUse(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that arrives, or a request outside sessions with work for an engine."""

    request: RequestId
    tenant: TenantId
    agent: int
    model: str | None
    text_bytes: int
    session: SessionId | None = None
    thread: ThreadId | None = None
    started_s: float = 0.0
    """Of its session."""
    turns_before: int = 0
    """Of its session, also at another gateway."""
    tail: int = 0
    called: int = 0
    brought: int = 0
    """As in `Repeats.saw`."""


class Reached(msgspec.Struct, frozen=True):
    """A bound that a turn exceeds."""

    bound: BoundConfig
    limit: str
    used: float
    """With this turn's expected use."""
    most: float


class _Tally(msgspec.Struct):
    """Of one session."""

    agent: int
    used: Amounts
    threads: dict[ThreadId, Repeats] = {}
    """Empty where repeats are not bounded."""

    def repeats(self, thread: ThreadId) -> Repeats:
        found = self.threads.get(thread)
        if found is None:
            if len(self.threads) >= _MAX_THREADS:
                del self.threads[next(iter(self.threads))]
            found = self.threads[thread] = Repeats()
        return found


_NO_REPEATS: Final = Repeats()


class _Turn(msgspec.Struct, frozen=True, gc=False):
    """A live turn with its reservation."""

    use: TurnUse
    accounts: tuple[Account, ...]
    amounts: Amounts


class Budgets:
    def __init__(
        self, bounds: Sequence[BoundConfig], prices: Sequence[PriceConfig] = (), *, publishes: bool = False
    ) -> None:
        """`publishes`: to other gateways."""
        self.apply_config(bounds, prices)
        self._publishes = publishes
        # Differences, for the other gateways.
        self.spent: list[Spent] = []
        self.sessions: dict[SessionId, _Tally] = {}
        # Of the present periods.
        self.ledger: dict[Account, Amounts] = {}
        self._agents: dict[tuple[TenantId, str], set[int]] = {}
        self.turns: dict[RequestId, _Turn] = {}
        self._usual = UsualTurns()
        self._day = -1.0
        # The present day and month.
        self._periods: dict[str | None, str] = {}

    def apply_config(self, bounds: Sequence[BoundConfig], prices: Sequence[PriceConfig]) -> None:
        self._of_sessions = [each for each in bounds if each.scope == "session"]
        self._of_accounts = [each for each in bounds if each.scope != "session"]
        self.is_set, self.has_accounts = bool(bounds), bool(self._of_accounts)
        self._counts_repeats = any(each.counts_repeats for each in bounds)
        self._prices = {each.model: each for each in prices}

    def counts_tokens(self, tenant: TenantId) -> bool:
        """Whether the tenant has an enforced bound of tokens or cost, for any agent."""
        return any(
            (each.tokens is not None or each.cost is not None)
            and not each.shadow
            and (not each.tenants or tenant in each.tenants)
            for each in (*self._of_sessions, *self._of_accounts)
        )

    # --- arrivals ------------------------------------------------------------------------------------

    def quote(
        self, tenant: TenantId, agent: int, model: str | None, text_bytes: int, *, now: float
    ) -> tuple[tuple[Account, ...], Amounts]:
        self._roll_over_periods(now=now)
        return self._accounts(tenant, agent), self._expected(tenant, model, text_bytes)

    def arrived(self, use: TurnUse, reserved: Reserved | None = None, *, now: float) -> list[Reached]:
        """Reserves the turn's expected use; returns the bounds that it exceeds, the most severe first.
        `reserved`: by the shared store. `turn_over` or `turn_void` follows."""
        self._roll_over_periods(now=now)
        if reserved is not None:
            amounts = reserved.amounts
            accounts = tuple(each.account for each in reserved.spent)
            self.ledger.update((each.account, each.amounts) for each in reserved.spent)
        else:
            accounts, amounts = self.quote(use.tenant, use.agent, use.model, use.text_bytes, now=now)
            self._book(accounts, amounts)
        tally = None
        if use.session is not None:
            tally = self.sessions.get(use.session)
            if tally is None:
                tally = self.sessions[use.session] = _Tally(use.agent, Amounts(turns=use.turns_before))
            tally.used = tally.used.plus(amounts)
        self.turns[use.request] = _Turn(use, accounts, amounts)
        reached = [*self._of_session(use, tally, now=now), *self._of_totals(use, accounts)]
        reached.sort(key=lambda each: (each.bound.shadow, -_SEVERITY[each.bound.action]))
        return reached

    def _of_session(self, use: TurnUse, tally: _Tally | None, *, now: float) -> Iterator[Reached]:
        if tally is None or use.thread is None:
            return
        repeats = _NO_REPEATS
        if self._counts_repeats:
            repeats = tally.repeats(use.thread)
            repeats.saw(use.tail, use.called, use.brought)
        for bound in self._of_sessions:
            if bound.is_for(use.tenant, use.agent):
                yield from _beyond(bound, tally.used)
                duration_s, most_s = now - use.started_s, bound.max_duration_s
                if most_s is not None and duration_s > most_s:
                    yield Reached(bound, "max_duration_s", duration_s, most_s)
                # Counts of the past: the others include this turn.
                for limit, most, count in (
                    ("repeats", bound.repeats, repeats.steps.count),
                    ("same_calls", bound.same_calls, repeats.calls.count),
                ):
                    if most is not None and count >= most:
                        yield Reached(bound, limit, count, most)

    def _of_totals(self, use: TurnUse, accounts: Iterable[Account]) -> Iterator[Reached]:
        for bound in self._of_accounts:
            if bound.is_for(use.tenant, use.agent):
                period, is_whole = self._periods[bound.period], bound.scope == "tenant"
                for account in accounts:
                    if account.period == period and (account.agent == ALL_AGENTS) is is_whole:
                        yield from _beyond(bound, self.ledger.get(account, NOTHING))

    # --- ends ----------------------------------------------------------------------------------------

    def give_back(self, reserved: Reserved) -> None:
        self._book((each.account for each in reserved.spent), NOTHING.minus(reserved.amounts))

    def turn_over(self, request: RequestId, model: str | None, usage: Usage | None) -> None:
        """It was answered. `usage`: if unknown, the reservation counts. Unknown requests are no error."""
        turn = self.turns.pop(request, None)
        if turn is None or usage is None:
            return
        prompt, output = usage.prompt_tokens or 0, usage.output_tokens or 0
        price = price_of(self._prices, model)
        used = Amounts(1.0, prompt + output, price.cost(usage) if price is not None else 0.0)
        self._usual.observe(turn.use.tenant, turn.use.text_bytes, usage)
        self._settle(turn, used)

    def turn_void(self, request: RequestId) -> None:
        """It was refused, or failed. Unknown requests are no error."""
        turn = self.turns.pop(request, None)
        if turn is not None:
            self._settle(turn, NOTHING)

    def _settle(self, turn: _Turn, used: Amounts) -> None:
        more = used.minus(turn.amounts)
        self._book(turn.accounts, more)
        session = turn.use.session
        tally = self.sessions.get(session) if session is not None else None
        if tally is not None:
            tally.used = tally.used.plus(more)

    def session_over(self, session: SessionId) -> None:
        self.sessions.pop(session, None)

    def restore(self, spent: Iterable[Spent], *, now: float) -> None:
        self._roll_over_periods(now=now)
        for each in spent:
            if each.account.period in self._periods.values():
                known = self.ledger.get(each.account, NOTHING)
                self.ledger[each.account] = known.most(each.amounts)
                if each.account.agent not in (ALL_AGENTS, OTHER_AGENTS):
                    key = (each.account.tenant, each.account.period)
                    self._agents.setdefault(key, set()).add(each.account.agent)

    def shares(self, *, now: float) -> Iterator[tuple[BoundConfig, TenantId, float]]:
        self._roll_over_periods(now=now)
        for bound in self._of_accounts:
            period = self._periods[bound.period]
            for account, used in self.ledger.items():
                if bound.scope == "tenant" and account.period == period and account.agent == ALL_AGENTS:
                    if not bound.tenants or account.tenant in bound.tenants:
                        parts = (part / most for _, part, most in _limits(bound, used))
                        yield bound, account.tenant, max(0.0, *parts)

    # --- books ---------------------------------------------------------------------------------------

    def _book(self, accounts: Iterable[Account], more: Amounts) -> None:
        if more == NOTHING:
            return
        for account in accounts:
            if account.period in self._periods.values():
                self.ledger[account] = self.ledger.get(account, NOTHING).plus(more)
            if self._publishes:
                self.spent.append(Spent(account, more))

    def _accounts(self, tenant: TenantId, agent: int) -> tuple[Account, ...]:
        found: dict[Account, None] = {}
        for bound in self._of_accounts:
            if bound.is_for(tenant, agent):
                period = self._periods[bound.period]
                whose = ALL_AGENTS if bound.scope == "tenant" else self._agent(tenant, agent, period)
                found[Account(tenant, whose, period)] = None
        return tuple(found)

    def _agent(self, tenant: TenantId, agent: int, period: str) -> int:
        known = self._agents.setdefault((tenant, period), set())
        if agent in known:
            return agent
        if len(known) >= MAX_ACCOUNTS or agent in (ALL_AGENTS, OTHER_AGENTS):
            return OTHER_AGENTS
        known.add(agent)
        return agent

    def _expected(self, tenant: TenantId, model: str | None, text_bytes: int) -> Amounts:
        usage, price = self._usual.expected(tenant, text_bytes), price_of(self._prices, model)
        tokens = (usage.prompt_tokens or 0) + (usage.output_tokens or 0)
        return Amounts(1.0, tokens, price.cost(usage) if price is not None else 0.0)

    def _roll_over_periods(self, *, now: float) -> None:
        if now // _DAY_S == self._day:
            return
        self._day = now // _DAY_S
        day = datetime.fromtimestamp(now, UTC)
        self._periods = {"day": f"{day:%Y-%m-%d}", "month": f"{day:%Y-%m}"}
        running = self._periods.values()
        self.ledger = {account: used for account, used in self.ledger.items() if account.period in running}
        self._agents = {key: known for key, known in self._agents.items() if key[1] in running}


def _limits(bound: BoundConfig, used: Amounts) -> Iterator[tuple[str, float, float]]:
    for limit in ("turns", "tokens", "cost"):
        if (most := getattr(bound, limit)) is not None:
            yield limit, getattr(used, limit), most


def _beyond(bound: BoundConfig, used: Amounts) -> Iterator[Reached]:
    for limit, part, most in _limits(bound, used):
        if part > most:
            yield Reached(bound, limit, part, most)
