"""What `turnpike history` says of options and questions that are wrong."""

import math
import sqlite3

import pytest

from gateway.history.answers import Answers, Look
from tests.command import Turnpike

BEGIN = ("history", "--stream", "s.jsonl")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--listen", "foo"), "--listen: 'foo' is not HOST:PORT, such as 127.0.0.1:8080"),
        (("--listen", "a:99999"), "--listen: 'a:99999' is not HOST:PORT"),
        (("--listen", "8070"), "--listen: '8070' is not HOST:PORT"),
        (("--key-env", "NOPE"), "--key-env: the environment variable NOPE is not set, or empty"),
        (("--gateway-key-env", "NOPE"), "--gateway-key-env: the environment variable NOPE is not set"),
        (
            ("--path", "/no/such/x.sqlite"),
            "/no/such/x.sqlite: neither it nor its lock can be written: No such file",
        ),
    ],
)
def test_options_that_are_wrong_are_named(turnpike: Turnpike, words, said):
    done = turnpike(*BEGIN, *words)
    assert done.returncode == 1 and done.stderr.startswith(f"turnpike: {said}")


def test_its_port_is_none_that_workers_have(turnpike: Turnpike):
    """They have their control planes from 8081 on, one above the other."""
    for command in ("history", "control"):
        [port] = [
            word for word in turnpike(command, "--help").stdout.split() if word.startswith("127.0.0.1:")
        ]
        assert int(port.strip(")").rpartition(":")[2]) < 8080


@pytest.mark.parametrize("name", ["from_s", "to_s", "before_s", "limit", "trouble"])
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "soon", "1e999"])
def test_what_is_no_time_is_refused_by_name(tmp_path, name, text):
    sqlite3.connect(tmp_path / "x").close()
    answers = Answers(tmp_path / "x")
    with pytest.raises(ValueError, match=f"^{name}: "):
        answers.session("s", {name: text}) if name == "before_s" else Look.of({name: text})
    answers.close()
    assert math.isclose(Look.of({"from_s": "1.5", "to_s": ""}).from_s, 1.5)
