"""GPU pressure: do engines evict KV state that is still needed, or are they about to?

Source: MARS (§4.1, §4.2): KV occupancy and launch delay, from the unified information stream.

Deviations: occupancy (`kv_used`) alone is weak evidence: engines count nothing as used for a session in its
tool phase. The strongest sign is *loss*: prompt tokens that a session's turn left in the cache and its next
turn did not find. Every stock engine reports the counts for it in `usage`. Changed content and engines
without prefix cache lose state too; what a session or its type never finds without an eviction is not
expected (`routing/kv_ledger.py`). Launch delay is no sign: long prompts raise it as well, and holding the
window back for it changed no mean completion. The limit of loss is where one session fewer breaks even: of n
on a replica it costs 1 / n of the throughput, and saves at best the time of recomputation. So 1 / n of a
replica's time is overload. A token's time follows from launch delays (`cost/estimator.py`): a tenth of the
tokens is ruin for a dense 70B model, bearable for a sparse 3B one. Until it is known, 1 / n of the tokens is
overload. Loss makes turns slow, so few end in a feedback time: evidence then fades more slowly.

Invariants: evidence begins anew with each decrease of the window and fades with the feedback time; a value
that an engine does not report is no pressure.
"""

import math
from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId

LOST: Final = "state_lost"
# Bounds of the share that is overload.
_LOSSES: Final = (0.02, 0.25)
# Feedback times until evidence has faded; the latter while evidence is scarce.
_LASTS, _LASTS_LONGER = 2.0, 10.0
# Per turn.
PREEMPTIONS_ARE_OVERLOAD: Final = 0.10
_ENOUGH_TURNS: Final = 5.0
# Engines cache whole blocks, and a client may rewrite the end of a conversation.
_TOLERANCE_TOKENS: Final = 256


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    pressure: float
    """From 1 on overload; below 0.5 health."""
    reason: str
    is_loss_known: bool = False
    loss: float = 0.0


class _Evidence(msgspec.Struct, kw_only=True):
    """Sums that fade alike."""

    span_s: float = 0.0
    turns: float = 0.0
    """Answered."""
    warm: float = 0.0
    """Turns that should find a prefix, with a report of cached tokens."""
    expected: float = 0.0
    """Tokens that warm turns should find."""
    lost: float = 0.0
    """Expected tokens that were not cached."""
    timed: float = 0.0
    """Warm turns with a known token time."""
    lost_s: float = 0.0
    """Recomputation of lost tokens."""
    blind: float = 0.0
    """Turns that should find a prefix, without a report."""
    blind_expected: float = 0.0
    hits: float = 0.0
    """Tokens, by the engines' own counters."""
    preemptions: float = 0.0

    def fade(self, feedback_times: float) -> None:
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

    def caches(self, replica: ReplicaId) -> int:
        """Each data-parallel rank has one."""
        signals = self._signals.get(replica)
        return max(1, signals.ranks or 1) if signals is not None else 1

    def replica_left(self, replica: ReplicaId) -> None:
        self._signals.pop(replica, None)

    def saw_turn(self, left: float = 0.0, cached: int | None = None, *, token_s: float | None = None) -> None:
        """`left`: prompt tokens that should be cached; `cached`: that were; `token_s`: for one."""
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
        """KV tokens of the replicas that are up, on the device and in host memory beyond it (the host also
        has copies of the device's); None without a report. Replicas without one count as the mean of the
        others. `host_tokens`: of a replica that does not report its host memory."""
        known = [self._signals.get(replica) for replica in up]
        reporting = [signals for signals in known if signals is not None and signals.kv_tokens is not None]
        if not reporting:
            return None
        device, beyond = 0.0, 0.0
        for signals in reporting:
            own = float(signals.kv_tokens or 0)
            device += own
            beyond += max(0.0, (signals.host_kv_tokens or host_tokens) - own)
        scale = len(known) / len(reporting)
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
        """`sessions`: on a replica; `expected_recompute`: the share of the replicas' time that the admitted
        sessions are expected to spend on recomputation (`throughput.py`); only more is pressure."""
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
    """Share of a replica's time, or of the warm tokens. `sessions`: on the replica."""
    least, most = _LOSSES
    return max(least, min(most, 1.0 / max(1.0, sessions)))


def _increase(before: int | None, after: int | None) -> int:
    return max(0, after - before) if before is not None and after is not None else 0
