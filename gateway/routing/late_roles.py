"""Roles bound late: when do some replicas of equal ones compute prompts for the others? (X5)

Source: Agent.xpu (arXiv 2506.24045), §4.3: which device runs a phase is decided by what waits; DistServe
(OSDI 24): prefill and decode are put apart where they hold each other up.

Symbols: ρ → the share of the replicas' time that prompts take.

Theory of operation. While an engine computes a prompt, whoever decodes there hardly goes on. Where prompts
take little of the time that costs little, and every replica should decode. Where they take half of it,
decoding takes twice as long everywhere; then a replica that computes prompts alone is worth more than one
more that decodes. By turns alone that is never seen: a prompt is never quicker elsewhere than a whole turn
would be there. So it is decided for the pool, from the prompts that are asked of it, as if each had its
replica to itself. One quarter of the replicas is enough: others compute the prompts for which there is no
time there.

Deviations: the paper's devices are unlike, so roles follow from what they are good at; these are equal.

Invariants: memory is constant; a replica in `replicas` is one that was offered; some that decode are left;
the same replicas are chosen by all gateways that see the same pool.
"""

import math
from collections.abc import Iterable
from typing import Final

from gateway.domain.ids import ReplicaId

APART_FROM: Final = 0.5
"""ρ; of simulated agents that read documents, apart was worse at 0.26, equal at 0.41 and better at 0.51."""
TOGETHER_BELOW: Final = 0.4
ONE_OF: Final = 4
"""Replicas. Two of four were no better than one of four before ρ was 0.7."""
_HALF_LIFE_S: Final = 20.0
"""Of what was asked; from 10 to 60 s it hardly matters, but for how soon a change is seen."""
_NONE: Final[frozenset[ReplicaId]] = frozenset()


class LateRoles:
    """Of one pool."""

    def __init__(self) -> None:
        self.replicas = _NONE
        """They compute prompts for the others, at the moment."""
        self._began_s: float | None = None
        self._seen_s = 0.0
        self._prefill_s = 0.0
        """Asked lately: a sum that forgets."""

    def asked(self, prefill_s: float, *, now: float) -> None:
        """Of a prompt that is to be computed, what it takes of a replica that does nothing else."""
        if self._began_s is None:
            self._began_s = self._seen_s = now
        self._prefill_s = self._prefill_s * _kept(now - self._seen_s) + prefill_s
        self._seen_s = now

    def demand(self, *, now: float) -> float:
        """Seconds of prompts that are asked in each second; 0 until that was watched for long enough."""
        if self._began_s is None or now - self._began_s < _HALF_LIFE_S:
            return 0.0
        window_s = _HALF_LIFE_S / math.log(2) * (1.0 - _kept(now - self._began_s))
        return self._prefill_s * _kept(now - self._seen_s) / window_s

    def settle(self, offered: Iterable[ReplicaId], *, now: float) -> None:
        """`offered`: those that may compute prompts, and may decode."""
        names = sorted(offered)
        share = self.demand(now=now) / len(names) if names else 0.0
        is_apart = share >= (TOGETHER_BELOW if self.replicas else APART_FROM)
        self.replicas = frozenset(names[: len(names) // ONE_OF]) if is_apart else _NONE


def _kept(passed_s: float) -> float:
    return math.exp2(-max(0.0, passed_s) / _HALF_LIFE_S)
