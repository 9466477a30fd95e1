"""Each rule about imports, the clock and chance is broken once here, and must be seen to break."""

import re
import shutil
from pathlib import Path

import pytest

from tests.project.layout import BIN, ROOT, run

# import-linter draws on a terminal of this width; a narrow one would wrap the contracts' names.
WIDE = {"COLUMNS": "200"}
SPAWNS = "import asyncio\n\n\nasync def f(g):\n    t = asyncio.create_task(g())\n    await t\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The project's contracts over a small tree of the same shape."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    packages = ["gateway", "lab", "lab.engine", "lab.simulator", "turnpike_vllm"]
    packages += [f"gateway.{name}" for name in ("server", "core", "admission", "workflow", "domain")]
    for package in packages:
        folder = tmp_path / package.replace(".", "/")
        folder.mkdir()
        (folder / "__init__.py").touch()
    return tmp_path


def lint(tree: Path) -> tuple[int, str]:
    done = run(
        BIN / "lint-imports", "--no-logo", "--no-cache", cwd=tree, env={**WIDE, "PYTHONPATH": str(tree)}
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_clean_tree_passes(tree: Path):
    (tree / "gateway/server/app.py").write_text("import asyncio, os, time\nfrom gateway.core import x\n")
    (tree / "gateway/admission/policy.py").write_text("import random\nimport gateway.domain\n")
    (tree / "gateway/workflow/reuse.py").write_text("import turnpike_vllm\n")
    (tree / "lab/simulator/engine.py").write_text("import turnpike_vllm\nimport vllm\nimport time\n")
    (tree / "lab/simulator/run.py").write_text("import gateway.server\n")
    (tree / "turnpike_vllm/plugin.py").write_text("import vllm\nimport threading\n")
    code, output = lint(tree)
    assert code == 0, output


BREACHES = [
    ("gateway.domain.ids", "gateway.core", "Layers"),
    ("gateway.core.coordinator", "gateway.server", "Layers"),
    ("gateway.server.app", "lab.simulator", "What is installed"),
    ("turnpike_vllm.plugin", "lab.engine", "What is installed"),
    ("lab.simulator.run", "benchmarks", "The lab never"),
    ("gateway.core.coordinator", "asyncio", "Pure unless"),
    ("gateway.admission.update_window", "time", "Pure unless"),
    ("gateway.workflow.aeg", "logging", "Pure unless"),
    ("gateway.errors", "os", "Pure unless"),
    ("turnpike_vllm.hints", "gateway.domain", "The engine plugin never"),
    ("gateway.server.app", "turnpike_vllm", "Only these may"),
    ("gateway.server.app", "scripted_engine", "What is installed"),
    ("turnpike_vllm.plugin", "scripted_engine", "What is installed"),
    ("gateway.server.app", "vllm", "Only engines"),
    ("lab.simulator.run", "vllm", "Only engines"),
]


@pytest.mark.slow
def test_each_contract_breaks(tree: Path):
    (tree / "gateway/helpers.py").touch()
    for module, imported, _ in BREACHES:
        with (tree / f"{module.replace('.', '/')}.py").open("a") as file:
            file.write(f"import {imported}\n")
    code, output = lint(tree)
    assert code == 1, output
    _, *parts = re.split(r"^(.+)\n-+$", output, flags=re.MULTILINE)
    told = list(zip(parts[::2], parts[1::2], strict=True))
    for module, imported, contract in BREACHES:
        seen = [text for title, text in told if title.startswith(contract)]
        assert any(f"{module} -> {imported} (" in text for text in seen), (module, imported, output)
    assert any("- gateway.helpers\n" in text for title, text in told if title.startswith("Layers")), output


@pytest.mark.parametrize(
    ("module", "source", "banned"),
    [
        ("gateway/core/coordinator.py", "import time\n\nx = time.monotonic()\n", True),
        ("gateway/server/proxy/relay.py", SPAWNS, True),
        ("gateway/routing/dice.py", "import random\n\nx = random.choice([1])\n", True),
        ("gateway/routing/dice.py", "import random\n\nx = random.Random(1)\n", False),
        ("gateway/upstream/pools.py", "import os\n\nx = os.environ\n", True),
        ("gateway/server/runtime/tasks.py", SPAWNS, False),
        ("gateway/server/runtime/clock.py", "import time\n\nx = time.monotonic()\n", False),
        ("gateway/config/load.py", "import os\n\nx = os.environ\n", False),
    ],
)
def test_banned_calls(module: str, source: str, banned: bool):
    words = ("check", "--no-cache", "--select", "TID251", "--stdin-filename", ROOT / module, "-")
    done = run(BIN / "ruff", *words, stdin=source)
    assert ("TID251" in done.stdout) == banned, done.stdout
