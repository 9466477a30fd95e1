"""The agents: real ones, unmodified. Each is told nothing but another base URL."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from demo.install import KIT

API_KEY = "demo-key"
"""One key for every run, so that the gateway cannot tell runs apart by their tenant."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What one run of an agent is given."""

    base_url: str
    model: str
    prompt: str
    home: Path
    """Its HOME: settings, history and trajectory stay in there."""


@dataclass(frozen=True, kw_only=True)
class Agent:
    """One agent client: what it speaks, and how a run of it is started."""

    name: str
    protocol: str
    has_identity: bool
    """Whether it says, unasked, which session a request belongs to."""
    argv: Callable[[Launch], list[str | Path]]
    env: Callable[[Launch], dict[str, str]]


def environment(agent: Agent, launch: Launch) -> dict[str, str]:
    """A run's whole environment: nothing of the caller's settings, so that no key or proxy leaks in."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
    quiet = {"CI": "1", "NO_COLOR": "1", "DO_NOT_TRACK": "1", "TERM": "dumb"}
    local = {"NO_PROXY": "127.0.0.1,localhost", "HOME": str(launch.home)}
    return kept | quiet | local | agent.env(launch)


def _mini_swe_agent_argv(launch: Launch) -> list[str | Path]:
    unattended: list[str | Path] = ["-y", "--exit-immediately", "-o", launch.home / "trajectory.json"]
    return [KIT.venv / "bin/mini", "-m", f"openai/{launch.model}", *unattended, "-t", launch.prompt]


def _mini_swe_agent_env(launch: Launch) -> dict[str, str]:
    return {
        "OPENAI_API_BASE": f"{launch.base_url}/v1",
        "OPENAI_API_KEY": API_KEY,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def _claude_code_argv(launch: Launch) -> list[str | Path]:
    unattended = ["--dangerously-skip-permissions", "--output-format", "stream-json", "--verbose"]
    return [KIT.node_program("claude"), "-p", launch.prompt, *unattended, "--model", launch.model]


def _claude_code_env(launch: Launch) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": launch.base_url,
        "ANTHROPIC_API_KEY": API_KEY,
        "IS_SANDBOX": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }


def _codex_argv(launch: Launch) -> list[str | Path]:
    provider = f'{{name="demo",base_url="{launch.base_url}/v1",env_key="DEMO_API_KEY",wire_api="responses"}}'
    settings = [
        'model_provider="demo"',
        f"model_providers.demo={provider}",
        "analytics.enabled=false",
        "check_for_update_on_startup=false",
    ]
    unattended = ["--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", "--json"]
    chosen = [part for setting in settings for part in ("-c", setting)]
    return [KIT.node_program("codex"), "exec", *unattended, *chosen, "-m", launch.model, launch.prompt]


def _codex_env(launch: Launch) -> dict[str, str]:
    return {"DEMO_API_KEY": API_KEY}


MINI_SWE_AGENT = Agent(
    name="mini-swe-agent",
    protocol="chat completions",
    has_identity=False,
    argv=_mini_swe_agent_argv,
    env=_mini_swe_agent_env,
)
CLAUDE_CODE = Agent(
    name="claude-code",
    protocol="Anthropic messages",
    has_identity=True,
    argv=_claude_code_argv,
    env=_claude_code_env,
)
CODEX = Agent(
    name="codex",
    protocol="responses",
    has_identity=True,
    argv=_codex_argv,
    env=_codex_env,
)
AGENTS = (MINI_SWE_AGENT, CLAUDE_CODE, CODEX)
