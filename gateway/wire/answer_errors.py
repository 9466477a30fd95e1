"""What an error inside an answer would be as a status: a server's fault, or its client's (pure)."""

from typing import Final

UNKNOWN: Final = 500
_FIELDS: Final = ("code", "status", "status_code", "http_status", "error_code")
_WORDS: Final = (
    ("rate_limit", 429), ("overload", 503), ("unavailable", 503), ("timeout", 504),
    ("unauthorized", 401), ("authentication", 401), ("permission", 403), ("not_found", 404),
    ("notfound", 404), ("too_large", 413), ("context_length", 400), ("invalid", 400), ("badrequest", 400),
    ("bad_request", 400), ("validation", 422),
)  # fmt: skip
"""In the names that vLLM, SGLang, OpenAI, Anthropic and LiteLLM give errors."""


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
