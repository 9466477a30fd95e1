"""The Grafana dashboard and the alert rules: valid, and about metrics that exist."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from gateway.config.telemetry import ObjectiveConfig
from gateway.core.pool_views import PoolView
from gateway.core.snapshot import Gauges
from gateway.domain.ids import PoolId
from gateway.server.telemetry import COUNTED_ELSEWHERE
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.objective import Objective
from tests.prerequisites import require_command
from tests.project.test_pages import ROOT, anchors

DOCKER = Path(__file__).parents[2] / "docker"
DASHBOARD = json.loads((DOCKER / "grafana" / "turnpike.json").read_text())
RULES = yaml.safe_load((DOCKER / "prometheus" / "alerts.yaml").read_text())
EXTERNAL = {"up"}
COUNTED = ("faults", *(name for name, *_ in COUNTED_ELSEWHERE))

OUTCOME = Objective(ObjectiveConfig(), max_sessions=1)


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    return [*panels, *(rule["expr"] for group in RULES["groups"] for rule in group["rules"])]


def rendered(*pools: PoolView) -> bytes:
    now = Gauges(at_s=1.0, session_count=1, running=1, waiting=1, active_tools=1, pools=pools)
    counted = {name: ("What it is", lambda: 0) for name in COUNTED}
    metrics = Metrics(lambda: now, counted, outcome=OUTCOME)
    metrics.is_store_up = lambda: True
    return metrics.render()


def exported() -> dict[str, set[str]]:
    """Name → its samples' names, of everything that the gateway exports."""
    pool = PoolView(
        id=PoolId("p"), window=1.0, kv_budget=1.0, admitted=1, waiting=1, demand=1.0, held=1.0,
        gpu_pressure=1.0, cpu_pressure=1.0,
    )  # fmt: skip
    text = rendered(pool).decode()
    suffixes = {
        "counter": ("",),
        "gauge": ("",),
        "histogram": ("_bucket", "_sum", "_count"),
        "info": ("_info",),
    }
    return {
        name: {name + suffix for suffix in suffixes.get(kind, ("",))}
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    }


def test_every_metric_that_is_asked_for_exists():
    known = set().union(*exported().values()) | EXTERNAL
    asked = set()
    for expression in expressions():
        bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|by \([^)]*\)", "", expression)
        asked |= set(re.findall(r"\b(?:turnpike|process)_\w+|\bup\b", bare))
    assert asked <= known, asked - known
    shown = {name for name, samples in exported().items() if name.startswith("turnpike_") and samples & asked}
    forgotten = {name for name in exported() if name.startswith("turnpike_")} - shown
    assert forgotten <= {
        "turnpike_build_info", "turnpike_records_total", "turnpike_spans_sent_total",
        "turnpike_engine_kv_tokens",
    }, "all else is on the dashboard"  # fmt: skip


def test_every_alert_is_in_the_runbook_and_names_its_section():
    page = ROOT / "docs/operate/runbook.md"
    rules = {
        rule["alert"]: rule["annotations"].get("runbook", "") for g in RULES["groups"] for rule in g["rules"]
    }
    rows = dict(re.findall(r"^\| `(Turnpike\w+)` \|.*\]\(#([\w-]+)\)", page.read_text(), re.MULTILINE))
    assert {name: where.removeprefix("docs/operate/runbook.md#") for name, where in rules.items()} == rows
    assert set(rows.values()) <= anchors(page)


@pytest.mark.slow  # not slow, but `make check` does without promtool
def test_promtool_finds_nothing_wrong(tmp_path):
    promtool, folder = require_command("promtool"), DOCKER / "prometheus"
    for command in (
        ["check", "rules", "alerts.yaml"],
        ["test", "rules", "alerts_test.yaml"],
        ["check", "config", "prometheus.yml"],
    ):
        done = subprocess.run([promtool, *command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    asked = [
        {
            "record": f"asked:{number}",
            "expr": expression.replace("$__rate_interval", "5m").replace("$instance", ".*"),
        }
        for number, expression in enumerate(expressions())
    ]
    path = tmp_path / "asked.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": asked}]}))
    done = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # not slow, but `make check` does without promtool
def test_promtool_likes_what_is_exported():
    promtool = require_command("promtool")
    done = subprocess.run([promtool, "check", "metrics"], input=rendered(), capture_output=True)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
