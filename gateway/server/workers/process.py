"""A worker process, as its parent sees it: started, told, asked, ended."""

import asyncio
import contextlib
import signal
import socket
import sys
from pathlib import Path
from typing import Final, Self

import aiohttp
import msgspec

from gateway.config import Config
from gateway.server.workers.control_line import ControlLine
from gateway.server.workers.seat import ACTED, Order, Place, sent

_ROOT: Final = Path(__file__).parents[3]
_CODE: Final = "import sys; sys.path.insert(0, {root!r}); from gateway.__main__ import main; sys.exit(main())"
_CONTROL: Final = "http://worker"
_READY: Final = "/turnpike/readyz"


class Worker(ControlLine):
    """A running process, and the line to it. Its `serial` is nobody else's, its `number` another's later."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        place: Place,
        line: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        serial: int,
        slot: int,
    ) -> None:
        connector = aiohttp.UnixConnector(path=place.control_path, limit=0)
        super().__init__(_CONTROL, connector, number=place.number, serial=serial)
        self.process = process
        self.slot = slot
        self.began_at = asyncio.get_running_loop().time()
        self.is_accepting = self.is_leaving = False
        """It was told to end."""
        self._control_path = Path(place.control_path)
        self._reader, self._writer = line
        self._end = asyncio.get_running_loop().create_task(self._follow())

    @classmethod
    async def start(
        cls,
        config: Config,
        sockets: list[socket.socket],
        *,
        control_path: Path,
        number: int,
        serial: int,
        slot: int,
    ) -> Self:
        """Raises OSError if there can be no more processes or files."""
        ours, theirs = socket.socketpair()
        descriptors = [theirs.fileno(), *(each.fileno() for each in sockets)]
        place = Place(
            number=number,
            control_path=str(control_path),
            line=descriptors[0],
            sockets=tuple(descriptors[1:]),
        )
        with contextlib.ExitStack() as failed, theirs:
            failed.callback(ours.close)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                # Not the working directory's `gateway`, if there is one.
                "-P",
                "-c",
                _CODE.format(root=str(_ROOT)),
                "serve",
                "--worker",
                str(place),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,  # a terminal's Ctrl-C is for the parent, who passes it on
            )
            failed.pop_all()
        ours.setblocking(False)
        line = await asyncio.open_unix_connection(sock=ours)
        line[1].write(sent(config))
        return cls(process, place, line, serial=serial, slot=slot)

    # --- its life --------------------------------------------------------------------------------

    async def ended(self) -> int:
        """Its exit status, when it has ended."""
        return await asyncio.shield(self._end)

    @property
    def has_ended(self) -> bool:
        return self._end.done()

    async def _follow(self) -> int:
        with contextlib.suppress(ConnectionError):
            self.last_metrics = await self._reader.read() or self.last_metrics
        status = await self.process.wait()
        self._writer.close()
        await self.close()
        self._control_path.unlink(missing_ok=True)
        return status

    async def is_ready(self) -> bool:
        """Whether it answers, and would be served by a replica."""
        answer = await self.ask("GET", _READY, timeout_s=1.0)
        return answer is not None and answer.status == 200

    def accept(self) -> None:
        self.is_accepting = True
        self._tell(Order.ACCEPT)

    def hand_over(self) -> None:
        """It leaves its connections their next answer, and ends."""
        self.is_leaving = True
        self._tell(Order.HAND_OVER)

    def acted(self, who: str, what: str, outcome: int) -> None:
        """It is to record that."""
        self._writer.write(ACTED + msgspec.json.encode((who, what, outcome)) + b"\n")

    def _tell(self, order: Order) -> None:
        self._writer.write(order.value)

    def signal(self, number: signal.Signals) -> None:
        self.is_leaving = True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
