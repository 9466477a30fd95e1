"""Does anything grow, leak or get lost over a long day?

    python -m benchmarks.soak [--quick] [--json]

A day of a fleet's traffic in fifteen minutes (`--quick`: three), with the settings of a small machine, so
that every bound and every timeout is met many times over. Forty agents and a tenant that floods talk to one
gateway in four protocols; some clients leave, stop reading, send nonsense. Three engines answer; one after
the other is killed and started again, or stopped for seconds; now and then each resets, stalls, or sends
garbage (`engine.py`).

Then it asserts, from the clients' counts, the information stream and what the gateway process reports on
itself: every request arrived once and ended once; memory, descriptors, tasks and the size of every
container in the last tenth of the time are what they were in the second; the event loop was never held up
for long.
"""

import asyncio
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.command import judged
from benchmarks.gateway import Running, running
from benchmarks.processes import ROOT, BenchmarkError, Pinning, Strangers, guarded, on_cpus
from benchmarks.soak import agents as clients
from benchmarks.verdict import Verdict, percentile
from scripted_engine.ports import free_port

QUICK_S: Final = 110.0
WHOLE_S: Final = 800.0
AGENTS: Final = 40
ENGINES: Final = 3
TENANTS: Final = ("alpha", "beta", "gamma", "flood")
WARM_UP_S: Final = 60.0
"""Before the time that is looked at: tables of what is learned fill up to their bounds."""
MORE_DESCRIPTORS: Final = 30
"""Of some ninety; by chance a few more clients or replicas' connections are open at one time than at
another."""
MORE_TASKS: Final = 3
BUFFERED: Final = 256
"""Entries: so many wait in a buffer, or in the newer half of a small memory, and then are gone at once."""
WALKS: Final = 4
"""In each of the two tenths that are compared."""
SETTLE_S: Final = 12.0
"""After the last request: what still runs at the engines ends, or times out."""
SERVER: Final = """
drain_s = 5

[server.limits]
max_connections = 200
max_body_bytes = 4_000_000
max_header_bytes = 32_768
max_buffered_bytes = 8_000_000
head_timeout_s = 2
body_stall_s = 2
keep_alive_s = 5
client_stall_s = 2
drain_rejected_body_s = 0.5
"""
SETTINGS: Final = """
[upstream]
head_timeout_s = 5
stall_timeout_s = 3
health_period_s = 0.5
health_timeout_s = 1
max_idle_connections = 16

[sessions]
max_sessions = 200
idle_s = 4

[workflow.progress.types]
max_types = 16

[routing]
max_conversations = 512

[state]
max_state_ids = 256

[stream]
ring_records = 2048
max_bytes = 2_000_000_000
"""


class Engines:
    """Processes that die and come back on the same ports."""

    def __init__(self, pinning: Pinning) -> None:
        self._pinning = pinning
        self.ports = [free_port() for _ in range(ENGINES)]
        self._running = [self._start(number) for number in range(ENGINES)]

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "benchmarks.soak.engine", str(self.ports[number]), str(number)]
        with on_cpus(self._pinning.others):
            return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env=guarded())

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()

    async def suffer(self, dice: random.Random) -> None:
        """One after the other: killed and started again, or stopped and continued."""
        while True:
            await asyncio.sleep(dice.uniform(2.0, 4.0))
            number = dice.randrange(ENGINES)
            process = self._running[number]
            if dice.random() < 0.5:
                process.kill()
                process.wait()
                await asyncio.sleep(dice.uniform(0.2, 2.0))
                self._running[number] = self._start(number)
            else:
                process.send_signal(signal.SIGSTOP)
                try:
                    await asyncio.sleep(dice.uniform(0.5, 2.5))
                finally:
                    process.send_signal(signal.SIGCONT)


