"""Nothing that the demo starts outlives it."""

import asyncio
import socket

import pytest

from demo.errors import DemoError
from demo.processes import Children, first_error, last_lines, require_free
from scripted_engine.guardian import marked
from scripted_engine.ports import free_port


@pytest.fixture
def children(tmp_path):
    found = Children(f"test-{tmp_path}")
    yield found
    found.stop_all()


async def spawn(children, tmp_path, command):
    env = {"PATH": "/usr/bin:/bin"}
    return await children.spawn(["sh", "-c", command], cwd=tmp_path, env=env, log=tmp_path / "log")


async def test_output_goes_to_the_log(children, tmp_path):
    process = await spawn(children, tmp_path, "pwd; echo one >&2; cat")
    assert await process.wait() == 0
    assert last_lines(tmp_path / "log", 2) == f"{tmp_path} | one"
    await children.stop(process)


async def test_stopping_takes_the_whole_group(children, tmp_path):
    process = await spawn(children, tmp_path, "trap '' TERM; sleep 60 & echo up; wait; wait")
    while not last_lines(tmp_path / "log"):
        await asyncio.sleep(0.01)
    await children.stop(process, within_s=0.2)
    assert process.returncode == -9
    while marked(f"test-{tmp_path}"):  # it was killed, and ends
        await asyncio.sleep(0.01)


async def test_a_process_that_left_its_group_is_found_by_its_mark(children, tmp_path):
    process = await spawn(children, tmp_path, "setsid sleep 60 & sleep 0.2; echo up")
    await process.wait()
    await children.stop(process)
    assert len(marked(f"test-{tmp_path}")) == 1
    assert children.stop_all() == 1
    while marked(f"test-{tmp_path}"):
        await asyncio.sleep(0.01)


def test_a_taken_port_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DemoError, match=f"port {port} is taken"):
            require_free(port)
    assert require_free(free_port())


def test_a_log_that_is_not_there_has_no_last_lines(tmp_path):
    assert last_lines(tmp_path / "none") == ""
    assert first_error(tmp_path / "none") == ""


def test_the_first_error_of_a_log_is_what_went_wrong(tmp_path):
    log = tmp_path / "log"
    log.write_text("fine\n\nnpm error code ECONNREFUSED\nnpm error more\nsee elsewhere\n")
    assert first_error(log) == "npm error code ECONNREFUSED"
    log.write_text("fine\ndone\n")
    assert first_error(log) == "done"
