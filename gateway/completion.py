"""Completion in a shell, from the command's own parser: its commands, options and choices.

    eval "$(turnpike completion bash)"                     # in ~/.bashrc
    eval "$(turnpike completion zsh)"                      # in ~/.zshrc, after compinit
    turnpike completion fish >~/.config/fish/completions/turnpike.fish

Where a word may be anything, shells complete names of files.
"""

import argparse
import shlex
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

_PROGRAMS: Final = ("turnpike", "turnpike-gateway")


class _Option(NamedTuple):
    names: tuple[str, ...]
    help: str
    choices: tuple[str, ...]
    takes_value: bool


class _Command(NamedTuple):
    path: tuple[str, ...]
    """Such as `settings diff`; empty for the program itself."""
    below: dict[str, str]
    """Commands, with their help."""
    options: tuple[_Option, ...]
    words: tuple[str, ...]
    """Choices of its other arguments."""


def add_completion(commands: Any, parser: argparse.ArgumentParser) -> None:
    completion = commands.add_parser("completion", help="print what completes this command in a shell")
    completion.add_argument("shell", choices=sorted(_SHELLS))
    completion.set_defaults(command=lambda arguments: _print(arguments.shell, parser))


def _print(shell: str, parser: argparse.ArgumentParser) -> int:
    print(_SHELLS[shell](list(_commands(parser, ()))))
    return 0


def _commands(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[_Command]:
    below: dict[str, argparse.ArgumentParser] = {}
    told: dict[str, str] = {}
    options, words = list[_Option](), list[str]()
    for action in parser._actions:  # noqa: SLF001 - argparse tells of itself in no other way
        choices = tuple(str(each) for each in action.choices or ())
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            below = dict(action.choices)
            told = {each.dest: each.help or "" for each in action._choices_actions}  # noqa: SLF001
        elif action.help == argparse.SUPPRESS:
            continue
        elif action.option_strings:
            names, text = tuple(action.option_strings), " ".join((action.help or "").split())
            options.append(_Option(names, text, choices, action.nargs != 0))
        else:
            words.extend(choices)
    shown = {name: told[name] for name in below if name in told}
    yield _Command(path, shown, tuple(options), tuple(words))
    for name in shown:
        yield from _commands(below[name], (*path, name))


def _bash(commands: list[_Command]) -> str:
    paths = "|".join(shlex.quote(" ".join(each.path)) for each in commands if each.path)
    cases, values = list[str](), list[str]()
    for each in commands:
        path = " ".join(each.path)
        names = [name for option in each.options for name in option.names]
        words = shlex.quote(" ".join((*each.below, *each.words)))
        cases.append(f"    {shlex.quote(path)}) words={words}; options={shlex.quote(' '.join(names))} ;;")
        for option in each.options:
            if option.takes_value:
                keys = "|".join(shlex.quote(f"{path} {name}".strip()) for name in option.names)
                values.append(f"    {keys}) words={shlex.quote(' '.join(option.choices))}; options= ;;")
    # No `mapfile` (bash 3.2, zsh), and no variable `path`, which is zsh's own.
    return f"""\
_turnpike() {{
  local at= word= words= options= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${{at:+$at }}${{COMP_WORDS[i]}}"
    case "$word" in
    {paths}) at=$word ;;
    esac
  done
  case "$at" in
{chr(10).join(cases)}
  esac
  case "${{at:+$at }}${{COMP_WORDS[COMP_CWORD - 1]}}" in
{chr(10).join(values)}
  esac
  case "$2" in
  -*) words=$options ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$2"))
}}
complete -o default -F _turnpike {" ".join(_PROGRAMS)}"""


def _zsh(commands: list[_Command]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(commands)}"


def _fish(commands: list[_Command]) -> str:
    lines = [f"complete -c {program} -f" for program in _PROGRAMS]
    for each in commands:
        seen = [f"__fish_seen_subcommand_from {word}" for word in each.path]
        not_below = [f"not __fish_seen_subcommand_from {' '.join(each.below)}"] if each.below else []
        condition = "; and ".join((*seen, *not_below)) or "true"
        for program in _PROGRAMS:
            begin = f"complete -c {program} -n {shlex.quote(condition)}"
            lines += [f"{begin} -a {name} -d {shlex.quote(text)}" for name, text in each.below.items()]
            lines += [f"{begin} -a {word}" for word in each.words]
            for option in each.options:
                names = " ".join(
                    f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
                )
                value = f" -x -a {shlex.quote(' '.join(option.choices))}" if option.choices else " -r -F"
                told = value if option.takes_value else ""
                lines.append(f"{begin} {names}{told} -d {shlex.quote(option.help)}")
    return "\n".join(lines)


_SHELLS: Final[dict[str, Callable[[list[_Command]], str]]] = {"bash": _bash, "fish": _fish, "zsh": _zsh}
