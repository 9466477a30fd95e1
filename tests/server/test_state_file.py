"""Where stored responses live outlasts the process."""

import asyncio
import contextlib
import json
import subprocess
import sys

import pytest

from gateway.domain.ids import ReplicaId, TenantId
from gateway.routing.state_residence import Residence, StateResidence, StateResidenceConfig
from gateway.server.state_file import StateFile
from gateway.server.tenants import hash_key
from tests.server.bench import Backend, Client, answer, get, post, sends

ALICE, BOB = "sk-alice", "sk-bob"
T, OTHER = TenantId("t"), TenantId("other")
A, B = Residence(ReplicaId("a"), None), Residence(ReplicaId("b"), None)


def residence(max_ids=10):
    return StateResidence(StateResidenceConfig(max_state_ids=max_ids))


def bearer(key):
    return b"Authorization: Bearer %s\r\n" % key.encode()


async def test_what_was_learned_is_known_again_and_to_its_tenant_alone(tmp_path):
    path = tmp_path / "state"
    homes = residence()
    file = StateFile(str(path), homes, max_ids=10)
    homes.learn(T, "resp_1", A)
    homes.learn(T, "resp_1", A)
    homes.learn(T, "resp_2", A)
    await file.flush()
    homes.learn(T, "resp_2", B)
    await file.close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_bytes().splitlines()) == 3 and b"resp" not in path.read_bytes()
    again = residence()
    await StateFile(str(path), again, max_ids=10).close()
    assert again.find(T, "resp_1") == A and again.find(T, "resp_2") == B
    assert again.find(OTHER, "resp_1") is None and again.find(TenantId("tr"), "esp_1") is None


async def test_a_line_that_is_not_whole_says_nothing(tmp_path):
    path = tmp_path / "state"
    homes = residence()
    file = StateFile(str(path), homes, max_ids=10)
    homes.learn(T, "resp_1", A)
    homes.learn(T, "resp_2", Residence(ReplicaId("replica-12"), None))
    await file.close()
    path.write_bytes(b"nonsense\n" + b"\xff" * 5000 + b"\n" + path.read_bytes()[:-2])
    again = residence()
    file = StateFile(str(path), again, max_ids=10)
    assert again.find(T, "resp_1") == A
    assert again.find(T, "resp_2") is None, "not on replica-1"
    again.learn(T, "resp_3", B)
    await file.close()
    third = residence()
    await StateFile(str(path), third, max_ids=10).close()
    assert third.find(T, "resp_1") == A and third.find(T, "resp_3") == B


async def test_the_file_is_bounded(tmp_path):
    path = tmp_path / "state"
    homes = residence(max_ids=5)
    file = StateFile(str(path), homes, max_ids=5)
    for number in range(100):
        homes.learn(T, f"resp_{number}", A)
        await file.flush()
        assert len(path.read_bytes().splitlines()) <= 10
    await file.close()
    again = residence(max_ids=5)
    await StateFile(str(path), again, max_ids=5).close()
    assert [number for number in range(100) if again.find(T, f"resp_{number}")] == [95, 96, 97, 98, 99]


async def test_a_disk_that_fails_loses_nothing_once_it_works(tmp_path):
    path = tmp_path / "state"
    homes = residence()
    file = StateFile(str(path), homes, max_ids=10)
    homes.learn(T, "resp_1", A)
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        await file.flush()
    path.rmdir()
    await file.close()
    again = residence()
    await StateFile(str(path), again, max_ids=10).close()
    assert again.find(T, "resp_1") == A


@contextlib.asynccontextmanager
async def process(settings, directory):
    """A gateway of its own, ended by SIGTERM. Yields its port."""
    file, log = directory / "turnpike.toml", directory / "log"
    file.write_text(settings)
    with log.open("wb") as written:
        running = subprocess.Popen([sys.executable, "-m", "gateway", "serve", str(file)], stderr=written)
    try:
        async with asyncio.timeout(60):
            while b", control on port" not in log.read_bytes():
                assert running.poll() is None, log.read_text()
                await asyncio.sleep(0.05)
        yield int(log.read_bytes().split(b"127.0.0.1:")[1].split(b",")[0])
    finally:
        running.terminate()
        status = await asyncio.to_thread(running.wait, 60)
    assert status == 0, log.read_text()


async def ask(port, data):
    async with asyncio.timeout(30):
        while True:
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            response = await client.ask(data)
            client.close()
            if response.status != 503:  # no replica is up yet
                return response
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_stored_response_is_found_after_a_restart_by_its_tenant_alone(tmp_path):
    backends = [Backend(), Backend()]
    made = json.dumps({"id": "resp_alice1", "object": "response", "status": "completed", "output": []})
    for backend in backends:
        backend.script = sends(answer(made.encode()))
        await backend.open()
    replicas = ", ".join(f'{{ url = "{backend.url}" }}' for backend in backends)
    settings = (
        '[server]\nlisten = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\nlame_duck_s = 0\n'
        f'state_path = "{tmp_path / "state"}"\n[[pools]]\nreplicas = [{replicas}]\n'
    )
    for name, key in (("alice", ALICE), ("bob", BOB)):
        settings += f'[[tenants]]\nname = "{name}"\nkey_hashes = ["{hash_key(key)}"]\n'
    async with process(settings, tmp_path) as port:
        create = post(b'{"model":"m","input":"hi"}', b"/v1/responses", bearer(ALICE))
        assert (await ask(port, create)).status == 200
    home = next(backend for backend in backends if backend.seen)
    async with process(settings, tmp_path) as port:
        seen = len(home.seen)
        for _ in range(3):
            found = await ask(port, get(b"/v1/responses/resp_alice1", bearer(ALICE)))
            assert found.status == 200
        assert len(home.seen) == seen + 3
        for key, path in ((BOB, b"/v1/responses/resp_alice1"), (ALICE, b"/v1/responses/resp_nobody")):
            assert (await ask(port, get(path, bearer(key)))).status == 404
        assert len(home.seen) == seen + 3
    for backend in backends:
        await backend.close()
