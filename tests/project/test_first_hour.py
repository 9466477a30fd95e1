"""The first hour of somebody who has the wheel, or docker-compose.yml: each step as it is written down, and
what it prints. The stub engine stands where vLLM does."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import AuthenticationError, OpenAI

from scripted_engine.ports import free_port
from tests.project import shipped
from tests.project.test_wheels import empty, run, wheels  # noqa: F401

QUESTION = [{"role": "user", "content": "Fix the failing test of the parser"}]


@contextlib.contextmanager
def running(*command: str | Path, **how: object) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, **how) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def until_open(port: int) -> None:
    for _ in range(240):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.25)
    raise AssertionError(f"nobody listens at {port}")


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_newcomer_s_path_with_the_wheel_alone(empty, tmp_path):  # noqa: F811
    engine, listen, control = (free_port() for _ in range(3))
    turnpike, settings, url = empty / "turnpike", tmp_path / "turnpike.toml", f"http://127.0.0.1:{engine}"
    with running(empty / "python", "-m", "gateway.tryout.engine", str(engine), cwd="/"):
        until_open(engine)
        said = run(turnpike, "init", "--backend", f"{url}/v1", "--output", settings)
        assert f"wrote {settings}" in said and "next:" in said, "the /v1 of a base URL is left out"
        said = run(turnpike, "doctor", settings)
        assert "ok   vLLM 0.32.0" in said and "ok   serves stub" in said and "gain:" in said
        where = {
            "TURNPIKE_SERVER__LISTEN": f"127.0.0.1:{listen}",
            "TURNPIKE_SERVER__CONTROL": f"127.0.0.1:{control}",
        }
        log = tmp_path / "log"
        with (
            log.open("w") as written,
            running(turnpike, "serve", settings, stderr=written, env=os.environ | where),
        ):
            until_open(listen)
            client = OpenAI(base_url=f"http://127.0.0.1:{listen}/v1", api_key="none", max_retries=0)
            answer = client.chat.completions.with_raw_response.create(model="stub", messages=QUESTION)  # type: ignore[arg-type]
            assert answer.parse().choices[0].message.role == "assistant"
            asked = ("--control", f"http://127.0.0.1:{control}")
            table = run(turnpike, "sessions", *asked)
            assert table.startswith("session ") and "OpenAI/Python" in table and "anonymous" in table
            assert f"{answer.headers['x-turnpike-session']} " in table and "1 of 1 sessions shown" in table
            why = run(turnpike, "explain", answer.headers["x-turnpike-request"], *asked)
            assert "first turn of a new session" in why and "dispatched: default-0" in why
            assert re.search(
                r"became +finished on default-0 after \d+ ms; \d+ prompt tokens, \d+ of them cached", why
            ), why
            said = run(turnpike, "doctor", settings, **where)
            assert f"as the gateway at http://127.0.0.1:{control} sees them" in said
        assert f"http://127.0.0.1:{control}/turnpike/" in log.read_text(), "where the dashboard is"


def turnpike(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *words], capture_output=True, text=True, timeout=60
    )


def new_key() -> tuple[str, str]:
    """By the command in the head of docker-compose.yml: a key, and its hash."""
    (line,) = [line for line in shipped.COMPOSE.read_text().splitlines() if "hash-key" in line]
    said = turnpike(*line.partition("gateway ")[2].partition("#")[0].split()).stdout
    key, hashed = re.findall(r"(?m)^(?:key|hash): +(\S+)$", said)
    return key, hashed


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_compose_s_own_command_line_with_one_of_two_engines(tmp_path):
    """Its volumes, ports and names are mapped as a container engine would."""
    service = shipped.compose()["services"]["gateway"]
    engine, listen, control = (free_port() for _ in range(3))
    (mount,) = service["volumes"]
    inside, text = tmp_path / "turnpike.toml", (shipped.COMPOSE.parent / mount["source"]).read_text()
    command = [str(inside) if word == mount["target"] else word for word in service["command"]]
    here = {
        "http://engine-a:8000": f"http://127.0.0.1:{engine}",
        "http://engine-b:8000": "http://127.0.0.1:9",
    }
    assert command[-1] == str(inside) and [each.rpartition(":")[2] for each in service["ports"]] == [
        "8080",
        "8081",
    ]
    for name, there in {
        **here,
        "0.0.0.0:8080": f"0.0.0.0:{listen}",
        "0.0.0.0:8081": f"0.0.0.0:{control}",
    }.items():
        assert text.count(name) == 1
        text = text.replace(name, there)
    inside.write_text(text)
    refused = turnpike(*command)
    assert refused.returncode == 1 and "key" in refused.stderr, "it listens publicly, and knows no key yet"

    (agents, agents_hash), (_, operators_hash) = new_key(), new_key()
    for shown, given in (
        (r"# (control_key_hashes = )\[.*\]", operators_hash),
        (r"# (\[\[tenants\]\])\n# (name = .*)\n# (key_hashes = )\[.*\]", agents_hash),
    ):  # what stands there as a comment, with the hash
        found = re.search(rf"(?m)^{shown}", text)
        assert found is not None
        lines = "\n".join(found.groups())
        text = text.replace(found[0], f'{lines}["{given}"]')
    assert tomllib.loads(text)["tenants"] == [{"name": "team-a", "key_hashes": [agents_hash]}]
    inside.write_text(text)
    stub = (sys.executable, "-m", "gateway.tryout.engine", str(engine))
    with running(*stub), running(sys.executable, "-m", "gateway", *command):
        until_open(engine)
        until_open(listen)
        *_, check = service["healthcheck"]["test"]
        subprocess.run([sys.executable, "-c", check.replace("8081", str(control))], check=True, timeout=60)
        at = f"http://127.0.0.1:{listen}/v1"
        with pytest.raises(AuthenticationError):
            OpenAI(base_url=at, api_key="guessed", max_retries=0).models.list()
        client = OpenAI(base_url=at, api_key=agents)
        assert client.chat.completions.create(model="stub", messages=QUESTION).choices  # type: ignore[arg-type]
        with urllib.request.urlopen(f"http://127.0.0.1:{control}/turnpike/readyz", timeout=10) as answer:
            ready = json.load(answer)
        assert ready["ready"] and ready["down"] == {"default-1": "Connection refused"}
