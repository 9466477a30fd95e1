"""The manifests for Kubernetes, read as they are, and as the real kubectl and Helm make them."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gateway.config import Config
from gateway.config.load import load_config
from tests.prerequisites import require_command
from tests.project.layout import ROOT, run

FOLDER = ROOT / "docker/kubernetes"
TOML = FOLDER / "base/turnpike.toml"
COMPONENTS = ("monitoring", "autoscaling", "picker")

Object = dict[str, Any]


def read(folder: Path) -> Iterator[Object]:
    """All objects of a kustomization; what it patches is not."""
    told = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for name in told.get("resources", []):
        path = folder / name
        if path.is_dir():
            yield from read(path)
        else:
            yield from (each for each in yaml.safe_load_all(path.read_text()) if each is not None)
    for made in told.get("configMapGenerator", []):
        data = {Path(name).name: (folder / name).read_text() for name in made["files"]}
        yield {"kind": "ConfigMap", "metadata": {"name": made["name"]}, "data": data}


def by_kubectl(*components: str) -> list[Object]:
    """As `kubectl kustomize` renders them, with the lines of these components in use. The hash at the end of
    generated names is cut off."""
    kubectl = require_command("kubectl")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "kubernetes"
        shutil.copytree(FOLDER, copy)
        top = copy / "kustomization.yaml"
        text = top.read_text()
        for line in ("components:", *(f"  - {name}" for name in components)) if components else ():
            assert f"\n# {line}\n" in text
            text = text.replace(f"\n# {line}\n", f"\n{line}\n")
        top.write_text(text)
        done = run(kubectl, "kustomize", copy)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(re.sub(r"(name: turnpike)-[a-z0-9]{10}\b", r"\1", done.stdout)))


def by_helm(
    *sets: str, namespace: str = "turnpike", chart: Path = FOLDER, settings: str = ""
) -> list[Object]:
    """As `helm template` renders them, with values set as `--set` has it."""
    done = helm_template(*sets, namespace=namespace, chart=chart, settings=settings)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each is not None]


def helm_template(*sets: str, namespace: str = "turnpike", chart: Path = FOLDER, settings: str = "") -> Any:
    """The finished process; `settings` is TOML."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(settings)
        file.flush()
        words = [word for each in sets for word in ("--set-json", each)]
        given = ["--set-file", f"settings={file.name}"] if settings else []
        return run(require_command("helm"), "template", "tp", chart, "--namespace", namespace, *words, *given)


def the(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def loaded(objects: list[Object], path: Path, text: str | None = None) -> Config:
    """What the gateway's container makes of its settings, or of this text."""
    path.write_text(the(objects, "ConfigMap", "turnpike")["data"]["turnpike.toml"] if text is None else text)
    env = containers(objects)["turnpike-gateway"]["env"]
    given = {each["name"]: each.get("value", "a-secret").replace("$(POD_IP)", "10.0.0.9") for each in env}
    return load_config(str(path), given, {})


def pods(objects: list[Object]) -> dict[str, Object]:
    """By the value of the label `app`: the pod's template."""
    found = {}
    for each in objects:
        if each["kind"] == "Deployment":
            template = each["spec"]["template"]
            labels = template["metadata"]["labels"]
            assert labels["app"] == each["spec"]["selector"]["matchLabels"]["app"]
            found[labels["app"]] = template
    return found


def containers(objects: list[Object]) -> dict[str, Object]:
    found = {}
    for app, template in pods(objects).items():
        (found[app],) = template["spec"]["containers"]
    return found
