"""A pytest plugin for vLLM's tests of its servers (`vllm_tests.py`), at the engine or through Turnpike.

It runs where `tests` is vLLM's package of that name, and puts a server of its own in the place of
`tests.utils.RemoteOpenAIServer`: vLLM on the CPU with the tiny model, and a gateway before it. Nothing is
downloaded: whatever the tests ask a hub for is that model.
"""

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import transformers
import vllm.tokenizers
import vllm.transformers_utils.repo_utils

from benchmarks.gateway import gateway
from benchmarks.processes import guarded
from lab.engine import tiny_model
from tools.vllm_tests.__main__ import REPORT_VARIABLE, THROUGH_VARIABLE, Outcome, outcomes, without_adapters

_MODEL: Final = str(tiny_model.build())


class _Hub:
    def snapshot_download(self, *_: Any, **__: Any) -> str:
        return _MODEL


class _Tokenizers:
    @staticmethod
    def from_pretrained(*_: Any, **__: Any) -> Any:
        return transformers.PreTrainedTokenizerFast.from_pretrained(_MODEL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if THROUGH_VARIABLE in os.environ:
        direct = outcomes(Path(os.environ[THROUGH_VARIABLE]))
        items[:] = [item for item in items if item.nodeid in direct and direct[item.nodeid].passed]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed or (report.when == "call" and report.passed):
        why = str(report.longrepr)[-500:] if report.failed else ""
        told = Outcome(test=item.nodeid, passed=report.passed, why=why)
        with open(os.environ[REPORT_VARIABLE], "ab") as file:
            file.write(msgspec.json.encode(told) + b"\n")
    return report


_tests: Any = importlib.import_module("tests.utils")


class _Server(_tests.RemoteOpenAIServer):  # type: ignore[misc]
    """As vLLM's own; its port is the engine's or, once that is healthy, the gateway's."""

    port: int

    def __init__(self, model: str, arguments: list[str], **how: Any) -> None:
        self._stack = ExitStack()
        super().__init__(model, arguments, **how)
        if THROUGH_VARIABLE in os.environ:
            at = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="vllm-tests-gateway-")))
            url = self._stack.enter_context(gateway([f"http://{self.host}:{self.port}"], at / "gateway"))
            self.port = int(url.rpartition(":")[2])

    def _pre_download_model(self, model: str, args: Any) -> None:
        """There is nothing to download."""

    def _start_server(self, model: str, arguments: list[str], env: dict[str, str] | None) -> None:
        left, adapters = without_adapters(arguments)
        names = [] if "--served-model-name" in left else ["--served-model-name", model, *adapters]
        self.proc = subprocess.Popen(
            [
                *(sys.executable, "-m", "scripted_engine.server", "--model", _MODEL),
                *("--load-format", "dummy", "--block-size", "32", *names, *left),
            ],
            env={
                **guarded(),
                **(env or {}),
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.environ["PYTHONPATH"],
            },
            stdout=sys.stdout,
            stderr=sys.stderr,
            start_new_session=True,
        )

    def _shutdown(self) -> None:
        self._stack.close()
        super()._shutdown()


# Before pytest imports a test or a conftest, which bind these names.
_tests.RemoteOpenAIServer = _Server
vllm.transformers_utils.repo_utils.hf_api = _Hub
vllm.tokenizers.get_tokenizer = _Tokenizers.from_pretrained
transformers.AutoTokenizer = _Tokenizers
