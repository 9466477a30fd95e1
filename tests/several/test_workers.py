"""`turnpike serve --workers 2`: real gateway processes on one port and a real Redis."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scripted_engine.ports import free_port
from tests.project import shipped
from tests.server.bench import Client, get
from tests.several.fleet import (
    READY_WITHIN_S,
    ControlPlane,
    Fleet,
    GatewayProcess,
    Pace,
    all_go_on,
    at_work,
    comes_true,
    failures_of,
    now,
    running_fleet,
    secret_of,
)
from tests.several.test_control import control_of, told
from tests.telemetry.sse import Event, read_events

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

ON_NEW_CONNECTIONS = b"Connection: close\r\n"
"""Each turn comes in at either worker."""
SERVING = re.compile(r"turnpike (\d): info listening: listening on ")
AGENTS = 12
"""That one of two workers has none of their sessions is one run in 2**11, where clients are many."""


class Workers(GatewayProcess):
    """The parent of two."""

    def __init__(self, fleet: Fleet, *, server: str = "", settings: str = "") -> None:
        shared = fleet.settings.replace(secret_of(fleet.directory), "")  # their parent draws it
        super().__init__(fleet.directory, "workers", f"workers = 2\n{server}{shared}{settings}")
        self.control_port = free_port(in_a_row=2)
        self._settings = self._settings.replace("127.0.0.1:0", f"127.0.0.1:{self.control_port}")
        self.each = [ControlPlane(self.control_port), ControlPlane(self.control_port + 1)]

    async def ready(self) -> None:
        await self.serving((1, 1))
        for each in self.each:
            await comes_true(lambda each=each: has_peers(each, 1), READY_WITHIN_S)
            assert (await each._control(b"/turnpike/readyz")).status == 200

    async def serving(self, times: tuple[int, int]) -> None:
        """Until the first worker has begun so often, and the second."""
        until = now() + READY_WITHIN_S
        while tuple(self.numbers.count(number) for number in "12") != times:
            assert self.is_running and now() < until, self.log.read_text()
            await asyncio.sleep(0.05)

    @property
    def numbers(self) -> list[str]:
        """Of workers, in the order in which they began to serve."""
        return SERVING.findall(self.log.read_text())

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pids(self) -> list[int]:
        assert self._process is not None
        pid = self._process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    async def metrics(self, name: str) -> list[float]:
        return [await each.metric(name) for each in self.each]

    def write_settings(self, *changes: tuple[str, str]) -> None:
        for before, after in changes:
            self._settings = self._settings.replace(before, after)
        (self._directory / "turnpike.toml").write_text(self._settings)


async def has_peers(gateway: ControlPlane, count: int) -> bool:
    return await gateway.metric("peers_alive") == count


@contextlib.asynccontextmanager
async def running_workers(
    directory: Path, *, server: str = "", settings: str = ""
) -> AsyncIterator[tuple[Fleet, Workers]]:
    async with running_fleet(directory, gateways=0) as fleet:
        workers = Workers(fleet, server=server, settings=settings)
        fleet.gateways.append(workers)
        await fleet.start(workers)
        yield fleet, workers


async def test_one_is_killed_while_the_other_serves_and_is_replaced(tmp_path):
    async with running_workers(tmp_path) as (fleet, workers):
        for number in range(AGENTS):
            fleet.agent(f"agent-{number}", streams=number % 2 == 0, headers=ON_NEW_CONNECTIONS)
        async with at_work(*fleet.agents):
            await all_go_on(fleet.agents, turns=6)
            assert not failures_of(fleet.agents) and sum(await workers.metrics("sessions")) == AGENTS
            assert all(len(agent.sessions) == 1 for agent in fleet.agents), "wherever its turns come in"
            passed_on = await workers.metrics("requests_passed_on_total")
            assert sum(passed_on) > AGENTS, "half of the turns come in at the worker that has no such session"
            before = workers.pids
            os.kill(before[0], signal.SIGKILL)
            await all_go_on(fleet.agents, turns=3)
            await workers.serving((2, 1))
            await comes_true(lambda: has_peers(workers.each[0], 1), READY_WITHIN_S)
            await all_go_on(fleet.agents, turns=3)
        assert [agent.lost for agent in fleet.agents if agent.lost] == []
        assert set(failures_of(fleet.agents)) <= {"refused", "broken", "cut"}
        assert len([agent for agent in fleet.agents if len(agent.sessions) == 1]) > AGENTS // 2
        assert len(workers.pids) == 2 and len(set(workers.pids) & set(before)) == 1
        assert "warning worker_ended status=SIGKILL" in workers.log.read_text()


async def test_sigterm_lets_streams_end_at_every_worker(tmp_path):
    slow = Pace(stream_s=3.0)
    async with running_workers(tmp_path) as (fleet, workers):
        headers = [b"x-turnpike-session: stated-%d\r\n" % number for number in range(AGENTS)]
        agents = [
            fleet.agent(f"agent-{number}", streams=True, pace=slow, headers=header)
            for number, header in enumerate(headers)
        ]
        running = [asyncio.ensure_future(agent.turn()) for agent in agents]
        await comes_true(lambda: are_streaming(fleet, AGENTS), 10.0)
        await comes_true(lambda: all_run_some(workers), 2.0)
        workers.send(signal.SIGTERM)
        turns = await asyncio.gather(*running)
        assert [turn.attempts for turn in turns] == [1] * AGENTS
        await workers.end()
        assert workers.log.read_text().count("draining") == 2


async def all_run_some(workers: Workers) -> bool:
    return all(await workers.metrics("replica_running"))


async def are_streaming(fleet: Fleet, count: int) -> bool:
    return len(fleet.engines.served) == count


async def test_sighup_reloads_all_in_place_and_wrong_settings_change_nothing(tmp_path):
    async with running_workers(tmp_path, server="debug_headers = true\n") as (fleet, workers):
        agent = fleet.agent("agent", headers=ON_NEW_CONNECTIONS)
        before = workers.pids
        workers.write_settings(("debug_headers = true", "debug_headers = 5"))
        workers.send(signal.SIGHUP)
        await comes_true(lambda: logged(workers, "the settings stay as they were", 2), 10.0)
        await agent.run(turns=4)
        assert all(turn.session for turn in agent.turns)
        workers.write_settings(("debug_headers = 5", "debug_headers = false"))
        workers.send(signal.SIGHUP)
        await comes_true(
            lambda: logged(workers, "the settings were read again: server.debug_headers", 2), 10.0
        )
        agent.turns.clear()
        await agent.run(turns=4)
        assert not any(turn.session for turn in agent.turns) and workers.pids == before


async def logged(workers: Workers, text: str, times: int) -> bool:
    return workers.log.read_text().count(text) == times


async def test_they_end_when_their_parent_is_killed(tmp_path):
    async with running_workers(tmp_path) as (_, workers):
        pids = workers.pids
        workers.kill()
        await comes_true(lambda: are_gone(pids), 20.0)


async def are_gone(pids: list[int]) -> bool:
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)


async def test_what_is_wrong_at_the_start_is_reported_once_and_ends_all(tmp_path):
    async with running_workers(tmp_path) as (fleet, workers):
        redis = ["--config", os.fspath(tmp_path / "redis.toml")]
        (tmp_path / "redis.toml").write_text(f'[shared]\nurl = "{fleet.redis.url}"\n')
        port = workers.each[0].control_port

        async def is_refused(complaint: bytes, *wrong: str) -> None:
            command = [sys.executable, "-m", "gateway", "serve", "--workers", "2", *redis, *wrong]
            command += ["--backend", "http://127.0.0.1:9", *(() if "--control" in wrong else CONTROL)]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60)
            assert done.returncode == 1 and complaint in done.stderr
            assert len(done.stderr.splitlines()) == 1, done.stderr

        anywhere = ("--listen", "127.0.0.1:0")
        await asyncio.gather(
            is_refused(b"ddress already in use", "--listen", f"127.0.0.1:{workers.port}"),
            is_refused(b"ddress already in use", "--control", f"127.0.0.1:{port}", *anywhere),
            is_refused(b"No such file", "--stream", f"{tmp_path}/none/stream", *anywhere),
        )


CONTROL = ("--control", "127.0.0.1:0")


# --- one dashboard -----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def events_of(port: int, *, after: str) -> AsyncIterator["Reader"]:
    client = Client(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 22))
    client.send(get(b"/turnpike/events?types=turn_arrive", b"Last-Event-ID: %s\r\n" % after.encode()))
    reader = Reader(client)
    reading = asyncio.ensure_future(reader.read())
    try:
        yield reader
    finally:
        reading.cancel()
        client.close()


class Reader:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._data = b""

    async def read(self) -> None:
        head = await self._client.reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head
        while size := int(await self._client.reader.readuntil(b"\r\n"), 16):
            self._data += (await self._client.reader.readexactly(size + 2))[:-2]

    @property
    def events(self) -> list[Event]:
        return read_events(self._data)

    async def has(self, kind: str, count: int) -> list[Any]:
        async def there() -> bool:
            return sum(event.type == kind for event in self.events) >= count

        await comes_true(there, 10.0)
        found = [json.loads(event.data) for event in self.events if event.type == kind]
        assert len(found) == count
        return found


async def test_one_dashboard_shows_both_also_when_one_began_anew(tmp_path):
    async with (
        running_workers(tmp_path) as (fleet, workers),
        control_of([each.control_port for each in workers.each], tmp_path) as port,
    ):
        for number in range(AGENTS):
            fleet.agent(f"agent-{number}", headers=ON_NEW_CONNECTIONS)
        await asyncio.gather(*(agent.run(turns=2) for agent in fleet.agents))
        snapshot = await told(port, b"/turnpike/snapshot")
        assert {each["id"] for each in snapshot["sessions"]} == {a.sessions[0] for a in fleet.agents}
        assert sum(each["session_count"] for each in [await w.snapshot() for w in workers.each]) == AGENTS

        async with events_of(port, after="0") as reader:
            await reader.has("turn_arrive", 2 * AGENTS)
        assert re.fullmatch(r"1-\d+\.2-\d+", snapshot["seq"])
        async with events_of(port, after=snapshot["seq"]) as reader:
            await asyncio.gather(*(agent.run(turns=1) for agent in fleet.agents))
            await reader.has("turn_arrive", AGENTS)
            os.kill(workers.pids[0], signal.SIGKILL)
            await workers.serving((2, 1))
            await reader.has("gap", 1)
            (gap,) = (event for event in reader.events if event.type == "gap")
            assert of_first(gap) < of_first(reader.events[0])
            await comes_true(lambda: has_peers(workers.each[0], 1), READY_WITHIN_S)
            seen = len(reader.events)
            began = len(fleet.agents)
            for number in range(AGENTS):  # those that began earlier stay where they are
                fleet.agent(f"late-{number}", headers=ON_NEW_CONNECTIONS)
            await asyncio.gather(*(agent.run(turns=1) for agent in fleet.agents[began:]))
            await reader.has("turn_arrive", 2 * AGENTS)
            assert max(map(of_first, reader.events[seen:])) > of_first(gap)


def of_first(event: Event) -> int:
    return int(event.id.partition(".")[0].removeprefix("1-"))


# --- without a parent --------------------------------------------------------------------------------


async def test_instances_of_the_unit_share_a_port_and_one_may_die(tmp_path):
    unit = shipped.unit("turnpike@.service")
    (start,) = unit["ExecStart"]
    flags = shlex.split(start)[4:]
    environment = dict(each.split("=", 1) for each in unit["Environment"])
    async with running_fleet(tmp_path, gateways=0) as fleet:
        environment |= {"TURNPIKE_SHARED__URL": fleet.redis.url, "FLEET_SECRET": "f" * 32}
        settings = fleet.settings.replace(secret_of(tmp_path), "")
        first = free_port(in_a_row=2)
        for instance in (str(first), str(first + 1)):
            gateway = GatewayProcess(tmp_path, f"instance-{instance}", settings)
            own = [each.replace("%i", instance) for each in flags]
            gateway.prelude = f"import os; os.environ.update({environment!r}); sys.argv += {own!r}"
            fleet.gateways.append(gateway)
        one, other = fleet.gateways
        other._settings = other._settings.replace(f":{other.port}", f":{one.port}")
        await fleet.start(one, other)
        await fleet.know_one_another(fleet.gateways, within_s=READY_WITHIN_S)
        assert [one.control_port, other.control_port] == [first, first + 1]
        for number in range(AGENTS):
            fleet.agent(f"agent-{number}", headers=ON_NEW_CONNECTIONS, asks=[0])
        async with at_work(*fleet.agents):
            await all_go_on(fleet.agents, turns=3)
            async with asyncio.timeout(10):  # which of the two gets a connection is the kernel's choice
                while not sum([await each.metric("requests_passed_on_total") for each in (one, other)]):
                    await asyncio.sleep(0.1)
            one.kill()
            await all_go_on(fleet.agents, turns=3)
        assert [agent.lost for agent in fleet.agents if agent.lost] == []
