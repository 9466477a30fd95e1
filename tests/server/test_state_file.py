"""Where stored responses live outlasts the process."""

import json

import pytest

from gateway.domain.ids import ReplicaId, TenantId
from gateway.routing.state_residence import Residence, StateResidence, StateResidenceConfig
from gateway.server.auth.client_keys import hash_key
from gateway.server.storage.state_file import StateFile
from tests.server.bench import Bench, answer, bearer, get, post, sends

ALICE, BOB = "sk-alice", "sk-bob"
T, OTHER = TenantId("t"), TenantId("other")
A, B = Residence(ReplicaId("a"), None), Residence(ReplicaId("b"), None)


def opened(path, max_ids=10):
    homes = StateResidence(StateResidenceConfig(max_state_ids=max_ids))
    return homes, StateFile(str(path), homes, max_ids=max_ids)


async def read_again(path, max_ids=10):
    homes, file = opened(path, max_ids)
    await file.close()
    return homes


async def test_what_was_learned_is_known_again_and_to_its_tenant_alone(tmp_path):
    path = tmp_path / "state"
    homes, file = opened(path)
    homes.learn(T, "resp_1", A)
    homes.learn(T, "resp_1", A)
    homes.learn(T, "resp_2", A)
    await file.flush()
    homes.learn(T, "resp_2", B)
    await file.close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_bytes().splitlines()) == 3 and b"resp" not in path.read_bytes()
    again = await read_again(path)
    assert again.find(T, "resp_1") == A and again.find(T, "resp_2") == B
    assert again.find(OTHER, "resp_1") is None and again.find(TenantId("tr"), "esp_1") is None


async def test_a_line_that_is_not_whole_says_nothing(tmp_path):
    path = tmp_path / "state"
    homes, file = opened(path)
    homes.learn(T, "resp_1", A)
    homes.learn(T, "resp_2", Residence(ReplicaId("replica-12"), None))
    await file.close()
    path.write_bytes(b"nonsense\n" + b"\xff" * 5000 + b"\n" + path.read_bytes()[:-2])
    again, file = opened(path)
    assert again.find(T, "resp_1") == A
    assert again.find(T, "resp_2") is None, "not on replica-1"
    again.learn(T, "resp_3", B)
    await file.close()
    third = await read_again(path)
    assert third.find(T, "resp_1") == A and third.find(T, "resp_3") == B


async def test_the_file_is_bounded(tmp_path):
    path = tmp_path / "state"
    homes, file = opened(path, max_ids=5)
    for number in range(100):
        homes.learn(T, f"resp_{number}", A)
        await file.flush()
        assert len(path.read_bytes().splitlines()) <= 10
    await file.close()
    again = await read_again(path, max_ids=5)
    assert [number for number in range(100) if again.find(T, f"resp_{number}")] == [95, 96, 97, 98, 99]


async def test_a_disk_that_fails_loses_nothing_once_it_works(tmp_path):
    path = tmp_path / "state"
    homes, file = opened(path)
    homes.learn(T, "resp_1", A)
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        await file.flush()
    path.rmdir()
    await file.close()
    again = await read_again(path)
    assert again.find(T, "resp_1") == A


async def test_a_stored_response_is_found_after_a_restart_by_its_tenant_alone(tmp_path):
    made = json.dumps({"id": "resp_alice1", "object": "response", "status": "completed", "output": []})
    tenants = [{"name": name, "key_hashes": [hash_key(key)]} for name, key in (("a", ALICE), ("b", BOB))]
    homes = []
    for life in range(2):
        bench = Bench()
        await bench.start(replicas=2, tenants=tenants, server={"state_path": str(tmp_path / "state")})
        for backend in bench.backends:
            backend.script = sends(answer(made.encode()))
        if not life:
            create = post(b'{"model":"m","input":"hi"}', b"/v1/responses", bearer(ALICE))
            homes.append((await bench.ask(create)).get(b"x-turnpike-replica"))
        else:
            for _ in range(3):
                found = await bench.ask(get(b"/v1/responses/resp_alice1", bearer(ALICE)))
                homes.append(found.get(b"x-turnpike-replica"))
            for key, path in ((BOB, b"/v1/responses/resp_alice1"), (ALICE, b"/v1/responses/resp_nobody")):
                assert (await bench.ask(get(path, bearer(key)))).status == 404
            assert sum(len(backend.seen) for backend in bench.backends) == 3
        await bench.finish()
    assert homes[0] is not None and len(set(homes)) == 1
