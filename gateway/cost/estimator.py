"""The estimator: how long will this turn take on that replica, until its first token, and until its end?

Source: Agent.xpu, §4.2 (predictive annotation: TTFT of a task, TPOT of a batch, from the roofline) and
Appendix B.

Symbols: TTFT → `Prediction.first_token`; TPOT → the decode fit's prediction; W, Q, P_eff, B_eff as in
`roofline.py`.

Deviations: the paper measures kernels offline and finds their times stable. Here the roofline only gives the
parts of a turn's time, in seconds by the profile: launching, matrix products, attention, prefills ahead,
steps shared with decoding rows, reading the prompt. Their weights are fitted online to launch delays and
decode rates (`fit.py`), so a wrong or missing profile costs some tens of observations. A replica without a
profile is predicted like a peer of its pool, until its first answer. Error bars are the recent errors of
predictions (`error_bars.py`).

Invariants: memory is constant; predictions are positive, and p10 ≤ p90; predicting changes nothing.
"""

import math
from typing import Final

import msgspec

from gateway.cost.error_bars import ErrorBars
from gateway.cost.fit import DecayingFit
from gateway.cost.formula import LEAST_S, READING_S, Formula, context_product, weight_bytes_read
from gateway.cost.profile import Hardware, Model, Profile

# Of an unknown server without known peers.
UNKNOWN: Final = Profile(
    hardware=Hardware(
        name="unknown",
        peak_flops=300e12,
        memory_bytes_per_s=2e12,
        memory_bytes=80e9,
        host_link_bytes_per_s=25e9,
        source="a guess, until observed",
    ),
    model=Model(
        name="unknown",
        active_parameters=8e9,
        dense_weight_bytes=16e9,
        kv_bytes_per_token=131_072,
        attention_flops_per_context_token=524_288,
        source="a guess, until observed",
    ),
)

