"""In which order should a stock engine run what waits there?

Source: Agent.xpu (arXiv 2506.24045), §4.4: reactive work before proactive. Sutradhara (arXiv 2601.12967),
§4.3, and MARS, §4.3, order by the arrival of the task and by attained service; see the deviations.

Symbols: *priority* → the integer that vLLM compares where it runs with `--scheduling-policy priority`: the
lowest goes first, equals go in order of arrival, and the highest is preempted first.

Deviations: one number for a request, compared when it is let in and when somebody must be preempted; the
plugin decides at every step. There is no level by attained service and no age of the task in it: behind the
gateway's window so few requests wait in an engine that neither changes anything measurable
(`benchmarks/stock_order.py`), and without them equals stay in vLLM's own order, so that who is preempted is
never one that has run for long in favour of a newcomer of its class.

Invariants: 0, vLLM's own default, for what somebody waits for; never less, so that a number that an operator
or a trusted client states can go before everything.
"""

from typing import Final

FIRST: Final = 0
BEHIND: Final = 1


def engine_priority(service_class: str | None) -> int:
    """Of a request of the class that engines should treat it as: `proactive` is background work, and all that
    a tenant runs beyond its share. None: not known."""
    return BEHIND if service_class == "proactive" else FIRST
