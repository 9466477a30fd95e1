"""Writes docs/reference/records.md from the records' definitions: `python -m tools.records_reference`."""

import inspect
import tomllib
import types
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.core import snapshot
from gateway.core.pool_views import PoolView, TenantView
from gateway.core.sessions.client_habits import ConductView
from gateway.domain.records import Expected, Record
from gateway.domain.request import Claims, Usage
from gateway.telemetry.objective import OutcomeView
from tools.config_reference import field_docs

_TEXTS: Final = tomllib.loads(Path(__file__).with_name("record_fields.toml").read_text())
TARGET: Final = Path(__file__).parent.parent / "docs/reference/records.md"
_PARTS: Final = (Usage, Expected, Claims)
_VIEWS: Final = (
    *(snapshot.SessionView, snapshot.TurnView, snapshot.ReplicaView, PoolView, TenantView),
    *(ConductView, OutcomeView),
)
_WORDS: Final = {str: "text", bool: "true, false", int: "integer", float: "number", type(None): "null"}

_HEAD: Final = """\
# Records and views

<!-- Written by `python -m tools.records_reference`; change the definitions, not this file. -->

The information stream has one record for each change of state: in `stream.path` as JSON lines, and at
`/turnpike/events`. Each record has its `type` and `at_s`, the Unix time. Durations end in `_ms` or `_s`.
Readers must ignore unknown fields and types. [Reasons](reasons.md) explains the values.

## Records
"""
_OBJECTS: Final = "\n## Objects within records\n"
_SNAPSHOT: Final = """
## The snapshot

`GET /turnpike/snapshot` answers with `sessions` (the 1,000 most recent), `replicas`, `pools`, `tenants`,
`conduct` and `outcome`, each as below. `seq` is the number of the last record in it.
"""


def page() -> str:
    kinds = sorted(typing.get_args(Record), key=lambda each: each.__struct_config__.tag)
    parts = [_HEAD, *(_section(each, str(each.__struct_config__.tag)) for each in kinds)]
    parts += [_OBJECTS, *(_section(each, each.__name__) for each in _PARTS)]
    return "".join([*parts, _SNAPSHOT, *(_section(each, each.__name__) for each in _VIEWS)])


def _section(kind: type[msgspec.Struct], name: str) -> str:
    about = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    rows = "".join(f"| `{field}` | {what} | {text} |\n" for field, what, text in _fields(kind))
    is_own = kind.__doc__ is not None and not about.startswith(f"{kind.__name__}(")
    intro = f"{about}\n\n" if is_own else ""
    return f"\n### `{name}`\n\n{intro}| field | type | |\n|---|---|---|\n{rows}"


def _fields(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str, str]]:
    docs: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith("gateway."):
            docs |= field_docs(each)
    hints = typing.get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        if field.name != "at_s":
            yield (
                field.encode_name,
                name_of(hints[field.name]),
                (docs.get(field.name) or _TEXTS[field.encode_name]).replace("None", "null"),
            )


def name_of(annotation: Any) -> str:
    """The type of a field in JSON."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(name_of(each) for each in arguments)
    if origin is dict:
        return f"table of {name_of(arguments[1])}"
    if origin is not None:
        rest = [name_of(each) for each in arguments if each is not ...]
        return f"list of {', '.join(dict.fromkeys(rest))}"
    if isinstance(annotation, typing.NewType):
        return name_of(annotation.__supertype__)
    if annotation in _WORDS:
        return _WORDS[annotation]
    return "text" if issubclass(annotation, Enum) else f"`{annotation.__name__}`"


if __name__ == "__main__":
    TARGET.write_text(page())
    print(f"wrote {TARGET.name}")
