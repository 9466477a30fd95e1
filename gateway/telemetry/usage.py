"""What tenants used, by model: for Prometheus and for `GET /turnpike/usage` (pure).

A request that an engine has to work for counts once, when it is over: by the end of its last attempt, or by
the refusal or the leaving that came instead of one. Its tokens are those that its engine reported.

Invariants: `MAX_USERS` pairs of a tenant and a model are told apart, the others are counted together; a name
gets a place once an engine has answered under it, so nobody fills the table with names. Before that its
requests are its tenant's, of no model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

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


COLUMNS: Final = (
    *("tenant", "model", "requests", "failed", "prompt_tokens", "cached_tokens", "output_tokens", "cost"),
    *("requests_per_minute", "tokens_per_minute"),
)
"""`cost` where there is a price; a minute is the last one, its tokens those of prompts and outputs."""


class _Used:
    def __init__(self) -> None:
        self.ended: dict[str, int] = {}
        """Requests, by how they ended."""
        self.tokens = (0, 0, 0)
        """By kind."""
        self.cost: float | None = None
        self.lately: dict[int, tuple[int, int]] = {}
        """Requests and tokens, by second."""

    def row(self, user: User, *, now: float) -> dict[str, Any]:
        requests, lately = sum(self.ended.values()), self.lately.items()
        failed = requests - self.ended.get("finished", 0) - self.ended.get("client_left", 0)
        rates = [sum(each[at] for second, each in lately if second > now - _WINDOW_S) for at in (0, 1)]
        row = zip(COLUMNS, (*user, requests, failed, *self.tokens, self.cost, *rates), strict=True)
        return {name: value for name, value in row if value is not None}


class Usages:
    def __init__(self, prices: Sequence[PriceConfig] = ()) -> None:
        self._prices = {each.model: each for each in prices}
        self._used: dict[User, _Used] = {}
        self._slots: LabelSlots[User] = LabelSlots(MAX_USERS, self._used.__delitem__)

    def ended(self, records: Iterable[rec.GpuEnd]) -> None:
        for record in records:
            if record.outcome != "failed":  # else another attempt follows, or a refusal
                outcome = outcome_of(record.outcome, record.status, record.failure)
                self._add(record.tenant, record.model, outcome, record.usage, now=record.at_s)

    def over(self, outcome: str, records: Iterable[rec.Refused | rec.TurnLeft]) -> None:
        """Without an attempt that ended otherwise."""
        for record in records:
            if record.model is not None:
                self._add(record.tenant, record.model, outcome, _NO_USAGE, now=record.at_s)

    def rows(self, *, now: float) -> list[dict[str, Any]]:
        return [self._used[user].row(user, now=now) for user in sorted(self._used)]

    def families(self) -> Iterator[tuple[str, str, str, Mapping[Any, float]]]:
        """Names, what they are, a label besides tenant and model, and values."""
        used = self._used.items()
        requests = {(*user, outcome): n for user, each in used for outcome, n in each.ended.items()}
        yield "tenant_requests", "Requests for an engine's work, as they ended", "outcome", requests
        tokens = {(*user, kind): n for user, each in used for kind, n in zip(KINDS, each.tokens, strict=True)}
        yield "tenant_tokens", "Their tokens, as backends reported them", "kind", tokens
        costs = {user: each.cost for user, each in used if each.cost is not None}
        yield "tenant_cost", "What these cost, where there are prices", "", costs

    def _add(self, tenant: str | None, model: str | None, outcome: str, usage: Usage, *, now: float) -> None:
        prompt, cached, output = usage.prompt_tokens, usage.cached_tokens or 0, usage.output_tokens or 0
        user = tenant or OTHER, model or ""
        if outcome != "finished" and prompt is None and user not in self._used:
            user = user[0], ""
        if not self._slots.take(user, now=now):
            user = OTHER, OTHER
        if (used := self._used.get(user)) is None:
            used = self._used[user] = _Used()
        used.ended[outcome] = used.ended.get(outcome, 0) + 1
        if prompt is None:
            prompt = output = 0
        else:
            before = used.tokens
            used.tokens = before[0] + prompt, before[1] + cached, before[2] + output
            if self._prices and (price := price_of(self._prices, model)) is not None:
                used.cost = (used.cost or 0.0) + price.cost(usage)
        second = int(now)
        if (so_far := used.lately.get(second)) is None:
            used.lately = {each: n for each, n in used.lately.items() if each > second - _WINDOW_S}
            so_far = 0, 0
        used.lately[second] = so_far[0] + 1, so_far[1] + prompt + output


def outcome_of(outcome: str, status: int | None, failure: str) -> str:
    """Of an attempt: also what kind of answer it was. `failure`: as in `Answer`."""
    if outcome != "finished" or (status or 0) < 400:
        return failure if outcome == "finished" and failure else outcome
    return "error" if (status or 0) >= 500 else "rejected"
