"""What we ship to start engines and gateways with, read: compose, the container files, the sidecar."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.project.layout import ROOT

COMPOSE = ROOT / "docker-compose.yml"
GATEWAY = ROOT / "docker/gateway.Dockerfile"
ENGINE = ROOT / "docker/engine.Dockerfile"
CONFIG = ROOT / "docker/turnpike.toml"
SEVERAL = ROOT / "docker/several/compose.yml"
SIDECAR = ROOT / "docker/sidecar"

Unit = dict[str, list[str]]
"""Of a systemd unit: the values of each key, in order."""


def compose() -> dict[str, Any]:
    """The file with merges applied and every variable at its default."""

    def default(match: re.Match[str]) -> str:
        return match["default"]

    resolved = re.sub(r"\$\{(?P<name>\w+):-(?P<default>[^}]*)\}", default, COMPOSE.read_text())
    assert "$" not in resolved, "a variable without a default"
    document = yaml.safe_load(resolved)
    assert isinstance(document, dict)
    return document


def pod() -> dict[str, Any]:
    spec = kubernetes("Deployment")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def kubernetes(kind: str) -> dict[str, Any]:
    (found,) = (
        each for each in yaml.safe_load_all((SIDECAR / "pod.yaml").read_text()) if each["kind"] == kind
    )
    assert isinstance(found, dict)
    return found


def container(name: str) -> dict[str, Any]:
    spec = pod()
    (found,) = (each for each in (*spec["initContainers"], *spec["containers"]) if each["name"] == name)
    assert isinstance(found, dict)
    return found


def unit(name: str) -> Unit:
    values: Unit = {}
    for line in _unit_lines(SIDECAR / name):
        if not line.startswith("["):
            key, _, value = line.partition("=")
            values.setdefault(key, []).append(value)
    return values


def _unit_lines(path: Path) -> Iterator[str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith(("#", ";"))]
    yield from "\n".join(lines).replace("\\\n", " ").splitlines()


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    lines = [line for line in dockerfile.read_text().splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in joined.splitlines()]


def argument(dockerfile: Path, instruction: str) -> Any:
    """The arguments of the last such instruction, in exec form."""
    return json.loads([rest for word, rest in instructions(dockerfile) if word == instruction][-1])


def flags(words: list[str]) -> list[str]:
    return [word.split("=")[0] for word in words if word.startswith("--")]


def with_keys(config: Path, *, tenant: bool = True, control: bool = True, key_hash: str = "0" * 64) -> str:
    """A shipped configuration of the gateway with its example lines in use."""
    text = config.read_text().replace("sha256:…", f"sha256:{key_hash}")
    for key, wanted in (("[[tenants]]", tenant), ("name", tenant), ("key_hashes", tenant)):
        text = text.replace(f"# {key}", key) if wanted else text
    return text.replace("# control_key_hashes", "control_key_hashes") if control else text


# --- how the engines are started ------------------------------------------------------------------

SECRET = "the-operator-s-secret"


@dataclass(frozen=True)
class EngineStart:
    """`vllm serve` as it is shipped."""

    words: list[str]
    """What follows `vllm serve`: the model, then flags."""
    environment: dict[str, str]
    """With `SECRET` for every secret."""


def engine_of_compose() -> EngineStart:
    service = compose()["services"]["engine-a"]
    stated = {name: value or "" for name, value in service["environment"].items()}
    return EngineStart(service["command"], _of_the_image() | stated)


def engine_of_the_pod() -> EngineStart:
    spec = container("vllm")
    stated = {each["name"]: each.get("value", SECRET) for each in spec["env"]}
    return EngineStart(spec["args"], _of_the_image() | stated)


def engine_of_the_unit() -> EngineStart:
    service = unit("vllm.service")
    (start,) = service["ExecStart"]
    program, serve, *words = shlex.split(start)
    assert (Path(program).name, serve) == ("vllm", "serve")
    environment = dict(each.split("=", 1) for each in service["Environment"])
    return EngineStart(words, environment | {"VLLM_API_KEY": SECRET})


def _of_the_image() -> dict[str, str]:
    return dict(rest.split("=", 1) for word, rest in instructions(ENGINE) if word == "ENV")


class _Loader(yaml.SafeLoader):
    """Knows the tags by which one compose file replaces what another says."""


def _tagged(loader: _Loader, node: yaml.Node) -> Any:
    assert isinstance(node, yaml.SequenceNode)
    return loader.construct_sequence(node)


for _tag in ("!override", "!reset"):
    _Loader.add_constructor(_tag, _tagged)


def several() -> dict[str, Any]:
    document = yaml.load(SEVERAL.read_text(), _Loader)
    services = document["services"]
    assert isinstance(services, dict)
    return services
