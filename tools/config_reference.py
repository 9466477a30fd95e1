"""Writes docs/reference/configuration.md from the settings' own definitions: `python -m
tools.config_reference`.

The text beside a setting is the docstring under its field, so there is one place to change.
"""

import ast
import inspect
import sys
import typing
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gateway.config import Config
from gateway.config.changes import is_live, is_live_unless_none

TARGET = Path(__file__).parent.parent / "docs/reference/configuration.md"

_HEAD = """\
# Configuration

<!-- Written by `python -m tools.config_reference`; change the docstrings, not this file. -->

Settings are read at the start: defaults, then the TOML file, then the environment, then flags. The file is
read again [on SIGHUP](reload.md), and `reload` says which settings are taken up then:

| `reload` | |
|---|---|
| live | at once, with all that the gateway knows of sessions |
| live, except turning it on or off | the same, but to turn it on or off needs a restart |
| – | needs a restart |

`turnpike check-config FILE` says what is wrong with a file, with the key. An unknown key is an error.
In the environment, `TURNPIKE_SERVER__LISTEN=…` sets `server.listen`.
"""


def reference() -> str:
    """The whole page."""
    return _HEAD + "".join(_sections(Config, ""))


def _sections(settings: type[msgspec.Struct], prefix: str) -> list[str]:
    rows, below = [], []
    docs = _field_docs(settings)
    hints = typing.get_type_hints(settings, include_extras=True)
    for field in msgspec.structs.fields(settings):
        key = f"{prefix}{field.name}"
        inner, is_list = _struct_in(hints[field.name])
        if inner is None:
            kind = _name_of(hints[field.name])
            cells = (f"`{field.name}`", kind, _default(field), _on_reload(key), docs.get(field.name, ""))
            rows.append(f"| {' | '.join(cells)} |\n")
        else:
            title = f"\n## `[[{key}]]`\n\n" if is_list else f"\n## `[{key}]`\n\n"
            about = (inspect.getdoc(inner) or "").partition("\n\n")[0].replace("\n", " ")
            is_own = inner.__doc__ is not None and not about.startswith(inner.__name__ + "(")
            below.append(title + (f"{about}\n\n" if is_own else "") + "".join(_sections(inner, f"{key}.")))
    table = "| key | type | default | reload | |\n|---|---|---|---|---|\n" + "".join(rows) if rows else ""
    return [table, *below]


def _on_reload(path: str) -> str:
    if is_live_unless_none(path):
        return "live, except turning it on or off"
    return "live" if is_live(path) else "–"


def _struct_in(annotation: Any) -> tuple[type[msgspec.Struct] | None, bool]:
    """The settings that an annotation holds, and whether it holds several of them."""
    if typing.get_origin(annotation) is Annotated:
        return _struct_in(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is tuple:
        return _struct_in(typing.get_args(annotation)[0])[0], True
    if type(None) in typing.get_args(annotation):
        return _struct_in(typing.get_args(annotation)[0])
    is_struct = isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)
    return (annotation if is_struct else None), False


def _name_of(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _name_of(arguments[0])
    if origin is tuple:
        return f"list of {_name_of(arguments[0])}"
    if origin is typing.Literal:
        return ", ".join(f'`"{argument}"`' for argument in arguments)
    if origin is dict:
        return f"table of {_name_of(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return "table"
    if arguments:
        return " or ".join(_name_of(argument) for argument in arguments if argument is not type(None))
    return {"str": "text", "bool": "true, false", "int": "integer", "float": "number"}[annotation.__name__]


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    if field.default is msgspec.NODEFAULT or field.default in (None, ()):
        return "–"
    text = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
    return f"`{text}`"


def _field_docs(settings: type[msgspec.Struct]) -> dict[str, str]:
    body = ast.parse(inspect.getsource(settings)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    docs[field.target.id] = " ".join(text.split()).replace("|", "\\|")
                case _:
                    pass
    return docs


if __name__ == "__main__":
    TARGET.write_text(reference())
    print(f"wrote {TARGET.name}", file=sys.stderr)
