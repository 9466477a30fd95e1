"""Writes docs/reference/cli.md from the commands' own parsers: `python -m tools.cli_reference`.

argparse shows its arguments to nobody but itself.
"""

# ruff: noqa: SLF001

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.__main__ import _LAB_COMMANDS, _lab_parser, _parser

TARGET: Final = Path(__file__).parent.parent / "docs/reference/cli.md"

_HEAD: Final = """\
# Commands

<!-- Written by `python -m tools.cli_reference`; change the parsers, not this file. -->

`turnpike COMMAND --help` prints the same. Commands marked *lab* need `turnpike-lab`
(`pip install ./engine_ext ./lab`).

| command | |
|---|---|
"""


def page() -> str:
    index, sections = [], []
    for name, about, parser in _commands():
        link = "".join(each for each in name if each.isalnum() or each in "- ").replace(" ", "-")
        index.append(f"| [`{name}`](#{link}) | {about} |\n")
        sections.append(f"\n## `{name}`\n\n{about[0].upper()}{about[1:]}.\n\n{_arguments(parser)}")
    return "".join([_HEAD, *index, *sections])


def _commands() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    yield from _below(_parser(), "turnpike", is_lab=False)
    for name in _LAB_COMMANDS:
        yield from _below(_lab_parser(name), "turnpike", is_lab=True)


def _below(
    parser: argparse.ArgumentParser, name: str, *, is_lab: bool
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """The commands of a parser that have arguments of their own, in their order."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            abouts = {each.dest: each.help or "" for each in action._choices_actions}
            for word, command in action.choices.items():
                if word in _LAB_COMMANDS and not is_lab:
                    continue
                deeper = list(_below(command, f"{name} {word}", is_lab=is_lab))
                about = abouts[word].replace("|", "\\|") + (" (*lab*)" if is_lab else "")
                yield from deeper or [(f"{name} {word}", about, command)]


def _arguments(parser: argparse.ArgumentParser) -> str:
    rows = [
        f"| `{_shown(action)}` | {_help(parser, action)} |\n"
        for action in parser._actions
        if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)
    ]
    return "| argument | |\n|---|---|\n" + "".join(rows) if rows else "No arguments.\n"


def _shown(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices is not None and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return f"[{value}]" if action.nargs in ("?", "*") else value
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {value}"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """With its defaults filled in, but for those of this machine."""
    if action.help is None:
        return ""
    text = parser._get_formatter()._expand_help(action)
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    TARGET.write_text(page())
    print(f"wrote {TARGET.name}")
