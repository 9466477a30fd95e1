"""`turnpike settings diff` and `turnpike settings reload`: the settings of a running gateway."""

import argparse
import json
from pathlib import Path
from typing import Any, Final

from gateway.cli.sessions import add_control_options, call_control
from gateway.config.load import ConfigError
from gateway.domain.printable import printable

# All settings, profiles and keys are read.
_PATIENCE_S: Final = 120.0


def add_settings_commands(commands: Any) -> None:
    settings = commands.add_parser("settings", help="what a running gateway is set to, and changes of it")
    below = settings.add_subparsers(required=True, metavar="COMMAND")
    diff = below.add_parser("diff", help="what a file would change, and what of it needs a restart")
    diff.add_argument("file", nargs="?", metavar="FILE", help="by default the gateway's own, as it is now")
    diff.set_defaults(command=_diff)
    reload = below.add_parser("reload", help="have the gateway read its own file again")
    reload.set_defaults(command=_reload)
    for parser in (diff, reload):
        add_control_options(parser)


def _diff(arguments: argparse.Namespace) -> int:
    try:
        text = Path(arguments.file).read_bytes() if arguments.file is not None else b""
    except OSError as error:
        raise ConfigError(f"{arguments.file}: {error.strerror}") from None
    return _post(arguments, "diff", text, "nothing would change")


def _reload(arguments: argparse.Namespace) -> int:
    return _post(arguments, "reload", b"", "nothing has changed")


def _post(arguments: argparse.Namespace, command: str, text: bytes, nothing: str) -> int:
    reply = call_control(arguments, f"/turnpike/settings/{command}", text, timeout_s=_PATIENCE_S)
    changes = reply["changes"]
    if arguments.json:
        print(json.dumps(changes))
        return 0
    for change in changes:
        restart = "  needs a restart" if change["needs_restart"] else ""
        what = f"{change['before'] or 'not there'} → {change['after'] or 'not there'}"
        print(printable(f"{change['key']}: {what}{restart}"))
    if not changes:
        print(nothing)
    return 0
