"""The worst bodies that we know: what holds a reader up, or fills its memory, if anything does."""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from gateway.wire.inflate import zstd
from tests.wire.adversarial import texts, tokens

MODEL: Final = "m"
_CHAT: Final = "/v1/chat/completions"
_RESPONSES: Final = "/v1/responses"
_MESSAGES: Final = "/v1/messages"
_COMPLETIONS: Final = "/v1/completions"


class Attack:
    """A request, ready to be sent."""

    def __init__(self, name: str, path: str, body: bytes, *, coding: str = "") -> None:
        self.name = name
        coding = f"content-encoding: {coding}\r\n" if coding else ""
        head = f"POST {path} HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n{coding}"
        self.wire = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def _around(before: bytes, middle: Callable[[int], bytes], after: bytes, size: int) -> bytes:
    return before + middle(max(0, size - len(before) - len(after))) + after


def _many(item: bytes) -> Callable[[int], bytes]:
    """As many of it as fit, with commas between."""
    return lambda size: b",".join([item] * max(1, size // (len(item) + 1)))


def _numbered(item: bytes) -> Callable[[int], bytes]:
    """The same, each with a number of its own in it."""

    def make(size: int) -> bytes:
        return b",".join(item.replace(b"#", b"%08d" % at) for at in range(max(1, size // (len(item) + 8))))

    return make


def _nested(opening: bytes, closing: bytes) -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        depth = size // (len(opening) + len(closing))
        return opening * depth + b"1" + closing * depth

    return make


_HEAD: Final = b'{"model":"m","messages":['
_SAID: Final = b'{"role":"assistant","content":'
_CALL: Final = b'{"id":"call_#","type":"function","function":{"name":"f#","arguments":"{}"}}'
_USE: Final = b'{"type":"tool_use","id":"toolu_#","name":"f","input":{"k#":[[],{}]}}'

SHAPES: Final[dict[str, tuple[str, bytes, Callable[[int], bytes], bytes]]] = {
    "nested arrays": (_CHAT, _HEAD + _SAID, _nested(b"[", b"]"), b"}]}"),
    "nested objects": (_CHAT, _HEAD + _SAID, _nested(b'{"a":', b"}"), b"}]}"),
    "an unclosed nest": (_CHAT, _HEAD, lambda size: b"[" * size, b""),
    "empty messages": (_CHAT, _HEAD, _many(b"{}"), b"]}"),
    "short messages": (_CHAT, _HEAD, _numbered(b'{"role":"user","content":"#"}'), b"]}"),
    "system messages": (_CHAT, _HEAD, _numbered(b'{"role":"system","content":"a b c d #"}'), b"]}"),
    "answers": (_CHAT, _HEAD, _numbered(_SAID + b'"#"}'), b"]}"),
    "results": (_CHAT, _HEAD, _numbered(b'{"role":"tool","tool_call_id":"c#","content":""}'), b"]}"),
    "calls": (_CHAT, _HEAD + _SAID + b'"","tool_calls":[', _numbered(_CALL), b"]}]}"),
    "uses": (_MESSAGES, _HEAD + _SAID + b"[", _numbered(_USE), b"]}]}"),
    "parts": (_CHAT, _HEAD + _SAID + b"[", _many(b'{"type":"text","text":"a"}'), b"]}]}"),
    "keys at the top": (_CHAT, b'{"model":"m",', _numbered(b'"k#":1'), b',"messages":[]}'),
    "keys of an image": (_CHAT, _HEAD + b'{"role":"user","content":[{"type":"image",', _numbered(b'"#":0'),
                         b"}]}]}"),
    "tools": (_CHAT, b'{"model":"m","messages":[],"tools":[', _numbered(b'{"name":"#"}'), b"]}"),
    "items": (_RESPONSES, b'{"model":"m","input":[', _numbered(
        b'{"type":"function_call","call_id":"#","name":"f","arguments":"[]"}'), b"]}"),
    "references": (_RESPONSES, b'{"model":"m","input":[', _numbered(
        b'{"type":"item_reference","id":"msg_#"}'), b"]}"),
    "an image": (_CHAT, _HEAD + b'{"role":"user","content":[{"type":"image_url","url":"data:', lambda size:
                 b"QUJD" * (size // 4), b'"}]}]}'),
    "digits": (_CHAT, _HEAD + _SAID, lambda size: b"9" * size, b"}]}"),
    "escapes": (_CHAT, _HEAD + _SAID + b'"', lambda size: b"\\u0041" * (size // 6), b'"}]}'),
    "surrogates": (_CHAT, _HEAD + _SAID + b'"', lambda size: b"\\ud800" * (size // 6), b'"}]}'),
    "not UTF-8": (_CHAT, _HEAD + _SAID + b'"', lambda size: b"\xff" * size, b'"}]}'),
    "halves as bytes": (_CHAT, _HEAD + _SAID + b'"', lambda size: b"\xed\xa0\x80" * (size // 3), b'"}]}'),
    "no numbers": (_CHAT, b'{"model":"m","x":[', _many(b"NaN"), b'],"messages":[]}'),
    "image and no number": (_CHAT, b'{"model":"m","x":NaN,"messages":["', lambda size: b"QUJD" * (size // 4),
                            b'"]}'),
    "quoted quotes": (_CHAT, _HEAD + _SAID + b'"', lambda size: b'\\"' * (size // 2), b'"}]}'),
    "arguments of arguments": (_CHAT, _HEAD + _SAID + b'"","tool_calls":[{"id":"c","function":{"arguments":"',
                               lambda size: b"[" * (size // 2) + b"]" * (size // 2), b'"}}]}]}'),
    "a prompt of numbers": (_COMPLETIONS, b'{"model":"m","prompt":[', _many(b"1"), b"]}"),
    "a long id": (_RESPONSES, b'{"model":"m","input":"a","previous_response_id":"', lambda size: b"r" * size,
                  b'"}'),
    "blanks": (_CHAT, b'{"model":"m",', lambda size: b" " * size, b'"messages":[]}'),
}  # fmt: skip


_RECODED: Final = ("an image", "parts", "short messages")


def shaped(size: int) -> Iterator[Attack]:
    """What costs by how much there is of it."""
    for name, (path, before, middle, after) in SHAPES.items():
        body = _around(before, middle, after, size)
        yield Attack(name, path, body)
        yield Attack(f"{name}, compressed", path, gzip.compress(body, 1), coding="gzip")
        if name in _RECODED:
            yield Attack(f"{name}, in zstd", path, zstd.compress(body, 1), coding="zstd")
            half = _around(before, middle, after, size // 2)
            yield Attack(f"{name}, in UTF-16", path, half.decode().encode("utf-16"))


def spoken(size: int, rng: random.Random, count: int) -> Iterator[Attack]:
    """What costs by the words in it: of every kind of repetition of what rules look for, so many."""
    words = tokens()
    for _ in range(count):
        word = rng.choice(words) + (rng.choice(words) if rng.random() < 0.5 else "")
        text = rng.choice(list(texts(word, size // 2)))[:size]
        yield from _said(f"{word[:40]!r}", text, is_stream=rng.random() < 0.5)


def _said(name: str, text: str, *, is_stream: bool) -> Iterator[Attack]:
    """The engine answers with the last item, as a stream or whole."""
    item = {"role": "assistant", "content": text}
    asked: dict[str, Any] = {"model": MODEL, "stream": is_stream}
    yield Attack(name, _CHAT, _encode(asked | {"messages": [{"role": "user", "content": text}, item]}))
    yield Attack(name, _MESSAGES, _encode(asked | {"system": text, "messages": [item]}))
    yield Attack(name, _RESPONSES, _encode(asked | {"instructions": text, "input": [item]}))


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def named(name_bytes: int, number: int) -> Attack:
    """A request whose model and tool have names of that size, each time others."""
    name = f"{number:06d}" + "n" * name_bytes
    item = {"role": "assistant", "content": "", "tool_calls": [_call(name)]}
    tools = [{"type": "function", "function": {"name": name}}]
    return Attack("names", _CHAT, _encode({"model": name, "tools": tools, "messages": [item]}))


def _call(name: str) -> dict[str, Any]:
    return {"id": f"call_{name[:6]}", "type": "function", "function": {"name": name, "arguments": "{}"}}