class Left:
    """What a gateway process left in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self._folder / "report").read_text().splitlines()]

    def records(self) -> Iterator[dict[str, Any]]:
        with (self._folder / "stream").open("rb") as lines:
            yield from map(json.loads, lines)

    def log(self) -> str:
        return (self._folder / "log").read_text()


def soaked(
    engines: Engines, keys: dict[str, str], pinning: Pinning, folder: Path
) -> AbstractContextManager[Running]:
    text = SETTINGS + f'path = "{folder / "stream"}"\n'
    for name, key in keys.items():
        digest = hashlib.sha256(key.encode()).hexdigest()
        text += f'[[tenants]]\nname = "{name}"\nkey_hashes = ["sha256:{digest}"]\n'
    return running(
        [f"http://127.0.0.1:{port}" for port in engines.ports],
        folder,
        text,
        server=SERVER,
        cores=pinning.gateway,
        program=["benchmarks.soak.gateway"],
        arguments=[str(folder / "report")],
    )


def snapshot(gateway: Running) -> dict[str, Any]:
    with urllib.request.urlopen(f"{gateway.control}/turnpike/snapshot", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


async def play(gateway: Running, engines: Engines, keys: dict[str, str], seconds: float) -> Counter[str]:
    """What became of the requests, as their clients saw it."""
    counts: Counter[str] = Counter()
    dice = random.Random(1)
    usual = {name: key for name, key in keys.items() if name != "flood"}
    agents = [clients.Agent(number, gateway.port, usual, counts, 1) for number in range(AGENTS)]
    running = [asyncio.create_task(agent.run()) for agent in agents]
    troubles = [
        asyncio.create_task(engines.suffer(dice)),
        asyncio.create_task(clients.flood(gateway.port, keys["flood"], counts, 2)),
    ]
    tenth_s = seconds / 10
    await asyncio.sleep(WARM_UP_S)
    for tenth in range(10):
        walks = WALKS if tenth in (1, 9) else 1
        for _ in range(walks):
            await asyncio.sleep(tenth_s / walks)
            if walks > 1:
                gateway.process.send_signal(signal.SIGUSR1)
    for trouble in troubles:
        trouble.cancel()
    for agent in agents:
        agent.is_over = True
    await asyncio.gather(*running, *troubles, return_exceptions=True)
    await asyncio.sleep(SETTLE_S)
    return counts


def judge_accounts(gateway: Left, counts: Counter[str], verdict: Verdict, tell: Any) -> None:
    arrived, ended, submitted, over = (Counter[str]() for _ in range(4))
    for record in gateway.records():
        match record:
            case {"type": "turn_arrive", "turn": turn}:
                arrived[turn] += 1
            case {"type": "turn_left" | "refusal", "turn": turn}:
                ended[turn] += 1
            case {"type": "gpu_submit", "turn": turn}:
                submitted[turn] += 1
            case {"type": "gpu_end", "turn": turn, "outcome": outcome}:
                over[turn] += 1
                ended[turn] += outcome != "failed"
            case _:
                pass
    told = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    tell(f"clients: {told}")
    least = counts[clients.ANSWERED] + counts[clients.CUT]
    most = least + counts[clients.LEFT] + counts[clients.UNHEARD] + counts["misbehaved"]
    verdict.tell("requests_sent", counts["sent"])
    verdict.tell("requests_answered_whole", counts[clients.ANSWERED])
    verdict.at_most("requests_that_clients_miss", max(0, least - len(arrived)), 0)
    verdict.at_most("requests_that_nobody_sent", max(0, len(arrived) - most), 0)
    verdict.at_most("requests_without_one_end", sum(ended[turn] != 1 for turn in arrived), 0)
    verdict.at_most("ends_of_nothing", sum(turn not in arrived for turn in ended), 0)
    verdict.at_most("attempts_without_one_end", sum(submitted[turn] != over[turn] for turn in submitted), 0)
    verdict.at_most("faults_logged", gateway.log().count("Traceback"), 0)


def judge_flatness(gateway: Left, began_s: float, seconds: float, verdict: Verdict, tell: Any) -> None:
    reports = gateway.reports()
    tenth_s = seconds / 10

    def within(tenth: int, key: str) -> list[Any]:
        since_s = began_s + tenth * tenth_s
        slack_s = 5.0 if key == "sizes" else 0.0  # a walk takes its time
        return [
            each[key]
            for each in reports
            if key in each and since_s <= each["at_s"] < since_s + tenth_s + slack_s
        ]

    # Bodies of 8 MiB come and go. What is kept shows while the fewest are on their way.
    before, after = (percentile(within(tenth, "rss_mib"), 10) for tenth in (1, 9))
    verdict.tell("rss_mib_second_tenth", before)
    verdict.at_most("rss_mib_last_to_second_tenth", after / before, 1.05)
    for name, tenth in (("second", 1), ("last", 9)):
        verdict.tell(f"rss_mib_{name}_tenth_median", median(within(tenth, "rss_mib")))
    for key, bound in (("descriptors", MORE_DESCRIPTORS), ("tasks", MORE_TASKS)):
        before, after = median(within(1, key)), median(within(9, key))
        verdict.tell(f"{key}_second_tenth", before)
        verdict.at_most(f"more_{key}_in_the_last_tenth", after - before, bound)
    sizes_before, sizes_after = within(1, "sizes"), within(9, "sizes")
    if not sizes_before or not sizes_after:
        raise BenchmarkError("the gateway did not report on its containers")
    grown = []
    for name in {name for sizes in sizes_after for name in sizes}:
        most_before = max(sizes.get(name, 0) for sizes in sizes_before)
        usual_after = median(sizes.get(name, 0) for sizes in sizes_after)
        if usual_after > 1.2 * most_before + BUFFERED:
            grown.append(f"{name}: {most_before} -> {usual_after:g}")
    for line in sorted(grown):
        tell(f"grown: {line}")
    verdict.tell("containers", len(sizes_after[-1]))
    verdict.at_most("containers_that_grew", len(grown), 0)
    own = [each for each in reports if "late_ms" in each and each["at_s"] > began_s]
    late_ms = [late for each in own for late in each["late_ms"]]
    verdict.at_most("loop_late_p99_ms", percentile(late_ms, 99), 20)
    verdict.tell("loop_late_worst_ms", max(late_ms))  # a crowd that came at once
    verdict.at_most("callback_longest_ms", max(each["callback_ms"] for each in own), 100)


def measure(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    seconds = QUICK_S if is_quick else WHOLE_S
    pinning = Pinning.of_this_machine()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-"))) / "gateway"
        keys = {name: f"key-of-{name}" for name in TENANTS}
        engines = Engines(pinning)
        stack.callback(engines.close)
        gateway = stack.enter_context(soaked(engines, keys, pinning, folder))
        os.sched_setaffinity(0, pinning.others)
        strangers, began_s = Strangers(), time.time() + WARM_UP_S
        counts = asyncio.run(play(gateway, engines, keys, seconds))
        verdict.tell("strangers_share", strangers.share)
        books = snapshot(gateway)
        verdict.at_most("requests_left_in_the_books", books["running"] + books["waiting"], 0)
        gateway.process.terminate()
        verdict.at_most("exit_status", gateway.process.wait(30), 0)
        judge_accounts(Left(folder), counts, verdict, tell)
        judge_flatness(Left(folder), began_s, seconds, verdict, tell)


if __name__ == "__main__":
    sys.exit(judged(__file__, __doc__, measure, quick="three minutes instead of fifteen"))
