"""Two gateways before one store: a session lives at one of them, whoever receives its turns."""

import asyncio
import contextlib
import json
import ssl
from collections import Counter
from functools import partial
from typing import Any

import pytest

from gateway.server.cluster import peer_heartbeats
from gateway.server.cluster.peers import Peers
from gateway.shared_state.directory import Place
from gateway.shared_state.protocol import StoreUnavailable
from tests.server.bench import (
    DELTA,
    DONE,
    STREAM_HEAD,
    Bench,
    chunk,
    completion,
    eventually,
    pauses,
    post,
    sends,
)
from tests.workflow.world import call, result, said, user

SECRET = b"s" * 32
PATIENCE_S = 10.0


@pytest.fixture
def several(start, store_url):
    async def start_several(count: int = 2, **settings: Any) -> list[Bench]:
        shared = {"url": store_url, "deadline_ms": 1000, **settings.pop("shared", {})}
        benches = [await start(fleet_secret=SECRET, shared=shared, **settings) for _ in range(count)]
        await eventually(lambda: all(len(peers_of(bench).alive) == count - 1 for bench in benches))
        return benches

    return start_several


def chat(*messages: dict[str, Any], stream: bool = False, **fields: Any) -> bytes:
    return post(json.dumps({"model": "m", "messages": messages, "stream": stream, **fields}).encode())


def peers_of(bench: Bench) -> Peers:
    peers = bench.gateway._peers
    assert peers is not None
    return peers


def sides(gateways: list[Bench]) -> tuple[Bench, Bench]:
    first, second = gateways
    return (first, second) if len(first.brain.sessions.sessions) else (second, first)


def session_of(response: Any) -> str:
    return response.all(b"x-turnpike-session")[0].decode()


def agent(task: str, step: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The messages of one step of an agent's run, and what it is answered."""
    messages = [user(task)]
    for at in range(step):
        messages += [
            said(f"Step {at}.", call(f"call_{task}_{at}_aaaaaa")),
            result(f"call_{task}_{at}_aaaaaa"),
        ]
    return messages, said(f"Step {step}.", call(f"call_{task}_{step}_aaaaaa"))


async def ask(bench: Bench, among: list[Bench], task: str, step: int, **fields: Any) -> Any:
    messages, reply = agent(task, step)
    for each in among:
        for backend in each.backends:
            backend.script = sends(completion(reply))
    response = await bench.ask(chat(*messages, **fields))
    assert response.status == 200 and response.json()["choices"][0]["message"] == reply
    return response


@pytest.mark.parametrize("is_silent", [False, True], ids=["lives", "misses its heartbeat"])
async def test_an_answer_that_streams_is_passed_on_as_it_comes(several, monkeypatch, is_silent):
    gateways = await several()
    first = await ask(gateways[0], gateways, "stream", 0)
    home, other = sides(gateways)
    goes_on = asyncio.Event()
    rest = chunk(DELTA) + chunk(DONE) + b"0\r\n\r\n"
    home.backend.script = pauses(STREAM_HEAD + chunk(DELTA), goes_on, rest)
    client = await other.send(chat(*agent("stream", 1)[0], stream=True))
    head = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    assert b"text/event-stream" in head and session_of(first).encode() in head
    assert DELTA in await asyncio.wait_for(client.reader.readuntil(DELTA), PATIENCE_S)
    if is_silent:
        fall_silent(home, monkeypatch)
        await eventually(lambda: not peers_of(other).alive)
        await asyncio.sleep(0.3)
    goes_on.set()
    rest = await asyncio.wait_for(client.reader.readuntil(b"0\r\n\r\n"), PATIENCE_S)
    assert DELTA in rest and DONE in rest


async def test_a_client_that_leaves_is_gone_at_the_gateway_that_decides(several, tmp_path):
    log = tmp_path / "access.log"
    gateways = await several(server={"access_log": str(log)})
    await ask(gateways[0], gateways, "leaves", 0)
    home, other = sides(gateways)
    home.backend.script = sends(STREAM_HEAD + chunk(DELTA), then="hang")
    client = await other.send(chat(*agent("leaves", 1)[0], stream=True))
    await asyncio.wait_for(client.reader.readuntil(DELTA), PATIENCE_S)
    assert len(home.brain.live) == 1
    client.reset()
    await eventually(lambda: log.exists() and len(log.read_text().splitlines()) > 1)
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["outcome"] for line in told if line["turn"]] == ["finished", "client_left"] and not told[2:]


