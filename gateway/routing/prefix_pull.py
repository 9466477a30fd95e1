"""A prompt's beginning, pulled from the replica that has it instead of computed again.

Source: ours. vLLM's tiered offloading pulls what a request names as its `remote_kv_source`; Agent.xpu's
devices share one memory (arXiv 2506.24045, §4.3).

Theory of operation. A session that moves, or forks on several replicas, finds nothing where it goes. To
compute what another replica holds takes time that others there could use; to pull it takes the network. It is
pulled where that is predicted to take clearly less, from where most time is gained: of those that hold as
much, the one in the same zone, if that way is quicker. Engines pull by what blocks contain, so a wrong guess
of what is there costs a question.

Invariants: pure; a replica pulls nothing from itself, and never more than the prompt has.
"""

from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.domain.ids import ReplicaId


class PrefixPullConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For pools whose `transfer` is `p2p`."""

    enabled: bool = False
    """A turn whose prompt another replica holds may have it pulled from there."""
    least_s: Annotated[float, Meta(ge=0)] = 0.05
    """What is predicted to take less to compute is computed."""
    must_gain: Annotated[float, Meta(gt=0, le=1)] = 0.8
    """Pulling must be predicted to take no more than this share of computing."""


class Pull(msgspec.Struct, frozen=True, gc=False):
    """As predicted."""

    source: ReplicaId
    tokens: float
    """Of the prompt, from its first one on; with those that are there already."""
    seconds: float


def best_pull(
    config: PrefixPullConfig,
    holders: Iterable[tuple[ReplicaId, float]],
    held: float,
    *,
    transfer_s: Callable[[ReplicaId, float], float],
    prefill_s: Callable[[float, float], float],
) -> Pull | None:
    """`holders`: other replicas, and how many tokens of the prompt each holds; `held`: what is held where the
    turn goes; `transfer_s`: of so many tokens from there; `prefill_s`: to compute so many behind so many.
    None if nothing is to be pulled."""
    best, gained_s = None, 0.0
    for source, there in holders:
        if there <= held:
            continue
        computed_s, pulled_s = prefill_s(there - held, held), transfer_s(source, there - held)
        is_worth_it = computed_s >= config.least_s and pulled_s <= config.must_gain * computed_s
        if is_worth_it and computed_s - pulled_s > gained_s:
            best, gained_s = Pull(source, there, pulled_s), computed_s - pulled_s
    return best
