"""The chart, by the real Helm: what it makes is what Kustomize makes, and each value does what it says."""

import json
import re
import tomllib

import pytest
import yaml

from gateway.config.server import split_listen
from gateway.server.picker.checking import check_picker
from tests.prerequisites import require_command
from tests.project import shipped
from tests.project.layout import PYPROJECT, run
from tests.project.manifests import (
    COMPONENTS,
    FOLDER,
    TOML,
    Object,
    by_helm,
    by_kubectl,
    containers,
    helm_template,
    loaded,
    pods,
    the,
)

needs_programs = pytest.mark.slow  # not slow, but `make check` does without Helm and kubectl
PICKER = "picker.enabled=true"
TOGGLES = {
    "monitoring": "podMonitor.enabled=true",
    "autoscaling": "autoscaling.enabled=true",
    "picker": PICKER,
}
"""Kustomize's component → the value that asks Helm for the same."""
ENGINES = "turnpike-engines"


def comparable(objects: list[Object]) -> dict[tuple[str, str], Object]:
    """By kind and name, without what Helm adds, and settings as what they say."""
    found = {}
    for each in objects:
        labels = each["metadata"].get("labels", {})
        for added in ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"):
            labels.pop(added, None)
        if each["kind"] == "ConfigMap":
            each["data"] = {name: tomllib.loads(text) for name, text in each["data"].items()}
        template = each.get("spec", {}).get("template", {})
        template.get("metadata", {}).pop("annotations", None)
        found[each["kind"], each["metadata"]["name"]] = each
    assert len(found) == len(objects)
    return found


def names(objects: list[Object]) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in objects}


def refused(*sets: str, settings: str = "") -> str:
    done = helm_template(*sets, settings=settings)
    assert done.returncode != 0, sets
    return str(done.stderr)


KEYS = f"""
[server]
control_key_hashes = ["sha256:{"0" * 64}"]
drain_s = 45

[[tenants]]
name = "team-a"
key_hashes = ["sha256:{"1" * 64}"]
quota = {{ tokens_per_minute = 2000000, weight = 0.5 }}
"""


# --- one source -----------------------------------------------------------------------------------


@needs_programs
@pytest.mark.parametrize(
    "components",
    [(), *((name,) for name in COMPONENTS), COMPONENTS],
    ids=lambda each: "+".join(each) or "base",
)
def test_helm_makes_what_kustomize_makes(components):
    made = comparable(by_helm(*(TOGGLES[name] for name in components)))
    assert made == comparable(by_kubectl(*components))


