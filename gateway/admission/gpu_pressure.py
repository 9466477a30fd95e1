"""GPU pressure: is useful state being thrown away, or about to be?

Source: MARS (§4.1, §4.2): KV occupancy and launch delay, from the unified information stream.

Symbols: *KV cache occupancy* → `kv_used`.

Deviations: occupancy alone says little: of a session in its tool phase the engine counts nothing as used.
The strongest sign is *loss*: prompt tokens that the session's last turn left behind and that its next turn
did not find in the cache any more. Every stock engine reports what is needed for it in `usage`. A change of
content loses state too; so does an engine without prefix cache: what such a session or its type never finds,
though nothing was evicted, is not expected (`routing/kv_ledger.py`). Launch delay is no sign: a long prompt
raises it as well, and to hold the window back for it changed no mean completion. How much loss is too much
follows from what one session fewer would gain and cost: of n on a replica it costs one part in n of what they
get done, and at best saves the time in which what was lost is computed again. So 1 / n of a replica's time is
overload. What a token takes is known from its own launch delays (`cost/estimator.py`): for a dense model of
70B a tenth of the tokens is ruin, for a sparse one of 3B it is bearable. Before that is known, 1 / n of the
tokens is overload. Where much is lost turns become slow, and few of them end in a feedback time: then what
was seen over a longer time counts.

Invariants: readings are between decisions of the window, old evidence fades with the feedback time; a value
that an engine does not report is no pressure.
"""

import math
from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId

LOST: Final = "state_lost"
_LOSSES: Final = (0.02, 0.25)
"""The least and the most that is overload."""
_LASTS, _LASTS_LONGER = 2.0, 10.0
"""Feedback times until evidence has faded; the longer where so few turns end that it is not enough."""
PREEMPTIONS_ARE_OVERLOAD: Final = 0.10
"""Per turn."""
_ENOUGH_TURNS: Final = 5.0
_TOLERANCE_TOKENS: Final = 256
"""Engines cache whole blocks, and a client may rewrite the end of a conversation."""


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    pressure: float
    """1 and more is overload; below a half all is well."""
    reason: str
    is_loss_known: bool = False
    """There is evidence of how much was lost; without any, nothing is known to be well."""
    loss: float = 0.0


class _Evidence(msgspec.Struct, kw_only=True):
    """Sums over the time lately, all of them fading alike."""

    span_s: float = 0.0
    turns: float = 0.0
    """That were answered."""
    warm: float = 0.0
    """Of these, those that should have found something and say what they found."""
    expected: float = 0.0
    """Tokens that these should have found."""
    lost: float = 0.0
    """Of these, what they did not."""
    timed: float = 0.0
    """Warm turns of which is known what a token takes."""
    lost_s: float = 0.0
    """What computing it takes that they did not find."""
    blind: float = 0.0
    """Turns that should have found something and do not say what they found."""
    blind_expected: float = 0.0
    hits: float = 0.0
    """Tokens that engines say were found."""
    preemptions: float = 0.0

    def fade(self, feedback_times: float) -> None:
        """So many passed. Few turns fade more slowly, as long as they are hardly enough."""
        slowly, warm = math.exp(-feedback_times / _LASTS_LONGER), max(1.0, self.warm + self.blind)
        keep = max(math.exp(-feedback_times / _LASTS), min(slowly, 1.2 * _ENOUGH_TURNS / warm))
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) * keep)


