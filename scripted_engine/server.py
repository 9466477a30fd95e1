"""vLLM's own API server, started faster where there is no GPU.

``python -m scripted_engine.server`` takes the arguments of
``python -m vllm.entrypoints.openai.api_server`` and becomes it. Without a GPU almost all of the
start is three processes importing torch and vLLM one after the other. So on a CPU the imports
are done once, the engine core is forked instead of spawned, and the one worker lives in the
engine core. Nothing that handles a request is different. With a GPU this module changes nothing.
"""

import functools
import importlib.util
import multiprocessing
import os
import runpy
import sys
from multiprocessing.context import BaseContext

_SERVER = "vllm.entrypoints.openai.api_server"
_LAUNCHERS = "vllm.entrypoints.launchers"
_NEEDED = (
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.model_executor.models.qwen3",
    "scripted_engine.processor",
)


def main() -> None:
    """Run the API server in this process until it ends."""
    if share_imports():
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # lets a CPU keep the "uni" backend
        if "--distributed-executor-backend" not in sys.argv:
            sys.argv += ["--distributed-executor-backend", "uni"]
    runpy.run_module(_SERVER, run_name="__main__", alter_sys=True)


@functools.cache
def share_imports() -> bool:
    """On a CPU, import what the server and its engine core need; the latter inherits it by forking.

    Returns whether this is a CPU. vLLM insists on spawning there because of OpenMP; one thread per operation
    (OMP_NUM_THREADS=1, ``EngineOptions``) has no pool that a fork could break.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    original = multiprocessing.get_context

    def get_context(method: str | None = None) -> BaseContext:
        return original("fork" if method == "spawn" else method)

    multiprocessing.get_context = get_context  # type: ignore[assignment]
    has_launchers = importlib.util.find_spec(_LAUNCHERS) is not None
    # Before vLLM 0.29 it was one module.
    launcher = f"{_LAUNCHERS}.api_server.entry" if has_launchers else "vllm.entrypoints.launcher"
    for name in (launcher, *_NEEDED):
        importlib.import_module(name)
    return True


if __name__ == "__main__":
    main()
