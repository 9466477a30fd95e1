"""What the brain expects of turns: when the first token comes, when the end, after how many tokens.

For each replica it keeps an estimator and what is in flight there; for each tenant and model, how many bytes
a token has.
Every turn that is sent gets an expectation; of some, what happened is held against it and learned from. A
lesson costs fifty times what an expectation costs, so there is an allowance of them, which time refills.

Deviations: a turn whose first token nobody sees, because its answer is not streamed, is expected to show it
with its end, and its delay is split into prefill and decoding as it was expected to be.

Invariants: memory is bounded by the number of replicas, of live turns, and of `REMEMBERED`; a replica learns
from at most `LESSONS_PER_S`, all together from at most `LESSONS_PER_S_IN_ALL`, after a first `ALLOWANCE`.
"""

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.core.turns.live import LiveRequest
from gateway.cost.estimator import Estimator, IsolatedCost, Peers, Prediction, TurnWork
from gateway.cost.in_flight import InFlight
from gateway.cost.profile import Profile
from gateway.cost.tokens import Counted, TokensPerByte
from gateway.domain.allowance import Allowance
from gateway.domain.decision import Edge
from gateway.domain.ids import PoolId, ReplicaId, RequestId, TenantId, ThreadId
from gateway.domain.records import Expected
from gateway.domain.request import Answer, Usage, Work
from gateway.domain.tenant_lru import TenantLru

LESSONS_PER_S: Final = 20.0
LESSONS_PER_S_IN_ALL: Final = 50.0
# Lessons that may be taken at once, after a pause.
ALLOWANCE: Final = 20.0
# First tokens of a replica, before one that is late says something about the replica.
EXPERIENCE: Final = 40
# Turns of which it is known how long they were, for those that continue them; or up to twice as many.
REMEMBERED: Final = 32_768
_MODELS: Final = 4096
# No engine is done sooner.
_LEAST_ALONE_S: Final = 1e-4
# Forms bring sound: an engine makes some 50 tokens of a second, which has 3 kB or more.
_FORM_FACTOR: Final = 16
# Its prompt begins with its parent's.
_GOES_ON: Final = frozenset((Edge.CONTINUES, Edge.FORKS, Edge.REWINDS, Edge.RETRIES))


class _Left(Counted, frozen=True):
    """What a turn left behind: its prompt, as it was counted, and its answer."""

    cached_tokens: int


class _Replica:
    def __init__(self, profile: Profile | None, peers: Peers | None) -> None:
        self.estimator = Estimator(profile, peers)
        self.in_flight = InFlight()
        self.lessons = Allowance(per_s=LESSONS_PER_S, burst=ALLOWANCE)
        # Once enough was seen of it, that stays so.
        self.is_known = profile is not None