@needs_programs
def test_it_is_well_formed_and_its_package_makes_the_same(tmp_path):
    helm = require_command("helm")
    lint = run(helm, "lint", "--strict", FOLDER)
    assert lint.returncode == 0, lint.stdout + lint.stderr
    done = run(helm, "package", FOLDER, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.iterdir()
    assert package.name == f"turnpike-{PYPROJECT['project']['version']}.tgz"
    every = list(TOGGLES.values())
    assert by_helm(*every, chart=package) == by_helm(*every)


def test_its_version_and_images_are_this_release():
    chart = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    version = PYPROJECT["project"]["version"]
    assert chart["version"] == chart["appVersion"] == version
    values = yaml.safe_load((FOLDER / "values.yaml").read_text())
    for part in ("gateway", "engines"):
        assert values[part]["image"].endswith(f":{version}")


# --- values ---------------------------------------------------------------------------------------


@needs_programs
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("gateway.replicas=0", r"gateway.replicas.*(minimum|greater)"),
        ('gateway.replicas="two"', r"gateway.replicas.*integer"),
        ("engines.replica=3", r"engines.*replica.* not allowed"),
        ('engines.image="a b"', r"engines.image.*pattern"),
        ("picker.enabled=1", r"picker.enabled.*boolean"),
        ("redis=null", r"redis"),
        ('autoscaling.prometheus="prometheus:9090"', r"autoscaling.prometheus.*pattern"),
        (
            'autoscaling={"enabled":true,"minReplicas":9}',
            r"autoscaling.minReplicas: it is more than maxReplicas",
        ),
        ('settings="x ="', r"settings: this is not TOML"),
        ("redis.enabled=false", r"redis.enabled: without it let gateway.replicas be 1, or name a store"),
        ("engines.enabled=false", r"engines.enabled: without it name the engines in settings"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(value, said):
    assert re.search(said, refused(value).replace("/", "."))


@needs_programs
def test_settings_are_laid_over_those_of_the_manifests(tmp_path):
    plain, made = by_helm(), by_helm(settings=KEYS)
    config = loaded(made, tmp_path / "turnpike.toml")
    (tenant,) = config.tenants
    assert (tenant.name, tenant.quota.tokens_per_minute, tenant.quota.weight) == ("team-a", 2_000_000, 0.5)
    assert (config.server.drain_s, config.server.shutdown_delay_s) == (45, 10)
    theirs = tomllib.loads(shipped.with_keys(TOML))
    assert config.server.listen == theirs["server"]["listen"]
    assert config.shared.url == theirs["shared"]["url"] and config.shared.peer_url == "http://10.0.0.9:8082"

    def rolled(objects: list[Object]) -> str:
        return str(pods(objects)["turnpike-gateway"]["metadata"]["annotations"])

    assert rolled(plain) != rolled(made), "a change of the settings rolls the gateways"
    assert rolled(plain) == rolled(by_helm("gateway.replicas=3"))


@needs_programs
def test_another_namespace_is_meant_everywhere(tmp_path):
    made = by_helm(
        *(TOGGLES[each] for each in ("monitoring", "autoscaling")), namespace="agents", settings=KEYS
    )
    assert {each["metadata"]["namespace"] for each in made} == {"agents"}
    assert the(made, "RoleBinding", "turnpike-gateway")["subjects"][0]["namespace"] == "agents"
    (pool,) = loaded(made, tmp_path / "turnpike.toml").pools
    discovery = pool.discovery
    assert discovery is not None and discovery.kubernetes is not None
    assert discovery.kubernetes.namespace == "agents"
    (trigger,) = the(made, "ScaledObject", ENGINES)["spec"]["triggers"]
    assert set(re.findall(r'namespace="(\w+)"', trigger["metadata"]["query"])) == {"agents"}


@needs_programs
def test_pods_and_containers_take_what_the_cluster_asks_for():
    made = by_helm(
        'gateway.pod={"nodeSelector":{"pool":"cpu"},"securityContext":{"runAsUser":5}}',
        'redis.container={"resources":{"limits":{"memory":"3Gi"}}}',
        'engines.image="vllm/vllm-openai:v0.32.0"',
        "engines.replicas=7",
    )
    gateway = pods(made)["turnpike-gateway"]["spec"]
    assert gateway["nodeSelector"] == {"pool": "cpu"}
    assert (gateway["securityContext"]["runAsUser"], gateway["securityContext"]["runAsNonRoot"]) == (5, True)
    resources = containers(made)["turnpike-redis"]["resources"]
    assert resources == {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"memory": "3Gi"}}
    assert containers(made)["turnpike-engine"]["image"] == "vllm/vllm-openai:v0.32.0"
    assert the(made, "Deployment", ENGINES)["spec"]["replicas"] == 7


# --- parts ----------------------------------------------------------------------------------------


@needs_programs
def test_engines_are_of_another_model_without_the_plugin_or_with_a_claim():
    usual = containers(by_helm())["turnpike-engine"]["args"]
    made = by_helm(
        'engines.model="m"', 'engines.args=["--seed=1"]', "engines.plugin=false", 'engines.claim="models"'
    )
    plain = [each for each in usual[1:] if not each.startswith("--scheduler-cls=")]
    assert len(plain) == len(usual) - 2
    assert containers(made)["turnpike-engine"]["args"] == ["m", *plain, "--seed=1"]
    (home,) = (each for each in pods(made)["turnpike-engine"]["spec"]["volumes"] if each["name"] == "home")
    assert home == {"name": "home", "persistentVolumeClaim": {"claimName": "models"}}


@needs_programs
def test_engines_of_others(tmp_path):
    pools = '[[pools]]\nname = "theirs"\nreplicas = [{ url = "http://gpu-1:8000" }]\n'
    rule = {"ports": [{"port": 8000}]}
    made = by_helm(
        "engines.enabled=false",
        f"networkPolicy.egress=[{json.dumps(rule)}]",
        TOGGLES["autoscaling"],
        settings=pools + KEYS,
    )
    assert ENGINES not in {name for _, name in names(made)}
    assert names(by_helm()) - names(made) == {
        (kind, ENGINES) for kind in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy")
    }
    (pool,) = loaded(made, tmp_path / "turnpike.toml").pools
    assert (pool.name, pool.discovery) == ("theirs", None)
    assert the(made, "NetworkPolicy", "turnpike-gateway")["spec"]["egress"][-1] == rule


@needs_programs
def test_one_gateway_needs_no_redis(tmp_path):
    made = by_helm("redis.enabled=false", "gateway.replicas=1", settings=KEYS)
    gone = {(kind, "turnpike-redis") for kind in ("Deployment", "Service", "NetworkPolicy")}
    # A budget that one pod must stay would let no node be drained.
    assert names(by_helm()) - names(made) == gone | {("PodDisruptionBudget", "turnpike-gateway")}
    assert loaded(made, tmp_path / "turnpike.toml").shared.url is None
    container = containers(made)["turnpike-gateway"]
    assert [each["name"] for each in container["env"]] == ["VLLM_API_KEY"]
    assert [each["name"] for each in container["ports"]] == ["http", "control"]


@needs_programs
def test_autoscaling_takes_its_bounds():
    made = by_helm(
        'autoscaling={"enabled":true,"minReplicas":3,"maxReplicas":30,"prometheus":"https://thanos:9090"}',
        "engines.replicas=5",
    )
    spec = the(made, "ScaledObject", ENGINES)["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (3, 30)
    assert spec["triggers"][0]["metadata"]["serverAddress"] == "https://thanos:9090"
    assert "replicas" not in the(made, "Deployment", ENGINES)["spec"], "their number is KEDA's"


@needs_programs
def test_pickers_start_where_envoy_connects(tmp_path):
    made = by_helm(PICKER, settings=KEYS)
    config = loaded(made, tmp_path / "turnpike.toml")
    check_picker(config)
    gateway = containers(made)["turnpike-gateway"]
    ports = {each["name"]: each["containerPort"] for each in gateway["ports"]}
    assert ports == {
        "http": split_listen(config.picker.listen)[1],
        "picks": config.picker.peer_port,
        "control": split_listen(config.server.control)[1],
        "peers": split_listen(config.shared.peer_listen)[1],
    }
    assert gateway["args"][0] == "picker"
    (port,) = the(made, "Service", "turnpike")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (ports["http"], "http")
    policy = the(made, "NetworkPolicy", "turnpike-pickers")["spec"]
    assert policy["ingress"][0]["ports"] == [{"port": "picks"}]
    assert policy["egress"][0]["ports"] == [{"port": ports["picks"]}]
    assert names(made) - names(by_helm(settings=KEYS)) == {("NetworkPolicy", "turnpike-pickers")}
