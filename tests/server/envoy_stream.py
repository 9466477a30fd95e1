"""A picker as gRPC's own client sees it, in Envoy's place."""

from typing import Any

import grpc
import grpc.aio

from gateway.server.picker.answers import DESTINATION
from gateway.server.picker.links import PROCESS
from gateway.server.picker.messages import ProcessingRequest, ProcessingResponse
from tests.server.bench import CHAT, Bench


class PickerBench(Bench):
    is_picker = True

    def channel(self) -> Any:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.gateway.picker_port}", options=options)


def ask(channel: Any) -> Any:
    return channel.stream_stream(
        PROCESS,
        request_serializer=lambda message: message if type(message) is bytes else message.SerializeToString(),
        response_deserializer=ProcessingResponse.FromString,
    )()


def headers(field: str, *more: tuple[str, str]) -> Any:
    message = ProcessingRequest()
    told = {
        "request_headers": [(":method", "POST"), (":path", "/v1/chat/completions"), (":authority", "g")],
        "response_headers": [(":status", "200"), ("content-type", "application/json")],
    }[field]
    for name, value in (*told, *more):
        getattr(message, field).headers.headers.add(key=name.encode(), raw_value=value.encode())
    return message


def body(field: str, data: bytes, *, is_last: bool = True) -> Any:
    message = ProcessingRequest()
    getattr(message, field).body, getattr(message, field).end_of_stream = data, is_last
    return message


async def said(stream: Any, message: Any) -> Any:
    await stream.write(message)
    return await stream.read()


async def place(stream: Any) -> Any:
    await said(stream, headers("request_headers"))
    told = await said(stream, body("request_body", CHAT))
    names = [each.header.key for each in told.request_body.response.header_mutation.set_headers]
    assert DESTINATION in names
    return told


async def leave(stream: Any) -> None:
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK


def trailers() -> Any:
    return ProcessingRequest(request_trailers={})
