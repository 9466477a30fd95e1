"""Errors inside answers: where they stand, and what they would be as a status, a server's fault or its
client's (pure)."""

from typing import Any, Final

import msgspec

UNKNOWN: Final = 500
_FIELDS: Final = ("code", "status", "status_code", "http_status", "http_status_code", "error_code")
# In the names that vLLM, SGLang, OpenAI, Anthropic and LiteLLM give errors.
_WORDS: Final = (
    ("rate_limit", 429), ("overload", 503), ("unavailable", 503), ("timeout", 504),
    ("unauthorized", 401), ("authentication", 401), ("permission", 403), ("not_found", 404),
    ("notfound", 404), ("too_large", 413), ("context_length", 400), ("invalid", 400), ("badrequest", 400),
    ("bad_request", 400), ("validation", 422), ("content_policy", 400), ("_image", 400), ("image_", 400),
    ("insufficient_quota", 429), ("billing", 402),
)  # fmt: skip


def is_error(error: object) -> bool:
    return any(error.values()) if isinstance(error, dict) else bool(error)


class ErrorFields(msgspec.Struct):
    """Of an answer, or an event."""

    error: Any = None
    type: Any = None
    object: Any = None
    code: Any = None

    def reported(self) -> Any:
        """The error that it consists in; None if it is something else. vLLM before 0.11 wrote errors without
        a layer around them."""
        if is_error(self.error):
            return self.error
        code = self.code
        is_bare = "error" in (self.type, self.object) or (type(code) is int and 400 <= code < 600)
        return {"code": code, "type": self.type} if is_bare else None


def error_status(error: object) -> int:
    if not isinstance(error, dict):
        return UNKNOWN
    for field in _FIELDS:
        code = error.get(field)
        if isinstance(code, str) and len(code) == 3 and code.isdecimal():
            code = int(code)
        if type(code) is int and 400 <= code < 600:
            return code
    names = " ".join(str(error.get(field))[:64] for field in ("type", "code", "status")).lower()
    return next((status for word, status in _WORDS if word in names), UNKNOWN)
