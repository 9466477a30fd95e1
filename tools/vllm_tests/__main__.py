"""vLLM's own tests of its HTTP servers, at the engine itself and through Turnpike: which fail only there?

    python -m tools.vllm_tests --sdist vllm-0.32.0.tar.gz [--only WORDS] [--direct FILE] [--quick] [--json]

The tests are those of the release that is installed; `--sdist` is its source archive, from PyPI. Each test
runs at the engine itself, and again through Turnpike if it passes there, against servers that have just
started: vLLM on the CPU with a tiny model of dummy weights. The names of models that the tests ask for are
names of that one. A test that wants words that make sense fails at the engine. Many of these end after two
minutes, so the first half takes an hour: `--logs` keeps its outcomes, `--direct` has them of another run.
What fails through Turnpike runs there once more, without the others.
Apart are tests of what only tenants may that the gateway trusts (`trust`): with its defaults it trusts none.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.command import judged
from benchmarks.processes import ROOT, BenchmarkError, guarded
from benchmarks.verdict import Verdict
from tools.vllm_tests.source import options, unpack

MODULES: Final = (
    "openai/models/test_models.py",
    "openai/chat_completion/test_chat.py",
    "openai/chat_completion/test_batched_chat_completions.py",
    "openai/chat_completion/test_chat_completion.py",
    "openai/chat_completion/test_chat_echo.py",
    "openai/chat_completion/test_chat_logit_bias_validation.py",
    "openai/chat_completion/test_completion_with_function_calling.py",
    "openai/chat_completion/test_enable_force_include_usage.py",
    "openai/chat_completion/test_include_reasoning.py",
    "openai/chat_completion/test_logprob_token_ids.py",
    "openai/completion/test_completion.py",
    "openai/completion/test_prompt_validation.py",
    "openai/responses/test_basic.py",
    "openai/responses/test_errors.py",
    "openai/responses/test_function_call.py",
    "openai/responses/test_simple.py",
    "openai/responses/test_stateful.py",
    "openai/responses/test_structured_output.py",
    "openai/test_chunked_prompt.py",
    "openai/test_return_token_ids.py",
    "openai/test_return_tokens_as_ids.py",
    "anthropic/test_messages.py",
    "serve/tokenize/test_tokenization.py",
    "serve/instrumentator/test_basic.py",
)
"""Of `tests/entrypoints`: those that ask a server for text, and need no model of images or sound."""
QUICK: Final = (
    "openai/models/test_models.py",
    "openai/completion/test_completion.py",
    "anthropic/test_messages.py",
)
REPORT_VARIABLE: Final = "VLLM_TESTS_REPORT"
"""Of pytest's environment: the file that outcomes go to."""
THROUGH_VARIABLE: Final = "VLLM_TESTS_THROUGH_TURNPIKE"
"""Of pytest's environment: clients go through a gateway, and the tests are those that passed in this file."""
_TEST_TIMEOUT_S: Final = 120
REFUSED: Final = {
    "test_kv_transfer_prompt_token_ids_round_trip": 'permissions = ["kv-transfer"]',
    "test_kv_transfer_prompt_token_ids_streaming": 'permissions = ["kv-transfer"]',
    "test_server_load": "403",
}
"""Tests of what the gateway grants to tenants that it trusts alone, and words of its refusal."""
_OF_LORA: Final = {"--enable-lora": 0, "--lora-modules": 1, "--max-lora-rank": 1, "--max-cpu-loras": 1}
"""Flags of adapters, which the tiny model has none of, and how many words follow them."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    test: str
    passed: bool
    why: str = ""
    """The end of what pytest says of a failure."""


def run(
    tests: Path, modules: Sequence[str], only: str | None, *, through: Path | None = None
) -> dict[str, Outcome]:
    """By test. `tests`: the folder that has them in `tests/entrypoints`; what pytest says goes beside.
    `through`: outcomes at the engine, for a run of those that passed, through a gateway."""
    name = f"through-{through.stem}" if through else "direct"
    report, said, settings = tests / f"{name}.jsonl", tests / f"{name}.log", tests / "pytest.ini"
    settings.write_text("[pytest]\nasyncio_mode = strict\n")
    command = [
        *(sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir", str(tests)),
        *("-p", "tools.vllm_tests.plugin", "-p", "no:cacheprovider", "-n", "0", "-q", "--tb=short"),
        *("--timeout", str(_TEST_TIMEOUT_S), *(("-k", only) if only else ())),
        *(f"tests/entrypoints/{module}" for module in modules),
    ]
    environment = {
        **guarded(),
        "PYTHONPATH": f"{tests}:{ROOT}:{ROOT / 'engine_ext'}",
        REPORT_VARIABLE: str(report),
        **({THROUGH_VARIABLE: str(through)} if through else {}),
    }
    with said.open("wb") as output:
        subprocess.run(command, cwd=tests, env=environment, stdout=output, stderr=output, check=False)
    if not report.exists():
        raise BenchmarkError(f"no test ran: {said.read_text()[-2000:]}")
    return outcomes(report)


def outcomes(report: Path) -> dict[str, Outcome]:
    found = [msgspec.json.decode(line, type=Outcome) for line in report.read_bytes().splitlines()]
    # A test that passes and fails in its teardown has two; the failure counts.
    return {each.test: each for each in sorted(found, key=lambda each: not each.passed)}


def without_adapters(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of `vllm serve`: the arguments that are left, and the adapters' names."""
    left, names, words = [], [], iter(arguments)
    for word in words:
        if word not in _OF_LORA:
            left.append(word)
            continue
        for _ in range(_OF_LORA[word]):
            value = next(words)
            if word == "--lora-modules":
                names.append(value.partition("=")[0])
    return left, names


