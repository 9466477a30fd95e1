"""One gateway beside one engine: the pod, the units and their settings agree, with compose too."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.server import ServerConfig
from tests.command import Turnpike
from tests.project.layout import BIN, ROOT, run
from tests.project.shipped import (
    SIDECAR,
    compose,
    container,
    engine_of_compose,
    engine_of_the_pod,
    engine_of_the_unit,
    pod,
    unit,
    with_keys,
)

CONFIG = SIDECAR / "turnpike.toml"
SETTINGS = tomllib.loads(CONFIG.read_text())
PLUGIN = {"--scheduler-cls=turnpike_vllm.scheduler.TurnpikeScheduler", "--enable-prompt-tokens-details"}


# --- the engine -----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [engine_of_compose, engine_of_the_pod, engine_of_the_unit])
def test_every_engine_loads_the_plugin_which_owns_the_order(engine: Any) -> None:
    start = engine()
    assert set(start.words) >= PLUGIN
    assert start.environment["VLLM_PLUGINS"].split(",") == ["turnpike"]
    assert not any("scheduling-policy" in word for word in start.words)


def test_pod_and_unit_start_the_engine_alike_and_as_compose_does_but_for_the_address() -> None:
    words = engine_of_the_pod().words
    assert words == engine_of_the_unit().words
    others = [word for word in engine_of_compose().words if word != "--host=0.0.0.0"]
    assert sorted(words) == sorted([*others, "--host=127.0.0.1"])


def test_nobody_but_the_gateway_reaches_the_engine() -> None:
    assert "ports" not in container("vllm")
    for words in (engine_of_the_pod().words, engine_of_the_unit().words):
        assert "--host=127.0.0.1" in words
    assert "VLLM_API_KEY" in engine_of_the_pod().environment
    assert unit("vllm.service")["EnvironmentFile"] == unit("turnpike.service")["EnvironmentFile"]


# --- the gateway ----------------------------------------------------------------------------------


def test_the_gateway_asks_the_engine_beside_it_with_its_key() -> None:
    (pool,) = SETTINGS["pools"]
    assert pool["replicas"] == [{"url": "http://127.0.0.1:8000", "api_key_env": "VLLM_API_KEY"}]
    assert "--port=8000" in engine_of_the_pod().words
    secret = {"name": "turnpike", "key": "engine-key"}
    for name in ("gateway", "vllm"):
        given = {each["name"]: each.get("valueFrom") for each in container(name)["env"]}
        assert given["VLLM_API_KEY"] == {"secretKeyRef": secret}


@pytest.mark.parametrize(("tenant", "key", "code"), [(True, "k", 0), (False, "k", 1), (True, "", 1)])
def test_its_settings_are_accepted_once_there_are_keys(
    turnpike: Turnpike, tmp_path: Path, tenant: bool, key: str, code: int
) -> None:
    config = tmp_path / "turnpike.toml"
    config.write_text(with_keys(CONFIG, tenant=tenant))
    done = turnpike("check-config", config, VLLM_API_KEY=key)
    assert done.returncode == code, done.stderr


def test_pod_and_unit_start_the_gateway_as_compose_does() -> None:
    words = compose()["services"]["gateway"]["command"]
    assert container("gateway")["args"] == words
    (start,) = unit("turnpike.service")["ExecStart"]
    assert shlex.split(start)[1:] == words
    mounts = {each["name"]: each["mountPath"] for each in container("gateway")["volumeMounts"]}
    assert f"{mounts['config']}/turnpike.toml" == words[-1]


def test_several_on_one_host_are_started_as_the_one_is_but_for_what_they_share() -> None:
    one, several = unit("turnpike.service"), unit("turnpike@.service")
    (start,), (alone,) = several.pop("ExecStart"), one.pop("ExecStart")
    assert start == f"{alone} --control 127.0.0.1:%i"
    assert several.pop("Environment") == [
        "TURNPIKE_SERVER__REUSE_PORT=true",
        "TURNPIKE_SHARED__URL=redis://127.0.0.1:6379",
        "TURNPIKE_SHARED__PASSWORD_ENV=REDIS_PASSWORD",
        "TURNPIKE_SHARED__SECRET_ENV=FLEET_SECRET",
    ]
    assert several.pop("User") == ["turnpike"], "only processes of one user may share a port"
    for key in ("Wants", "After"):
        assert set(several.pop(key)[0].split()) == {*one.pop(key)[0].split(), "redis-server.service"}
    assert {**several, "Description": one["Description"]} == one


def test_its_running_requests_get_the_time_that_they_may_take() -> None:
    server = ServerConfig()
    needed_s = server.shutdown_delay_s + server.drain_s
    assert int(unit("turnpike.service")["TimeoutStopSec"][0]) > needed_s
    assert pod()["terminationGracePeriodSeconds"] > needed_s + int(unit("vllm.service")["TimeoutStopSec"][0])


# --- the pod --------------------------------------------------------------------------------------


def test_the_pod_runs_the_images_of_compose() -> None:
    services = compose()["services"]
    for name, service in (("vllm", "engine-a"), ("gateway", "gateway")):
        image, _, version = container(name)["image"].rpartition(":")
        assert image.rpartition("/")[2] == services[service]["image"] and version[0].isdigit()


def test_its_probes_are_valid_programs_that_ask_where_somebody_listens() -> None:
    asked = {}
    for name in ("vllm", "gateway"):
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe := container(name).get(kind):
                program = probe["exec"]["command"][-1]
                compile(program, kind, "exec")
                asked[name, kind] = re.findall(r"'(http.*?)'", program)
    control = f"http://{SETTINGS['server']['control']}/turnpike"
    engine = ["http://127.0.0.1:8000/health"]
    assert asked == {
        ("vllm", "startupProbe"): engine,
        ("vllm", "livenessProbe"): engine,
        ("gateway", "readinessProbe"): [f"{control}/readyz"],
        ("gateway", "livenessProbe"): [f"{control}/healthz"],
    }


def test_its_gateway_is_confined() -> None:
    context = container("gateway")["securityContext"]
    assert context["runAsNonRoot"] is True and context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["allowPrivilegeEscalation"] is False


def test_the_secret_that_its_head_makes_has_every_key_that_is_used() -> None:
    text = (SIDECAR / "pod.yaml").read_text()
    made = set(re.findall(r"--from-(?:file|literal)=([\w.-]+)", text))
    used = set(re.findall(r"secretKeyRef: {name: turnpike, key: ([\w-]+)", text))
    (config,) = (each["secret"] for each in pod()["volumes"] if "secret" in each)
    assert made == used | {each["key"] for each in config["items"]}


def test_its_files_are_well_formed() -> None:
    done = run(BIN / "yamllint", "--strict", "-c", ROOT / ".yamllint", SIDECAR / "pod.yaml")
    assert done.returncode == 0, done.stdout
    kinds = [each["kind"] for each in yaml.safe_load_all((SIDECAR / "pod.yaml").read_text())]
    assert kinds == ["Deployment", "Service"]
    for path in SIDECAR.glob("*.service"):
        sections = re.findall(r"^\[(\w+)\]$", path.read_text(), re.MULTILINE)
        assert sections == ["Unit", "Service", "Install"], path
