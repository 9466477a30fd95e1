"""The settings of workers, and what is refused before any is started."""

import asyncio
import logging
import signal
import socket

import pytest

from gateway.config import Config
from gateway.config.load import ConfigError, load_config
from gateway.config.server import worker_count
from gateway.server.runtime.workers import Workers, of_worker
from scripted_engine.ports import free_port
from tests.command import Turnpike

POOLS = [{"replicas": [{"url": "http://r"}]}]
REDIS = {"shared.url": "redis://r"}


def config(**flags: object) -> Config:
    return load_config(None, {}, {"pools": POOLS, **{key.replace("__", "."): v for key, v in flags.items()}})


def test_without_a_redis_none_is_started_and_the_setting_is_named(turnpike: Turnpike):
    done = turnpike("serve", "--backend", "http://r", "--workers", "2")
    assert done.returncode == 1
    for words in ("shared.url is not set", "redis-server --port 6379", 'url = "redis://127.0.0.1:6379"'):
        assert words in done.stderr
    with pytest.raises(ConfigError, match=r"shared\.url is not set"):
        config(server__workers="auto")
    config(server__workers="auto", **REDIS)


def test_a_worker_has_files_and_ports_of_its_own():
    paths = {"stream__path": "/a", "recording__path": "/b", "server__state_path": "/c"}
    logs = {path: config(server__access_log=path) for path in ("/d", "-")}
    assert [of_worker(each, 2, 3).server.access_log for each in logs.values()] == ["/d.worker-2", "-"]
    ports = {"shared__peer_listen": "127.0.0.1:9000", "shared__peer_url": "http://[::1]:9000"}
    whole = config(server__workers=4, **REDIS, **paths, **ports)
    worker = of_worker(whole, 3, 4)
    own = (worker.stream.path, worker.recording.path, worker.server.state_path)
    assert own == ("/a.worker-3", "/b.worker-3", "/c.worker-3")
    assert worker.server.control == "127.0.0.1:8083"
    assert (worker.shared.peer_listen, worker.shared.peer_url) == ("127.0.0.1:9002", "http://[::1]:9002")
    assert worker.server.listen == whole.server.listen and worker.server.reuse_port
    bare = of_worker(config(server__workers=4, server__control="127.0.0.1:0", **REDIS), 3, 4)
    assert (bare.stream.path, bare.server.control, bare.shared.peer_listen) == (
        None, "127.0.0.1:0", "127.0.0.1:0",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"server__control": "127.0.0.1:8079"}, "server.control: 2 workers take 2 ports, and 8080"),
        ({"shared__peer_listen": "127.0.0.1:8082"}, "shared.peer_listen: .* 8082 is for server.control"),
        ({"shared__peer_listen": "127.0.0.1:65535"}, "65536"),
    ],
)
async def test_ports_that_workers_would_take_from_one_another_are_refused(flags, complaint):
    settings = config(server__workers=2, **REDIS, **flags)
    with pytest.raises(ConfigError, match=complaint):
        Workers(settings, [], count=2, can_reload=False)


def test_auto_is_one_a_core():
    assert worker_count("auto", cores=3) == 3 and worker_count(5, cores=3) == 5


@pytest.mark.slow
async def test_one_whose_port_another_program_has_waits_for_it_and_that_is_said_once(caplog):
    caplog.set_level(logging.INFO)
    port = free_port(in_a_row=2)
    taken = socket.create_server(("127.0.0.1", port + 1))
    flags = {"server__listen": "127.0.0.1:0", "server__control": f"127.0.0.1:{port}"}
    settings = config(server__workers=2, **{"shared.url": "redis://127.0.0.1:1"}, **flags)
    words = f"serve --backend http://127.0.0.1:1 --control 127.0.0.1:{port} --workers 2".split()
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("TURNPIKE_SHARED__URL", "redis://127.0.0.1:1")
        environ.setenv("TURNPIKE_WORKERS_SECRET", "s" * 64)
        workers = Workers(settings, words, count=2, can_reload=False)
        running = asyncio.ensure_future(workers.run())
        async with asyncio.timeout(60):
            while "worker_port_taken" not in caplog.text:
                assert not running.done(), caplog.text
                await asyncio.sleep(0.05)
            await asyncio.sleep(1.0)
            assert len(workers._processes) == 1
            taken.close()
            while len(workers._processes) < 2:
                await asyncio.sleep(0.05)
            await asyncio.sleep(1.0)
            workers._end(signal.SIGINT)
            workers._signal_all(signal.SIGINT)
            assert await running == 0
    told = [text for text in caplog.messages if "worker" in text and "drain" not in text]
    assert len(told) == 1 and told[0].startswith(
        "error worker_port_taken: worker 2 waits for its server.control"
    )
