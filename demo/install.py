"""The agents, from the package registries, at pinned versions, into `.agents/` of the repository."""

import asyncio
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from demo.errors import DemoError
from demo.processes import Children, first_error
from demo.progress import Say

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
"""Where `make setup` put the programs of this environment."""
AGENTS_DIR = ROOT / ".agents"


@dataclass(frozen=True, kw_only=True)
class Kit:
    """Programs that are installed together, at pinned versions, into a directory of their own."""

    directory: Path
    npm: tuple[str, ...] = ()
    python: tuple[str, ...] = ()

    @property
    def venv(self) -> Path:
        return self.directory / "venv"

    def node_program(self, name: str) -> Path:
        return self.directory / "node_modules/.bin" / name


KIT = Kit(
    directory=AGENTS_DIR,
    npm=("@openai/codex@0.169.0", "@anthropic-ai/claude-code@2.1.197"),
    # mini-swe-agent talks through litellm, which imports mcp without declaring it.
    python=("mini-swe-agent==2.4.6", "litellm==1.106.2", "openai==2.54.0", "mcp==2.3.0"),
)
"""The agents of the demo."""

INSTALL_WITHIN_S = 600.0


def require_node() -> None:
    """What the agents need and nobody can install for the user; one line for what is missing."""
    for name in ("node", "npm"):
        if shutil.which(name) is None:
            raise DemoError(
                f"{name} is not on PATH: Claude Code and Codex need Node.js 20 or newer, npm included"
            )


async def install_agents(children: Children, logs: Path, say: Say, kit: Kit = KIT) -> None:
    """Brings every agent to its pinned version; does nothing, at once, where that is already so."""
    stamp = kit.directory / "installed"
    wanted = "\n".join((*kit.npm, *kit.python))
    if stamp.exists() and stamp.read_text() == wanted:
        say("agents are installed")
        return
    say(f"installing the agents into {kit.directory.relative_to(ROOT)} (once; about a minute)")
    kit.directory.mkdir(parents=True, exist_ok=True)
    async with asyncio.TaskGroup() as installs:
        if kit.npm:
            installs.create_task(_install_from_npm(kit, children, logs / "install-npm.log"))
        if kit.python:
            installs.create_task(_install_from_pypi(kit, children, logs / "install-python.log"))
    stamp.write_text(wanted)
    say(f"installed {', '.join((*kit.npm, *kit.python[:1]))}")


async def _install_from_npm(kit: Kit, children: Children, log: Path) -> None:
    quiet = ("--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1")
    await _run(children, ["npm", "--prefix", kit.directory, "install", *quiet, *kit.npm], log)


async def _install_from_pypi(kit: Kit, children: Children, log: Path) -> None:
    uv = BIN / "uv"
    if not uv.exists():
        raise DemoError(f"{uv} is missing: run `make setup`, which installs it")
    python = kit.venv / "bin/python"
    for_this = ("--quiet", "--python")
    await _run(children, [uv, "venv", "--allow-existing", *for_this, sys.executable, kit.venv], log)
    await _run(children, [uv, "pip", "install", *for_this, python, *kit.python], log)


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
