"""How right inference was: pairs of turns, parents and retries, against the recorded truth.

*Sessions*: of all pairs of turns in one recording, those that share a session. *Threads*: the same, within
a true session whose client names its threads. *Links*: a turn's parent. No recording names it, so it is
derived from content alone, by other means than inference: the latest earlier turn of the same true session
and thread whose messages, as the client sent them, are a proper prefix of this turn's messages. Turns whose
history was rewritten have no such parent and are not counted; failed attempts are nobody's parents.
*Retries*: a turn whose body equals that of an earlier, broken attempt of the same true session and thread,
with nothing in between that succeeded with that body.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.identity.explicit_ids import IDENTITY_BODY_FIELDS
from lab.evaluation.recording import Exchange
from lab.evaluation.replay import REPLICAS, Placed


class Score(msgspec.Struct):
    right: int = 0
    found: int = 0
    true: int = 0

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        return self.right / self.true if self.true else 1.0

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


class Scores(msgspec.Struct):
    """Of one recording."""

    turns: int
    sessions: Score
    acted_upon: Score
    """The same, of the pairs that were treated as one session's."""
    threads: Score
    links: Score
    retries: Score
    placed: Score
    """Of the links, those whose turn ran on the replica of its parent."""
    balance: float
    """Turns of the fullest replica, for the mean of all."""
    by_prefix_hash: Score
    """Of sessions, pairs that affinity by a hash of the prompt's beginning would join."""
    ambiguous: int


def score(placed: Sequence[Placed]) -> Scores:
    exchanges = [p.exchange for p in placed]
    named = {p.exchange.truth.session for p in placed if p.exchange.truth.thread is not None}
    in_named = [p for p in placed if p.exchange.truth.session in named]
    links, retries = true_parents(exchanges)
    return Scores(
        turns=len(placed),
        sessions=_pairs([(p.exchange.truth.session, p.session) for p in placed]),
        acted_upon=_pairs([(p.exchange.truth.session, p.acts_as) for p in placed]),
        threads=_pairs(
            [((p.exchange.truth.session, p.exchange.truth.thread), (p.session, p.thread)) for p in in_named]
        ),
        links=_links(placed, links, retries),
        retries=_retries(placed, retries),
        placed=_placed_with(placed, links),
        balance=_balance(placed),
        by_prefix_hash=_pairs([(p.exchange.truth.session, _beginning(p.exchange)) for p in placed]),
        ambiguous=_ambiguous(exchanges),
    )


def _pairs(labels: Sequence[tuple[Any, Any]]) -> Score:
    """Pairs of turns with one label, counted without enumerating them."""

    def count(sizes: Counter[Any]) -> int:
        return sum(size * (size - 1) // 2 for size in sizes.values())

    return Score(
        right=count(Counter(labels)),
        found=count(Counter(found for _, found in labels)),
        true=count(Counter(true for true, _ in labels)),
    )


def _beginning(exchange: Exchange) -> bytes:
    """What the system says, and the first message of the conversation."""
    body = exchange.body if isinstance(exchange.body, dict) else {}
    items = body.get("messages", body.get("input"))
    systems = [item for item in items if _is_system(item)] if isinstance(items, list) else []
    stated = [body.get("system"), body.get("instructions"), systems, _messages(exchange)[:1]]
    return msgspec.json.encode(_without_marks(stated), order="sorted")


def _messages(exchange: Exchange) -> list[bytes]:
    body = exchange.body if isinstance(exchange.body, dict) else {}
    items = body.get("messages", body.get("input"))
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    return [_plain(item) for item in items or () if not _is_system(item)]


def _is_system(item: Any) -> bool:
    return isinstance(item, dict) and item.get("role") in ("system", "developer")


def _plain(item: Any) -> bytes:
    """The message without the cache marks that clients move about."""
    return msgspec.json.encode(_without_marks(item), order="sorted")


def _without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_marks(v) for k, v in value.items() if k != "cache_control" and v is not None}
    if isinstance(value, list):
        if (
            len(value) == 1
            and isinstance(value[0], dict)
            and value[0].keys() <= {"type", "text", "cache_control"}
        ):
            return value[0].get("text")
        return [_without_marks(part) for part in value]
    return value