async def test_a_session_goes_on_where_its_state_is(several, monkeypatch):
    gateways = await several(2, replicas=2)
    for backend in gateways[0].backends + gateways[1].backends:
        backend.script = sends(STREAM_HEAD + chunk(DELTA), then="hang")
    busy = await gateways[0].send(chat(user("Keep a replica busy, please"), stream=True))
    await asyncio.wait_for(busy.reader.readuntil(DELTA), PATIENCE_S)
    home = next(bench for bench in gateways if bench.brain.live)
    other = next(bench for bench in gateways if bench is not home)
    began = (await ask(home, gateways, "state", 0)).all(b"x-turnpike-replica")
    busy.reset()
    await eventually(lambda: not home.brain.live)
    await kill(home, monkeypatch)
    others = [(await ask(other, gateways, f"other {n}", 0)).all(b"x-turnpike-replica") for n in range(8)]
    assert (await ask(other, gateways, "state", 1)).all(b"x-turnpike-replica") == began
    assert any(replica != began for replica in others), "it is no matter of which replica is there"


async def test_who_is_gone_is_not_tried_again_for_what_it_announced_before(several, monkeypatch):
    gateways = await several()
    began = session_of(await ask(gateways[0], gateways, "gone", 0))
    home, other = sides(gateways)
    peers, find = peers_of(other), peers_of(other).directory.find
    monkeypatch.setattr(peer_heartbeats, "LASTS_S", 60.0)
    monkeypatch.setattr(peer_heartbeats, "_KEPT_S", 600.0)

    async def takes_longer_than_a_round(*asked: Any) -> Place:
        await peers.send_heartbeat()
        return await find(*asked)

    monkeypatch.setattr(peers.directory, "find", takes_longer_than_a_round)
    await kill(home, monkeypatch)
    await peers.send_heartbeat()
    assert session_of(await ask(other, gateways, "gone", 1)) == began
    assert (peers.unreached, peers.adopted) == (1, 1)


