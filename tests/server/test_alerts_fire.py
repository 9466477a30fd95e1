"""The alert rules on metrics of a gateway that has the fault, and of one that has none."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.prerequisites import require_command
from tests.server.bench import DELTA, DONE, STREAM_HEAD, answer, chunk, get, post, sends
from tests.server.test_failed_answers import ERROR, event
from tests.server.test_failures import STREAM

RULES = Path(__file__).parents[2] / "docker/prometheus/alerts.yaml"
SAMPLE = re.compile(r"^(turnpike_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
GOOD = STREAM_HEAD + chunk(DELTA) + chunk(DONE) + b"0\r\n\r\n"
FAULTS = {
    "none": (GOOD, set()),
    "500s": (
        answer(b"{}", status=b"500 Internal Server Error"),
        {"RequestsFail", "AnswersBreak", "ReplicaEjected"},
    ),
    "errors inside 200s": (
        STREAM_HEAD + chunk(event(ERROR)) + chunk(DONE) + b"0\r\n\r\n",
        {"RequestsFail", "AnswersBreak", "ReplicaEjected"},
    ),
    "streams without an end": (
        STREAM_HEAD + b"0\r\n\r\n",
        {"RequestsFail", "AnswersBreak", "ReplicaEjected"},
    ),
    "no answer": (b"", {"RequestsFail", "AnswersBreak", "Refusing", "ReplicaEjected"}),
    "down": (None, {"NoReplica", "ReplicaDown", "AnswersBreak", "Refusing", "RequestsFail"}),
}


def samples(text: bytes) -> dict[tuple[str, str], float]:
    return {(name, labels): float(value) for name, labels, value in SAMPLE.findall(text.decode())}


def fired(before: bytes, after: bytes, folder: Path) -> set[str]:
    """What fires within 20 minutes, in each half of which happens what happened between the two."""
    old, new = samples(before), samples(after)
    series = []
    for (name, labels), value in new.items():
        first = old.get((name, labels), 0.0)
        is_counter = name.endswith(("_total", "_bucket", "_count", "_sum"))
        values = f"{first}+{value - first}x40" if is_counter else f"{value}x40"
        series.append({"series": f'{name}{{{labels}{"," if labels else ""}instance="gw"}}', "values": values})
    asked = {"expr": 'ALERTS{alertstate="firing"}', "eval_time": "15m", "exp_samples": []}
    tests = [{"interval": "30s", "input_series": series, "promql_expr_test": [asked]}]
    path = folder / "tests.yaml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": tests})
    )
    command = [require_command("promtool"), "test", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    told = done.stdout + done.stderr
    assert done.returncode == 0 or "got:" in told, told
    return set(re.findall(r'alertname=\\?"Turnpike(\w+)', told))


@pytest.mark.slow  # not slow, but `make check` does without promtool
@pytest.mark.parametrize(("raw", "alerts"), FAULTS.values(), ids=FAULTS)
async def test_the_fault_is_told_and_nothing_else(start, tmp_path, raw, alerts):
    bench = await start(replicas=2)
    for backend in bench.backends:
        backend.script = sends(raw or b"", then="" if raw else "reset")
        if raw is None:
            await backend.close()
    before = (await bench.control(get(b"/metrics"))).body
    for number in range(30):
        asked = STREAM if number % 2 else post()
        await bench.ask(asked.replace(b"hi", b"%d" % (10 + number)))
    assert fired(before, (await bench.control(get(b"/metrics"))).body, tmp_path) == alerts
