"""What the model says to each agent: look, edit, test, answer. The agent does the rest for real.

A prompt names its script with a marker, and the engine plays that script's next turn (the format is the
scripted engine's). Paths are relative, so one script serves any number of runs at once.
"""

from typing import Any

from demo.workshop import BUG, PROGRAM, REPAIR, TEST

Script = dict[str, Any]

_LOOK = f"I will read {PROGRAM} and its test, and see how it fails."
_EDIT = "The total adds where it should multiply. I will change that one line."
_CHECK = "Now the test again."
_ANSWER = f"{PROGRAM} multiplies now, and {TEST} passes."

_READ_BOTH = f"cat {PROGRAM} {TEST}"
_RUN_TEST = f"python3 -B {TEST}"


def prompt(agent: str) -> str:
    """What the agent is asked to do; the same words for every run of that agent."""
    return f"The test {TEST} fails. Repair {PROGRAM}, then run the test. [[script:{agent}]]"


def _turn(text: str, *calls: tuple[str, dict[str, Any]]) -> Script:
    return {"text": text, "tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}


def _mini_swe_agent() -> Script:
    def bash(command: str) -> tuple[str, dict[str, Any]]:
        return "bash", {"command": command}

    return {
        "turns": [
            _turn(_LOOK, bash(_READ_BOTH), bash(_RUN_TEST)),
            _turn(_EDIT, bash(f"sed -i.orig 's/{BUG}/{REPAIR}/' {PROGRAM} && cat {PROGRAM}")),
            _turn(_CHECK, bash(_RUN_TEST)),
            # Its way of saying that it is done: a last call, which is never answered.
            _turn(_ANSWER, bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
        ],
        "without_tools": _ANSWER,
    }


def _claude_code() -> Script:
    def bash(command: str) -> tuple[str, dict[str, Any]]:
        return "Bash", {"command": command, "description": "Run the test"}

    read = "Read", {"file_path": PROGRAM}
    edit = "Edit", {"file_path": PROGRAM, "old_string": BUG, "new_string": REPAIR}
    return {
        "turns": [
            _turn(_LOOK, read, bash(_RUN_TEST)),
            _turn(_EDIT, edit),
            _turn(_CHECK, bash(_RUN_TEST)),
            _turn(_ANSWER),
        ],
        # The title of the session, which is asked for on the side.
        "without_tools": '{"title": "Repair the price"}',
    }


def _codex() -> Script:
    def command(text: str) -> tuple[str, dict[str, Any]]:
        return "exec_command", {"cmd": text, "login": False}

    patch = f"*** Begin Patch\n*** Update File: {PROGRAM}\n@@\n-    {BUG}\n+    {REPAIR}\n*** End Patch"
    return {
        "turns": [
            _turn(_LOOK, command(_READ_BOTH), command(_RUN_TEST)),
            _turn(_EDIT, command(f"apply_patch <<'EOF'\n{patch}\nEOF")),
            _turn(_CHECK, command(_RUN_TEST)),
            _turn(_ANSWER),
        ],
        "without_tools": _ANSWER,
    }


def scripts() -> Script:
    """The whole script file."""
    return {
        "default": {"turns": [_turn("Nothing to do here.")], "without_tools": "Nothing to do here."},
        "scripts": {"mini-swe-agent": _mini_swe_agent(), "claude-code": _claude_code(), "codex": _codex()},
    }
