"""Work that gives way: generators that yield after each slice of about a millisecond, and return their
result."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finish(work: Generator[None, None, T]) -> T:
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
