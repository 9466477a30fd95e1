"""What tenants used, by model: for Prometheus and for `GET /turnpike/usage` (pure).

A request that an engine has to work for counts once, when it is over: by the end of its last attempt, or by
the refusal or the leaving that came instead of one. Its tokens are those that its engine reported.

Invariants: `MAX_USERS` pairs of a tenant and a model are told apart, the others are counted together; a name
gets a place once an engine has answered under it, so nobody fills the table with names. Before that its
requests are its tenant's, of no model.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from gateway.admission.bounds import PriceConfig, price_of
from gateway.domain import records as rec
from gateway.domain.request import Usage
from gateway.telemetry.label_slots import LabelSlots

MAX_USERS: Final = 200
OTHER: Final = "other"
KINDS: Final = ("prompt", "cached", "output")
_WINDOW_S: Final = 60
_NO_USAGE: Final = Usage()

User = tuple[str, str]
"""A tenant, and a model as its replicas know it; empty if none is named."""


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    model: str
    requests: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: float | UnsetType = UNSET
    """Where `[[prices]]` has a price."""
    requests_per_minute: int
    """Of the last 60 seconds, like `tokens_per_minute`: those of prompts and outputs."""
    tokens_per_minute: int


class Usages:
    def __init__(self, prices: Sequence[PriceConfig] = ()) -> None:
        self._prices = {each.model: each for each in prices}
        self._slots: LabelSlots[User] = LabelSlots(MAX_USERS, self._forget)
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """With how they ended."""
        self.tokens: Counter[tuple[str, str, str]] = Counter()
        """With their kind."""
        self.cost: dict[User, float] = {}
        self._lately: dict[User, dict[int, tuple[int, int]]] = {}
        """Requests and tokens, by second."""

    def ended(self, records: Iterable[rec.GpuEnd]) -> None:
        for record in records:
            if record.outcome != "failed":  # else another attempt follows, or a refusal
                outcome = outcome_of(record.outcome, record.status, record.failure)
                self._add(record.tenant, record.model, outcome, record.usage, now=record.at_s)

    def refused(self, records: Iterable[rec.Refused]) -> None:
        for record in records:
            if record.model is not None:
                self._add(record.tenant, record.model, "refused", now=record.at_s)

    def left(self, records: Iterable[rec.TurnLeft]) -> None:
        for record in records:
            if record.model is not None:
                self._add(record.tenant, record.model, "client_left", now=record.at_s)

    def rows(self, *, now: float) -> list[UsageRow]:
        ended: dict[User, Counter[str]] = defaultdict(Counter)
        for (tenant, model, outcome), count in self.requests.items():
            ended[tenant, model][outcome] = count
        return [self._row(user, ended[user], now=now) for user in sorted(ended)]

    def _row(self, user: User, ended: Counter[str], *, now: float) -> UsageRow:
        lately = [each for second, each in self._lately[user].items() if second > now - _WINDOW_S]
        return UsageRow(
            tenant=user[0],
            model=user[1],
            requests=ended.total(),
            failed=ended.total() - ended["finished"] - ended["client_left"],
            prompt_tokens=self.tokens[*user, "prompt"],
            cached_tokens=self.tokens[*user, "cached"],
            output_tokens=self.tokens[*user, "output"],
            cost=self.cost.get(user, UNSET),
            requests_per_minute=sum(requests for requests, _ in lately),
            tokens_per_minute=sum(tokens for _, tokens in lately),
        )

    def _add(
        self, tenant: str | None, model: str | None, outcome: str, usage: Usage = _NO_USAGE, *, now: float
    ) -> None:
        is_counted = usage.prompt_tokens is not None
        user = tenant or OTHER, model or ""
        if outcome != "finished" and not is_counted and user not in self._slots:
            user = user[0], ""
        if not self._slots.take(user, now=now):
            user = OTHER, OTHER
        self.requests[*user, outcome] += 1
        prompt, cached, output = usage.prompt_tokens or 0, usage.cached_tokens or 0, usage.output_tokens or 0
        if is_counted:
            for kind, count in zip(KINDS, (prompt, cached, output), strict=True):
                self.tokens[*user, kind] += count
            if (price := price_of(self._prices, model)) is not None:
                self.cost[user] = self.cost.get(user, 0.0) + price.cost(usage)
        lately, second = self._lately.setdefault(user, {}), int(now)
        if second not in lately:
            for old in [each for each in lately if each <= second - _WINDOW_S]:
                del lately[old]
        requests, tokens = lately.get(second, (0, 0))
        lately[second] = requests + 1, tokens + (prompt + output if is_counted else 0)

    def _forget(self, user: User) -> None:
        for table in (self.requests, self.tokens):
            for key in [key for key in table if key[:2] == user]:
                del table[key]
        self.cost.pop(user, None)
        del self._lately[user]


def outcome_of(outcome: str, status: int | None, failure: str) -> str:
    """Of an attempt: also what kind of answer it was. `failure`: as in `Answer`."""
    if outcome != "finished" or (status or 0) < 400:
        return failure if outcome == "finished" and failure else outcome
    return "error" if (status or 0) >= 500 else "rejected"
