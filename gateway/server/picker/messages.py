"""The messages of Envoy's external processing, as far as a picker reads and writes them.

Source: `envoy/service/ext_proc/v3/external_processor.proto` and what it imports. Their shape is told to
protobuf's runtime, which the gateway has anyway, field by field; what is left out is skipped when read. So
there is no generated code, and no package with all of Envoy's interface.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError as DecodeError

_PACKAGE: Final = "turnpike.ext_proc"
_SHAPES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    # message: field: (number, type); `*` before a type: repeated. Texts of headers are bytes here: on the wire
    # that is the same.
    "HeaderValue": {"key": (1, "bytes"), "value": (2, "bytes"), "raw_value": (3, "bytes")},
    "HeaderMap": {"headers": (1, "*HeaderValue")},
    "HttpHeaders": {"headers": (1, "HeaderMap"), "end_of_stream": (3, "bool")},
    "HttpBody": {"body": (1, "bytes"), "end_of_stream": (2, "bool"), "without_message": (3, "bool")},
    "HttpTrailers": {},
    "ProtocolConfiguration": {"request_body_mode": (1, "int32"), "response_body_mode": (2, "int32")},
    "ProcessingRequest": {
        "request_headers": (2, "HttpHeaders"),
        "response_headers": (3, "HttpHeaders"),
        "request_body": (4, "HttpBody"),
        "response_body": (5, "HttpBody"),
        "request_trailers": (6, "HttpTrailers"),
        "response_trailers": (7, "HttpTrailers"),
        "protocol_config": (11, "ProtocolConfiguration"),
    },
    "HeaderValueOption": {"header": (1, "HeaderValue"), "append_action": (3, "int32")},
    "HeaderMutation": {"set_headers": (1, "*HeaderValueOption"), "remove_headers": (2, "*bytes")},
    "StreamedBody": {"body": (1, "bytes"), "end_of_stream": (2, "bool")},
    "BodyMutation": {"body": (1, "bytes"), "streamed_response": (3, "StreamedBody")},
    "CommonResponse": {
        "header_mutation": (2, "HeaderMutation"),
        "body_mutation": (3, "BodyMutation"),
        "clear_route_cache": (5, "bool"),
    },
    "Reply": {"response": (1, "CommonResponse")},
    "HttpStatus": {"code": (1, "int32")},
    "ImmediateResponse": {
        "status": (1, "HttpStatus"),
        "headers": (2, "HeaderMutation"),
        "body": (3, "bytes"),
        "details": (5, "string"),
    },
    "Value": {"string_value": (3, "string"), "struct_value": (5, "Struct")},
    "FieldsEntry": {"key": (1, "string"), "value": (2, "Value")},
    "Struct": {"fields": (1, "*FieldsEntry")},
    "ProcessingResponse": {
        "request_headers": (1, "Reply"),
        "response_headers": (2, "Reply"),
        "request_body": (3, "Reply"),
        "response_body": (4, "Reply"),
        "request_trailers": (5, "Reply"),
        "response_trailers": (6, "Reply"),
        "immediate_response": (7, "ImmediateResponse"),
        "dynamic_metadata": (8, "Struct"),
    },
}
FULL_DUPLEX: Final = 4
"""`BodySendMode.FULL_DUPLEX_STREAMED`."""
_OVERWRITE: Final = 2
"""`HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD`."""


def _classes() -> dict[str, Any]:
    field = descriptor_pb2.FieldDescriptorProto
    plain = {
        "string": field.TYPE_STRING,
        "bytes": field.TYPE_BYTES,
        "bool": field.TYPE_BOOL,
        "int32": field.TYPE_INT32,
    }
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _SHAPES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            told = kind.removeprefix("*")
            message.field.add(
                name=field_name,
                number=number,
                label=field.LABEL_OPTIONAL if told == kind else field.LABEL_REPEATED,
                type=plain.get(told, field.TYPE_MESSAGE),
                type_name=None if told in plain else f".{_PACKAGE}.{told}",
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _SHAPES
    }


_CLASSES: Final = _classes()
ProcessingRequest: Final = _CLASSES["ProcessingRequest"]
ProcessingResponse: Final = _CLASSES["ProcessingResponse"]
DESTINATION: Final = "x-gateway-destination-endpoint"
"""Where the Gateway API inference extension has the endpoint: a header, and metadata of `envoy.lb`."""


def _empty(field: str) -> bytes:
    reply = ProcessingResponse()
    getattr(reply, field).SetInParent()
    told: bytes = reply.SerializeToString()
    return told


GO_ON: Final = {
    field: _empty(field)
    for field in ("request_headers", "request_trailers", "response_body", "response_trailers")
}
"""What is said, as it is sent, where nothing shall change."""


def headers_of(told: Any) -> list[tuple[bytes, bytes]]:
    """Of `HttpHeaders`, in order. Envoy before 1.30 has values in `value`."""
    return [(each.key, each.raw_value or each.value) for each in told.headers.headers]


def mutate(mutation: Any, headers: list[tuple[bytes, bytes]]) -> None:
    """Sets headers in a `HeaderMutation`; of several of one name the last counts."""
    for name, value in headers:
        option = mutation.set_headers.add(append_action=_OVERWRITE)
        option.header.key, option.header.raw_value = name, value


def immediate(status: int, headers: list[tuple[bytes, bytes]], body: bytes, why: str) -> Any:
    response = ProcessingResponse()
    answer = response.immediate_response
    answer.status.code, answer.body, answer.details = status, body, f"turnpike_{why}"
    mutate(answer.headers, headers)
    return response


def tell_destination(response: Any, endpoint: str) -> None:
    told = response.dynamic_metadata.fields.add(key="envoy.lb").value.struct_value
    told.fields.add(key=DESTINATION).value.string_value = endpoint
