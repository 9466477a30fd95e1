"""After a fault of ours: whoever was left undecided is sent or refused all the same, and nobody hangs.

A second fault on the way is passed over: the first is logged.
"""

import contextlib
from collections.abc import Mapping

from gateway.core import refusals
from gateway.core.turns.completion import Completion
from gateway.core.turns.dispatcher import Dispatcher
from gateway.core.turns.gate import Gate
from gateway.core.turns.lifecycle import FINAL_STATES, State, Step
from gateway.core.turns.live import LiveRequest
from gateway.domain.ids import RequestId
from gateway.routing.placement_policy import LeastLoaded


def rescue(
    everybody: Mapping[RequestId, LiveRequest],
    gate: Gate,
    dispatcher: Dispatcher,
    completion: Completion,
    *,
    now: float,
) -> None:
    """Whoever was left undecided is sent where least runs, or refused if that fails as well, if it was sent
    before (it may run), or if it builds on stored state (it may be another tenant's); of whoever is over, the
    books are closed."""
    for live in list(everybody.values()):
        is_lost = live.state is State.WAITING and live.request not in gate.waiting_room
        if live.state in FINAL_STATES:
            with contextlib.suppress(Exception):
                completion.over(live, None, now=now)
        elif live.state is State.UNDECIDED or is_lost:
            if Step.SUBMIT not in live.steps and not live.facts.state_ids:
                with contextlib.suppress(Exception):
                    _let_through(live, gate, dispatcher, now=now)
            if live.state is not State.SUBMITTED:
                dispatcher.unbook(live)
                with contextlib.suppress(Exception):
                    completion.refuse(live, refusals.internal(), now=now)


def _let_through(live: LiveRequest, gate: Gate, dispatcher: Dispatcher, *, now: float) -> None:
    dispatcher.unbook(live)
    candidates = gate.candidates(live.lane)
    if candidates:
        dispatcher.send(live, LeastLoaded().place(candidates), now=now)
