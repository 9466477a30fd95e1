"""The messages of Envoy's external processing, as far as a picker reads and writes them.

Source: `envoy/service/ext_proc/v3/external_processor.proto` and what it imports. protobuf's runtime codes
them, by descriptors that are made here field by field; what is left out is skipped. So there is no generated
code, and no package with all of Envoy's interface.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE: Final = "turnpike.ext_proc"
_SHAPES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    # message: field: (number, type); `*` before a type: repeated. Texts of headers are bytes here, which is
    # the same on the wire.
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
    "Value": {"string_value": (3, "bytes"), "struct_value": (5, "Struct")},
    "FieldsEntry": {"key": (1, "bytes"), "value": (2, "Value")},
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
# `BodySendMode.FULL_DUPLEX_STREAMED`.
FULL_DUPLEX: Final = 4


def _classes() -> dict[str, Any]:
    field = descriptor_pb2.FieldDescriptorProto
    plain = {kind: getattr(field, f"TYPE_{kind.upper()}") for kind in ("string", "bytes", "bool", "int32")}
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _SHAPES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            one = kind.removeprefix("*")
            message.field.add(
                name=field_name,
                number=number,
                label=field.LABEL_OPTIONAL if one == kind else field.LABEL_REPEATED,
                type=plain.get(one, field.TYPE_MESSAGE),
                type_name=None if one in plain else f".{_PACKAGE}.{one}",
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return {name: message_factory.GetMessageClass(find(f"{_PACKAGE}.{name}")) for name in _SHAPES}


_CLASSES: Final = _classes()
ProcessingRequest: Final = _CLASSES["ProcessingRequest"]
ProcessingResponse: Final = _CLASSES["ProcessingResponse"]


def headers_of(headers: Any) -> list[tuple[bytes, bytes]]:
    """Of `HttpHeaders`, in order. Envoy before 1.30 has values in `value`."""
    return [(each.key, each.raw_value or each.value) for each in headers.headers.headers]