class Forecasts:
    def __init__(self, profiles: Mapping[ReplicaId, Profile] | None = None) -> None:
        """`profiles`: what is believed of those replicas; of others nothing is, until it is seen."""
        self._profiles = dict(profiles or {})
        self._replicas: dict[ReplicaId, _Replica] = {}
        self._pools: dict[ReplicaId, PoolId] = {}
        self._peers: dict[PoolId | None, Peers] = {}
        # A client chooses how many bytes its tokens have, so it teaches this of its own tenant only.
        self._models: TenantLru[TenantId, str | None, TokensPerByte] = TenantLru(_MODELS)
        self._left: dict[RequestId | ThreadId | None, _Left] = {}
        # By turn, and the last one by conversation: the older half of what is remembered, or more.
        self._left_before: dict[RequestId | ThreadId | None, _Left] = {}
        # Live turns to learn from.
        self._lessons: dict[RequestId, Prediction] = {}

    def believe(self, profiles: Mapping[ReplicaId, Profile]) -> None:
        self._profiles = dict(profiles)

    # --- what is expected --------------------------------------------------------------------------

    def turn_s(
        self, replica: ReplicaId, new_tokens: float, cached_tokens: float, output_tokens: float
    ) -> float:
        return self._of(replica).estimator.turn_s(new_tokens, cached_tokens, output_tokens)

    def completion_s(self, replica: ReplicaId, work: TurnWork, *, now: float) -> float:
        known = self._of(replica)
        return known.estimator.predict(work, known.in_flight.load(now=now)).completion.seconds

    def is_experienced(self, replica: ReplicaId) -> bool:
        return self._of(replica).estimator.observations >= EXPERIENCE

    def prefill_s(self, replica: ReplicaId, usage: Usage) -> float | None:
        """What it takes to compute so much of a prompt there; None if usage does not say how much it was, or
        too little is known of the replica."""
        prompt, cached = usage.prompt_tokens, usage.cached_tokens
        if prompt is None or cached is None or (known := self._known(replica)) is None:
            return None
        return known.estimator.prefill_s(max(0, prompt - cached), cached)

    def alone(self, live: LiveRequest, replica: ReplicaId, usage: Usage) -> IsolatedCost | None:
        """What the turn takes there alone, if it finds all that the turn before it left; None if usage does
        not say how long it was, or too little is known of the replica. What was found need not be known."""
        prompt, output = usage.prompt_tokens, usage.output_tokens
        known = self._known(replica)
        if prompt is None or output is None or known is None:
            return None
        left, cached = self._before(live), usage.cached_tokens or 0
        found = max(cached, min(prompt, left.cached_tokens)) if left is not None else cached
        alone = known.estimator.alone(prompt - found, found, output)
        # Of sizes that are reported wrong, or are all the same, the fit learns that they cost nothing.
        return alone if alone.seconds >= _LEAST_ALONE_S else None

    def _known(self, replica: ReplicaId) -> _Replica | None:
        known = self._replicas.get(replica)
        if known is None or known.is_known:
            return known
        known.is_known = known.estimator.observations >= EXPERIENCE
        return known if known.is_known else None

    def expected_tokens(self, live: LiveRequest) -> float:
        before = self._before(live)
        if before is None:
            return live.text_bytes * self._of_model(live).ratio
        return before.tokens + (live.text_bytes - before.bytes) * self._of_model(live).ratio

    def prompt_alone(self, live: LiveRequest) -> Usage:
        """What a request took of which nothing is known but that an engine got it."""
        tokens = self.expected_tokens(live)
        if live.facts.is_form:
            tokens /= _FORM_FACTOR
        return Usage(prompt_tokens=round(tokens), output_tokens=0)

    def _counted(self, live: LiveRequest, answer: Answer, before: _Left | None) -> Answer:
        usage = answer.usage
        prompt, output = usage.prompt_tokens, usage.output_tokens
        is_whole = answer.has_terminal or answer.finish_reason is not None
        is_final = is_whole and (output or (output == 0 and not answer.content_bytes))  # or 0 at first
        if prompt is not None and is_final:
            return answer
        of_model = self._of_model(live)
        if prompt is None:
            prompt = round(of_model.expect(live.text_bytes, before))
        if not is_final:
            output = max(output or 0, math.ceil(answer.content_bytes * of_model.ratio))
        guessed = Usage(prompt_tokens=prompt, cached_tokens=usage.cached_tokens, output_tokens=output)
        return msgspec.structs.replace(answer, usage=guessed)

    # --- what happens ------------------------------------------------------------------------------

    def sent(
        self, live: LiveRequest, replica: ReplicaId, held: float, tokens: float | None = None, *, now: float
    ) -> Expected | None:
        """`held`: tokens of its prompt that are cached there, as far as placement knows; `tokens`: of all of
        it, as they were expected at this very moment."""
        facts = live.facts
        if facts.work is not Work.GENERATE or facts.is_relayed:
            return None
        known = self._replicas.get(replica) or self._of(replica)
        if tokens is None:
            tokens = self.expected_tokens(live)
        if live.session is not None and live.session.edge is Edge.SERVES and held > tokens:
            held = 0.0  # a summary has the whole conversation before it; a title is shorter
        cached = min(live.handed_over or held, tokens)
        work = TurnWork(new_tokens=tokens - cached, cached_tokens=cached)
        prediction = known.estimator.predict(work, known.in_flight.load(now=now))
        known.in_flight.sent(live.request, prediction, now=now)
        if not facts.stream:
            known.in_flight.first_token(live.request, now=now)  # nobody will see it
        # What is handed over takes its time to come, which says nothing of the replica.
        if not live.handed_over and known.lessons.take(now=now):
            self._lessons[live.request] = prediction
        end = prediction.completion
        first = prediction.first_token if facts.stream else end
        return Expected(
            prompt_tokens=int(tokens),
            cached_tokens=int(cached),
            output_tokens=int(known.estimator.usual_output),
            first_token_ms=first.seconds * 1e3,
            first_token_p10_ms=first.p10_s * 1e3,
            first_token_p90_ms=first.p90_s * 1e3,
            completion_ms=end.seconds * 1e3,
            completion_p10_ms=end.p10_s * 1e3,
            completion_p90_ms=end.p90_s * 1e3,
        )

    def leg_sent(self, request: RequestId, replica: ReplicaId, work: TurnWork, *, now: float) -> Prediction:
        known = self._of(replica)
        prediction = known.estimator.predict(work, known.in_flight.load(now=now))
        known.in_flight.sent(request, prediction, now=now)
        return prediction

    def leg_ended(
        self,
        request: RequestId,
        replica: ReplicaId,
        prediction: Prediction,
        usage: Usage | None,
        *,
        took_s: float,
        now: float,
    ) -> None:
        """`usage`: None if it did not come to its end."""
        known = self._replicas[replica]
        if usage is not None:
            known.in_flight.first_token(request, now=now)
        known.in_flight.ended(request)
        actual = _actual(prediction.work, usage) if usage is not None else None
        if actual is not None and known.lessons.take(now=now):
            known.estimator.observe_first_token(prediction, took_s, actual)

    def first_token(self, live: LiveRequest, replica: ReplicaId, *, now: float) -> None:
        if live.facts.work is Work.GENERATE and not live.facts.is_relayed:
            self._replicas[replica].in_flight.first_token(live.request, now=now)

    def ended(
        self, live: LiveRequest, replica: ReplicaId, answer: Answer | None, *, is_whole: bool, now: float
    ) -> Answer | None:
        """The answer, with a guess where the backend did not count: a stream does only on request.
        `is_whole`: it came to its end."""
        if live.facts.work is Work.POOL and answer is not None and answer.is_good:
            is_counted = answer.usage.prompt_tokens is not None
            return answer if is_counted else msgspec.structs.replace(answer, usage=self.prompt_alone(live))
        if live.facts.work is not Work.GENERATE or live.facts.is_relayed:
            return answer
        known, request = self._replicas[replica], live.request
        beside_s = known.in_flight.ended(request)
        prediction = self._lessons.pop(request, None)
        if answer is None or answer.status >= 400 or (answer.failure and not live.saw_first_token):
            return answer
        before = self._before(live)
        counted = self._counted(live, answer, before)
        usage = counted.usage
        prompt = usage.prompt_tokens or 0
        left = _Left(live.text_bytes, prompt, prompt + (usage.output_tokens or 0))
        if prediction is not None and answer.usage.prompt_tokens is not None:
            self._of_model(live).observe(left, before)
        if len(self._left) >= REMEMBERED:
            self._left_before, self._left = self._left, {}
        self._left[request] = left
        if live.session is not None:
            self._left[live.session.thread] = left
        if prediction is not None:
            _learn(known.estimator, prediction, live, usage, beside_s, is_whole=is_whole, now=now)
        return counted

    def replica_joined(self, replica: ReplicaId, pool: PoolId) -> None:
        self._pools[replica] = pool
        self._peers.setdefault(pool, Peers())

    def replica_left(self, replica: ReplicaId) -> None:
        peers = self._peers.get(self._pools.pop(replica, None))
        known = self._replicas.pop(replica, None)
        if known is not None:
            self._share_lessons()
            if peers is not None:
                peers.left(known.estimator)

    # --- books -------------------------------------------------------------------------------------

    def _of(self, replica: ReplicaId) -> _Replica:
        known = self._replicas.get(replica)
        if known is None:
            peers = self._peers.get(self._pools.get(replica))
            known = self._replicas[replica] = _Replica(self._profiles.get(replica), peers)
            self._share_lessons()
        return known

    def _share_lessons(self) -> None:
        for each in self._replicas.values():
            share = min(LESSONS_PER_S, LESSONS_PER_S_IN_ALL / len(self._replicas))
            each.lessons.per_s = share

    def _of_model(self, live: LiveRequest) -> TokensPerByte:
        owner, model = live.owner, live.facts.model if live.route is None else live.runs_on
        known = self._models.get(owner, model)
        if known is None:
            known = TokensPerByte()
            self._models.put(owner, model, known)
        return known

    def _before(self, live: LiveRequest) -> _Left | None:
        session = live.session
        if session is None:
            return None
        key: RequestId | ThreadId | None = session.parent
        if session.edge is Edge.SERVES:
            key = session.thread
        elif session.edge not in _GOES_ON:
            return None
        left = self._left.get(key) or self._left_before.get(key)
        return left if left is not None and left.bytes <= live.text_bytes else None


