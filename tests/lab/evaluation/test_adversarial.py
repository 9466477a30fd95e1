"""No stranger is treated as part of another's session, whatever they send."""

import pytest

from lab.evaluation.adversarial import KINDS, stage_kind
from lab.evaluation.metrics import score
from lab.evaluation.replay import replay

SURE = {"replays", "early_replays", "twins", "forks"}
"""Here owners have ids that were drawn at random, or long answers of their own."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_joins_a_stranger(kind, seed):
    placed = replay(stage_kind(kind, seed=seed), without_ids=True)
    seen: dict[str, str] = {}
    for turn in placed:
        owner = seen.setdefault(turn.acts_as, turn.exchange.truth.session)
        assert owner == turn.exchange.truth.session, f"turn {turn.number} acts as {owner}'s"
    if kind in SURE:
        assert score(placed).acted_upon.right > 0, "who can prove it is recognised"


def test_a_thief_takes_nothing_from_the_owner():
    placed = replay(stage_kind("early_replays"), without_ids=True)
    owned = {turn.acts_as for turn in placed if turn.exchange.truth.session == "owner"}
    assert len(owned) == 1
    assert len({turn.acts_as for turn in placed}) > 1
