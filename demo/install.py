"""The agents, from the package registries, at pinned versions, into `.agents/` of the repository."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

from demo.errors import DemoError
from demo.processes import Children, first_error
from demo.progress import Say

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
"""Where `make setup` put the programs of this environment."""
AGENTS_DIR = ROOT / ".agents"
VENV = AGENTS_DIR / "venv"

NPM_PACKAGES = ("@openai/codex@0.169.0", "@anthropic-ai/claude-code@2.1.197")
# mini-swe-agent talks through litellm, which imports mcp without declaring it.
PYTHON_PACKAGES = ("mini-swe-agent==2.4.6", "litellm==1.106.2", "openai==2.54.0", "mcp==2.3.0")

INSTALL_WITHIN_S = 600.0


def require_node() -> None:
    """What the agents need and nobody can install for the user; one line for what is missing."""
    for name in ("node", "npm"):
        if shutil.which(name) is None:
            raise DemoError(
                f"{name} is not on PATH: Claude Code and Codex need Node.js 20 or newer, npm included"
            )


async def install_agents(children: Children, logs: Path, say: Say) -> None:
    """Brings every agent to its pinned version; does nothing, at once, where that is already so."""
    stamp = AGENTS_DIR / "installed"
    wanted = "\n".join((*NPM_PACKAGES, *PYTHON_PACKAGES))
    if stamp.exists() and stamp.read_text() == wanted:
        say("agents are installed")
        return
    say("installing the agents into .agents (once; about a minute)")
    AGENTS_DIR.mkdir(exist_ok=True)
    async with asyncio.TaskGroup() as installs:
        installs.create_task(_install_from_npm(children, logs / "install-npm.log"))
        installs.create_task(_install_from_pypi(children, logs / "install-python.log"))
    stamp.write_text(wanted)
    say(f"installed {', '.join((*NPM_PACKAGES, PYTHON_PACKAGES[0]))}")


async def _install_from_npm(children: Children, log: Path) -> None:
    quiet = ("--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1")
    await _run(children, ["npm", "--prefix", str(AGENTS_DIR), "install", *quiet, *NPM_PACKAGES], log)


async def _install_from_pypi(children: Children, log: Path) -> None:
    uv = BIN / "uv"
    if not uv.exists():
        raise DemoError(f"{uv} is missing: run `make setup`, which installs it")
    await _run(children, [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, VENV], log)
    await _run(
        children, [uv, "pip", "install", "--quiet", "--python", VENV / "bin/python", *PYTHON_PACKAGES], log
    )


async def _run(children: Children, argv: list[str | Path], log: Path) -> None:
    process = await children.spawn(argv, cwd=ROOT, env=os.environ, log=log)
    try:
        code = await asyncio.wait_for(process.wait(), INSTALL_WITHIN_S)
    except TimeoutError:
        raise DemoError(
            f"installing the agents took longer than {INSTALL_WITHIN_S:.0f} s: see {log}"
        ) from None
    finally:
        await children.stop(process)
    if code != 0:
        raise DemoError(f"installing the agents failed ({first_error(log)}): see {log}")
