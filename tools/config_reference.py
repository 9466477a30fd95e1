"""Writes docs/reference/configuration.md from the settings' own definitions: `python -m
tools.config_reference`.

The text beside a setting is the docstring under its field, so there is one place to change.
"""

import ast
import inspect
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from gateway.config import Config
from gateway.config.changes import is_live, is_live_unless_none

TARGET = Path(__file__).parent.parent / "docs/reference/configuration.md"

USUAL: Final = (
    *("server.listen", "server.control", "server.control_key_hashes", "server.tls_certificate"),
    *("server.tls_key", "server.keys_path", "server.trusted_proxies", "pools.replicas.url"),
    *("pools.replicas.api_key_env", "tenants.name", "tenants.key_hashes", "tenants.quota.weight"),
    *("tenants.quota.max_sessions", "tenants.quota.tokens_per_minute", "tenants.quota.service_class"),
    *("core.max_wait_s", "core.max_stream_wait_s", "shared.url", "shared.secret_file", "stream.path"),
)
"""Settings that most installations have."""

_HEAD = """\
# Settings

<!-- Written by `python -m tools.config_reference`; change the docstrings, not this file. -->

A setting comes from the defaults, then the TOML file, then the environment, then flags. In the environment,
`TURNPIKE_SERVER__LISTEN=…` sets `server.listen`. `turnpike check-config FILE` checks a file and names each
wrong key. An unknown key is an error. `reload` states when a [reload](../operate/reload.md) applies a change:

| `reload` | |
|---|---|
| live | at once; sessions stay |
| live, except turning it on or off | the same, but a restart turns it on or off |
| – | after a restart |

## The usual settings

| key | type | default | reload | |
|---|---|---|---|---|
"""
_EXPERT = """
## Expert: all settings
"""
_TABLE = "| key | type | default | reload | |\n|---|---|---|---|---|\n"


def reference() -> str:
    """The whole page."""
    rows = {f"{prefix}{name}": cells for prefix, name, cells in _rows(Config, "")}
    usual = "".join(f"| `{key}` | {rows[key]}" for key in USUAL)
    return _HEAD + usual + _EXPERT + "".join(_sections(Config, ""))


def keys() -> Iterator[str]:
    """Of all settings, such as `server.listen`."""
    yield from (f"{prefix}{name}" for prefix, name, _ in _rows(Config, ""))


def _rows(settings: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Where a setting stands, its name, and the other cells of its row."""
    docs, hints = field_docs(settings), typing.get_type_hints(settings, include_extras=True)
    for field in msgspec.structs.fields(settings):
        key, hint = f"{prefix}{field.name}", hints[field.name]
        inner, _ = _struct_in(hint)
        if inner is not None:
            yield from _rows(inner, f"{key}.")
        else:
            cells = _name_of(hint), _default(field), _on_reload(key), docs.get(field.name, "")
            yield prefix, field.name, f"{' | '.join(cells)} |\n"


def _sections(settings: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    rows = [f"| `{name}` | {cells}" for at, name, cells in _rows(settings, prefix) if at == prefix]
    yield _TABLE + "".join(rows) if rows else ""
    hints = typing.get_type_hints(settings, include_extras=True)
    for field in msgspec.structs.fields(settings):
        key = f"{prefix}{field.name}"
        inner, is_list = _struct_in(hints[field.name])
        if inner is not None:
            about = (inspect.getdoc(inner) or "").partition("\n\n")[0].replace("\n", " ")
            is_own = inner.__doc__ is not None and not about.startswith(inner.__name__ + "(")
            yield f"\n### `[[{key}]]`\n\n" if is_list else f"\n### `[{key}]`\n\n"
            yield f"{about}\n\n" if is_own else ""
            yield from _sections(inner, f"{key}.")


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


def field_docs(settings: type) -> dict[str, str]:
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
