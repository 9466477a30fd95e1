"""What is known of the next prompt is computed while tools run: on real sockets, by a policy that asks for it
whenever a test says so."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.core import events as ev
from gateway.core.commands import Prefill, StopPrefill
from gateway.domain import records as rec
from gateway.domain.ids import ReplicaId, RequestId
from gateway.domain.request import Usage
from gateway.server.kept import Kept
from gateway.server.tenants import hash_key
from tests.server.bench import Bench, Exchange, Message, Script, answer, chunk, eventually, post, sends

ON = {"enabled": True}
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
ASKS = {"role": "user", "content": "Find é."}
RESULT = {"role": "tool", "tool_call_id": "call-1", "content": "found"}
ARGUMENTS = '{"command": "ls", "all": true}'
DELTAS: list[dict[str, Any]] = [
    {"role": "assistant", "content": ""},
    {"reasoning": "Let me "},
    {"reasoning": "look."},
    {"content": "I "},
    {"content": "look."},
    {
        "tool_calls": [
            {"index": 0, "id": "call-1", "type": "function", "function": {"name": "bash", "arguments": ""}}
        ]
    },
    {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[:9]}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[9:]}}]},
]
MESSAGES_ASK = {"role": "user", "content": [{"type": "text", "text": "Find."}]}
MESSAGES_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"id": "msg-1", "usage": {"input_tokens": 9, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "SIG"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "I look."}},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "toolu-1", "name": "bash", "input": {}},
    },
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "input_json_delta", "partial_json": '{"command": "ls"}'},
    },
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]


def call(arguments: str = ARGUMENTS) -> dict[str, Any]:
    return {"id": "call-1", "type": "function", "function": {"name": "bash", "arguments": arguments}}


def turn(*messages: Any, system: str = "You look.", headers: bytes = b"", session: str = "s") -> bytes:
    body = {
        "model": "m",
        "messages": [{"role": "system", "content": system}, *messages],
        "tools": TOOLS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return post(json.dumps(body).encode(), headers=b"x-turnpike-session: %s\r\n" % session.encode() + headers)


def streamed(events: Sequence[dict[str, Any]], end: bytes = b"data: [DONE]\n\n") -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    lines = [b"data: %s\n\n" % json.dumps(event).encode() for event in events]
    return [head, *map(chunk, lines), *([chunk(end)] if end else []), chunk(b"")]


def chat_stream() -> list[bytes]:
    deltas = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in DELTAS]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    return streamed([*deltas, end])


class Ahead:
    """Asks for prefills, and takes what the brain would be told of their ends: it asked for none."""

    def __init__(self, bench: Bench, prefill: Script | None = None) -> None:
        self.bench = bench
        self.prefill = prefill or sends(answer())
        self.asked: list[Message] = []
        self.ended: list[tuple[RequestId, Usage | None]] = []
        self.pieces = chat_stream()
        prefills = bench.gateway._prefills
        assert prefills is not None
        self.prefills = prefills
        self._send = bench.gateway.driver.send
        bench.gateway.driver.send = self._sent  # type: ignore[method-assign]
        for backend in bench.backends:
            backend.script = self.script

    def _sent(self, event: Any) -> None:
        if isinstance(event, ev.PrefillEnded):
            self.ended.append((event.turn, event.usage))
        else:
            self._send(event)

    async def script(self, exchange: Exchange) -> None:
        if json.loads(exchange.request.body).get("max_tokens") == 1:
            self.asked.append(exchange.request)
            await self.prefill(exchange)
            return
        for piece in self.pieces:
            await exchange.send(piece)

    async def pauses(self, request: bytes) -> Kept:
        """A turn, to its end."""
        assert (await self.bench.ask(request)).status == 200
        return [*self.prefills.kept][-1]

    def begin(self, kept: Kept, *, agent: int = 0, replica: str = "default-0") -> RequestId:
        session, thread = kept.conversation
        self.prefills.take(
            Prefill(
                turn=kept.turn,
                session=session,
                thread=thread,
                replica=ReplicaId(replica),
                agent=agent,
            )
        )
        return kept.turn

    async def ends(self, kept: Kept, **how: Any) -> Usage | None:
        turn, before = self.begin(kept, **how), len(self.ended)
        await eventually(lambda: len(self.ended) > before)
        assert [each for each, _ in self.ended[before:]] == [turn]
        return self.ended[-1][1]

    def stop(self, kept: Kept) -> None:
        self.prefills.take(StopPrefill(turn=kept.turn))

    @property
    def foreseen(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.asked[-1].body)
        return body


async def started(start: Any, prefill: Script | None = None, **settings: Any) -> Ahead:
    return Ahead(await start(prefill_ahead=ON, **settings), prefill)


def said_plainly() -> dict[str, Any]:
    return {"role": "assistant", "content": "I look.", "tool_calls": [call()]}


async def test_the_next_prompt_is_sent_as_far_as_it_is_known(start):
    ahead = await started(start)
    kept = await ahead.pauses(turn(ASKS, headers=b"authorization: Bearer of-the-client\r\n"))
    usage = await ahead.ends(kept)
    assert usage is not None and usage.prompt_tokens == 3
    [seen] = ahead.asked
    assert seen.get(b"authorization") == b"Bearer of-the-client" and not seen.get(b"x-turnpike-session")
    *before, said, unknown = ahead.foreseen.pop("messages")
    assert before == [{"role": "system", "content": "You look."}, ASKS]
    assert said == said_plainly() and unknown["tool_call_id"] == "call-1"
    assert ahead.foreseen | {"messages": []} == {
        "model": "m", "messages": [], "tools": TOOLS, "max_tokens": 1, "stream": False,
    }  # fmt: skip


async def test_how_its_client_sends_answers_back_is_learned(start):
    ahead = await started(start)
    await ahead.pauses(turn(ASKS))
    compact = json.dumps(json.loads(ARGUMENTS), separators=(",", ":"))
    echoed = {**said_plainly(), "tool_calls": [call(compact)], "reasoning": "Let me look."}
    await ahead.ends(await ahead.pauses(turn(ASKS, echoed, RESULT)))
    assert not ahead.asked, "the only guess so far was wrong"
    for number in range(2, 4):
        await ahead.ends(await ahead.pauses(turn(ASKS, *[echoed, RESULT] * number)))
    *before, said, _ = ahead.foreseen["messages"]
    assert said == echoed and before[1:] == [ASKS, *[echoed, RESULT] * 3]


async def test_what_was_mostly_wrong_is_not_sent(start):
    ahead = await started(start)
    history: list[Any] = [ASKS]
    for number in range(4):
        await ahead.ends(await ahead.pauses(turn(*history)))
        history += [{**said_plainly(), "content": f"My words {number}."}, RESULT]
    assert len(ahead.asked) == 1, "only before anything was known"


async def test_an_answer_of_the_messages_api(start):
    ahead = await started(start)
    ahead.pieces = streamed(MESSAGES_EVENTS, end=b"")
    body = {"model": "m", "max_tokens": 99, "stream": True, "system": "You look.", "messages": [MESSAGES_ASK]}
    kept = await ahead.pauses(post(json.dumps(body).encode(), path=b"/v1/messages"))
    ahead.prefill = sends(answer(b'{"type":"message","usage":{"input_tokens":5,"output_tokens":1}}'))
    usage = await ahead.ends(kept)
    assert usage is not None and usage.prompt_tokens == 5
    assert ahead.asked[-1].target == b"/v1/messages"
    asked, said, unknown = ahead.foreseen["messages"]
    assert asked == MESSAGES_ASK and ahead.foreseen["system"] == "You look."
    assert said["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "SIG"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu-1", "name": "bash", "input": {"command": "ls"}},
    ]
    assert [each["tool_use_id"] for each in unknown["content"]] == ["toolu-1"]


async def test_the_head_is_that_of_the_agent_that_is_expected(start):
    ahead = await started(start)
    other = await ahead.pauses(turn(ASKS, system="You write.", session="other"))
    kept = await ahead.pauses(turn(ASKS))
    await ahead.ends(kept, agent=other.agent)
    assert [each["content"] for each in ahead.foreseen["messages"][:2]] == ["You write.", "Find é."]
    assert await ahead.ends(kept, agent=4711) is None and len(ahead.asked) == 1, "nobody has seen that"


async def test_nobody_gets_the_head_of_another_tenant(start):
    keys = [f"tp-{name}-{'k' * 24}" for name in "ab"]
    tenants = [{"name": f"tenant-{n}", "key_hashes": [hash_key(key)]} for n, key in enumerate(keys)]
    ahead = await started(start, tenants=tenants)
    shown = [b"authorization: Bearer %s\r\n" % key.encode() for key in keys]
    other = await ahead.pauses(turn(ASKS, system="You write.", headers=shown[0]))
    kept = await ahead.pauses(turn(ASKS, headers=shown[1]))
    assert await ahead.ends(kept, agent=other.agent) is None and not ahead.asked


async def test_what_has_gone_on_is_not_sent(start):
    ahead = await started(start)
    stale = await ahead.pauses(turn(ASKS))
    await ahead.pauses(turn(ASKS, said_plainly(), RESULT))
    assert await ahead.ends(stale) is None and not ahead.asked


async def test_a_side_request_takes_nothing_away(start):
    ahead = await started(start)
    kept = await ahead.pauses(turn(ASKS))
    title = {"model": "m", "messages": [{"role": "user", "content": "Write a title."}], "stream": True}
    await ahead.pauses(post(json.dumps(title).encode(), headers=b"x-turnpike-session: s\r\n"))
    assert await ahead.ends(kept) is not None


@pytest.mark.parametrize("pieces", [4, len(chat_stream()) - 2], ids=["in the middle", "before its end"])
async def test_an_answer_that_breaks_off_is_not_extended(start, pieces):
    ahead = await started(start)
    broken = b"".join(chat_stream()[:pieces])
    ahead.bench.backend.script = sends(broken, then="reset")
    response = await ahead.bench.ask(turn(ASKS))
    assert not response.is_whole
    ahead.bench.backend.script = ahead.script
    [kept] = ahead.prefills.kept
    assert await ahead.ends(kept) is None and not ahead.asked


async def test_a_client_that_leaves_in_the_middle_of_its_answer(start):
    ahead = await started(start)
    ahead.bench.backend.script = sends(b"".join(chat_stream()[:5]), then="hang")
    client = await ahead.bench.connect()
    client.send(turn(ASKS))
    await client.reader.readuntil(b"I ")
    client.reset()
    await eventually(ahead.bench.is_quiet)
    [kept] = ahead.prefills.kept
    assert kept.said is None and await ahead.ends(kept) is None


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
async def test_an_engine_that_does_not_compute_it(start, prefill):
    ahead = await started(start, prefill)
    kept = await ahead.pauses(turn(ASKS))
    assert await ahead.ends(kept) is None
    assert (await ahead.bench.ask(turn(ASKS, said_plainly(), RESULT))).status == 200


async def test_an_answer_that_stops_is_given_up(start):
    begins = sends(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", then="hang")
    ahead = await started(start, begins, upstream={"stall_timeout_s": 0.3})
    kept = await ahead.pauses(turn(ASKS))
    assert await ahead.ends(kept) is None and len(ahead.asked) == 1 and ahead.bench.is_quiet()


async def test_an_answer_in_pieces_is_read_to_its_end(start):
    whole = answer()

    async def in_pieces(exchange: Exchange) -> None:
        for at in range(0, len(whole), 50):
            await exchange.send(whole[at : at + 50])
            await asyncio.sleep(0.002)

    ahead = await started(start, in_pieces)
    usage = await ahead.ends(await ahead.pauses(turn(ASKS)))
    assert usage is not None and usage.prompt_tokens == 3


async def test_it_asks_for_the_model_that_its_name_leads_to(start):
    ahead = await started(start, models=({"name": "m", "targets": [{"model": "Qwen/Qwen3-32B"}]},))
    assert await ahead.ends(await ahead.pauses(turn(ASKS))) is not None
    assert ahead.foreseen["model"] == "Qwen/Qwen3-32B"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/v1/completions", {"model": "m", "prompt": "Find."}),
        (b"/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "x" * (1 << 20)}]}),
    ],
    ids=["a protocol in which nothing is foreseen", "too large"],
)
async def test_what_cannot_be_extended_is_not_kept(start, path, body):
    ahead = await started(start)
    await ahead.pauses(turn(ASKS))
    ahead.bench.backend.script = sends(answer())
    asked = json.dumps(body).encode()
    response = await ahead.bench.ask(post(asked, path=path, headers=b"x-turnpike-session: other\r\n"))
    assert response.status == 200
    [kept] = ahead.prefills.kept
    assert ASKS["content"] in json.loads(kept.request.body)["messages"][-1]["content"]


async def test_what_engines_refuse_is_not_sent_again(start):
    ahead = await started(start, sends(answer(b'{"error":{}}', status=b"400 Bad Request")))
    kept = await ahead.pauses(turn(ASKS))
    await ahead.ends(kept)
    await ahead.ends(kept)
    assert len(ahead.asked) == 1


async def test_an_engine_that_dies_meanwhile(start):
    ahead = await started(start, lambda exchange: exchange.until_left())
    kept = await ahead.pauses(turn(ASKS))
    ahead.begin(kept)
    await eventually(lambda: ahead.asked)
    await ahead.bench.backend.close()
    await eventually(lambda: ahead.ended)
    assert ahead.ended == [(kept.turn, None)] and ahead.bench.is_quiet()


async def test_a_replica_that_is_not_there(start):
    ahead = await started(start)
    assert await ahead.ends(await ahead.pauses(turn(ASKS)), replica="default-9") is None


async def test_who_is_stopped_leaves_at_once(start):
    has_left = asyncio.Event()

    async def hangs(exchange: Exchange) -> None:
        await exchange.until_left()
        has_left.set()

    ahead = await started(start, hangs)
    kept = await ahead.pauses(turn(ASKS))
    ahead.begin(kept)
    await eventually(lambda: ahead.asked)
    ahead.stop(kept)
    async with asyncio.timeout(10):
        await has_left.wait()
    assert ahead.ended == [(kept.turn, None)]
    ahead.stop(kept)  # again, and it is over
    ahead.begin(kept)
    ahead.stop(kept)  # before it could begin
    await eventually(lambda: len(ahead.ended) == 2)
    assert ahead.bench.is_quiet()


async def test_a_gateway_that_drains_and_stops(start):
    ahead = await started(start, lambda exchange: exchange.until_left())
    kept = await ahead.pauses(turn(ASKS))
    ahead.begin(kept)
    await eventually(lambda: ahead.asked)
    await ahead.bench.gateway.drain()
    assert not ahead.ended, "nobody waits for it"
    await ahead.bench.gateway.stop()
    assert ahead.ended == [(kept.turn, None)]
    ahead.begin(kept)
    await eventually(lambda: len(ahead.ended) == 2)
    assert ahead.ended[1] == (kept.turn, None) and len(ahead.asked) == 1


async def test_what_is_kept_is_bounded(start):
    ahead = Ahead(await start(prefill_ahead=ON | {"kept_bytes": 2_000}))
    for number in range(6):
        await ahead.pauses(turn(ASKS, session=f"s-{number}", system=f"You look {number}."))
    kept = [*ahead.prefills.kept]
    assert 0 < len(kept) < 6
    assert sum(each.size for each in kept) == ahead.prefills.kept.bytes <= 2_000
    of_request = len(kept[-1].request.body) + sum(len(n) + len(v) for n, v in kept[-1].request.head.headers)
    assert kept[-1].said is not None and kept[-1].size == of_request + kept[-1].said.size > of_request
    assert 0 < ahead.prefills.heads.bytes <= 250


async def test_the_brain_has_the_prompt_of_the_next_agent_computed(start):
    """Who plans under one system prompt, and reads what tools found under another one."""
    bench = await start(prefill_ahead=ON | {"least_s": 0.0})
    plans, reads, asked, moments = chat_stream(), chat_stream(), [], []

    async def script(exchange: Exchange) -> None:
        body = json.loads(exchange.request.body)
        if body.get("max_tokens") == 1:
            asked.append(body)
            await exchange.send(answer())
            return
        for piece in plans if body["messages"][0]["content"] == "You plan." else reads:
            await exchange.send(piece)

    bench.backend.script = script
    take = bench.gateway.driver._on_records

    def watch(records: list[Any]) -> None:
        moments.extend(records)
        take(records)

    bench.gateway.driver._on_records = watch
    for number in range(6):
        of = f"s-{number}"
        assert (await bench.ask(turn(ASKS, system="You plan.", session=of))).status == 200
        if number > 4:
            await eventually(lambda: asked and not bench.gateway._prefills._under_way)
        last = turn(ASKS, said_plainly(), RESULT, system="You read.", session=of)
        assert (await bench.ask(last)).status == 200
    *known, said, _ = asked[-1]["messages"]
    assert known == [{"role": "system", "content": "You read."}, ASKS] and said == said_plainly()
    told = [each for each in moments if isinstance(each, rec.PrefilledAhead)]
    assert told and told[-1].usage.prompt_tokens == 3 and told[-1].replica == "default-0"


async def test_without_it_nothing_is_kept(start):
    assert (await start()).gateway._prefills is None
