"""The server's driver of the brain: events in, commands out, one timer.

It carries out what the coordinator commands and decides nothing. Where a decision fails, by a fault of
ours, requests are passed on without it. A handler holds a `Ticket` (`ticket.py`), its side of one request.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Generator
from typing import Final, TypeVar, get_args

import msgspec

from gateway.core import events as ev
from gateway.core.commands import (
    Action,
    Cancel,
    Dispatch,
    Prefill,
    Publish,
    Refuse,
    RemotePrefill,
    SendHint,
    Spend,
    StopPrefill,
)
from gateway.core.coordinator import Coordinator
from gateway.core.turns.lifecycle import LifecycleError
from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import ReplicaId, RequestId
from gateway.domain.records import Record
from gateway.domain.request import ToolCall
from gateway.server.proxy.ticket import Ticket
from gateway.telemetry.recorder import Recorder
from gateway.upstream.local_faults import STALL_S
from gateway.upstream.one_shot import OneShot

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)
_MAX_CAUSES: Final = 8
# Types of the commands that are no records.
_ACTIONS: Final = frozenset(get_args(Action))


class Driver:
    def __init__(
        self,
        coordinator: Coordinator,
        *,
        clock: Callable[[], float],
        id_prefix: str,
        on_records: Callable[[list[Record]], None],
        recorder: Recorder | None = None,
        send_hint: Callable[[ReplicaId, str], None] | None = None,
    ) -> None:
        """`send_hint`: tells a replica's engine something, and does not wait for it."""
        self.coordinator = coordinator
        self.clock = clock
        loop = asyncio.get_running_loop()
        self.call_soon, self.call_later = loop.call_soon, loop.call_later
        # Of requests.
        self.new_ids = map(f"r-{id_prefix}{{:x}}".format, itertools.count(1))
        self._on_records = on_records
        self._recorder = recorder
        self._send_hint = send_hint
        # The four callbacks are set before the first request.
        # Where prompts may be computed ahead.
        self.on_prefill: Callable[[Prefill | StopPrefill], None] | None = None
        # Where there are other gateways.
        self.on_publish: Callable[[Publish], None] | None = None
        # Where there are other gateways, and tenants have bounds.
        self.on_spend: Callable[[Spend], None] | None = None
        # Each complete tool call with its arguments, up to `MAX_ARGUMENTS_BYTES`. Must not raise.
        self.on_call: Callable[[RequestId, ToolCall, bytes], None] | None = None
        # All who ask are on this machine, as its operator is: they may know why replicas are down.
        self.tells_causes = False
        # If it is later than this, the event loop stood still.
        self._late_s = float("inf")
        self.tickets: dict[RequestId, Ticket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0

    def tick(self, period_s: float) -> None:
        """To be called every so many seconds, as far as the event loop gets to it."""
        now = self.clock()
        if now > self._late_s:
            self._stalled(now)
        elif now >= self.coordinator.fleet.health.next_due_s:  # all there are may wait for who is silent
            self.send(ev.TimerFired())
        self._late_s = now + period_s + STALL_S

    def _stalled(self, now: float) -> None:
        lost_s, self._late_s = now - self._late_s + STALL_S, now + STALL_S
        self.send(ev.LoopStalled(lost_s))

    def send(self, event: ev.Event) -> None:
        now, recorder = self.clock(), self._recorder
        if now > self._late_s:
            self._stalled(now)
        try:
            commands = self.coordinator.handle(recorder.record_event(event) if recorder else event, now=now)
        except LifecycleError:
            raise
        except Exception:  # noqa: BLE001 - a bug of ours costs what we decide, not those who wait for it
            if not self.coordinator.faults:
                _log.exception("scheduler error; fallback routing (logged once)")
            commands = self.coordinator.recover(now=now)
        if recorder is not None:
            recorder.answered(commands, now=now)
        records: list[Record] = []
        for command in commands:
            if type(command) in _ACTIONS:
                self._carry_out(command)  # type: ignore[arg-type]
            else:
                records.append(command)  # type: ignore[arg-type]
        if records:
            self._on_records(records)
        # A timer that fires early only asks again; what may be due sooner than it is a turn that waits.
        if self._timer is None or self.coordinator.waiting_room.turns:
            self._rearm()

    def _carry_out(self, command: Action) -> None:
        # `isinstance` takes three times as long.
        if type(command) is Dispatch or type(command) is Refuse or type(command) is RemotePrefill:
            if type(command) is Refuse and command.refusal.reason is RefusalReason.NO_REPLICA:
                command = msgspec.structs.replace(command, refusal=self._with_causes(command.refusal))
            self.tickets[command.request].decide(command)
        elif type(command) is Publish:
            if self.on_publish is not None:
                self.on_publish(command)
        elif type(command) is Spend:
            if self.on_spend is not None:
                self.on_spend(command)
        elif type(command) is Cancel:
            ticket = self.tickets[command.request]
            self.call_soon(ticket.cancel, command.refusal)  # not on the spot: the brain is in the midst of it
        elif type(command) is SendHint:
            if self._send_hint is not None:
                self._send_hint(command.replica, command.hint)
        else:
            assert self.on_prefill is not None
            assert type(command) is Prefill or type(command) is StopPrefill
            self.on_prefill(command)

    def _with_causes(self, refusal: Refusal) -> Refusal:
        down = self.coordinator.fleet.down()
        causes = "; ".join(f"{name}: {cause}" for name, cause in itertools.islice(down.items(), _MAX_CAUSES))
        more = f"; {len(down) - _MAX_CAUSES} more" if len(down) > _MAX_CAUSES else ""
        why = f"Down: {causes}{more}." if self.tells_causes else "The operator finds why at /turnpike/readyz."
        return msgspec.structs.replace(refusal, message=f"{refusal.message} {why}") if down else refusal

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def parse_cooperatively(self, work: Generator[None, None, T]) -> T:
        while True:
            try:
                next(work)
            except StopIteration as end:
                result: T = end.value
                return result
            passed = OneShot()
            self.call_soon(passed.set)
            await passed

    def _rearm(self) -> None:
        due_s = self.coordinator.next_deadline_s()
        if due_s is None or (self._timer is not None and self._timer_due_s <= due_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_s = due_s
        self._timer = self.call_later(max(due_s - self.clock(), 0.001), self._timer_fired)

    def _timer_fired(self) -> None:
        if self.clock() > self._late_s:  # what came meanwhile is read before anybody has waited too long
            self._timer = self.call_later(STALL_S, self._timer_fired)
            self.tick(STALL_S)
            return
        self._timer = None
        self.send(ev.TimerFired())
