"""What simulated engines say of themselves: what live ones say in `/metrics`, once a second.

Deviation: live, a look takes its time on the way, and a busy server answers late.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from gateway.core import events as ev
from gateway.domain.engine import EngineSignals
from lab.simulator.kernel import Kernel

if TYPE_CHECKING:
    from lab.simulator.engine.replica import ReplicaEngine  # it brings vLLM along

PERIOD_S: Final = 1.0


class Reports:
    def __init__(
        self,
        engines: "Sequence[ReplicaEngine]",
        *,
        block_size: int,
        kernel: Kernel,
        send: Callable[[ev.Event], None],
    ) -> None:
        self._engines = engines
        self._block_size = block_size
        self._kernel = kernel
        self._send = send

    def begin(self) -> None:
        """Reports at once, and then for as long as anything else is to happen."""
        self._report()
        self._kernel.after(PERIOD_S, self._again)

    def _again(self) -> None:
        if self._kernel.has_more:
            self.begin()

    def _report(self) -> None:
        for engine in self._engines:
            self._send(ev.EngineReported(engine.name, signals_of(engine, block_size=self._block_size)))


def signals_of(engine: "ReplicaEngine", *, block_size: int) -> EngineSignals:
    engine.settle()
    retained = engine.kv_retained()
    return EngineSignals(
        kv_tokens=engine.kv_blocks * block_size,
        host_kv_tokens=engine.host_kv_tokens,
        kv_used=max(0.0, engine.kv_used() - (retained or 0.0)),
        kv_retained=retained,
        running=engine.running,
        waiting=engine.waiting,
        preemptions=engine.counts.preemptions,
        prefix_hit=engine.counts.cached_tokens,
    )
