"""What tenants used, by key and model: for Prometheus and for `GET /turnpike/usage` (pure).

A request that an engine has to work for counts once, when it is over: by the end of its last attempt, or by
the refusal or the leaving that came instead of one. Its tokens are those that its engine reported;
what is taken for those that it did not report is counted apart.

Invariants: `MAX_USERS` sets of a tenant, a key and a model are counted apart, in equal shares where tenants
have more; what has no place, or no longer, is its tenant's `other`, so a tenant's sums lose nothing. A name
gets a place once an engine has answered under it, so nobody fills the table with names. Before that its
requests are its key's, of no model.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import add, itemgetter
from typing import Any, Final

from gateway.budgets.budgets import PriceConfig, price_of
from gateway.domain import records as rec
from gateway.domain.ids import shown_tenant
from gateway.domain.request import Usage
from gateway.telemetry.label_slots import LabelSlots

MAX_USERS: Final = 200
OTHER: Final = "other"
KINDS: Final = ("prompt", "cached", "output")
_ALL_KINDS: Final = (*KINDS, "estimated")
_WINDOW_S: Final = 60
_NO_USAGE: Final = Usage()

_Counts = tuple[int, ...]
# A tenant, the name of its key, and a model as its replicas know it; each empty if there is none.
User = tuple[str, str, str]

WHOSE: Final = ("tenant", "key", "model")
# `cost` of reported tokens, where there is a price; a minute is the last one, its tokens those of prompts
# and outputs, also where they are estimated.
COLUMNS: Final = (
    *(*WHOSE, "requests", "failed", *(f"{kind}_tokens" for kind in _ALL_KINDS), "cost"),
    *("requests_per_minute", "tokens_per_minute"),
)


class _Used:
    def __init__(self) -> None:
        # Requests, by how they ended.
        self.ended: Counter[str] = Counter()
        self.tokens: _Counts = (0, 0, 0, 0)
        self.cost: float | None = None
        # Requests and tokens, by second.
        self.lately: dict[int, _Counts] = {}

    def take_over(self, other: "_Used") -> None:
        self.ended += other.ended
        for second, n_each in other.lately.items():
            self.lately[second] = _sum(self.lately.get(second, (0, 0)), n_each)
        self.tokens = _sum(self.tokens, other.tokens)
        if other.cost is not None:
            self.cost = (self.cost or 0.0) + other.cost

    def row(self, user: User, *, now: float) -> dict[str, Any]:
        requests, lately = sum(self.ended.values()), self.lately.items()
        failed = requests - self.ended.get("finished", 0) - self.ended.get("client_left", 0)
        rates = [sum(each[at] for second, each in lately if second > now - _WINDOW_S) for at in (0, 1)]
        cost = None if self.cost is None else round(self.cost, 9)
        row = zip(COLUMNS, (*user, requests, failed, *self.tokens, cost, *rates), strict=True)
        return {name: value for name, value in row if value is not None}


class Usages:
    def __init__(self, prices: Sequence[PriceConfig] = ()) -> None:
        self.apply_config(prices)
        self._used: dict[User, _Used] = defaultdict(_Used)
        self._slots: LabelSlots[User] = LabelSlots(MAX_USERS, self._forget, itemgetter(0))

    def ended(self, records: Iterable[rec.GpuEnd]) -> None:
        for record in records:
            if record.outcome != "failed":  # else another attempt follows, or a refusal
                outcome = outcome_of(record.outcome, record.status, record.failure)
                self._add(record, outcome, record.usage, record.estimated_tokens)

    def over(self, outcome: str, records: Iterable[rec.Refused | rec.TurnLeft]) -> None:
        for record in records:
            if record.model is not None:
                self._add(record, outcome, _NO_USAGE)

    def rows(self, *, now: float) -> list[dict[str, Any]]:
        return [self._used[user].row(user, now=now) for user in sorted(self._used)]

    def families(self) -> Iterator[tuple[str, str, str, Mapping[Any, float]]]:
        """Names, what they are, a label besides `WHOSE`, and values."""
        used = self._used.items()
        requests = {(*user, outcome): n for user, each in used for outcome, n in each.ended.items()}
        yield "tenant_requests", "Requests with work for an engine, by their end", "outcome", requests
        kinds = ((user, zip(_ALL_KINDS, each.tokens, strict=True)) for user, each in used)
        tokens = {(*user, kind): n for user, counts in kinds for kind, n in counts}
        what = "Tokens of requests with work for an engine, reported or estimated"
        yield "tenant_tokens", what, "kind", tokens
        costs = {user: each.cost for user, each in used if each.cost is not None}
        yield "tenant_cost", "Cost of the reported tokens, in the currency of `[[prices]]`", "", costs

    def apply_config(self, prices: Sequence[PriceConfig]) -> None:
        self._prices = {each.model: each for each in prices}

    def _add(
        self, record: rec.GpuEnd | rec.Refused | rec.TurnLeft, outcome: str, usage: Usage, estimated: int = 0
    ) -> None:
        prompt, cached, output = usage.prompt_tokens, usage.cached_tokens or 0, usage.output_tokens or 0
        user = shown_tenant(record.tenant or OTHER), record.key, record.model or ""
        if outcome != "finished" and prompt is None and user not in self._used:
            user = *user[:2], ""
        used = self._used[user] if self._slots.take(user, now=record.at_s) else self._other(user[0])
        used.ended[outcome] += 1
        if prompt is None:
            prompt = output = 0
        elif self._prices and (price := price_of(self._prices, record.model)) is not None:
            used.cost = (used.cost or 0.0) + price.cost(usage)
        used.tokens = _sum(used.tokens, (prompt, cached, output, estimated))
        second = int(record.at_s)
        if (so_far := used.lately.get(second)) is None:
            used.lately = {each: n for each, n in used.lately.items() if each > second - _WINDOW_S}
            so_far = 0, 0
        used.lately[second] = _sum(so_far, (1, prompt + output + estimated))

    def _other(self, tenant: str) -> _Used:
        user = tenant, OTHER, OTHER
        has_place = user in self._used or len(self._used) < 2 * MAX_USERS
        return self._used[user if has_place else (OTHER, OTHER, OTHER)]

    def _forget(self, user: User) -> None:
        used = self._used.pop(user)
        self._other(user[0]).take_over(used)


def _sum(one: _Counts, other: _Counts) -> _Counts:
    return tuple(map(add, one, other))


def outcome_of(outcome: str, status: int | None, failure: str) -> str:
    """Of an attempt: also what kind of answer it was. `failure`: as in `Answer`."""
    if outcome != "finished" or (status or 0) < 400:
        return failure if outcome == "finished" and failure else outcome
    return "error" if (status or 0) >= 500 else "rejected"
