"""A stolen session on its way, on real sockets: its prompt goes ahead while its tools run, and it follows."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.domain import records as rec
from tests.server.bench import CHAT_ANSWER, Bench, Exchange, Message, Script, answer, eventually, post, sends

STEALS = {"enabled": True, "idle_s": 0.0, "ratio": 1.0}
CALLS = json.loads(CHAT_ANSWER)
CALLS["choices"][0] = {
    "index": 0,
    "finish_reason": "tool_calls",
    "message": {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call-1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}],
    },
}
ASKS = {"role": "user", "content": "I am stolen"}
SECRET = b"authorization: Bearer of-the-client\r\n"


def turn(session: str, *messages: Any, headers: bytes = b"") -> bytes:
    said = messages or ({"role": "user", "content": f"I am {session}"},)
    body = {
        "model": "m", "messages": said, "stream": False, "max_tokens": 99,
        "tools": [{"type": "function", "function": {"name": "bash"}}],
    }  # fmt: skip
    named = b"x-turnpike-session: %s\r\n" % session.encode()
    return post(json.dumps(body).encode(), headers=named + headers)


def goes_on(session: str) -> bytes:
    result = {"role": "tool", "tool_call_id": "call-1", "content": "done"}
    return turn(session, ASKS, CALLS["choices"][0]["message"], result)


class Stolen:
    """`stolen` pauses on the first replica, where two others run; the second one idles, and steals it."""

    def __init__(self, bench: Bench, prefill: Script) -> None:
        self.bench = bench
        self.prefill = prefill
        self.prefills: list[Message] = []
        self.moves: list[str] = []
        self._may_end = asyncio.Event()
        self._held: list[asyncio.Task[Message]] = []
        take = bench.gateway.observation.take
        bench.gateway.driver._on_records = lambda records: self._watch(take, records)
        for backend in bench.backends:
            backend.script = self.script

    def _watch(self, take: Callable[[Any], None], records: list[Any]) -> None:
        self.moves += [record.outcome for record in records if isinstance(record, rec.PrefixMoved)]
        take(records)

    async def script(self, exchange: Exchange) -> None:
        body = json.loads(exchange.request.body)
        said = body["messages"][-1]["content"]
        if body["max_tokens"] == 1:
            self.prefills.append(exchange.request)
            await self.prefill(exchange)
            return
        if said.startswith("I am held"):
            await self._may_end.wait()
        await exchange.send(answer(json.dumps(CALLS).encode() if said == "I am stolen" else CHAT_ANSWER))

    async def happens(self) -> None:
        bench = self.bench
        await self.drain(is_draining=True)
        first = await bench.ask(turn("stolen", ASKS, headers=SECRET))
        assert first.get(b"x-turnpike-replica") == b"default-0"
        self._held = [asyncio.ensure_future(bench.ask(turn(f"held-{number}"))) for number in range(2)]
        await eventually(lambda: self.running("default-0") == 2)
        await self.drain(is_draining=False)
        for number in range(2):
            await asyncio.sleep(0.06)  # so often somebody looks
            other = await bench.ask(turn(f"other-{number}", headers=b"x-turnpike-final: true\r\n"))
            assert other.get(b"x-turnpike-replica") == b"default-1"
        await eventually(lambda: self.prefills or self.moves)

    async def drain(self, *, is_draining: bool) -> None:
        body = json.dumps({"draining": is_draining}).encode()
        response = await self.bench.control(post(body, path=b"/turnpike/replicas/default-1/drain"))
        assert response.status == 200

    def running(self, replica: str) -> int:
        return next(state.running for state in self.bench.brain.fleet if state.facts.id == replica)

    def let_go(self) -> None:
        self._may_end.set()

    async def went_on(self) -> Message:
        response = await self.bench.ask(goes_on("stolen"))
        self.let_go()
        assert {each.status for each in await asyncio.gather(*self._held)} == {200}
        return response


async def stolen(
    start: Any,
    prefill: Script | None = None,
    *,
    upstream: dict[str, Any] | None = None,
    models: tuple[dict[str, Any], ...] = (),
    **kept: Any,
) -> Stolen:
    bench = await start(
        replicas=2,
        routing={"stealing": STEALS},
        prefill_ahead=kept,
        upstream=upstream or {},
        models=models,
    )
    play = Stolen(bench, prefill or sends(answer()))
    try:
        await play.happens()
    except BaseException:
        play.let_go()
        raise
    return play


async def test_its_prompt_goes_ahead_and_it_follows(start):
    play = await stolen(start)
    await eventually(lambda: play.moves == ["ready"])
    [ahead] = play.prefills
    first = next(seen for seen in play.bench.backends[0].seen if b"I am stolen" in seen.body)
    assert json.loads(ahead.body) == json.loads(first.body) | {"max_tokens": 1, "stream": False}
    assert ahead.get(b"authorization") == b"Bearer of-the-client", "as its own request"
    assert ahead.target == first.target and not ahead.get(b"x-turnpike-session")
    assert play.running("default-1") == 0
    response = await play.went_on()
    assert response.get(b"x-turnpike-replica") == b"default-1"
    assert response.get(b"x-turnpike-reason") == b"stolen"


async def test_its_prompt_asks_for_the_model_that_its_name_leads_to(start):
    play = await stolen(start, models=({"name": "m", "targets": [{"model": "Qwen/Qwen3-32B"}]},))
    await eventually(lambda: play.moves == ["ready"])
    await play.went_on()
    assert {json.loads(each.body)["model"] for each in play.prefills} == {"Qwen/Qwen3-32B"}


async def test_who_goes_on_sooner_stays_and_the_replica_need_not_go_on(start):
    has_left = asyncio.Event()

    async def hangs(exchange: Exchange) -> None:
        await exchange.until_left()
        has_left.set()

    play = await stolen(start, hangs)
    response = await play.went_on()
    assert response.get(b"x-turnpike-replica") == b"default-0" and play.moves == ["late"]
    async with asyncio.timeout(10):
        await has_left.wait()


@pytest.mark.parametrize(
    "prefill",
    [
        sends(answer(b'{"error":{}}', status=b"400 Bad Request")),
        sends(answer(b'{"error":{}}', status=b"500 Internal Server Error")),
        sends(b"", then="reset"),
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", then="close"),
        sends(answer(b'{"choices":[]}')),
        sends(answer(b"no json")),
    ],
    ids=["refused", "fails", "resets", "breaks off", "says nothing", "says nonsense"],
)
async def test_where_the_prompt_cannot_be_computed_it_does_not_go(start, prefill):
    play = await stolen(start, prefill)
    await eventually(lambda: play.moves == ["failed"])
    response = await play.went_on()
    assert response.status == 200 and response.get(b"x-turnpike-replica") == b"default-0"


async def test_an_answer_that_stops_is_given_up(start):
    begins = sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", then="hang")
    play = await stolen(start, begins, upstream={"stall_timeout_s": 0.3})
    await eventually(lambda: play.moves == ["failed"])
    assert play.running("default-1") == 0
    assert (await play.went_on()).get(b"x-turnpike-replica") == b"default-0"


async def test_an_answer_in_pieces_is_read_to_its_end(start):
    whole = answer(CHAT_ANSWER)

    async def in_pieces(exchange: Exchange) -> None:
        for at in range(0, len(whole), 50):
            await exchange.send(whole[at : at + 50])
            await asyncio.sleep(0.002)

    play = await stolen(start, in_pieces)
    await eventually(lambda: play.moves == ["ready"])
    await play.went_on()


async def test_what_is_kept_is_bounded(start):
    play = await stolen(start, kept_bytes=300)
    assert play.moves == ["failed"] and not play.prefills
    prefills = play.bench.gateway._prefills
    assert prefills is not None
    bodies = sum(len(each.request.body) for each in prefills.kept)
    assert bodies < prefills.kept.bytes <= 300, "heads count, too"
    assert (await play.went_on()).get(b"x-turnpike-replica") == b"default-0"


async def test_nothing_is_kept_where_nothing_is_stolen(start):
    bench = await start(replicas=2)
    assert bench.gateway._prefills is None


async def test_a_gateway_that_stops_leaves_no_prefill_behind(start):
    play = await stolen(start, lambda exchange: exchange.until_left())
    await play.bench.gateway.stop()
    prefills = play.bench.gateway._prefills
    assert play.moves == ["failed"] and prefills is not None and not prefills._under_way
    play.let_go()
    await asyncio.gather(*play._held, return_exceptions=True)
