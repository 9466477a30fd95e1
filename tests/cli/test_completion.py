"""Completion: by a real bash; and nothing that the command has is left out."""

import argparse
import shlex
import subprocess

import pytest

from gateway.__main__ import _parser, main


def script(shell: str, capsys) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.fixture
def complete(capsys, tmp_path):
    """What bash offers for a line whose last word is being typed."""
    told = script("bash", capsys)

    def ask(line: str) -> set[str]:
        words = line.split(" ")
        programme = f"""
{told}
COMP_WORDS=({" ".join(map(shlex.quote, words))})
COMP_CWORD={len(words) - 1}
_turnpike turnpike {shlex.quote(words[-1])} {shlex.quote(words[-2])}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
        done = subprocess.run(["bash", "-c", programme], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return set(done.stdout.split())

    return ask


def test_bash_completes_commands_below_commands(complete):
    assert {"serve", "picker", "settings", "completion", "explain"} <= complete("turnpike ")
    assert complete("turnpike se") == {"serve", "sessions", "settings"}
    assert complete("turnpike settings ") == {"diff", "reload"}
    assert complete("turnpike completion ") == {"bash", "fish", "zsh"}


def test_bash_completes_options_of_the_command_and_of_no_other(complete):
    assert complete("turnpike serve --li") == {"--listen"}
    assert "--workers" in complete("turnpike serve -") and "--workers" not in complete("turnpike picker -")
    assert complete("turnpike hash-key --") == {"--help", "--generate"}
    assert "--worker" not in complete("turnpike serve --"), "it is for itself alone"


def test_values_of_options_are_choices_or_files(complete):
    assert complete("turnpike serve --config ") == set()
    assert complete("turnpike serve --config tp.toml --rec") == {"--record"}
    with_choices = [
        (path, option)
        for path, parser in parsers(_parser(), ())
        for option in parser._actions
        if option.option_strings and option.choices and option.help != argparse.SUPPRESS
    ]
    assert with_choices
    for path, option in with_choices:
        line = f"turnpike {' '.join(path)} {option.option_strings[-1]} "
        assert complete(line) == {str(each) for each in option.choices}, line


def parsers(parser, path):
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            shown = {each.dest for each in action._choices_actions}
            for name, below in action.choices.items():
                if name in shown:
                    yield from parsers(below, (*path, name))


def test_all_that_the_command_has_is_offered(complete):
    for path, parser in parsers(_parser(), ()):
        line = " ".join(("turnpike", *path))
        options = {
            name
            for action in parser._actions
            if action.help != argparse.SUPPRESS
            for name in action.option_strings
        }
        assert complete(f"{line} -") == options, line


@pytest.mark.parametrize("shell", ["fish", "zsh"])
def test_other_shells_are_told_the_same(shell, capsys):
    told = script(shell, capsys)
    for path, parser in parsers(_parser(), ()):
        for action in parser._actions:
            if action.help != argparse.SUPPRESS:
                for name in action.option_strings:
                    assert (name in told) if shell == "zsh" else (f" {_as_fish(name)}" in told), (path, name)


def _as_fish(name: str) -> str:
    return f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
