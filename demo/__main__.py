"""Real agents, through the gateway, on real vLLM servers: prepares everything, shows it, reports, cleans up.

Exit status 0 only if every agent did its work and every run was recognised as exactly one session;
1 if not, 2 if something is missing, 130 if it was interrupted.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

from demo import printing, records, report, stage, telemetry
from demo.errors import DemoError
from demo.install import ROOT, install_agents, require_node
from demo.processes import Children, free_port, require_free
from demo.progress import Progress
from demo.runs import AgentRun, Place, plans, run_agents
from demo.telemetry import EngineTelemetry

ENGINES = 2
KEPT_DIRECTORIES = 3
MISSING, INTERRUPTED = 2, 130


def main() -> int:
    options = _options()
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    children = Children(name)
    try:
        return asyncio.run(_interruptible(options, name, children))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("\ndemo: stopped", file=sys.stderr)
        return INTERRUPTED
    except (DemoError, ExceptionGroup) as error:
        return _explain(error)
    finally:
        strays = children.stop_all()
        if strays:
            print(f"demo: also stopped {strays} processes that the agents had left behind", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, help="the gateway's port (default: a free one)")
    parser.add_argument(
        "--runs-each", type=int, default=2, metavar="N", help="runs of each agent (default: 2)"
    )
    parser.add_argument(
        "--traces", metavar="URL", help="send traces there, such as http://localhost:4318/v1/traces"
    )
    parser.add_argument("--json", action="store_true", help="print the totals as the last line")
    parser.add_argument(
        "--stay",
        action=argparse.BooleanOptionalAction,
        default=sys.stdin.isatty(),
        help="leave everything running until Enter is pressed (default: at a terminal)",
    )
    return parser.parse_args()


def _explain(error: Exception) -> int:
    """One line for each thing that is missing; what nobody foresaw is raised as it is."""
    leaves = list(_leaves(error))
    if not all(isinstance(leaf, DemoError) for leaf in leaves):
        raise error
    for leaf in leaves:
        print(f"demo: {leaf}", file=sys.stderr)
    return MISSING


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


async def _interruptible(options: argparse.Namespace, name: str, children: Children) -> int:
    """Ends cleanly on a termination signal, as on an interrupt."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await _demo(options, name, children)


async def _demo(options: argparse.Namespace, name: str, children: Children) -> int:
    say = Progress()
    require_node()
    port = free_port() if options.port is None else require_free(options.port)
    directory = _new_directory(name)
    say(f"logs and scratch directories: {directory.relative_to(ROOT)}")
    async with asyncio.TaskGroup() as beside, AsyncExitStack() as stack:
        installed = beside.create_task(install_agents(children, directory, say))
        backends = await stack.enter_async_context(stage.engines(ENGINES, children, directory, say))
        gateway = await stack.enter_async_context(
            stage.gateway(backends, port, children, directory, say, traces=options.traces)
        )
        await installed
        planned = plans(runs_each=options.runs_each)
        say(f"running {len(planned)} agents at once: {', '.join(plan.name for plan in planned)}")
        place = Place(gateway_url=gateway.url, model=stage.MODEL, directory=directory, children=children)
        say(f"watch them: {gateway.control_url}/turnpike/")
        async with telemetry.watched(backends) as engines:
            runs = await run_agents(place, planned, say)
        if options.stay:
            say(f"all agents have ended; look at {gateway.control_url}/turnpike/ and press Enter to end")
            await _enter()
        say("stopping the gateway and the servers")
    return _conclude(runs, engines, directory, gateway.stream, options, say)


async def _enter() -> None:
    """A line on the terminal, or its end."""
    loop, pressed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, pressed.set)
    try:
        await pressed.wait()
    finally:
        loop.remove_reader(sys.stdin)


def _new_directory(name: str) -> Path:
    """A directory for this demo; those of the demos before the last few go."""
    home = ROOT / "run" / "demo"
    home.mkdir(parents=True, exist_ok=True)
    for old in sorted(home.iterdir())[: -(KEPT_DIRECTORIES - 1)]:
        shutil.rmtree(old, ignore_errors=True)
    directory = home / name
    directory.mkdir()
    return directory


def _conclude(
    runs: list[AgentRun],
    engines: EngineTelemetry,
    directory: Path,
    stream: Path,
    options: argparse.Namespace,
    say: Progress,
) -> int:
    made = report.make(runs, records.read(stream), engines)
    totals = json.dumps(made.totals() | {"took_s": round(say.elapsed_s, 1), "stream": str(stream)})
    (directory / "report.json").write_text(totals)
    with (directory / "requests.jsonl").open("w") as lines:
        for run in runs:
            lines.writelines(
                json.dumps({"run": run.plan.name} | asdict(exchange)) + "\n" for exchange in run.exchanges
            )
    say("done; nothing is left running\n")
    print(printing.as_text(made))
    if options.json:
        print(totals)
    return 0 if made.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
