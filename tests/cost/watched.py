"""An estimator and its account of the load, fed from the synthetic engine as a gateway would feed them."""

import math
import random
import statistics
from dataclasses import dataclass, field

import msgspec

from gateway.cost.estimator import Estimate, Estimator, Load, Prediction, TurnWork
from gateway.cost.in_flight import InFlight
from gateway.cost.profile import Profile
from tests.cost.engine import Engine, Served, Traffic


@dataclass
class Record:
    predicted_s: list[float] = field(default_factory=list)
    low_s: list[float] = field(default_factory=list)
    high_s: list[float] = field(default_factory=list)
    happened_s: list[float] = field(default_factory=list)
    queued: list[bool] = field(default_factory=list)

    def error(self, start: int, end: int | None = None) -> float:
        return statistics.median(
            abs(p / h - 1)
            for p, h in zip(self.predicted_s[start:end], self.happened_s[start:end], strict=True)
        )

    def coverage(self, start: int) -> float:
        within = [
            low <= happened <= high
            for low, happened, high in zip(self.low_s, self.happened_s, self.high_s, strict=True)
        ][start:]
        return sum(within) / len(within)


class OneFactor(Estimator):
    """What the estimator is compared with: the profile's belief, times what it was lately wrong by."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self._log_factor, self._count = 0.0, 0

    def predict(self, work: TurnWork, load: Load) -> Prediction:
        believed = super().predict(work, load)
        seconds = believed.first_token.seconds * math.exp(self._log_factor)
        return msgspec.structs.replace(believed, first_token=Estimate(seconds, seconds, seconds))

    def observe_first_token(
        self, prediction: Prediction, launch_delay_s: float, actual: TurnWork | None = None
    ) -> None:
        believed = super().predict(actual or prediction.work, prediction.load)
        surprise = math.log(launch_delay_s / believed.first_token.seconds) - self._log_factor
        self._count += 1
        self._log_factor += surprise / min(self._count, 30)


def watch(
    truth: Profile,
    believed: Profile | None,
    *,
    sessions: int,
    turns: int,
    seed: int,
    noise: float = 0.15,
    guess_error: float = 0.0,
    estimator: Estimator | None = None,
) -> tuple[Record, Record, Estimator]:
    """First tokens and completions, predicted before the turn was sent."""
    rng = random.Random(seed)
    engine = Engine(truth, Traffic(sessions, rng), noise=noise, rng=rng)
    guessing = random.Random(seed + 1)
    estimator, in_flight = estimator or Estimator(believed), InFlight()
    sent: dict[int, tuple[Prediction, Served]] = {}
    first, completion = Record(), Record()
    for kind, now, turn in engine.run():
        key = id(turn)
        if kind == "sent":
            new = (turn.prompt_tokens - turn.believed_cached_tokens) * math.exp(
                guessing.gauss(0, guess_error)
            )
            output = turn.output_tokens
            work = TurnWork(new_tokens=new, cached_tokens=turn.believed_cached_tokens, output_tokens=output)
            prediction = estimator.predict(work, in_flight.load(now=now))
            in_flight.sent(key, prediction, now=now)
            sent[key] = prediction, turn  # the turn is kept, so that no other gets its id
            continue
        prediction = sent[key][0]
        actual = TurnWork(
            new_tokens=turn.prompt_tokens - turn.cached_tokens,
            cached_tokens=turn.cached_tokens,
            output_tokens=turn.output_tokens,
        )
        since_s = now - turn.arrived_s
        if kind == "first":
            in_flight.first_token(key, now=now)
            first.queued.append(prediction.load.queued_tokens > 0)
            _note(first, prediction.first_token, since_s)
            estimator.observe_first_token(prediction, since_s, actual)
        else:
            beside_s = in_flight.ended(key)
            assert turn.first_token_s is not None
            _note(completion, prediction.completion, since_s)
            estimator.observe_end(
                prediction,
                duration_s=since_s,
                output_tokens=turn.output_tokens,
                first_token_s=turn.first_token_s - turn.arrived_s,
                beside_s=beside_s,
                actual=actual,
            )
            del sent[key]
        if len(completion.happened_s) == turns:
            break
    return first, completion, estimator


def _note(record: Record, estimate: Estimate, happened_s: float) -> None:
    record.predicted_s.append(estimate.seconds)
    record.low_s.append(estimate.p10_s)
    record.high_s.append(estimate.p90_s)
    record.happened_s.append(happened_s)
