"""The upstream and the load, against each other and against servers that do wrong."""

import asyncio
import http.client
import json
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from benchmarks.answers import StreamParts, find_call_id
from benchmarks.conversations import CALL_ID_PREFIX, Conversation, Crowd
from benchmarks.dialects import CHAT, MESSAGES, RESPONSES
from benchmarks.fast_upstream import serve
from benchmarks.load import Outcome, drive, is_right, is_right_stream

EVENTS = 8
OF_CHAT = StreamParts(EVENTS).events


def agents(count: int = 1, *, turns: int = 1, stream: bool = False) -> list[Conversation]:
    rng = random.Random(7)
    return [
        Conversation(rng, first_bytes=3000, turn_bytes=400, turns=turns, stream=stream) for _ in range(count)
    ]


def body_of(request: list[bytes | memoryview]) -> dict:
    head, _, body = b"".join(request).partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head
    return json.loads(body)


async def closed(server: asyncio.Server) -> None:
    server.close()
    await asyncio.sleep(0.05)  # its connections learn that their clients are gone


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    [server] = await serve(1, EVENTS, 0.0)
    yield server.sockets[0].getsockname()[1]
    await closed(server)


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def asked(agent: Conversation | Crowd, call_id: bytes | None = None) -> dict:
    if call_id is not None:
        agent.answered(call_id)
    return body_of(agent.request())


def test_a_conversation_grows_and_brings_the_id_back():
    [agent] = agents(turns=3)
    first = asked(agent)
    call_id = CALL_ID_PREFIX + b"ab" * 16
    second = asked(agent, call_id)
    assert len(second["messages"]) == len(first["messages"]) + 2
    assert second["messages"][:-2] == first["messages"]
    call, result = second["messages"][-2:]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == call_id.decode()
    assert (call["role"], result["role"]) == ("assistant", "tool")
    asked(agent)
    again = asked(agent)["messages"]  # and then it starts over
    assert [each["content"] for each in again] == [each["content"] for each in first["messages"]]


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES], ids=lambda each: each.name)
async def test_a_stream_has_its_events_and_its_end(port, dialect):
    agent = Conversation(
        random.Random(7), first_bytes=3000, turn_bytes=400, turns=1, stream=True, dialect=dialect
    )
    path = dialect.path.decode() + "?beta=true"
    status, stream = await asyncio.to_thread(ask, port, "POST", path, b"".join(agent.request()[1:]))
    *events, nothing = stream.split(b"\n\n")
    told = [json.loads(event.partition(b"data: ")[2]) for event in events if b"[DONE]" not in event]
    call_id = find_call_id(stream)
    assert (status, nothing) == (200, b"") and is_right_stream(len(told))(200, stream)
    assert len(told) == StreamParts(EVENTS, dialect.name).events
    assert call_id is not None and len({find_call_id(event) for event in events} - {None}) == 1
    match dialect.name:
        case "chat":
            [finish] = told[-1]["choices"]
            assert finish["finish_reason"] == "tool_calls"
        case "responses":
            call = told[-1]["response"]["output"][-1]
            assert call["call_id"].encode() == call_id and json.loads(call["arguments"])
            said = [each["delta"] for each in told if "arguments.delta" in each["type"]]
            assert "".join(said) == call["arguments"]
        case "messages":
            pieces = [each["delta"].get("partial_json", "") for each in told if "delta" in each]
            assert json.loads("".join(pieces)) and told[-2]["delta"]["stop_reason"] == "tool_use"
        case other:
            pytest.fail(f"nothing is known of {other}")


async def measured(port: int, check, *, stream: bool = False) -> Outcome:
    return await drive(port, agents(3, turns=2, stream=stream), check, warm_up_s=0.0, seconds=0.3)


async def test_the_load_counts_whole_answers(port):
    outcome = await measured(port, is_right)
    assert outcome.failures == 0
    assert outcome.answers == len(outcome.latencies_ms) > 0


async def test_the_load_counts_streams_and_their_events(port):
    outcome = await measured(port, is_right_stream(OF_CHAT), stream=True)
    assert outcome.failures == 0
    assert outcome.answers > 0
    # Those that were under way at the end count by their events alone.
    assert 0 <= outcome.events - outcome.answers * OF_CHAT <= 3 * OF_CHAT


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n{}", "status 500"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "status 200"),  # without the tool call
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "the connection was closed"),
        (b"nonsense\r\n\r\n", "not HTTP"),
    ],
)
async def test_a_wrong_answer_is_a_failure(answer, says):
    async def serve_wrongly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(answer)
        await asyncio.sleep(0.01)
        writer.close()

    server = await asyncio.start_server(serve_wrongly, "127.0.0.1", 0)
    outcome = await measured(server.sockets[0].getsockname()[1], is_right)
    await closed(server)
    assert outcome.answers == 0
    assert outcome.failures >= 3
    assert says in outcome.first_failure
