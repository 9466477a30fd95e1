"""Streaming dispatch: an agent starts each tool when its call is complete, not when the answer is.

Source: Sutradhara (arXiv 2601.12967), §4.2.

Deviations: which call is complete when is told by the workload (`Tool.called_at`); where it is not, a call is
complete with its answer, and this changes nothing.

Invariants: it combines with every other recipe: clients do this, whoever serves them.
"""

import msgspec

from lab.simulator.baselines.plan import Plan, Recipe, Values


def _dispatch(plan: Plan, values: Values) -> Plan:
    return msgspec.structs.replace(plan, dispatches_early=True)


DISPATCH = Recipe(
    name="dispatch",
    summary="agents start tools while their answer is decoded; combine it with others",
    source="arXiv 2601.12967",
    apply=_dispatch,
)
