"""Clients beyond the demo's: two more agents, and small programs written with three frameworks.

They do the demo's task, in the demo's words. Each is told nothing but the base URL.
"""

from pathlib import Path

from demo import scripts
from demo.agents import API_KEY, Agent, Launch
from demo.install import AGENTS_DIR, Kit
from demo.scripts import Script
from demo.workshop import BUG, PROGRAM, REPAIR, TEST

AGENTS_KIT = Kit(
    directory=AGENTS_DIR / "clients",
    npm=("@qwen-code/qwen-code@0.15.10", "cline@3.0.65"),
)
FRAMEWORKS_KIT = Kit(
    directory=AGENTS_DIR / "frameworks",
    python=(
        "openai-agents==0.24.0",
        "langchain==1.4.7",
        "langgraph==1.2.22",
        "langchain-openai==1.7.3",
        "pydantic-ai-slim[openai]==2.62.0",
        "openai==3.54.0",
    ),
)
MCP_KIT = Kit(directory=AGENTS_DIR / "mcp", python=("mcp==2.3.0",))
MCP_NODE_KIT = Kit(directory=AGENTS_DIR / "mcp-node", npm=("@modelcontextprotocol/sdk@1.32.2",))
APPS = Path(__file__).parent / "apps"

_COMMANDS = (f"cat {PROGRAM} {TEST}", f"sed -i.orig 's/{BUG}/{REPAIR}/' {PROGRAM}", f"python3 -B {TEST}")
_TEXTS = ("I will read both files.", "One line is wrong.", "Now the test.")
_ANSWER = f"{PROGRAM} multiplies now, and {TEST} passes."


def all_scripts() -> Script:
    named = scripts.scripts()
    frameworks = {each.name: _script("bash", {"command": "{}"}) for each in FRAMEWORKS}
    more = {
        "qwen-code": _script("run_shell_command", {"command": "{}", "is_background": False}, preamble=1),
        "cline": _script("run_commands", {"commands": ["{}"]}),
    }
    return named | {"scripts": named["scripts"] | frameworks | more}


def _script(tool: str, arguments: dict[str, object], *, preamble: int = 0) -> Script:
    """Look, edit, test, answer. `preamble`: assistant messages that the client itself puts first."""

    def fill(value: object, command: str) -> object:
        if isinstance(value, list):
            return [fill(each, command) for each in value]
        return command if value == "{}" else value

    turns: list[Script] = [{"text": "Nobody asks for this."}] * preamble
    for text, command in zip(_TEXTS, _COMMANDS, strict=True):
        filled = {name: fill(value, command) for name, value in arguments.items()}
        turns.append({"text": text, "tool_calls": [{"name": tool, "arguments": filled}]})
    return {"turns": [*turns, {"text": _ANSWER}], "without_tools": _ANSWER}


def _openai_env(launch: Launch) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{launch.base_url}/v1", "OPENAI_API_KEY": API_KEY}


_QWEN_CODE = """
qwen=$1 prompt=$2
mkdir -p "$HOME/.qwen" &&
echo '{"privacy": {"usageStatisticsEnabled": false}}' > "$HOME/.qwen/settings.json" &&
exec "$qwen" --yolo --auth-type openai -p "$prompt"
"""


# Its provider is set once, in its home; a run then only names it.
_CLINE = """
cline=$1 base=$2 model=$3 prompt=$4
"$cline" auth -p openai-compatible -k "$KEY" -m "$model" -b "$base/v1" &&
exec "$cline" --json --auto-approve true -P openai-compatible --config "$HOME/.cline" \
  -k "$KEY" -m "$model" "$prompt"
"""


def _cline_argv(launch: Launch) -> list[str | Path]:
    cline = AGENTS_KIT.node_program("cline")
    return ["sh", "-c", _CLINE, "sh", cline, launch.base_url, launch.model, launch.prompt]


def _framework(name: str, protocol: str, *, streams: bool) -> Agent:
    def argv(launch: Launch) -> list[str | Path]:
        app = APPS / f"with_{name.replace('-', '_')}.py"
        mode = "streamed" if streams else "whole"
        return [FRAMEWORKS_KIT.venv / "bin/python", app, protocol, mode, launch.model, launch.prompt]

    return Agent(
        name=f"{name}-{protocol}" + ("-streamed" if streams else ""),
        protocol=protocol,
        has_identity=False,
        argv=argv,
        env=_openai_env,
    )


QWEN_CODE = Agent(
    name="qwen-code",
    protocol="chat completions",
    has_identity=False,
    argv=lambda launch: ["sh", "-c", _QWEN_CODE, "sh", AGENTS_KIT.node_program("qwen"), launch.prompt],
    env=lambda launch: _openai_env(launch) | {"OPENAI_MODEL": launch.model},
)
CLINE = Agent(
    name="cline",
    protocol="chat completions",
    has_identity=False,
    argv=_cline_argv,
    env=lambda _: {"KEY": API_KEY, "CLINE_TELEMETRY_DISABLED": "1", "CLINE_NO_AUTO_UPDATE": "1"},
)
FRAMEWORKS = tuple(
    _framework(name, protocol, streams=streams)
    for name in ("openai-agents", "langgraph", "pydantic-ai")
    for protocol, streams in (("chat", False), ("chat", True), ("responses", True))
)
