"""The engine plugin `turnpike-vllm` in simulated engines: the code that is loaded live, on the virtual clock.

Invariants: without the option nothing here is imported; at the end of a simulation it holds no block.
"""

from collections.abc import Callable
from typing import Any, Final

RETRY_S: Final = 0.01
"""What waits for retained state is looked at again after so long; a live engine does
so without a pause."""


def biased(scheduler_class: type) -> type:
    """That class with the plugin put before it, as `--scheduler-cls` does."""
    from turnpike_vllm.scheduler import TurnpikeMixin  # noqa: PLC0415 - an extra, which few simulations need

    return type("PluginScheduler", (TurnpikeMixin, scheduler_class), {})


class Plugin:
    """What an engine wants of the plugin in its scheduler."""

    def __init__(
        self, scheduler: Any, *, clock: Callable[[], float], piggyback: Callable[[Any], Any] | None = None
    ) -> None:
        """`piggyback`: as `EngineOptions` has it."""
        self._plugin = scheduler.turnpike
        if self._plugin is None:
            raise RuntimeError("the plugin could not attach to this vLLM")
        self._plugin.clock = clock
        if piggyback is not None:
            self._plugin.planner.piggyback = piggyback(self._plugin.planner.piggyback)

    def hint(self, text: str) -> None:
        """As `POST /turnpike/hints` does."""
        from turnpike_vllm.hints import parse  # noqa: PLC0415

        self._plugin.hint([parse(text)])

    def retained_blocks(self) -> int:
        self._plugin.tick()
        holds = [hold.blocks for hold in self._plugin.retainer.retention.holds]
        return int(self._plugin.pool.account(holds)[2])

    def counters(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = self._plugin.counters()
        return found

    def end(self) -> None:
        if self._plugin.is_inert:
            raise RuntimeError("the plugin gave up: see its log")
        self._plugin.retainer.let_go_of_everything()
