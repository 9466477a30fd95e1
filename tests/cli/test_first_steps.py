"""`turnpike init` and `turnpike doctor`, against scripted servers."""

import asyncio
import json
import ssl
from datetime import UTC, datetime

import pytest
import trustme

from gateway.__main__ import main
from gateway.cli import starter
from gateway.config.load import load_config
from tests.server.bench import Backend, answer

VLLM = b"""vllm:cache_config_info{enable_prefix_caching="False",num_gpu_blocks="10",block_size="16"} 1.0
vllm:prefix_cache_hits_total 3.0
"""


class Guarded(Backend):
    """It wants a key."""

    async def _answer_check(self, request, writer) -> bool:
        if request.target == b"/v1/models" and b"secret" not in (request.get(b"authorization") or b""):
            writer.write(answer(b"{}", status=b"401 Unauthorized"))
            return True
        return request.target != b"/v1/chat/completions" and await super()._answer_check(request, writer)


@pytest.fixture
async def backends():
    opened = [Backend(), Backend(), Guarded()]
    opened[0].metrics = VLLM
    opened[1].models = json.dumps({"data": [{"id": "org/Other-1", "object": "model"}]}).encode()
    for each in opened:
        await each.open()
    yield opened
    for each in opened:
        await each.close()


async def turnpike(capsys, *arguments: str) -> tuple[int, str, str]:
    status = await asyncio.to_thread(main, list(arguments))
    return (status, *capsys.readouterr())


async def test_a_file_is_written_for_what_is_there_and_never_over_another(backends, capsys, tmp_path):
    path = tmp_path / "turnpike.toml"
    given = [part for each in backends for part in ("--backend", each.url)]
    status, out, _ = await turnpike(capsys, "init", "--output", str(path), *given)
    assert status == 0 and f"wrote {path}" in out
    written = path.read_text()
    config = load_config(str(path), {"BACKEND_API_KEY": "x"}, {})
    assert {pool.name: [each.url for each in pool.replicas] for pool in config.pools} == {
        "m": [backends[0].url],
        "other-1": [backends[1].url],
        "unknown": [backends[2].url],
    }
    assert config.pools[2].replicas[0].api_key_env == "BACKEND_API_KEY"
    assert "# vLLM 0.30.0; serves org/Other-1" in written
    status, _, err = await turnpike(capsys, "init", "--output", str(path), *given)
    assert status == 1 and "stays as it is" in err and path.read_text() == written


async def test_a_server_that_is_not_there_is_warned_of(backends, capsys, tmp_path):
    path = tmp_path / "turnpike.toml"
    urls = (backends[0].url, "http://127.0.0.1:9")
    given = [part for url in urls for part in ("--backend", url)]
    status, out, err = await turnpike(capsys, "init", "--output", str(path), *given)
    assert status == 1 and path.exists() and "next:" not in out
    assert "warning: http://127.0.0.1:9: not usable yet" in err and backends[0].url not in err
    [pool] = load_config(str(path), {}, {}).pools
    assert [each.url for each in pool.replicas] == [*urls], "taken for more of the same"


async def test_without_addresses_the_usual_ones_are_looked_at(backends, capsys, tmp_path, monkeypatch):
    path = tmp_path / "turnpike.toml"
    monkeypatch.setattr(starter, "_PLACES", ("http://127.0.0.1:9", backends[0].url))
    status, _, _ = await turnpike(capsys, "init", "--output", str(path))
    assert status == 0 and ":9" not in path.read_text() and backends[0].url in path.read_text()
    monkeypatch.setattr(starter, "_PLACES", ("http://127.0.0.1:9",))
    status, _, err = await turnpike(capsys, "init", "--output", str(tmp_path / "other.toml"))
    assert status == 1 and "--backend URL" in err and not (tmp_path / "other.toml").exists()


async def test_the_doctor_says_what_is_there_and_what_is_missing(backends, capsys, monkeypatch):
    status, out, _ = await turnpike(capsys, "doctor", "--backend", backends[0].url)
    assert status == 0, "what is missing is no fault"
    assert "ok   vLLM 0.30.0" in out and "ok   serves m" in out
    assert "off  prefix caching is off" in out and "--enable-prefix-caching" in out
    status, out, _ = await turnpike(
        capsys, "doctor", "--json", "--backend", backends[2].url, "--backend", "http://127.0.0.1:9"
    )
    assert status == 1
    guarded, down = json.loads(out)
    assert [each["what"] for each in guarded["findings"] if each["level"] == "bad"] == [
        "wants an API key (401)"
    ]
    assert [each["level"] for each in down["findings"]] == ["bad"]


async def test_the_doctor_reads_the_settings_and_may_ask(backends, capsys, monkeypatch, tmp_path):
    path = tmp_path / "turnpike.toml"
    path.write_text(
        f'[[pools]]\nreplicas = [{{ url = "{backends[2].url}", api_key_env = "KEY", '
        'kv_events = { endpoint = "tcp://127.0.0.1:9" } }]\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KEY", raising=False)
    status, out, _ = await turnpike(capsys, "doctor")
    assert status == 1 and "default-0" in out and "was not looked at: api_key_env" in out
    monkeypatch.setenv("KEY", "secret")
    status, out, _ = await turnpike(capsys, "doctor", "--ask")
    assert status == 1 and "bad  KV events: nobody publishes" in out
    assert "wants an API key" not in out and "secret" not in out
    assert [each.json()["max_tokens"] for each in backends[2].seen] == [1, 1]
    assert "answers do not say how many prompt tokens were cached" in out


PAST = datetime(2020, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "trusted", "until", "said"),
    [
        ("localhost", False, None, "certificate not trusted: set upstream.ca_file"),
        ("elsewhere.test", True, None, "certificate is of another name: set upstream.tls_server_name"),
        ("localhost", True, PAST, "certificate has expired"),
        ("", True, None, "TLS failed (wrong version number): does it speak https?"),
        ("localhost", True, None, ""),
    ],
)
async def test_why_a_server_is_not_trusted(capsys, tmp_path, name, trusted, until, said):
    ca, tls = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert(name or "localhost", not_after=until).configure_cert(tls)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    backend = Backend()
    await backend.open(tls)

    def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 no\r\n\r\n")
        writer.close()

    plain = await asyncio.start_server(talk, "127.0.0.1")
    port = plain.sockets[0].getsockname()[1]
    url = backend.url.replace("http://", "https://") if name else f"https://127.0.0.1:{port}"
    ca_file = f"[upstream]\nca_file = '{tmp_path}/ca.pem'\n" if trusted else ""
    path = tmp_path / "t.toml"
    path.write_text(f"{ca_file}[[pools]]\nreplicas = [{{ url = '{url}' }}]\n")
    status, out, _ = await turnpike(capsys, "doctor", str(path))
    plain.close()
    await backend.close()
    assert (status == 0) is not bool(said) and said in out, out
