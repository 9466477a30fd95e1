"""`turnpike serve --workers N`: so many gateways of this machine on one port, each a process of its own.

They are what gateways of several machines are: they share through Redis alone. All listen on `server.listen`
(SO_REUSEPORT: the system deals new connections out); each has a control port, a port for peers and files of
its own. This process takes no requests. It starts the workers, passes signals on, and replaces a worker that
ends: after a pause that doubles while workers of that number end soon after their start. One whose port
another program has is not started until that is free.

Where the settings name no secret of the fleet, their environment has one that the parent drew. A worker
writes a line to its standard output once it serves. Until the first one has, the others are not started: what
is wrong with the settings is reported once, and ends all. A worker's standard input ends with this process;
the worker drains then.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gateway.config import Config
from gateway.config.load import ConfigError
from gateway.config.server import split_listen
from gateway.server.http.access_log import AccessLog
from gateway.server.http.listening import binding, listening_sockets
from gateway.server.runtime.memory import max_buffered_bytes
from gateway.server.runtime.tasks import CALM_S, pause_s
from gateway.telemetry.log_lines import ChangeLog, log_event

_ROOT: Final = Path(__file__).parents[2]
_CODE: Final = "import sys; sys.path.insert(0, {root!r}); from gateway.__main__ import main; sys.exit(main())"
_LONGEST_PAUSE_S: Final = 5.0
_SERVING: Final = b"serving\n"
_STDIN: Final = 0
_STDOUT: Final = 1


class Workers:
    def __init__(self, config: Config, arguments: list[str], *, count: int, can_reload: bool) -> None:
        """`arguments`: of the command line, for each worker; `can_reload`: there is a file to read again."""
        _check_ports(config, count)
        self._config = config
        self._arguments = arguments
        self._count = count
        self._can_reload = can_reload
        self._clock = asyncio.get_running_loop().time
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        # Once the first one serves, or all end.
        self._begin_others = asyncio.Event()
        self._ending = asyncio.Event()
        self._status = 0
        self._log = ChangeLog()
        # Workers write to us: their lines stand one behind the other then.
        self._access_log = AccessLog("-", self._clock) if config.server.access_log == "-" else None

    async def run(self) -> int:
        """Until SIGTERM or SIGINT, and all have ended; the exit status. Raises OSError if the address cannot
        be had."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        if self._can_reload:
            loop.add_signal_handler(signal.SIGHUP, self._signal_all, signal.SIGHUP)
        with contextlib.ExitStack() as reserved:
            for each in await self._reserve():
                reserved.enter_context(each)
            await asyncio.gather(*(self._keep(number) for number in range(1, self._count + 1)))
        if self._access_log is not None:
            await asyncio.to_thread(self._access_log.close)
        return self._status

    async def _reserve(self) -> list[socket.socket]:
        """Sockets that keep the address while no worker has it. They do not listen, so they get nothing."""
        listen = self._config.server.listen
        host, port = split_listen(listen)
        # Bound without SO_REUSEPORT first: with it, another gateway's port would be shared silently.
        with binding("server.listen (--listen)", listen):
            probes = await listening_sockets(host, port)
        addresses = [(each.family, each.getsockname()) for each in probes]
        for probe in probes:
            probe.close()
        if port == 0:
            found = f"{listen.rpartition(':')[0]}:{addresses[0][1][1]}"
            self._arguments = [*self._arguments, "--listen", found]
        reserved = []
        for family, address in addresses:
            reserved.append(socket.socket(family))
            reserved[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                reserved[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            reserved[-1].bind(address)
        return reserved

    async def _keep(self, number: int) -> None:
        failures = 0
        if number > 1:
            await self._begin_others.wait()
        while not self._ending.is_set():
            if self._begin_others.is_set():  # else what is wrong ends all
                await self._ports_are_free(number)
            began_s = self._clock()
            try:
                status = await self._run_one(number)
            except OSError as error:  # no more processes, or files
                self._log.log(
                    f"start {number}", logging.ERROR, "worker_not_started", worker=number, cause=error
                )
                status = 1
            if self._ending.is_set():
                return
            if not self._begin_others.is_set():
                self._status = status if status > 0 else 1
                self._is_over()
                return
            failures = 1 if self._clock() - began_s > CALM_S else failures + 1
            wait_s = min(_LONGEST_PAUSE_S, pause_s(failures))
            ended = f"status {status}" if status >= 0 else signal.Signals(-status).name
            fields = {"worker": number, "next_in_s": wait_s}
            self._log.log(f"end {number}", logging.WARNING, "worker_ended", status=ended, **fields)
            await self._pause(wait_s)

    async def _ports_are_free(self, number: int) -> None:
        """Or until all end. Where another program has one, worker after worker would fail; of that there is
        one line."""
        own = of_worker(self._config, number, self._count)
        ports = {"server.control": own.server.control, "shared.peer_listen": own.shared.peer_listen}
        failures = 0
        while ports and not self._ending.is_set():
            setting, address = next(iter(ports.items()))
            try:
                for each in await listening_sockets(*split_listen(address)):
                    each.close()
                del ports[setting]
            except OSError as error:
                failures += 1
                if failures == 1:
                    notice = f"worker {number} waits for its {setting}, {address}: {error.strerror}"
                    log_event(logging.ERROR, "worker_port_taken", notice, worker=number, address=address)
                await self._pause(min(_LONGEST_PAUSE_S, pause_s(failures)))

    async def _pause(self, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._ending.wait()

    async def _run_one(self, number: int) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # not the working directory's `gateway`, if there is one
            "-c",
            _CODE.format(root=str(_ROOT)),
            *self._arguments,
            "--worker",
            str(number),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is for the parent, which passes it on
        )
        self._processes[number] = process
        try:
            if self._ending.is_set():
                process.send_signal(signal.SIGTERM)
            assert process.stdout is not None
            async for line in process.stdout:
                if line == _SERVING:
                    self._begin_others.set()
                elif self._access_log is not None and line.endswith(b"\n"):
                    self._access_log.extend(line, 1)
            return await process.wait()
        finally:
            del self._processes[number]

    def _end(self, number: signal.Signals) -> None:
        if not self._ending.is_set():
            notice = f"ending {len(self._processes)} workers; signal again to hurry"
            log_event(logging.INFO, "drain", notice, workers=len(self._processes))
        self._is_over()
        self._signal_all(number)

    def _is_over(self) -> None:
        self._ending.set()
        self._begin_others.set()

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def join_parent(leave: Callable[[signal.Signals], None]) -> None:
    loop = asyncio.get_running_loop()

    def parent_is_gone() -> None:
        loop.remove_reader(_STDIN)
        leave(signal.SIGINT)

    loop.add_reader(_STDIN, parent_is_gone)  # nothing is ever written there
    os.write(_STDOUT, _SERVING)


def of_worker(config: Config, number: int, count: int) -> Config:
    room = max_buffered_bytes(config.server.limits, processes=count)
    replace, server, shared = msgspec.structs.replace, config.server, config.shared
    own = {
        section: replace(settings, path=f"{settings.path}.worker-{number}")
        for section in ("stream", "recording")
        if (settings := getattr(config, section)).path is not None
    }
    state_path = None if server.state_path is None else f"{server.state_path}.worker-{number}"
    access_log = server.access_log and server.access_log + f".worker-{number}" * (server.access_log != "-")
    return replace(
        config,
        **own,
        server=replace(
            server,
            reuse_port=True,
            control=_own_port(server.control, number),
            state_path=state_path,
            access_log=access_log,
            limits=replace(server.limits, max_buffered_bytes=room),
        ),
        shared=replace(
            shared,
            peer_listen=_own_port(shared.peer_listen, number),
            peer_url=None if shared.peer_url is None else _own_port(shared.peer_url, number),
        ),
    )


def _own_port(address: str, number: int) -> str:
    """The first worker has the port in the settings, the second the next, and so on; port 0 is any."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + number - 1}" if int(port) else address


def _check_ports(config: Config, count: int) -> None:
    """Raises ConfigError where workers would take one another's ports."""
    users: dict[int, str] = {}
    for setting, address, ports in (
        ("server.listen", config.server.listen, 1),
        ("server.control", config.server.control, count),
        ("shared.peer_listen", config.shared.peer_listen, count),
    ):
        _, first = split_listen(address)
        for port in range(first, first + ports) if first else ():
            if port > 65535 or users.setdefault(port, setting) != setting:
                other = users.get(port, "nothing beyond 65535")
                raise ConfigError(f"{setting}: {count} workers take {ports} ports, and {port} is for {other}")
