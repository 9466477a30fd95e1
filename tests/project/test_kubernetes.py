"""The manifests for Kubernetes: what they name is there, what they say of the gateway is so.

They are read as they are, and as kubectl and Helm render them.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.server import ServerConfig, split_listen
from tests.project import manifests, shipped
from tests.project.layout import BIN, ROOT, run
from tests.project.manifests import COMPONENTS, FOLDER, TOML, Object, by_kubectl, containers, pods, read, the
from tests.project.test_alerts import exported

OPTIONAL = ("monitoring", "autoscaling")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(lambda: list(read(FOLDER)), id="as read"),
        # Not slow, but `make check` does without kubectl.
        pytest.param(by_kubectl, id="by kubectl", marks=pytest.mark.slow),
    ],
)
def objects(request) -> list[Object]:
    made: list[Object] = request.param()
    return made


@pytest.fixture(scope="module")
def optional() -> list[Object]:
    return [each for name in OPTIONAL for each in read(FOLDER / name)]


def settings(tmp_path: Path) -> Any:
    objects = list(read(FOLDER))
    return manifests.loaded(objects, tmp_path / "turnpike.toml", shipped.with_keys(TOML))


# --- whole ----------------------------------------------------------------------------------------


def test_its_files_are_well_formed_and_all_are_used():
    done = run(BIN / "yamllint", "--strict", "-c", ROOT / ".yamllint", FOLDER)
    assert done.returncode == 0, done.stdout
    named = set()
    for path in FOLDER.rglob("kustomization.yaml"):
        told = yaml.safe_load(path.read_text())
        made = [name for each in told.get("configMapGenerator", []) for name in each["files"]]
        patches = [each["path"] for each in told.get("patches", []) if "path" in each]
        named |= {path.parent / name for name in (*told.get("resources", []), *made, *patches)}
    files = {path for path in FOLDER.glob("*/*") if path.name != "kustomization.yaml"}
    files = {path for path in files if path.parent.name != "templates"}  # Helm's
    assert files == {path for path in named if path.is_file()}
    head = (FOLDER / "kustomization.yaml").read_text()
    assert all(f"#   - {name}\n" in head for name in COMPONENTS), "the components are mentioned"


def test_names_are_not_given_twice(objects, optional):
    names = [(each["kind"], each["metadata"]["name"]) for each in (*objects, *optional)]
    assert len(set(names)) == len(names)


# --- the gateway's settings -----------------------------------------------------------------------


@pytest.mark.parametrize(("keys", "code"), [(True, 0), (False, 1)])
def test_its_settings_are_accepted_once_there_are_keys(turnpike, tmp_path, keys, code):
    config = tmp_path / "turnpike.toml"
    config.write_text(shipped.with_keys(TOML, tenant=keys))
    secrets = {
        "VLLM_API_KEY": "k",
        "REDIS_PASSWORD": "r",
        "FLEET_SECRET": "f" * 32,
        "TURNPIKE_SHARED__PEER_URL": "http://10.0.0.9:8082",
    }
    done = turnpike("check-config", config, **secrets)
    assert done.returncode == code, done.stderr


def test_the_settings_name_what_the_manifests_make(objects, tmp_path):
    config = settings(tmp_path)
    (pool,) = config.pools
    found = pool.discovery.kubernetes
    assert found.namespace == yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["namespace"]
    service = the(objects, "Service", found.service)
    assert [port["name"] for port in service["spec"]["ports"]] == [found.port]
    assert service["spec"]["clusterIP"] == "None"
    ((host, port),) = re.findall(r"^redis://([\w-]+):(\d+)/0$", config.shared.url)
    assert [each["port"] for each in the(objects, "Service", host)["spec"]["ports"]] == [int(port)]
    given = {each["name"]: each for each in containers(objects)["turnpike-gateway"]["env"]}
    assert {pool.discovery.api_key_env, config.shared.password_env, config.shared.secret_env} <= set(given)
    assert config.shared.peer_url == f"http://10.0.0.9:{split_listen(config.shared.peer_listen)[1]}"
    names = list(given)
    assert names.index("POD_IP") < names.index("TURNPIKE_SHARED__PEER_URL"), "else it is not put in"


def test_the_configmap_is_where_the_gateway_looks(objects):
    container = containers(objects)["turnpike-gateway"]
    (config,) = (each for each in pods(objects)["turnpike-gateway"]["spec"]["volumes"] if "configMap" in each)
    assert "turnpike.toml" in the(objects, "ConfigMap", config["configMap"]["name"])["data"]
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert container["args"] == shipped.compose()["services"]["gateway"]["command"]
    assert f"{mounted[config['name']]}/turnpike.toml" == container["args"][-1]


def test_its_account_may_do_what_discovery_does_and_nothing_else(objects):
    spec = pods(objects)["turnpike-gateway"]["spec"]
    binding = the(objects, "RoleBinding", "turnpike-gateway")
    assert [(each["kind"], each["name"]) for each in binding["subjects"]] == [
        ("ServiceAccount", spec["serviceAccountName"])
    ]
    assert the(objects, "ServiceAccount", spec["serviceAccountName"])
    (rule,) = the(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])["rules"]
    assert rule == {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["list", "watch"],
    }
    assert spec.get("automountServiceAccountToken") is not False
    for app in ("turnpike-engine", "turnpike-redis"):
        assert pods(objects)[app]["spec"]["automountServiceAccountToken"] is False


# --- ports, probes, secrets -----------------------------------------------------------------------


def test_listeners_ports_and_services_agree(objects, tmp_path):
    config, gateway = settings(tmp_path), containers(objects)["turnpike-gateway"]
    ports = {each["name"]: each["containerPort"] for each in gateway["ports"]}
    server = config.server
    assert ports == {
        "http": split_listen(server.listen)[1],
        "control": split_listen(server.control)[1],
        "peers": split_listen(config.shared.peer_listen)[1],
    }
    assert (
        f"--port={containers(objects)['turnpike-engine']['ports'][0]['containerPort']}"
        in (containers(objects)["turnpike-engine"]["args"])
    )
    for service in (each for each in objects if each["kind"] == "Service"):
        target = containers(objects)[service["spec"]["selector"]["app"]]
        names = {each["name"] for each in target["ports"]}
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= names


def test_probes_ask_for_what_is_there(objects):
    from gateway.server.admin.access import OPEN_PATHS

    asked = {}
    for app, container in containers(objects).items():
        names = {each["name"] for each in container["ports"]}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            if (probe := container.get(kind)) is not None and (http := probe.get("httpGet")) is not None:
                assert http["port"] in names
                asked[app, kind] = http["path"]
        assert "readinessProbe" in container and "livenessProbe" in container
    ours = {path for (app, _), path in asked.items() if app == "turnpike-gateway"}
    assert ours == OPEN_PATHS, "they are asked without a key"
    assert asked["turnpike-gateway", "readinessProbe"] == "/turnpike/readyz"
    assert {path for (app, _), path in asked.items() if app == "turnpike-engine"} == {"/health"}


def test_the_secret_that_its_head_makes_has_every_key_that_is_used(objects, optional):
    made = set(re.findall(r"--from-literal=([\w-]+)=", (FOLDER / "kustomization.yaml").read_text()))
    used = set()
    for container in containers(objects).values():
        for each in container.get("env", []):
            if (reference := each.get("valueFrom", {}).get("secretKeyRef")) is not None:
                assert reference["name"] == "turnpike"
                used.add(reference["key"])
    (endpoint,) = the(optional, "PodMonitor", "turnpike-gateway")["spec"]["podMetricsEndpoints"]
    used.add(endpoint["authorization"]["credentials"]["key"])
    assert made == used


# --- confinement ----------------------------------------------------------------------------------


def test_nobody_is_root_and_no_root_is_written(objects):
    for app, template in pods(objects).items():
        spec, container = template["spec"], containers(objects)[app]
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True and context["runAsUser"] > 0, app
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert spec["enableServiceLinks"] is False
        volumes, mounts = {each["name"] for each in spec["volumes"]}, container["volumeMounts"]
        assert {each["name"] for each in mounts} == volumes
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]


def test_policies_let_through_what_is_said_and_nothing_else(objects):
    listeners = {
        app: {each["name"]: each["containerPort"] for each in container["ports"]}
        for app, container in containers(objects).items()
    }
    allowed: dict[str, set[tuple[str | None, str]]] = {}
    policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    by_app = {each["podSelector"]["matchLabels"]["app"]: each for each in policies}
    assert set(by_app) == set(listeners), "each pod has one"
    for app, policy in by_app.items():
        assert "Ingress" in policy["policyTypes"]
        for rule in policy["ingress"]:
            froms = rule.get("from", [{}])
            for port in rule["ports"]:
                assert port["port"] in listeners[app]
                for each in froms:
                    labels = (each.get("podSelector") or each.get("namespaceSelector") or {}).get(
                        "matchLabels", {}
                    )
                    allowed.setdefault(app, set()).add((next(iter(labels.values()), None), port["port"]))
    assert allowed == {
        "turnpike-gateway": {(None, "http"), ("monitoring", "control"), ("turnpike-gateway", "peers")},
        "turnpike-engine": {("turnpike-gateway", "http")},
        "turnpike-redis": {("turnpike-gateway", "redis")},
    }
    for rule in by_app["turnpike-gateway"]["egress"]:
        assert rule["to"], "to nowhere is to anywhere"
        for to in (each for each in rule["to"] if "podSelector" in each):
            app = to["podSelector"]["matchLabels"]["app"]
            assert {each["port"] for each in rule["ports"]} <= set(listeners[app].values())


# --- coming and going -----------------------------------------------------------------------------


def test_there_is_time_for_what_runs(objects, tmp_path):
    server = settings(tmp_path).server
    gateway = pods(objects)["turnpike-gateway"]["spec"]
    assert gateway["terminationGracePeriodSeconds"] > server.shutdown_delay_s + server.drain_s
    probe = containers(objects)["turnpike-gateway"]["readinessProbe"]
    assert (
        server.shutdown_delay_s > probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    )
    assert server.shutdown_delay_s >= ServerConfig().shutdown_delay_s
    engine = pods(objects)["turnpike-engine"]["spec"]
    sleep, seconds = containers(objects)["turnpike-engine"]["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep" and engine["terminationGracePeriodSeconds"] > int(seconds)


def test_disruptions_leave_somebody(objects):
    budgets = {
        each["spec"]["selector"]["matchLabels"]["app"]: each["spec"]
        for each in objects
        if each["kind"] == "PodDisruptionBudget"
    }
    assert (
        budgets["turnpike-gateway"]["minAvailable"]
        < the(objects, "Deployment", "turnpike-gateway")["spec"]["replicas"]
    )
    assert budgets["turnpike-engine"]["maxUnavailable"] == 1
    assert set(budgets) <= set(pods(objects))


def test_engines_start_as_those_of_compose_do(objects):
    container = containers(objects)["turnpike-engine"]
    compose = shipped.compose()["services"]["engine-a"]
    assert sorted(container["args"]) == sorted(compose["command"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    home = {each["name"]: each.get("value") for each in container["env"]}["HOME"]
    assert home in {each["mountPath"] for each in container["volumeMounts"]}, "its root is read-only"


# --- the components -------------------------------------------------------------------------------


def test_what_is_scraped_is_a_gateway(objects, optional):
    spec = the(optional, "PodMonitor", "turnpike-gateway")["spec"]
    app = spec["selector"]["matchLabels"]["app"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["port"] in {each["name"] for each in containers(objects)[app]["ports"]}


def test_engines_follow_metrics_that_exist(objects, optional):
    spec = the(optional, "ScaledObject", "turnpike-engines")["spec"]
    assert the(objects, "Deployment", spec["scaleTargetRef"]["name"])
    (trigger,) = spec["triggers"]
    names = set(re.findall(r"turnpike_\w+", trigger["metadata"]["query"]))
    assert names and names <= set(exported())
    assert (
        spec["minReplicaCount"]
        == the(list(read(FOLDER)), "Deployment", "turnpike-engines")["spec"]["replicas"]
    )
