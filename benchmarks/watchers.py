"""Those who watch a gateway, in processes of their own.

    python -m benchmarks.watchers tabs CONTROL_PORT COUNT     so many dashboards that read the live stream
    python -m benchmarks.watchers scrape CONTROL_PORT SECONDS  a Prometheus that asks so often
    python -m benchmarks.watchers collector DELAY_S            takes traces, so slowly; prints its port

Each runs until it is ended.
"""

import asyncio
import contextlib
import sys


async def tabs(port: int, count: int) -> None:
    async def watch() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /turnpike/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                while await reader.read(1 << 18):
                    pass
                writer.close()
            await asyncio.sleep(0.5)

    print("ready", flush=True)
    await asyncio.gather(*(watch() for _ in range(count)))


async def scrape(port: int, period_s: float) -> None:
    print("ready", flush=True)
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            await reader.read()
            writer.close()
        await asyncio.sleep(period_s)


async def collector(delay_s: float) -> None:
    """Reads and forgets: what it would do with the spans is not measured."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(
                    int(line.partition(b":")[2])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length:")
                )
                await reader.readexactly(size)
                await asyncio.sleep(delay_s)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 22)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main(arguments: list[str]) -> None:
    match arguments:
        case ["tabs", port, count]:
            asyncio.run(tabs(int(port), int(count)))
        case ["scrape", port, seconds]:
            asyncio.run(scrape(int(port), float(seconds)))
        case ["collector", delay_s]:
            asyncio.run(collector(float(delay_s)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])
