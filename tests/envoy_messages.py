"""What a picker answers, as Envoy reads it: protobuf's own reader, told of `ProcessingResponse`."""

from typing import Final

from gateway.server.picker.messages import REQUESTS, classes_of

_ANSWERS: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "HeaderValue": REQUESTS["HeaderValue"],
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
ProcessingResponse: Final = classes_of(_ANSWERS)["ProcessingResponse"]
