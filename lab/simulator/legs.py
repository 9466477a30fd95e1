"""Prefill legs in the simulator's driver.

Twin of `gateway/server/disaggregation/remote_prefills.py`: as there, a leg that takes too long is given up,
what it handed over is told at most once and not when it may be gone, and each leg is told to the brain once.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from gateway.core import events as ev
from gateway.core.commands import Dispatch, RemotePrefill
from gateway.domain.ids import ReplicaId, RequestId
from gateway.domain.request import Usage
from gateway.requests.kv_transfer import CONNECTORS
from lab.simulator.engine.turn import EngineTurn, KvSource
from lab.simulator.kernel import Alarm, Kernel

if TYPE_CHECKING:
    from lab.simulator.engine.hand_over import KvExchange  # it brings vLLM along


class _Engine(Protocol):
    def abort(self, number: int) -> None: ...


class _Leg(msgspec.Struct, eq=False):
    request: RequestId
    replica: ReplicaId
    engine: _Engine
    limit: Alarm


class _HandedOver(msgspec.Struct, eq=False):
    source: KvSource
    until_s: float


class Legs:
    def __init__(self, *, kernel: Kernel, send: Callable[[ev.Event], None]) -> None:
        self._kernel = kernel
        self._send = send
        self.exchanges: Mapping[ReplicaId, KvExchange] = {}
        """To be set before the first call: of the replicas that hand KV caches over."""
        self._under_way: dict[int, _Leg] = {}
        """By the number of the engine's turn."""
        self._handed_over: dict[RequestId, _HandedOver] = {}
        self.begun = 0

    def __contains__(self, number: int) -> bool:
        return number in self._under_way

    def begin(self, command: RemotePrefill, turn: EngineTurn, engine: _Engine) -> bool:
        """Whether the engine is to get that turn."""
        if command.replica not in self.exchanges:
            self._kernel.after(0.0, self._send, ev.PrefillLegEnded(command.request, None))
            return False
        self.begun += 1
        limit = self._kernel.after(command.limit_s, self._break_off, turn.number)
        self._under_way[turn.number] = _Leg(command.request, command.replica, engine, limit)
        return True

    def finished(self, turn: EngineTurn, *, cached_tokens: int) -> None:
        leg = self._under_way.pop(turn.number)
        leg.limit.call_off()
        source = KvSource(exchange=self.exchanges[leg.replica], leg=turn.number)
        until_s = self._kernel.now + CONNECTORS["nixl"].lease_s
        self._handed_over[leg.request] = _HandedOver(source, until_s)
        usage = Usage(prompt_tokens=turn.input_tokens, cached_tokens=cached_tokens, output_tokens=1)
        self._send(ev.PrefillLegEnded(leg.request, usage))

    def _break_off(self, number: int) -> None:
        leg = self._under_way.pop(number)
        leg.limit.call_off()
        leg.engine.abort(number)
        self._send(ev.PrefillLegEnded(leg.request, None, is_fault=True))

    def source_of(self, command: Dispatch) -> KvSource | None:
        """Where tokens of its prompt are that its engine does not have."""
        there = self.exchanges.get(command.placement.replica)
        handed_over = self._handed_over.pop(command.request, None)
        if handed_over is not None:
            source = handed_over.source
            if source.exchange is not there and self._kernel.now < handed_over.until_s:
                return source
            source.exchange.release(source.leg)
        return None

    def let_go(self, request: RequestId) -> None:
        """The request goes nowhere; nothing happens if nothing was handed over for it."""
        handed_over = self._handed_over.pop(request, None)
        if handed_over is not None:
            handed_over.source.exchange.release(handed_over.source.leg)

    def replica_lost(self, replica: ReplicaId) -> None:
        for number, leg in tuple(self._under_way.items()):
            if leg.replica == replica:
                self._break_off(number)
        if replica in self.exchanges:
            self.exchanges[replica].lost()
