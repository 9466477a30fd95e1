"""What an operator sees of a fault: a real gateway before scripted engines, and the fault.

    python -m tools.fault_drill               # names of the faults
    python -m tools.fault_drill all           # or some of them

It prints of each: the log, what clients get, readiness, the snapshot, the metrics that changed, the alerts
that fire if it goes on (by promtool), and what `turnpike doctor` says; addresses and folders are replaced by
neutral ones. `docs/operate/runbook.md` is written from that.

A fault is a generator: what goes before the first `yield` prepares engines, and yields what the settings have
beside the usual; then the fault happens, and at each further `yield` what is to be seen is reported.
"""

import asyncio
import contextlib
import os
import ssl
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Final

from tests.server.bench import answer, post, sends
from tests.shared_state.servers import RedisServer
from tools.drilled_gateway import Drill, after, certificate, chat, crowd, exchange, metrics, works, yesterday

Steps = AsyncGenerator[dict[str, str], None]
_SHIFTED: Final = """
import os, time
_time = time.time
time.time = lambda: _time() + (172800 if os.path.exists(os.environ["DRILL_SHIFT"]) else 0)
"""


async def backend_down(drill: Drill) -> Steps:
    """One of two engines refuses connections."""
    first, _ = await drill.engine(), await drill.engine()
    yield {}
    await first.close()
    await drill.asks(*(chat(f"hello {n}") for n in range(6)))
    await asyncio.sleep(8)
    yield {}


async def all_down(drill: Drill) -> Steps:
    """The only engine refuses connections."""
    engine = await drill.engine()
    yield {}
    await engine.close()
    await drill.asks(*(chat(f"hello {n}") for n in range(10)))
    await asyncio.sleep(2)
    yield {}


async def backend_500(drill: Drill) -> Steps:
    """One of two engines answers 500."""
    first, _ = await drill.engine(), await drill.engine()
    error = (
        b'{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}'
    )
    first.script = sends(answer(error, status=b"500 Internal Server Error"))
    yield {}
    for n in range(24):
        await drill.ask(chat(f"hello {n}"), tells=n < 2)
    await asyncio.sleep(2)
    yield {}


async def wrong_model(drill: Drill) -> Steps:
    """Two pools; a client names a model of neither."""
    first, second = await drill.engine(), await drill.engine()
    first.models = b'{"object":"list","data":[{"id":"coder","object":"model"}]}'
    urls = enumerate((first.url, second.url))
    pools = (f'[[pools]]\nname = "p{n}"\nreplicas = [{{ url = "{url}" }}]\n' for n, url in urls)
    yield {"pools": "".join(pools)}
    await drill.ask(chat("hello", model="codr"))
    await asyncio.sleep(2)
    yield {}


async def wrong_model_one_pool(drill: Drill) -> Steps:
    """One pool; the engine judges."""
    engine = await drill.engine()
    error = b'{"error":{"message":"The model `codr` does not exist.","type":"NotFoundError","code":404}}'
    engine.script = sends(answer(error, status=b"404 Not Found"))
    yield {}
    await drill.ask(chat("hello", model="codr"))
    await asyncio.sleep(2)
    yield {}


async def cache_full(drill: Drill) -> Steps:
    """More agents than the KV cache holds."""
    engine = await drill.engine()
    engine.metrics = metrics(blocks=256, used=0.97, running=3)
    engine.script = works(3)
    yield {}
    async with crowd(drill, count=12, words=1000):
        await asyncio.sleep(60)
        yield {}


async def preempting(drill: Drill) -> Steps:
    """The engine preempts turn after turn."""
    engine = await drill.engine()
    engine.script = works(0.5)

    async def climb() -> None:
        for count in range(0, 100_000, 6):
            engine.metrics = metrics(blocks=4096, used=0.99, running=6, waiting=4, preemptions=count)
            await asyncio.sleep(0.5)

    climbing = asyncio.create_task(climb())
    yield {}
    async with crowd(drill, count=10, words=200):
        await asyncio.sleep(15)
        yield {}
    climbing.cancel()


async def redis_down(drill: Drill) -> Steps:
    """The store dies, and comes back."""
    await drill.engine()
    redis = RedisServer(drill.folder).start()
    drill.names[str(redis.port)] = "6379"
    secret = drill.folder / "secret"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o600)
    try:
        yield {"more": f'[shared]\nurl = "{redis.url}"\nsecret_file = "{secret}"'}
        redis.kill()
        await drill.asks(*(chat(f"hello {n}") for n in range(10)))
        await asyncio.sleep(4)
        yield {}
        redis.start()
        await asyncio.sleep(7)
        drill.show("log after it came back", drill.log())
    finally:
        redis.kill()


async def tool_host(drill: Drill) -> Steps:
    """The tools' host has four cores, and forty processes that want one."""
    engine = await drill.engine()
    engine.metrics = metrics(blocks=65536, used=0.1, running=2)
    engine.script = works(0.3)

    async def tell() -> None:
        report = post(b'{"cores":4,"runnable":40}', path=b"/turnpike/hosts/tools-1")
        while True:  # as `turnpike probe` does
            await exchange(drill.control_port, report.replace(b"gw", b"localhost"), None)
            await asyncio.sleep(1)

    yield {}
    telling = asyncio.create_task(tell())
    async with crowd(drill, count=80, words=20, tool_s=2.0):
        await asyncio.sleep(30)
        yield {}
    telling.cancel()