class GpuPressure:
    def __init__(self) -> None:
        self._signals: dict[ReplicaId, EngineSignals] = {}
        self._seen = _Evidence()
        self._faded_s: float | None = None

    def engine_reported(self, replica: ReplicaId, signals: EngineSignals) -> None:
        before = self._signals.get(replica)
        if before is not None:
            self._seen.preemptions += _increase(before.preemptions, signals.preemptions)
            self._seen.hits += _increase(before.prefix_hit, signals.prefix_hit)
        self._signals[replica] = signals

    def replica_left(self, replica: ReplicaId) -> None:
        self._signals.pop(replica, None)

    def saw_turn(self, left: float = 0.0, cached: int | None = None, *, token_s: float | None = None) -> None:
        """A turn was answered. `left`: so many tokens of its prompt should have been in the cache, since its
        session came back soon; `cached`: so many were; `token_s`: what it takes to compute one."""
        seen = self._seen
        seen.turns += 1
        if left <= 0:
            return
        if cached is None:
            seen.blind += 1
            seen.blind_expected += left
            return
        lost = max(0.0, left - cached - _TOLERANCE_TOKENS)
        seen.warm += 1
        seen.expected += left
        seen.lost += lost
        if token_s is not None:
            seen.timed += 1
            seen.lost_s += lost * token_s

    def capacity(self, up: Iterable[ReplicaId], *, host_tokens: int = 0) -> tuple[float, float] | None:
        """KV tokens of the replicas that are up, on the device and in the host's memory beyond it; None if
        none says. The host has copies of what is on the device (`EngineSignals.kept_kv_tokens`).

        One that does not say is taken to be like the others. `host_tokens`: of each that does not tell the
        size of its host's.
        """
        known = [self._signals.get(replica) for replica in up]
        said = [signals for signals in known if signals is not None and signals.kv_tokens is not None]
        if not said:
            return None
        device, beyond = 0.0, 0.0
        for signals in said:
            own = float(signals.kv_tokens or 0)
            device += own
            beyond += max(0.0, (signals.host_kv_tokens or host_tokens) - own)
        scale = len(known) / len(said)
        return device * scale, beyond * scale

    def start_afresh(self) -> None:
        self._seen = _Evidence()

    def read(
        self,
        *,
        sessions: float,
        replicas: float = 1.0,
        expected_recompute: float = 0.0,
        feedback_s: float,
        now: float,
    ) -> GpuReading:
        """`sessions`: how many are in on a replica; `expected_recompute`: the share of the replicas' time in
        which as many as are in are expected to compute what was lost (`throughput.py`); only more is
        pressure."""
        if self._faded_s is not None:
            self._seen.fade((now - self._faded_s) / feedback_s)
            self._seen.span_s += now - self._faded_s
        self._faded_s = now
        seen, loss = self._seen, self._loss()
        waiting = sum(signals.waiting or 0 for signals in self._signals.values())
        running = sum(signals.running or 0 for signals in self._signals.values())
        used = [signals.kv_used for signals in self._signals.values() if signals.kv_used is not None]
        kv_used = max(used, default=0.0)
        preemptions = seen.preemptions / seen.turns if seen.turns >= _ENOUGH_TURNS else 0.0
        lost_share = loss or 0.0
        if loss and seen.timed >= _ENOUGH_TURNS and seen.span_s > 0:
            lost_share = max(0.0, seen.lost_s / (replicas * seen.span_s) - expected_recompute)
        signs = {
            LOST: lost_share / loss_that_is_overload(sessions),
            "preemptions": preemptions / PREEMPTIONS_ARE_OVERLOAD,
            # Queued behind a full cache; a queue behind long prompts alone is work, not pressure.
            "kv_full": waiting / (waiting + running) * 2.0 if kv_used > 0.9 and waiting else 0.0,
        }
        reason = max(signs, key=lambda name: signs[name])
        return GpuReading(
            pressure=signs[reason],
            reason=reason if signs[reason] > 0 else "none",
            is_loss_known=loss is not None,
            loss=loss or 0.0,
        )

    def _loss(self) -> float | None:
        seen = self._seen
        if seen.warm >= _ENOUGH_TURNS:
            return seen.lost / seen.expected
        if seen.blind >= 2 * _ENOUGH_TURNS and seen.hits > 0:
            return max(0.0, 1.0 - seen.hits / seen.blind_expected)
        return None


def loss_that_is_overload(sessions: float) -> float:
    """A share of a replica's time, or of the warm tokens, where so many sessions are in on it."""
    least, most = _LOSSES
    return max(least, min(most, 1.0 / max(1.0, sessions)))


def _increase(before: int | None, after: int | None) -> int:
    return max(0, after - before) if before is not None and after is not None else 0