def _body_key(exchange: Exchange) -> bytes:
    body = exchange.body
    if isinstance(body, dict):
        hidden = IDENTITY_BODY_FIELDS | {"stream"}
        body = {name: value for name, value in body.items() if name not in hidden}
    return msgspec.json.encode(body, order="sorted")


def true_parents(exchanges: Sequence[Exchange]) -> tuple[dict[int, int], set[int]]:
    """Each turn's parent where it has one by content, and the turns that are retries."""
    links: dict[int, int] = {}
    retries: set[int] = set()
    earlier: dict[Any, list[tuple[int, list[bytes], bytes, Exchange]]] = defaultdict(list)
    for number, exchange in enumerate(exchanges):
        messages, key = _messages(exchange), _body_key(exchange)
        place = earlier[exchange.truth.session, exchange.truth.thread]
        same = [other for other in place if other[2] == key]
        if same and same[-1][3].is_broken:
            retries.add(number)
        fits = [
            (len(other[1]), other[0])
            for other in place
            if 0 < len(other[1]) < len(messages)
            and messages[: len(other[1])] == other[1]
            and (not other[3].is_broken or other[3].response is not None)
        ]
        if fits:
            links[number] = _answered(fits, messages, exchanges)
        place.append((number, messages, key, exchange))
    return links, retries


def _answered(fits: Sequence[tuple[int, int]], messages: list[bytes], exchanges: Sequence[Exchange]) -> int:
    """Of equally long prefixes, the one whose answer's call ids stand behind it; else the latest."""
    longest = max(fits)[0]
    twins = [number for length, number in sorted(fits) if length == longest]
    behind = b"".join(messages[longest:])
    for number in reversed(twins):
        ids = [call.id.encode() for call in exchanges[number].answer().tool_calls]
        if ids and all(call in behind for call in ids):
            return number
    return twins[-1]


def _links(placed: Sequence[Placed], links: dict[int, int], retries: set[int]) -> Score:
    true = {at: parent for at, parent in links.items() if at not in retries}
    numbers = _numbers(placed)
    result = Score(true=len(true))
    for at, p in enumerate(placed):
        if at not in true:
            continue
        if p.parent is not None:
            result.found += 1
            result.right += numbers.get(p.parent) == true[at]
    return result


def _placed_with(placed: Sequence[Placed], links: dict[int, int]) -> Score:
    right = sum(placed[at].replica == placed[parent].replica for at, parent in links.items())
    return Score(right=right, found=len(links), true=len(links))


def _balance(placed: Sequence[Placed]) -> float:
    turns = Counter(p.replica for p in placed)
    return max(turns.values()) * REPLICAS / len(placed) if placed else 1.0


def _numbers(placed: Sequence[Placed]) -> dict[int, int]:
    """From an exchange's number in its recording to its place among the turns."""
    return {p.number: at for at, p in enumerate(placed)}


def _retries(placed: Sequence[Placed], retries: set[int]) -> Score:
    found = {at for at, p in enumerate(placed) if p.edge == "retries"}
    return Score(right=len(found & retries), found=len(found), true=len(retries))


def _ambiguous(exchanges: Sequence[Exchange]) -> int:
    """Turns that no rule on content can tell from a turn of another session: the same bytes, without any
    answer of the model in them, while the other session was at work."""
    spans: dict[str, tuple[float, float]] = {}
    for exchange in exchanges:
        first, last = spans.get(exchange.truth.session, (exchange.t, exchange.t))
        end = exchange.t_end or exchange.t
        spans[exchange.truth.session] = (min(first, exchange.t), max(last, end))
    groups: dict[bytes, list[Exchange]] = defaultdict(list)
    for exchange in exchanges:
        groups[_body_key(exchange)].append(exchange)
    count = 0
    for twins in groups.values():
        for exchange in twins:
            others = {twin.truth.session for twin in twins} - {exchange.truth.session}
            count += any(spans[other][0] <= exchange.t <= spans[other][1] for other in others)
    return count
