"""Traces, end to end: what a collector receives, and what goes on to the replica."""

from gateway.wire.traceparent import read_traceparent
from tests.server.bench import CHAT_ANSWER, answer, eventually, post
from tests.telemetry.otlp_receiver import attributes, children

TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENTS = f"00-{TRACE}-b7ad6b7169203331-01"
SECRET = b"the user's secret"
BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % SECRET


def headers(**fields: str) -> bytes:
    return b"".join(b"%s: %s\r\n" % (name.encode(), value.encode()) for name, value in fields.items())


async def test_a_session_is_one_trace_without_content(start, receiver):
    bench = await start(otel={"endpoint": receiver.endpoint})
    client = await bench.connect()
    turns = []
    for _ in range(3):
        response = await client.ask(post(BODY, headers=b"x-turnpike-session: run-1\r\n"))
        turns.append((response.get(b"x-turnpike-request") or b"").decode())
    await bench.gateway.stop()
    [root] = children(receiver.spans)[b""]
    below = children(receiver.spans)[root.span_id]
    chats = [span for span in below if span.name != "session"]
    [end] = [span for span in below if span.name == "session"]
    assert attributes(end)["turnpike.session.turns"] == 3
    assert [attributes(chat)["turnpike.request"] for chat in chats] == turns
    assert {span.trace_id for span in receiver.spans} == {root.trace_id}
    assert SECRET not in b"".join(span.SerializeToString() for span in receiver.spans)
    passed_on = [read_traceparent((each.get(b"traceparent") or b"").decode()) for each in bench.backend.seen]
    assert [(each.trace_id, each.span_id) for each in passed_on if each is not None] == [
        (root.trace_id, chat.span_id) for chat in chats
    ]


async def test_a_clients_context_is_honoured_and_passed_on(start, receiver):
    bench = await start(otel={"endpoint": receiver.endpoint})
    await bench.ask(post(headers=headers(traceparent=CLIENTS, tracestate="a=b")))
    [seen] = bench.backend.seen
    [passed_on] = seen.all(b"traceparent")
    assert passed_on.startswith(b"00-" + TRACE.encode()) and passed_on.decode() != CLIENTS
    assert seen.all(b"tracestate") == [b"a=b"]
    await bench.gateway.stop()
    [chat] = [span for span in receiver.spans if span.name.startswith("chat")]
    assert (chat.trace_id.hex(), chat.parent_span_id.hex()) == (TRACE, "b7ad6b7169203331")
    assert chat.span_id.hex() in passed_on.decode()


async def test_without_a_collector_a_clients_context_goes_on_as_it_came(start, receiver):
    bench = await start()
    await bench.ask(post(headers=headers(traceparent=CLIENTS)))
    assert bench.backend.seen[0].all(b"traceparent") == [CLIENTS.encode()]
    bench = await start(otel={"endpoint": receiver.endpoint, "sample": 0.0})
    await bench.ask(post())
    await bench.ask(post(headers=headers(traceparent=CLIENTS[:-1] + "0")))
    assert [each.all(b"traceparent") for each in bench.backend.seen] == [[], [CLIENTS[:-1].encode() + b"0"]]
    await bench.gateway.stop()
    assert not receiver.spans


async def test_a_collector_that_hangs_is_not_noticed(start, receiver):
    receiver.delay_s = 60.0
    bench = await start(otel={"endpoint": receiver.endpoint, "max_pending": 10})
    bench.backend.answer = answer(CHAT_ANSWER)
    client = await bench.connect()
    for _ in range(50):
        assert (await client.ask(post())).status == 200
    await eventually(lambda: bench.gateway.observation._export.dropped > 0)
