"""``python -m scripted_engine --script FILE``: one scripted engine in the foreground."""

import argparse
import os
import sys
from pathlib import Path

from lab.engine import tiny_model
from scripted_engine import script
from scripted_engine.process import EngineOptions


def main(arguments: list[str] | None = None) -> int:
    """Become the engine's API server. Returns (2) only if the script file is not one."""
    parser = argparse.ArgumentParser(
        prog="python -m scripted_engine",
        description="A real vLLM engine that says what a script says.",
        epilog="Every other argument is passed on to vLLM's API server.",
        allow_abbrev=False,
    )
    parser.add_argument("--script", type=Path, required=True, help="the script file (JSON)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--model-dir", type=Path, help="default: a tiny model built on the spot")
    parser.add_argument("--served-model-name", nargs="+", default=["scripted"], metavar="NAME")
    known, extra = parser.parse_known_args(arguments)
    try:
        script.load(known.script)
    except script.ScriptError as error:
        print(f"scripted_engine: {error}", file=sys.stderr)
        return 2
    options = EngineOptions(
        served_model_names=tuple(known.served_model_name),
        host=known.host,
        port=known.port,
        extra_args=tuple(extra),
    )
    command = options.command(known.model_dir or tiny_model.build(), known.port)
    os.execve(command[0], command, options.environment(known.script.resolve()))


if __name__ == "__main__":
    sys.exit(main())
