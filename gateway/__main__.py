"""The `turnpike` command."""

import argparse
import getpass
import logging
import os
import resource
import secrets
import signal
import sys
from contextlib import redirect_stdout
from importlib.metadata import entry_points
from typing import Any, Final, TextIO, cast

import uvloop

from gateway import __version__
from gateway.cli.doctor import add_doctor
from gateway.cli.host_probe import add_probe
from gateway.cli.sessions import add_control_options, add_look, call_control
from gateway.cli.settings import add_settings_commands
from gateway.cli.starter import add_init
from gateway.config import Config
from gateway.config.load import ConfigError, load_config
from gateway.config.server import worker_count
from gateway.dashboard.terminal import LineFormatter, Printable
from gateway.domain.printable import printable
from gateway.history.service import add_history
from gateway.server.admin.loaded_references import check_references
from gateway.server.admin.settings_reload import Read, set_log_format, set_log_level
from gateway.server.aggregator.command import add_control
from gateway.server.app import Gateway
from gateway.server.auth.client_keys import hash_key
from gateway.server.auth.key_file import add_keys, read_keys
from gateway.server.picker.checking import check_picker
from gateway.server.runtime.memory import set_up_memory
from gateway.server.runtime.workers import Workers, join_parent, of_worker
from gateway.shared_state.fleet_secret import WORKERS_SECRET, derived, fleet_secret
from gateway.telemetry.log_lines import is_no_bad_request
from gateway.tryout.command import add_try
from gateway.wire.hashing import key_hashes, seed_hashes

_log: Final = logging.getLogger("gateway")


# Entry points of `turnpike.commands`, in the distribution `turnpike-lab`.
_LAB_COMMANDS: Final = {
    "eval": "measure inference on recorded traffic",
    "play": "play a workload against a real fleet, and measure it",
    "replay": "replay a recording: the same events, the same decisions",
    "simulate": "play a workload on a simulated fleet",
    "workload": "import, compose and describe workloads",
}


