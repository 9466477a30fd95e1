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
        self._biases = scheduler.turnpike
        if self._biases is None:
            raise RuntimeError("the plugin could not attach to this vLLM")
        self._biases.clock = clock
        if piggyback is not None:
            self._biases.planner.piggyback = piggyback(self._biases.planner.piggyback)

    def hint(self, text: str) -> None:
        """As `POST /turnpike/hints` does."""
        from turnpike_vllm.hints import parse  # noqa: PLC0415

        self._biases.hint([parse(text)])

    def retained_blocks(self) -> int:
        self._biases.tick()
        retention = self._biases.retainer.retention
        holds = [] if retention is None else [hold.blocks for hold in retention.holds]
        return int(self._biases.pool.account(holds)[2])

    def counters(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = self._biases.counters()
        return found

    def end(self) -> None:
        if self._biases.is_inert:
            raise RuntimeError("the plugin gave up: see its log")
        self._biases.retainer.let_go_of_everything()
