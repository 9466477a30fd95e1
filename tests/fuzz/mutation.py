"""Inputs that are nearly right: made by a source of chance, which Hypothesis or a plain generator may be."""

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

SPLINTERS = (
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xfe\xff",
    b"\xed\xa0\x80",
    b"\r\n",
    b"\n\n",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"\\u0074",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"//",
    b"/*",
    b"*/",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-0",
    b"null",
    b"true",
    b"9" * 40,
    b" " * 70,
    b"\t",
    b"\x0b",
    b"\xc2\xa0",
    b"\xe2\x80\xa8",
    b"data: ",
    b": ",
    b"0\r\n\r\n",
)
WORDS = (
    "",
    "a",
    "é",
    "日本",
    "\ud800",
    "\x00",
    "</think>",
    "call_1",
    "s-1",
    "x" * 300,
    "\u2028",
    "=cmd",
    '"',
    "\\",
    "{}",
)


def mutate(rng: random.Random, data: bytes, splinters: Sequence[bytes] = SPLINTERS) -> bytes:
    """The bytes with up to four wounds; now and then none."""
    for _ in range(rng.randrange(5)):
        at, other = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
        low, high = min(at, other), max(at, other)
        match rng.randrange(6):
            case 0:
                data = data[:at] + rng.choice(splinters) + data[at:]
            case 1:
                data = data[:at] + bytes((rng.randrange(256),)) + data[at + 1 :]
            case 2:
                data = data[:low] + data[min(high, low + 8) :]
            case 3:
                data = data[:high] + data[low : min(high, low + 64)] + data[high:]
            case 4:
                data = data[:at]
            case _:
                data = data[:at] + rng.choice(splinters) + data[at + 1 :]
    return data


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    if rng.randrange(8) == 0 and len(data) < 200:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted({0, len(data), *(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))})
    return [data[a:b] for a, b in itertools.pairwise(places)]


def value(rng: random.Random, depth: int = 3) -> Any:
    match rng.randrange(8 if depth else 5):
        case 0:
            return rng.choice(WORDS)
        case 1:
            return rng.choice((0, -1, 1, 2**53, 2**64, -(2**70), True, False, None))
        case 2:
            return rng.choice((0.5, 1e-300, 1e300, -0.0, float("nan"), float("inf")))
        case 3 | 4:
            return rng.choice(WORDS) + rng.choice(WORDS)
        case 5:
            return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
        case _:
            return {rng.choice(WORDS): value(rng, depth - 1) for _ in range(rng.randrange(4))}


def spelt(rng: random.Random, members: Sequence[tuple[str, Any]]) -> bytes:
    """An object as JSON, with names that may be doubled, escaped, and among blanks of any kind."""
    blank = rng.choice(("", "", " ", "\n\t", "\r\n "))
    parts = [f"{blank}{name(rng, key)}{blank}:{blank}{_json(rng, each)}{blank}" for key, each in members]
    return ("{" + ",".join(parts) + "}" + blank).encode("utf-8", "surrogatepass")


def name(rng: random.Random, text: str) -> str:
    if rng.randrange(4):
        return json.dumps(text)
    letters = (
        f"\\u{ord(letter):04x}" if rng.randrange(4) == 0 and ord(letter) < 128 else None for letter in text
    )
    return (
        '"'
        + "".join(made or json.dumps(letter)[1:-1] for made, letter in zip(letters, text, strict=True))
        + '"'
    )


def _json(rng: random.Random, given: Any) -> str:
    if isinstance(given, bytes):
        return given.decode()
    return json.dumps(given, ensure_ascii=rng.random() < 0.5)
