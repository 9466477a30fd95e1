"""vLLM's own API server, started faster where there is no GPU.

``python -m scripted_engine.server`` takes the arguments of
``python -m vllm.entrypoints.openai.api_server`` and becomes it. Without a GPU almost all of the
start is three processes importing torch and vLLM one after the other. So on a CPU the imports
are done once, the engine core is forked instead of spawned, and the one worker lives in the
engine core. Nothing that handles a request is different. With a GPU this module changes nothing.
"""

import importlib
import multiprocessing
import os
import runpy
import sys
from multiprocessing.context import BaseContext

_SERVER = "vllm.entrypoints.openai.api_server"
_NEEDED_BY_THE_CHILDREN = (
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.model_executor.models.qwen3",
    "scripted_engine.processor",
)


def main() -> None:
    """Run the API server in this process until it ends."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _share_imports()
        if "--distributed-executor-backend" not in sys.argv:
            sys.argv += ["--distributed-executor-backend", "uni"]
    runpy.run_module(_SERVER, run_name="__main__", alter_sys=True)


def _share_imports() -> None:
    """Import what the engine core needs, then let it inherit that by forking.

    vLLM insists on spawning on a CPU because of OpenMP; one thread per operation
    (OMP_NUM_THREADS=1, ``EngineOptions``) has no pool that a fork could break.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # lets a CPU keep the "uni" backend
    original = multiprocessing.get_context

    def get_context(method: str | None = None) -> BaseContext:
        return original("fork" if method == "spawn" else method)

    multiprocessing.get_context = get_context  # type: ignore[assignment]
    for name in _NEEDED_BY_THE_CHILDREN:
        importlib.import_module(name)


if __name__ == "__main__":
    main()