async def looping_agent(drill: Drill) -> Steps:
    """The same call with the same result, again and again; a bound counts that."""
    engine = await drill.engine()
    engine.script = works(0.0)
    yield {"more": '[[bounds]]\nname = "loop"\nrepeats = 3'}
    steps: list[dict[str, Any]] = []
    for _ in range(6):
        answered = await drill.ask(chat("make it build", *steps), tells=len(steps) > 4)
        steps += after(answered, "make: *** No rule to make target")
    await asyncio.sleep(2)
    yield {}


async def _with_key(drill: Drill, *more: str) -> tuple[dict[str, str], str]:
    """Settings and a key."""
    settings = {"server": f'keys_path = "{drill.folder}/keys"'}
    pool = f'[[pools]]\nreplicas = [{{ url = "{drill.engines[0].url}" }}]'
    (drill.folder / "turnpike.toml").write_text(f"[server]\n{settings['server']}\n{pool}")
    made = await drill.command("keys", "add", "ci-1", *more, "--config", "turnpike.toml")
    key = next(word for word in made.split() if word.startswith("tp-"))
    drill.show("command", made.replace(key, "tp-…"))
    return settings, key


async def key_leaked(drill: Drill) -> Steps:
    """A key is revoked while it is used."""
    await drill.engine()
    settings, key = await _with_key(drill)
    yield settings
    request = chat("hello", Authorization=f"Bearer {key}")
    await drill.ask(request)
    drill.show("command", await drill.command("keys", "revoke", "ci-1", "--config", "turnpike.toml"))
    await asyncio.sleep(1.5)
    await drill.ask(request)
    await asyncio.sleep(2)
    yield {}


async def disk_full(drill: Drill) -> Steps:
    """The files of the access log, the stream and the recording are on a full disk."""
    await drill.engine()
    files = 'access_log = "/dev/full"'
    (drill.folder / "events").symlink_to("/dev/full")
    yield {
        "server": files,
        "more": f'[stream]\npath = "/dev/full"\n[recording]\npath = "{drill.folder}/events"',
    }
    await drill.asks(*(chat(f"hello {n}") for n in range(10)))
    await asyncio.sleep(3)
    drill.show("log from the start", (drill.folder / "log").read_text())
    yield {}


async def clock_jumps(drill: Drill) -> Steps:
    """The time of day jumps by two days; a key has one left."""
    await drill.engine()
    shift = drill.folder / "shift"
    (drill.folder / "sitecustomize.py").write_text(_SHIFTED)
    path = os.pathsep.join([str(drill.folder), os.environ.get("PYTHONPATH", "")])
    drill.env = {"DRILL_SHIFT": str(shift), "PYTHONPATH": path}
    settings, key = await _with_key(drill, "--expires", "1d")
    yield {"server": f'{settings["server"]}\naccess_log = "{drill.folder}/access.log"'}
    await drill.ask(chat("before", Authorization=f"Bearer {key}"))
    shift.touch()
    await drill.ask(chat("after", Authorization=f"Bearer {key}"))
    await asyncio.sleep(3)
    drill.show("access log", (drill.folder / "access.log").read_text())
    yield {}


async def certificate_of_backend(drill: Drill) -> Steps:
    """One of two engines shows a certificate that has expired."""
    _, own = certificate(drill, yesterday())
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.configure_cert(server)
    await drill.engine(server)
    await drill.engine()
    yield {"more": f'[upstream]\nca_file = "{drill.folder}/ca.pem"'}
    await drill.ask(chat("hello"))
    await asyncio.sleep(5)
    drill.show("log from the start", (drill.folder / "log").read_text())
    yield {}


async def certificate_of_gateway(drill: Drill) -> Steps:
    """The gateway's own certificate has expired."""
    authority, _ = certificate(drill, yesterday())
    await drill.engine()
    drill.tls_client = ssl.create_default_context()
    authority.configure_trust(drill.tls_client)
    own = drill.folder / "own.pem"
    yield {"server": f'tls_certificate = "{own}"\ntls_key = "{own}"'}
    await drill.ask(chat("hello"))
    await asyncio.sleep(2)
    drill.show("log from the start", (drill.folder / "log").read_text())
    yield {}
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(own))
    control = f"http://127.0.0.1:{drill.control_port}"
    drill.show("command", await drill.command("settings", "reload", "--control", control))
    await drill.ask(chat("hello"))
    drill.show("clients after that", drill.answers[-1])


FAULTS: Final[tuple[Callable[[Drill], Steps], ...]] = (
    *(backend_down, all_down, backend_500, wrong_model, wrong_model_one_pool, cache_full, preempting),
    *(redis_down, tool_host, looping_agent, key_leaked, disk_full, clock_jumps),
    *(certificate_of_backend, certificate_of_gateway),
)


async def _run(fault: Callable[[Drill], Steps]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        drill = Drill(Path(folder))
        print(f"\n== {fault.__name__}: {fault.__doc__}", flush=True)
        steps = fault(drill)
        async with contextlib.aclosing(steps), drill.gateway(**await anext(steps)):
            await drill.mark()
            async for _ in steps:
                await drill.report()
        await drill.close()


def main() -> None:
    wanted = sys.argv[1:]
    for fault in FAULTS:
        if not wanted:
            print(f"{fault.__name__}: {fault.__doc__}")
        elif wanted == ["all"] or fault.__name__ in wanted:
            asyncio.run(_run(fault))


if __name__ == "__main__":
    main()