def measure(asked: argparse.Namespace, is_quick: bool, verdict: Verdict, tell: Any) -> None:
    modules = QUICK if is_quick else MODULES
    with tempfile.TemporaryDirectory(prefix="vllm-tests-") as folder:
        tests = unpack(asked.sdist, "tests", Path(folder))
        # It prepares models of all kinds, and imports what only they need.
        (tests / "tests/conftest.py").unlink()
        try:
            report = asked.direct.resolve() if asked.direct else tests / "direct.jsonl"
            direct = outcomes(report) if asked.direct else run(tests, modules, asked.only)
            through = run(tests, modules, asked.only, through=report)
            if failed := [each for each in direct.values() if _fails(through.get(each.test))]:
                # Some tests pass by the dice of sampled tokens, which those before them have thrown.
                alone = tests / "alone.jsonl"
                alone.write_bytes(b"\n".join(map(msgspec.json.encode, failed)))
                through |= run(tests, modules, asked.only, through=alone)
            if asked.direct and (asked.only or is_quick):  # it has others, too
                direct = {name: each for name, each in direct.items() if name in through}
        finally:
            if asked.logs:
                asked.logs.mkdir(parents=True, exist_ok=True)
                for log in (*tests.glob("*.log"), *tests.glob("*.jsonl")):
                    shutil.copy(log, asked.logs)
    judge(direct, through, verdict, tell)


def _fails(through: Outcome | None) -> bool:
    return through is not None and not through.passed and not is_refused(through)


def is_refused(failed: Outcome) -> bool:
    test = failed.test.rpartition("::")[2].partition("[")[0]
    return test in REFUSED and REFUSED[test] in failed.why


def judge(
    direct: Mapping[str, Outcome],
    through: Mapping[str, Outcome],
    verdict: Verdict,
    tell: Callable[[str], None],
) -> None:
    passed = {name for name, each in direct.items() if each.passed}
    failed = {name: each for name, each in through.items() if not each.passed}
    refused = {name for name, each in failed.items() if is_refused(each)}
    for name, each in sorted(failed.items()):
        tell(f"{name}: {each.why}")
    verdict.at_least("passed_both_ways", len(through) - len(failed), 1)
    verdict.at_most("failed_through_turnpike", len(failed) - len(refused), 0)
    verdict.tell("refused_without_trust", len(refused))
    verdict.tell("failed_at_the_engine", len(direct) - len(passed))
    verdict.at_most("not_run_through_turnpike", len(passed - through.keys()), 0)


def main(argv: list[str] | None = None) -> int:
    own = options()
    own.add_argument("--only", metavar="WORDS", help="pytest's -k")
    own.add_argument("--direct", type=Path, metavar="FILE", help="outcomes at the engine: `direct.jsonl`")
    own.add_argument("--logs", type=Path, metavar="FOLDER", help="where to keep outcomes and logs")
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, tell: measure(own.parse_known_args(argv)[0], is_quick, verdict, tell),
        quick=f"{len(QUICK)} of {len(MODULES)} modules",
        own=own,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