_EXAMPLES: Final = """\
examples:
  turnpike try                               with a stub engine and agents of its own
  turnpike init --backend http://gpu-1:8000  writes a first turnpike.toml
  turnpike doctor                            what each backend lacks, and what that would gain
  turnpike serve turnpike.toml
  turnpike sessions                          what runs now
  turnpike explain REQUEST_ID                why a turn waited, and where it ran
"""


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    parser = _lab_parser(words[0]) if words and words[0] in _LAB_COMMANDS else _parser()
    arguments = parser.parse_args(words)
    log = logging.StreamHandler(sys.stderr)
    worker = getattr(arguments, "worker", None)
    log.setFormatter(LineFormatter(f"turnpike{'' if worker is None else f' {worker}'}: %(message)s"))
    log.addFilter(is_no_bad_request)
    logging.basicConfig(level=logging.INFO, handlers=[log])
    try:
        with redirect_stdout(cast(TextIO, Printable(sys.stdout))):
            status: int = arguments.command(arguments)
            sys.stdout.flush()
    except BrokenPipeError:  # `turnpike sessions | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ConfigError, OSError, ValueError) as error:
        print(f"turnpike: {printable(str(error))}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="turnpike",
        description="A session-aware gateway for LLM servers that run agents.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"turnpike {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the gateway")
    _add_settings(serve)
    serve.add_argument(
        "--workers",
        metavar="N",
        help="gateways on this port, which share a Redis: a number, or auto for one a core (default 1)",
    )
    serve.add_argument(
        "--sidecar",
        action="store_true",
        help=f"for the engine beside it: {_BESIDE}, with the key in {_BESIDE_KEY} if that is set",
    )
    serve.add_argument("--worker", type=int, help=argparse.SUPPRESS)  # its number, from its parent
    serve.set_defaults(command=_serve)

    picker = commands.add_parser("picker", help="choose replicas for Envoy, without sending requests")
    _add_settings(picker)
    picker.set_defaults(command=_pick)

    check = commands.add_parser("check-config", help="check a settings file")
    _add_settings(check)
    check.set_defaults(command=_check_config)

    add_try(commands, lambda config: _run_gateway(config, None))
    add_init(commands)
    add_doctor(commands, add_options=add_control_options, call_control=call_control)

    hashing = commands.add_parser("hash-key", help="print the hash of an API key, for key_hashes")
    hashing.add_argument("--generate", action="store_true", help="make a new key, and print it too")
    hashing.set_defaults(command=_hash_key)

    add_keys(commands)
    add_look(commands)
    add_settings_commands(commands)
    add_control(commands)
    add_history(commands)
    add_probe(commands)
    for name, summary in _LAB_COMMANDS.items():
        commands.add_parser(name, help=f"{summary} (turnpike-lab)")
    completion = commands.add_parser("completion", help="print what completes this command in a shell")
    completion.add_argument("shell", choices=_SHELLS, help="the shell")
    completion.set_defaults(command=lambda arguments: _complete(parser, arguments.shell))
    return parser


def _lab_parser(name: str) -> argparse.ArgumentParser:
    """Of one command of the lab, which is loaded for it alone. Raises SystemExit where the lab is not
    installed."""
    for each in entry_points(group="turnpike.commands", name=name):
        parser = argparse.ArgumentParser(prog="turnpike")
        each.load()(parser.add_subparsers(required=True, metavar="COMMAND"))
        return parser
    print(
        f"turnpike: `{name}` is a command of turnpike-lab, which is not installed: "
        "pip install ./engine_ext ./lab, from the project's sources",
        file=sys.stderr,
    )
    raise SystemExit(2)


def _complete(parser: argparse.ArgumentParser, shell: str) -> int:
    import shtab  # noqa: PLC0415 - longer than all else that a command imports

    print(shtab.complete(parser, shell))
    return 0


_SHELLS: Final = ("bash", "zsh", "tcsh")
_BESIDE: Final = "http://127.0.0.1:8000"
# Where vLLM itself looks for the key that it is to ask for.
_BESIDE_KEY: Final = "VLLM_API_KEY"
_FLAGS: Final = (
    ("listen", "server.listen"),
    ("control", "server.control"),
    ("stream", "stream.path"),
    ("record", "recording.path"),
)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", metavar="FILE", help="settings in TOML (the same as --config)")
    parser.add_argument("--config", dest="config_flag", metavar="FILE", help="settings in TOML")
    parser.add_argument(
        "--backend", action="append", metavar="URL", help="an LLM server; again for more, all in one pool"
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="where clients connect (default 127.0.0.1:8080)"
    )
    parser.add_argument("--control", metavar="HOST:PORT", help="the control plane (default 127.0.0.1:8081)")
    parser.add_argument("--stream", metavar="FILE", help="write the information stream there, as JSON lines")
    parser.add_argument(
        "--record", metavar="FILE", help="record events and decisions there, to be replayed; texts as hashes"
    )
    parser.add_argument(
        "--allow-public-without-keys",
        action="store_true",
        help="serve other hosts though no key is required",
    )


def _load(arguments: argparse.Namespace, text: str | None = None) -> Config:
    """`text`: in place of the file's."""
    flags: dict[str, Any] = {}
    if arguments.backend:
        flags["pools"] = [{"replicas": [{"url": url} for url in arguments.backend]}]
    elif getattr(arguments, "sidecar", False):
        key = {"api_key_env": _BESIDE_KEY} if os.environ.get(_BESIDE_KEY) else {}
        flags["pools"] = [{"replicas": [{"url": _BESIDE, **key}]}]
    for flag, setting in _FLAGS:
        if getattr(arguments, flag) is not None:
            flags[setting] = getattr(arguments, flag)
    if arguments.allow_public_without_keys:
        flags["server.allow_public_without_keys"] = True
    if (workers := getattr(arguments, "workers", None)) is not None:
        flags["server.workers"] = int(workers) if workers.isdecimal() else workers
    return load_config(arguments.config_flag or arguments.config, os.environ, flags, text=text)


def _serve(arguments: argparse.Namespace) -> int:
    has_file = arguments.config_flag is not None or arguments.config is not None
    worker = arguments.worker

    def read(text: str | None) -> Config:
        config = _load(arguments, text)
        count = worker_count(config.server.workers, cores=_usable_cores())
        return config if worker is None else of_worker(config, worker, count)

    config = read(None)
    count = worker_count(config.server.workers, cores=_usable_cores())
    if count == 1 or worker is not None:
        return _run_gateway(config, read if has_file else None, worker=worker)
    _set_log(config, worker)
    check_references(config, os.environ)
    if not config.shared.has_secret:
        os.environ.setdefault(WORKERS_SECRET, secrets.token_hex(32))  # theirs, too

    async def run() -> int:
        return await Workers(config, sys.argv[1:], count=count, can_reload=has_file).run()

    return uvloop.run(run())


def _pick(arguments: argparse.Namespace) -> int:
    config = _load(arguments)
    check_picker(config)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else its log has a line for each client that leaves
    return _run_gateway(config, None, is_picker=True)


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run_gateway(
    config: Config, read: Read | None, *, is_picker: bool = False, worker: int | None = None
) -> int:
    """`read`: None if there is no file to read again, or settings are not followed."""
    _set_log(config, worker)
    _allow_open_files(2 * config.server.limits.max_connections + 1024)

    secret = fleet_secret(config.shared, os.environ) if config.shared.url is not None else None
    if secret is not None:
        key_hashes(derived(secret, "hashes"))
    elif config.recording.path is not None:
        key_hashes(secrets.token_bytes(32))
    else:
        seed_hashes(secrets.randbits(64))
    set_up_memory()

    async def run() -> None:
        try:
            gateway = Gateway(
                config,
                os.environ,
                read=read,
                fleet_secret=secret,
                is_picker=is_picker,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error  # what the settings name is not there, or is none
        try:
            await gateway.run(join_parent if worker is not None else None)
        except ValueError as error:
            raise RuntimeError("the gateway failed") from error  # a bug: with its trace

    uvloop.run(run())
    return 0


def _set_log(config: Config, worker: int | None) -> None:
    set_log_level(config.server.log_level)
    set_log_format(config.server.log_format, worker)


def _allow_open_files(wanted: int) -> None:
    """Each client connection may need another one upstream; the usual limit of 1024 ends that early."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _check_config(arguments: argparse.Namespace) -> int:
    config = _load(arguments)
    check_references(config, os.environ)
    if config.server.keys_path is not None:
        read_keys(config.server.keys_path)
    replicas = sum(len(pool.replicas) for pool in config.pools)
    print(
        f"ok: {replicas} replica(s) in {len(config.pools)} pool(s), {len(config.tenants)} tenant(s), "
        f"listening on {config.server.listen}, control on {config.server.control}"
    )
    return 0


def _hash_key(arguments: argparse.Namespace) -> int:
    if arguments.generate:
        key = "tp-" + secrets.token_urlsafe(32)
        print(f"key:  {key}")
        print(f"hash: {hash_key(key)}")
        return 0
    key = getpass.getpass("API key: ") if sys.stdin.isatty() else sys.stdin.readline()
    if not key.strip():
        raise ValueError("the key is empty")
    print(hash_key(key.strip()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