async def kill(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if its process had died: nothing listens any more, and it says nothing more of itself."""
    bench.gateway.listener.close()
    peers_of(bench).listener.close()
    fall_silent(bench, monkeypatch)


def fall_silent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def exchange(*_: Any) -> dict[str, bytes]:
        raise StoreUnavailable

    monkeypatch.setattr(peers_of(bench).store, "exchange", exchange)
    monkeypatch.setattr(peers_of(bench)._direct, "exchange", says_nothing)


async def says_nothing(*_: Any) -> bool:
    return True


async def test_gateways_that_have_certificates_speak_tls_with_one_another_alone(several, peer_tls):
    gateways = await several(2, shared=peer_tls)
    sessions = {session_of(await ask(gateways[step % 2], gateways, "tls", step)) for step in range(4)}
    assert len(sessions) == 1 and sum(peers_of(bench).passed_on for bench in gateways) >= 2
    port = peers_of(gateways[0]).listener.port
    nobody = ssl.create_default_context(cafile=peer_tls["peer_tls_ca"])
    for context in (None, nobody):  # in clear, and without a certificate of its own
        name = "gateways.internal" if context else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        writer.write(post())
        with pytest.raises((OSError, EOFError)):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def lose_the_store(gateways: list[Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> Any:
        raise StoreUnavailable

    for bench in gateways:
        for step in ("exchange", "find", "claim"):
            monkeypatch.setattr(peers_of(bench).store, step, fails)


@pytest.mark.slow
async def test_who_alone_lost_the_store_lives(several, monkeypatch):
    gateways = await several(2)
    lose_the_store(gateways[:1], monkeypatch)
    await asyncio.sleep(1.5)
    assert [len(peers_of(bench).alive) for bench in gateways] == [1, 1]
    names = {session_of(await ask(gateways[step % 2], gateways, "alone", step)) for step in range(4)}
    assert len(names) == 1


async def test_a_session_keeps_its_model_when_another_gateway_goes_on_with_it(several):
    targets = [{"model": "m", "weight": 50}, {"model": "n", "weight": 50}]
    gateways = await several(models=[{"name": "smart", "targets": targets}])
    tasks = [f"task-{number}" for number in range(12)]

    async def models(bench: Bench, step: int) -> list[bytes]:
        said = [await ask(bench, gateways, task, step, model="smart") for task in tasks]
        return [response.get(b"x-turnpike-model") for response in said]

    drawn = await models(gateways[0], 0)
    assert set(drawn) == {b"m", b"n"}
    assert await models(gateways[1], 1) == drawn
    home, other = sides(gateways)
    await peers_of(home).leave()
    await eventually(lambda: not peers_of(other).alive)
    other.brain.models.named["smart"]._until = [100.0, 100.0]  # new sessions would all get the first
    assert await models(other, 2) == drawn
    assert peers_of(other).adopted == len(tasks)


async def test_nobody_but_a_gateway_gets_in_at_the_peers_port(several):
    bench, _ = await several()
    port = peers_of(bench).listener.port
    wrong = b"X-Turnpike-Passed: wrong 10.0.0.1\r\n"
    of_the_other = b"X-Turnpike-Passed: %s\r\n" % peers_of(bench).passing.header("another", "10.0.0.1")
    of_no_ascii = b"X-Turnpike-Passed: x \xff\r\n"
    asks = [post(headers=each) for each in (b"", wrong, of_the_other, of_no_ascii)]
    for request in (*asks, post(path=b"/turnpike/peer", headers=wrong)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        assert b" 403 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        writer.close()


async def test_a_client_cannot_claim_to_be_passed_on(several):
    gateways = await several()
    proofs = [peers_of(bench).passing.header(peers_of(bench)._origin, "9.9.9.9") for bench in gateways]
    sessions = set()
    for step, (bench, proof) in enumerate(zip(gateways, proofs, strict=True)):
        messages, reply = agent("claims", step)
        for each in gateways:
            each.backend.script = sends(completion(reply))
        body = json.dumps({"model": "m", "messages": messages}).encode()
        response = await bench.ask(post(body, headers=b"X-Turnpike-Passed: %s\r\n" % proof))
        sessions.add(session_of(response))
    assert len(sessions) == 1, "the header counts at the peers' port alone"
    assert not any(m.get(b"x-turnpike-passed") for each in gateways for m in each.backend.seen)


async def test_a_gateway_that_was_taken_for_gone_gives_back_what_is_anothers(several):
    gateways = await several()
    before = session_of(await ask(gateways[0], gateways, "back", 0))
    home, other = sides(gateways)
    peers_of(home).directory.is_in_doubt = True
    heir = peers_of(other).directory.origin.encode()
    session = home.brain.sessions.sessions.get(before)
    key = f"h:{before} {session.tenant}".encode()
    assert await peers_of(home).store.claim(key, heir, 60.0) == heir
    passed_on = peers_of(other).passed_on
    assert session_of(await ask(other, gateways, "back", 1)) == before
    assert [len(bench.brain.sessions.sessions) for bench in (home, other)] == [1, 1]
    assert peers_of(other).passed_on == passed_on and peers_of(other).adopted == 1
    assert session_of(await ask(home, gateways, "back", 2)) == before
    assert peers_of(home).passed_on == 1


async def test_who_is_missing_in_another_store_lives_for_a_moment(several, monkeypatch):
    gateways = await several()
    peers = peers_of(gateways[0])

    async def is_empty(*_: Any) -> dict[str, bytes]:
        return {}

    monkeypatch.setattr(peers.store, "exchange", is_empty)
    for _ in range(5):
        await peers.send_heartbeat()
        assert len(peers.alive) == 1
    await eventually(lambda: not peers.alive)


async def test_gateways_of_other_secrets_are_strangers(start, store_url, rounds):
    shared = {"url": store_url, "deadline_ms": 1000}
    benches = [await start(fleet_secret=secret * 32, shared=shared) for secret in (b"s", b"t")]
    await eventually(lambda: min(rounds[peers_of(bench)] for bench in benches) > 3)
    parts = [bench.brain.admission.pools["default"].limits.part for bench in benches]
    assert parts == [1.0, 1.0] and not any(peers_of(bench).alive for bench in benches)
    for step, bench in enumerate(benches):
        await ask(bench, benches, "apart", step)


# --- what is said of replicas --------------------------------------------------------------------------

DRAIN = b"/turnpike/replicas/default-0/drain"


def are_drained(gateways: list[Bench], *, is_draining: bool) -> bool:
    return drained_at(gateways) == [is_draining] * len(gateways)


def drained_at(gateways: list[Bench]) -> list[bool]:
    return [bench.brain.fleet.get("default-0").is_draining for bench in gateways]


def are_up(bench: Bench) -> list[bool]:
    return [bench.brain.fleet.get(name).is_up for name in ("default-0", "default-1")]


@pytest.fixture
def rounds(monkeypatch) -> Counter[Peers]:
    """How often each gateway has exchanged its state with the others: every 0.1 s where nothing else runs."""
    counts: Counter[Peers] = Counter()
    send_heartbeat = Peers.send_heartbeat

    async def counted(peers: Peers) -> None:
        await send_heartbeat(peers)
        counts[peers] += 1

    monkeypatch.setattr(Peers, "send_heartbeat", counted)
    return counts


async def test_a_drain_that_one_gateway_is_told_reaches_all_and_ends_at_all(
    several, start, store_url, rounds
):
    gateways = await several(3, replicas=2)
    for teller, is_draining in ((0, True), (1, False), (2, True)):
        body = json.dumps({"draining": is_draining}).encode()
        before = rounds.copy()
        assert (await gateways[teller].control(post(body, DRAIN))).status == 200
        await eventually(partial(are_drained, gateways, is_draining=is_draining))
        assert max((rounds - before).values()) <= 3, "the one under way, and the next"
    shared = {"url": store_url, "deadline_ms": 1000}
    late = await start(fleet_secret=SECRET, shared=shared, replicas=2)
    assert drained_at([late]) == [True]
    assert (await late.ask(post())).all(b"x-turnpike-replica") == [b"default-1"]


async def test_a_drain_outlives_all_gateways_while_the_store_does(several, start, store_url, monkeypatch):
    (alone,) = await several(1, replicas=2)
    await alone.control(post(b"", DRAIN))
    await kill(alone, monkeypatch)
    shared = {"url": store_url, "deadline_ms": 1000}
    assert drained_at([await start(fleet_secret=SECRET, shared=shared, replicas=2)]) == [True]


async def test_a_replica_that_one_gateway_finds_dead_is_asked_at_once_by_the_others(several):
    gateways = await several(3, replicas=2)
    began = await ask(gateways[0], gateways, "dead", 0)
    dead = int(began.get(b"x-turnpike-replica").removeprefix(b"default-"))
    finder = next(bench for bench in gateways if len(bench.brain.sessions.sessions))
    other, apart = (bench for bench in gateways if bench is not finder)  # each has replicas of its own
    for bench in (finder, other):
        await bench.backends[dead].close()
    await ask(finder, gateways, "dead", 1)  # a new session may be another gateway's, and another replica's
    left = [number != dead for number in range(2)]
    await eventually(lambda: are_up(finder) == left)
    await eventually(lambda: are_up(other) == left)
    await asyncio.sleep(0.3)
    assert are_up(apart) == [True, True], "it answers there"


async def test_a_gateway_that_leaves_hands_its_sessions_on(several):
    gateways = await several()
    before = session_of(await ask(gateways[0], gateways, "hand", 0))
    home, other = sides(gateways)
    await peers_of(home).leave()
    await eventually(lambda: not peers_of(other).alive)
    assert session_of(await ask(other, gateways, "hand", 1)) == before