def _learn(
    estimator: Estimator,
    prediction: Prediction,
    live: LiveRequest,
    usage: Usage,
    beside_s: float,
    *,
    is_whole: bool,
    now: float,
) -> None:
    actual = _actual(prediction.work, usage)
    duration_s = now - live.submitted_s
    first_s = live.first_token_s - live.submitted_s if live.saw_first_token else None
    if not live.facts.stream:
        if actual is None or actual.output_tokens is None or not is_whole:
            return
        again = estimator.predict(actual, prediction.load)
        share = again.first_token.seconds / again.completion.seconds
        first_s, beside_s = share * duration_s, (1.0 - share) * beside_s
    if first_s is not None:
        estimator.observe_first_token(prediction, first_s, actual)
    if is_whole:
        estimator.observe_end(
            prediction,
            duration_s=duration_s,
            output_tokens=usage.output_tokens or 0,
            first_token_s=first_s,
            beside_s=beside_s,
            actual=actual,
        )


def _actual(expected: TurnWork, usage: Usage) -> TurnWork | None:
    prompt, cached = usage.prompt_tokens, usage.cached_tokens
    if prompt is None:
        return None
    found = min(expected.cached_tokens if cached is None else cached, prompt)
    return TurnWork(new_tokens=prompt - found, cached_tokens=found, output_tokens=usage.output_tokens)
