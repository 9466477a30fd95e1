"""Where records come from: a gateway's live events, or the files of its stream.

Each names positions in its own words, and goes on behind the one that it is given. It reads no further before
what it handed out is stored; a gateway drops what a slow reader does not take, and sends notice of the gap.
`batches` is endless; whatever it raises, it can be begun anew.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import BinaryIO, Final

import aiohttp

from gateway.history.store import Batch

# A gateway sends a comment every fifteen seconds.
_SILENCE_S: Final = 60.0
_MAX_BLOCK: Final = 16 << 20
_CHUNK: Final = 1 << 20
_POLL_S: Final = 0.5
_MAX_FILES: Final = 1001


class Events:
    """`/turnpike/events` of one gateway. A position is `incarnation:number`."""

    def __init__(self, url: str, key: str | None) -> None:
        self.name = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def batches(self, position: str) -> AsyncGenerator[Batch, None]:
        incarnation, _, number = position.rpartition(":")
        query = {"after": number or "0", "incarnation": incarnation}
        timeout = aiohttp.ClientTimeout(total=None, connect=10.0, sock_read=_SILENCE_S)
        url = f"{self.name}/turnpike/events"
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session,
            session.get(url, params=query, allow_redirects=False) as response,
        ):
            if response.status != 200:
                why = (await response.content.read(500)).decode(errors="replace")
                raise OSError(f"it answers {response.status}: {why}")
            now = response.headers.get("x-turnpike-incarnation", "")
            begins, rest = now != incarnation, b""
            async for data in response.content.iter_any():
                *blocks, rest = (rest + data).split(b"\n\n")
                if len(rest) > _MAX_BLOCK:
                    raise ValueError("an event of it is too long")
                found = [dict(line.partition(b": ")[::2] for line in each.split(b"\n")) for each in blocks]
                for fields in found:
                    number = str(int(fields.get(b"id", number) or 0))
                gaps = sum(fields.get(b"event") == b"gap" for fields in found)
                lines = [each[b"data"] for each in found if b"data" in each and each.get(b"event") != b"gap"]
                yield Batch(lines, f"{now}:{number}", gaps, begins)
                begins = False


class Files:
    """A file that `stream.path` names, and the older ones beside it. A position is `file:offset`; a file is
    known by its first line, as its name changes."""

    def __init__(self, path: Path) -> None:
        self.name = str(path.absolute())
        self._path = path

    async def batches(self, position: str) -> AsyncGenerator[Batch, None]:
        yield Batch([], position)
        while True:
            batch = await asyncio.to_thread(self._read, *position.partition(":")[::2])
            if batch is None:
                await asyncio.sleep(_POLL_S)
            else:
                yield batch
                position = batch.position

    def _read(self, known: str, offset: str) -> Batch | None:
        with contextlib.ExitStack() as stack:
            files = dict[str, BinaryIO]()
            for number in range(_MAX_FILES):  # the newest first: one that is moved meanwhile is met twice
                path = self._path.with_name(f"{self._path.name}.{number}") if number else self._path
                with contextlib.suppress(FileNotFoundError):
                    file = stack.enter_context(path.open("rb"))
                    if (first := file.readline(_CHUNK)).endswith(b"\n"):
                        files.setdefault(hashlib.sha256(first).hexdigest()[:32], file)
                    continue
                if number:
                    break
            names = list(files)[::-1]
            start, gaps = (int(offset), 0) if known in files else (0, 1 if known else 0)
            for name in names[names.index(known) if known in files else 0 :]:
                files[name].seek(start)
                data = files[name].read(_CHUNK)
                end = data.rfind(b"\n") + 1 or (len(data) if len(data) == _CHUNK else 0)
                if end:
                    return Batch(data[:end].splitlines(), f"{name}:{start + end}", gaps)
                start = 0
        return None
