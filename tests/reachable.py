"""What an object leads to, as the garbage collector sees it."""

import gc
from collections.abc import Iterator
from types import FunctionType, ModuleType


def reachable(*roots: object) -> Iterator[object]:
    """Each once; types, modules and functions are not looked into."""
    seen: set[int] = set()
    found = list(roots)
    while found:
        each = found.pop()
        if id(each) not in seen and not isinstance(each, type | ModuleType | FunctionType):
            seen.add(id(each))
            yield each
            found += gc.get_referents(each)
