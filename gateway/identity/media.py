"""Pictures, films and sound in base64 within an item's content: an engine makes tokens of what they show, not
of their letters.

Only parts of which engines make nothing else, and what is base64 to its end: whatever may become text counts
as text. So do documents: engines read the text that is in them.
"""

import re
from typing import Any, Final

# Bytes of text, about 1,300 tokens. A picture of 1,000 by 1,000 pixels takes some 1,280 of Qwen2.5-VL (28 by
# 28 pixels each), 1,334 of Claude (750 pixels each), 765 of GPT-4o (85, and 170 for each of four tiles).
COUNTS_AS: Final = 5_200
# Of a larger one, as many bytes count as a byte of text: 500 a token.
PER_TEXT_BYTE: Final = 125
_PREFIX: Final = re.compile(r"data:(?:image|video|audio)/[\w.+-]{1,64};base64,")
# One stands in each item that has media.
MARKS: Final = (b"base64", b'"input_audio"')
_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_RESULTS: Final = ("function_call_output", "custom_tool_call_output", "computer_call_output")


def media_bytes(item: dict[str, Any]) -> int:
    """Bytes of its media, beyond what these count as; 0 unless it is a user's or a tool's: engines write a
    result inside an assistant's message into the prompt as text."""
    if item.get("role") not in ("user", "tool") and item.get("type") not in _RESULTS:
        return 0
    found = 0
    for part in _parts(item, "content", "output"):
        result = _parts(part, "content") if part.get("type") == "tool_result" else ()
        for each in (part, *result):
            if (letters := _letters(each)) and not letters.encode().translate(None, _LETTERS):
                found += max(0, len(letters) - max(COUNTS_AS, len(letters) // PER_TEXT_BYTE))
    return found


def _parts(holder: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    lists = [held for name in names if type(held := holder.get(name)) is list]
    return [part for held in lists for part in held if type(part) is dict]


def _letters(part: dict[str, Any]) -> str:
    match part:
        case {"type": "image", "source": {"type": "base64", "data": str(letters)}}:
            return letters
        case {"type": "input_audio", "input_audio": {"data": str(letters)}}:
            return letters
        case (
            {"type": "image_url" | "input_image", "image_url": {"url": str(url)} | str(url)}
            | {"type": "video_url", "video_url": {"url": str(url)}}
            | {"type": "audio_url", "audio_url": {"url": str(url)}}
        ):
            begins = _PREFIX.match(url)
            return url[begins.end() :] if begins is not None else ""
        case _:
            return ""
