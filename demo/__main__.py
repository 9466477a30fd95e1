"""A crowd with real agents on real vLLM servers, as they come and behind the gateway: what changes.

Exit status 0 only if everybody was served, every agent did its work and every run was recognised as exactly
one session (that something was slower is no failure); 1 if not, 2 if something is missing, 130 if it was
interrupted.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.stock_engines import warm_up
from demo import page, printing, records, report, side_by_side, stage, telemetry
from demo.balancer import Balancer, Choose
from demo.comparison import Comparison
from demo.errors import DemoError
from demo.install import ROOT, install_agents, require_node
from demo.processes import Children, require_free
from demo.progress import Progress, Say
from demo.replay import CONVERSATIONS, Replay, replay
from demo.runs import AgentRun, Place, Plan, plans, run_agents
from demo.sides import Side, run_side
from scripted_engine.ports import free_port

ENGINES = 2
KEPT_DIRECTORIES = 3
PAGE = "report.html"
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
        "--quick",
        action="store_true",
        help="real agents through the gateway alone: what it makes of them, without the comparison",
    )
    parser.add_argument(
        "--runs-each", type=int, metavar="N", help="runs of each agent (default: 1, or 2 if it is quick)"
    )
    parser.add_argument(
        "--conversations",
        type=int,
        default=CONVERSATIONS,
        metavar="N",
        help=f"replayed beside the agents, for the comparison (default: {CONVERSATIONS})",
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
    replayed = None if options.quick else await asyncio.to_thread(replay, options.conversations)
    async with asyncio.TaskGroup() as beside, AsyncExitStack() as stack:
        installed = beside.create_task(install_agents(children, directory, say))
        starting = stage.engines(
            ENGINES,
            children,
            directory,
            say,
            options=stage.ENGINE if replayed is None else stage.SMALL_ENGINE,
            more_scripts=None if replayed is None else replayed.scripts,
        )
        backends = await stack.enter_async_context(starting)
        await installed
        place = Place(gateway_url="", model=stage.MODEL, directory=directory, children=children)
        show = _Show(place=place, backends=backends, planned=plans(runs_each=_runs_each(options)), say=say)
        # Before there is a gateway: nobody has sent the engines a hint, so their plugin sleeps.
        stock = None if replayed is None else await show.stock(replayed)
        gateway = await stack.enter_async_context(
            stage.gateway(backends, port, children, directory, say, traces=options.traces)
        )
        say(f"watch them: {gateway.control_url}/turnpike/")
        shown = await show.through(gateway, replayed, stock)
        _write(shown, gateway, directory)
        print(f"\n{shown.text}\n", flush=True)
        if shown.compared is not None:
            say(f"the same as a page, with every conversation: {(directory / PAGE).as_uri()}")
        if options.stay:
            say(f"look at {gateway.control_url}/turnpike/ and press Enter to end")
            await _enter()
        say("stopping the gateway and the servers")
    say("done; nothing is left running")
    if options.json:
        print(json.dumps(shown.totals | {"took_s": round(say.elapsed_s, 1), "stream": str(gateway.stream)}))
    return 0 if shown.is_good else 1


def _runs_each(options: argparse.Namespace) -> int:
    return int(options.runs_each or (2 if options.quick else 1))


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """What came of it."""

    made: report.Report
    compared: Comparison | None
    runs: list[AgentRun]
    """Through the gateway."""

    @property
    def is_good(self) -> bool:
        return self.made.is_good and (self.compared is None or self.compared.is_done)

    @property
    def totals(self) -> dict[str, Any]:
        compared = {} if self.compared is None else {"comparison": self.compared.totals()}
        return self.made.totals() | {"ok": self.is_good} | compared

    @property
    def text(self) -> str:
        parts = [printing.as_text(self.made)]
        if self.compared is not None:
            parts.append(side_by_side.as_text(self.compared))
        return "\n\n\n".join(parts)


@dataclass(frozen=True, kw_only=True)
class _Show:
    """The crowd, on these engines."""

    place: Place
    backends: list[str]
    planned: list[Plan]
    say: Say

    async def stock(self, replayed: Replay) -> Side:
        """Without a gateway."""
        self.say("both engines answer a few prompts, which nobody measures")
        for url in self.backends:
            await asyncio.to_thread(warm_up, url, stage.MODEL)
        return await self._side("stock", Balancer(self.backends).choose, replayed)

    async def through(self, gateway: stage.Gateway, replayed: Replay | None, stock: Side | None) -> _Shown:
        """`stock`: what it is compared with."""
        async with telemetry.watched(self.backends) as engines:
            if replayed is None or stock is None:
                names = ", ".join(plan.name for plan in self.planned)
                self.say(f"running {len(self.planned)} agents at once: {names}")
                place, ours = replace(self.place, gateway_url=gateway.url), None
                runs = await run_agents(place, self.planned, self.say)
            else:
                ours = await self._side("turnpike", gateway.url, replayed)
                runs = ours.agents
        await asyncio.sleep(records.WITHIN_S)
        seen = records.read(gateway.stream)
        compared = None
        if ours is not None and stock is not None and replayed is not None:
            compared = Comparison(
                stock=stock,
                ours=ours,
                held=seen.held(),
                kv_tokens=len(self.backends) * stage.KV_BLOCKS * stage.SMALL_ENGINE.block_size,
                peak_tokens=replayed.peak_tokens,
            )
        return _Shown(made=report.make(runs, seen, engines), compared=compared, runs=runs)

    async def _side(self, name: str, where: str | Choose, replayed: Replay) -> Side:
        agents, conversations = len(self.planned), len(replayed.sessions)
        self.say(f"{name}: {agents} real agents and {conversations} replayed conversations come")
        place = replace(self.place, gateway_url=where, directory=self.place.directory / name)
        side = await run_side(
            place, self.backends, self.planned, replayed, lambda line: self.say(f"{name}: {line}")
        )
        self.say(f"{name}: everybody done after {side.took_s:.1f} s")
        return side


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


def _write(shown: _Shown, gateway: stage.Gateway, directory: Path) -> None:
    (directory / "report.json").write_text(json.dumps(shown.totals))
    with (directory / "requests.jsonl").open("w") as lines:
        for run in shown.runs:
            lines.writelines(
                json.dumps({"run": run.plan.name} | asdict(exchange)) + "\n" for exchange in run.exchanges
            )
    if shown.compared is not None:
        dashboard = f"{gateway.control_url}/turnpike/"
        (directory / PAGE).write_text(page.as_html(shown.compared, dashboard=dashboard), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
