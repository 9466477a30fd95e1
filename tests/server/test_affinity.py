"""Sessions stay on their replica, as clients see it."""

import json

from tests.server.bench import post


def turn(session: str) -> bytes:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"I am {session}"}]}).encode()
    return post(body, headers=b"x-turnpike-session: %s\r\n" % session.encode())


async def test_a_session_stays_and_sessions_spread(start):
    bench = await start(replicas=2)
    homes = {}
    for session in ("one", "two", "three", "four"):
        response = await bench.ask(turn(session))
        homes[session] = response.get(b"x-turnpike-replica")
        assert response.get(b"x-turnpike-reason") == b"least_loaded"
    assert sorted(homes.values()) == [b"default-0", b"default-0", b"default-1", b"default-1"]
    for session in ("four", "one", "three", "two", "one", "one"):
        response = await bench.ask(turn(session))
        assert response.get(b"x-turnpike-replica") == homes[session]
        assert response.get(b"x-turnpike-reason") == b"session_lives_there"


async def test_a_session_that_is_over_leaves_room(start):
    bench = await start(replicas=2)
    first = (await bench.ask(turn("one"))).get(b"x-turnpike-replica")
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "I am one"}]}).encode()
    final = post(body, headers=b"x-turnpike-session: one\r\nx-turnpike-final: true\r\n")
    assert (await bench.ask(final)).get(b"x-turnpike-replica") == first
    assert bench.brain.placement.sessions_at == {}
