"""The same brain, but what it tells engines of the future is always the same: what is its foresight worth?

Source: ours. SAGA's ablations (§8) leave its mechanisms out one by one.

Symbols: P_reuse → `REUSE`; TTL → `RETAIN_S`, SAGA's own default for tools that it does not know.

Invariants: hints keep their number and are otherwise as they were; all other commands pass unchanged.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.core.commands import Command, Dispatch, SendHint
from gateway.core.events import Event
from gateway.domain.ids import RequestId
from lab.simulator.brain import Brain

REUSE: Final = 0.5
RETAIN_S: Final = 6.0
_FORESIGHT: Final = re.compile(r'"retain_s":[0-9.]+,"reuse":[0-9.]+')
_RETURN: Final = re.compile(r',"prefetch_in_s":[0-9.]+')
_CONSTANT: Final = f'"retain_s":{RETAIN_S},"reuse":{REUSE}'


class WithoutForesight:
    """A `Brain` around another."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    @property
    def live(self) -> Mapping[RequestId, Any]:
        return self._brain.live

    def handle(self, event: Event, *, now: float) -> list[Command]:
        return [_blind(command) for command in self._brain.handle(event, now=now)]

    def next_deadline_s(self) -> float | None:
        return self._brain.next_deadline_s()


def _blind(command: Command) -> Command:
    if isinstance(command, Dispatch | SendHint) and command.hint is not None:
        return msgspec.structs.replace(command, hint=without_foresight(command.hint))
    return command


def without_foresight(hint: str) -> str:
    return _RETURN.sub("", _FORESIGHT.sub(_CONSTANT, hint))