_FIRST_TOKEN_BELIEF: Final = (1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
_DECODE_BELIEF: Final = (1.0, 1.0, 1.0, 1.0, 0.0)
_UNDISTURBED_BELIEF: Final = (1.0, 1.0, 1.0, 1.0, 1.0)
_TRIED: Final = 4.0
# Prior error bars to either side: with a profile, and without.
_GUESSED: Final = 30.0
# No engine is so quick: a server without CPU time for its writes delivers whole answers at once.
_LEAST_TOKEN_S: Final = 2e-4
# Rows that decode beside the one in question; from 4 to 64 its cost is nearly the same.
_AMONG: Final = 16
# A prior.
OUTPUT_TOKENS: Final = 200.0
# To compare replicas: new, cached and output tokens.
_USUAL_TURN: Final = (2_000.0, 20_000.0, OUTPUT_TOKENS)
# Turns in the mean of usual output.
_OUTPUTS: Final = 50


class TurnWork(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Estimates, until the engine reports its usage."""

    new_tokens: float
    """Uncached ones of the prompt."""
    cached_tokens: float = 0.0
    output_tokens: float | None = None
    """None: the usual number."""


class Load(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The replica's other work, by `InFlight`."""

    decoding: int = 0
    """Turns after their first token."""
    decoding_context_tokens: float = 0.0
    queued_tokens: float = 0.0
    """New tokens of turns before their first token."""
    queued_products: float = 0.0
    """Σ of their `context_product`."""
    queued_prompt_tokens: float = 0.0
    """Of their whole prompts: a server reads cached tokens, too."""


_NOTHING_ELSE: Final = Load()
_AMONG_OTHERS: Final = Load(decoding=_AMONG, decoding_context_tokens=_AMONG)


class Estimate(msgspec.Struct, frozen=True, gc=False):
    seconds: float
    p10_s: float
    p90_s: float


class Prediction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    work: TurnWork
    load: Load
    first_token: Estimate
    completion: Estimate
    prefill_s: float
    """Until the first token, on an idle replica."""


class IsolatedCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of a turn on an idle replica."""

    seconds: float
    fresh_s: float
    """Of that, the prefill of new tokens."""
    full_prefill_s: float
    """With nothing cached."""
    decode_s: float
    """From the first token to the last."""
    row_s: float
    """The time that it adds to the steps of other rows. An engine reads its weights once for all rows, so
    this is far less than `decode_s`."""


class Estimator:
    """Of one replica."""

    def __init__(self, profile: Profile | None = None, peers: "Peers | None" = None) -> None:
        """`peers`: of its pool; one of them stands for this one while it is unseen."""
        self._profile = profile or UNKNOWN
        self._flops_per_s, self._bytes_per_s = self._profile.flops_per_s, self._profile.bytes_per_s
        self._steps_alone = self._decode_steps(1.0, _NOTHING_ELSE)
        self._steps_among = self._decode_steps(1.0, _AMONG_OTHERS)
        trust, untried = (0.5, _TRIED) if profile is not None else (0.0, _GUESSED)
        self._first_token = DecayingFit(_FIRST_TOKEN_BELIEF, trust=trust)
        self._per_token = DecayingFit(_DECODE_BELIEF, trust=trust)
        # Of a token, without prefills meanwhile: known only at the end.
        self._undisturbed = DecayingFit(_UNDISTURBED_BELIEF, trust=trust)
        self._first_token_errors = ErrorBars(untried)
        # By whether the output's length was known.
        self._completion_errors = {True: ErrorBars(untried), False: ErrorBars(untried)}
        self._log_output = math.log(OUTPUT_TOKENS)
        self._outputs = 0
        # As of the formula.
        self.usual_output = OUTPUT_TOKENS
        # None after an observation, until it and the values around it are recomputed.
        self._formula: Formula | None = None
        self._token_alone = (0.0, 0.0, 0.0, 0.0)
        self.is_unseen = profile is None
        self._peers = peers
        if peers is not None and not self.is_unseen:
            peers.seen(self)

    @property
    def observations(self) -> int:
        return self._first_token.observations

    def formula(self) -> Formula:
        return self._formula or self._multiplied_out()

    def predict(self, work: TurnWork, load: Load) -> Prediction:
        formula = self._formula or self._multiplied_out()
        new, cached = work.new_tokens, work.cached_tokens
        alone_s = formula.alone_s(new, cached)
        first_s = alone_s + formula.more_s(new, load)
        output = work.output_tokens
        known = output is not None
        decoded = (output if output is not None else self.usual_output) - 1
        total_s = first_s
        if decoded > 0:
            total_s += decoded * formula.token_s(new + cached, load)
        low, high = self._first_token_errors.bars
        least, most = self._completion_errors[known].bars
        return Prediction(
            work=work,
            load=load,
            first_token=Estimate(first_s, first_s * low, first_s * high),
            completion=Estimate(total_s, total_s * least, total_s * most),
            prefill_s=alone_s,
        )

    def _multiplied_out(self) -> Formula:
        if self._peers is not None and self.is_unseen:
            peer = self._peers.median
            formula = peer.formula()
            self.usual_output = peer.usual_output
            return formula  # not cached: the peer learns
        self.usual_output = math.exp(self._log_output)
        self._formula = Formula(self._profile, self._first_token.coefficients, self._per_token.coefficients)
        launch, weights, own, others, _ = self._undisturbed.coefficients
        overhead_s, weights_s, own_s, _ = self._steps_alone
        _, among_s, _, others_s = self._steps_among
        alone, among = launch * overhead_s + weights * weights_s, launch * overhead_s + weights * among_s
        self._token_alone = alone, own * own_s, among, others * others_s
        return self._formula

    def prefill_s(self, new_tokens: float, cached_tokens: float) -> float:
        return self.formula().alone_s(new_tokens, cached_tokens)

    def turn_s(self, new_tokens: float, cached_tokens: float, output_tokens: float) -> float:
        formula = self._formula or self._multiplied_out()
        seconds = formula.alone_s(new_tokens, cached_tokens)
        if output_tokens > 1:
            seconds += (output_tokens - 1) * formula.token_s(new_tokens + cached_tokens, _NOTHING_ELSE)
        return seconds

    def alone(self, new_tokens: float, cached_tokens: float, output_tokens: float) -> IsolatedCost:
        formula = self._formula or self._multiplied_out()
        fresh_s, prompt = formula.alone_s(new_tokens, cached_tokens), new_tokens + cached_tokens
        fixed_s, own_s, among_s, others_s = self._token_alone
        token_s = max(LEAST_S, fixed_s + own_s * prompt)
        beside_s = max(LEAST_S, among_s + (own_s + others_s) * prompt)
        decoded = max(0.0, output_tokens - 1)
        return IsolatedCost(
            seconds=fresh_s + decoded * token_s,
            fresh_s=fresh_s,
            full_prefill_s=formula.alone_s(prompt, 0.0),
            decode_s=decoded * token_s,
            row_s=decoded * max(0.0, min(token_s, (beside_s - token_s) / _AMONG)),
        )

    def observe_first_token(
        self, prediction: Prediction, launch_delay_s: float, actual: TurnWork | None = None
    ) -> None:
        """`actual`: by usage, once known."""
        launch_delay_s = max(LEAST_S, launch_delay_s)
        self._formula = None
        self._first_token_errors.observe(launch_delay_s / prediction.first_token.seconds)
        features = self._first_token_features(actual or prediction.work, prediction.load)
        self._first_token.observe(features, launch_delay_s)
        if self.is_unseen:
            self.is_unseen = False
            if self._peers is not None:
                self._peers.seen(self)

    def observe_end(
        self,
        prediction: Prediction,
        *,
        duration_s: float,
        output_tokens: int,
        first_token_s: float | None = None,
        beside_s: float = 0.0,
        actual: TurnWork | None = None,
    ) -> None:
        """`first_token_s`: None without a visible first token. `beside_s`: of others' prefills after it, each
        alone."""
        self._formula = None
        knew = prediction.work.output_tokens is not None
        self._completion_errors[knew].observe(max(LEAST_S, duration_s) / prediction.completion.seconds)
        if output_tokens < 1:
            return
        self._outputs += 1
        self._log_output += (math.log(output_tokens) - self._log_output) / min(self._outputs, _OUTPUTS)
        if first_token_s is None or output_tokens < 2:
            return
        token_s = (duration_s - first_token_s) / (output_tokens - 1)
        if token_s >= _LEAST_TOKEN_S:
            work, load = actual or prediction.work, prediction.load
            steps = self._decode_steps(work.new_tokens + work.cached_tokens, load)
            # By the belief, rows cost only what they read.
            self._per_token.observe((*steps, self._profile.step_overhead_s * load.decoding), token_s)
            self._undisturbed.observe((*steps, beside_s / (output_tokens - 1)), token_s)

    def _first_token_features(self, work: TurnWork, load: Load) -> tuple[float, ...]:
        profile, model = self._profile, self._profile.model
        new = max(1.0, work.new_tokens)  # the last token of a prompt is always computed
        steps = 1 + (new + load.queued_tokens) / profile.chunk_tokens
        token_s = 2 * model.active_parameters / self._flops_per_s
        product_s = model.attention_flops_per_context_token / self._flops_per_s
        read_s = model.kv_bytes_per_token * load.decoding_context_tokens / self._bytes_per_s
        weights_s = weight_bytes_read(profile, new) / self._bytes_per_s
        under_way_s = 0.0
        if load.decoding:  # half a step on average, until the next one begins
            decoding_weights_s = weight_bytes_read(profile, load.decoding) / self._bytes_per_s
            under_way_s = (profile.step_overhead_s + decoding_weights_s + read_s) / 2
        return (
            profile.step_overhead_s * steps,
            max(token_s * new, weights_s),
            token_s * new,  # 0 by the belief; for a profile with a wrong knee
            product_s * context_product(new, work.cached_tokens),
            token_s * load.queued_tokens + product_s * load.queued_products,
            under_way_s,
            read_s * steps,
            READING_S * (new + work.cached_tokens),
            READING_S * load.queued_prompt_tokens,
        )

    def _decode_steps(self, context: float, load: Load) -> tuple[float, float, float, float]:
        profile = self._profile
        read_s = profile.model.kv_bytes_per_token / self._bytes_per_s
        return (
            profile.step_overhead_s,
            weight_bytes_read(profile, load.decoding + 1) / self._bytes_per_s,
            read_s * context,
            read_s * load.decoding_context_tokens,
        )


class Peers:
    """The known replicas of a pool."""

    def __init__(self) -> None:
        self._seen: list[Estimator] = []
        self._median = self._nobody = Estimator()
        self._is_chosen = True

    def seen(self, replica: Estimator) -> None:
        self._seen.append(replica)
        self._is_chosen = False

    def left(self, replica: Estimator) -> None:
        if replica in self._seen:
            self._seen.remove(replica)
            self._is_chosen = False

    @property
    def median(self) -> Estimator:
        if not self._is_chosen:
            by_speed = sorted(self._seen, key=lambda each: each.turn_s(*_USUAL_TURN))
            self._median = by_speed[(len(by_speed) - 1) // 2] if by_speed else self._nobody
            self._is_chosen = True
        return self._median
