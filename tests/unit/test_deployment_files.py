"""The files for deployment: fields that exist, of the right type, and names that fit together.

The schema is the part of the Kubernetes API (apps/v1, v1, autoscaling/v2, policy/v1,
networking.k8s.io/v1) that the example uses, strictly: a field that is not in it is an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
yaml = pytest.importorskip("yaml", reason="reads YAML")

import typer  # noqa: E402

from regard.cli.serve import serve  # noqa: E402
from regard.serve.app import State, create_app  # noqa: E402
from regard.serve.metrics import Metrics  # noqa: E402

DEPLOY = Path(__file__).parents[2] / "deploy"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text("utf-8")))


# A schema is a type, a set of values, a pattern, [schema of each item], or the fields of an object;
# * marks a field that must be there, and a single field "…" stands for any names.
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
CPU = re.compile(r"[0-9]+m?|[0-9]+\.[0-9]+")
MEMORY = re.compile(r"[0-9]+(Ki|Mi|Gi|Ti)?")
LABELS = {"…": str}
AMOUNTS = {"cpu": CPU, "memory": MEMORY}
METADATA = {"name*": NAME, "labels": LABELS}
SELECTOR = {"matchLabels*": LABELS}
PROBE = {
    "httpGet*": {"path*": re.compile("/.*"), "port*": NAME},
    "periodSeconds": int,
    "timeoutSeconds": int,
    "failureThreshold": int,
}
CONTAINER = {
    "name*": NAME,
    "image*": str,
    "command": [str],
    "args": [str],
    "env": [{"name*": str, "value": str}],
    "ports": [{"name": NAME, "containerPort*": int}],
    "startupProbe": PROBE,
    "readinessProbe": PROBE,
    "livenessProbe": PROBE,
    "lifecycle": {"preStop": {"exec": {"command*": [str]}}},
    "resources": {"requests": AMOUNTS, "limits": AMOUNTS},
    "securityContext": {
        "allowPrivilegeEscalation": bool,
        "readOnlyRootFilesystem": bool,
        "capabilities": {"drop": [str]},
    },
    "volumeMounts": [{"name*": NAME, "mountPath*": re.compile("/.*"), "readOnly": bool}],
}
POD = {
    "automountServiceAccountToken": bool,
    "terminationGracePeriodSeconds": int,
    "securityContext": {
        "runAsNonRoot": bool,
        "runAsUser": int,
        "runAsGroup": int,
        "fsGroup": int,
        "seccompProfile": {"type*": {"RuntimeDefault", "Unconfined", "Localhost"}},
    },
    "containers*": [CONTAINER],
    "volumes": [
        {
            "name*": NAME,
            "persistentVolumeClaim": {"claimName*": NAME, "readOnly": bool},
            "secret": {"secretName*": NAME, "defaultMode": int},
            "emptyDir": {"sizeLimit": MEMORY},
        }
    ],
}
KINDS: dict[str, tuple[str, Any]] = {
    "Deployment": (
        "apps/v1",
        {
            "replicas": int,
            "selector*": SELECTOR,
            "strategy": {
                "type": {"Recreate", "RollingUpdate"},
                "rollingUpdate": {"maxUnavailable": int, "maxSurge": int},
            },
            "template*": {"metadata*": {"labels*": LABELS}, "spec*": POD},
        },
    ),
    "Service": (
        "v1",
        {"selector": LABELS, "ports*": [{"name": NAME, "port*": int, "targetPort": NAME}]},
    ),
    "HorizontalPodAutoscaler": (
        "autoscaling/v2",
        {
            "scaleTargetRef*": {"apiVersion": str, "kind*": str, "name*": NAME},
            "minReplicas": int,
            "maxReplicas*": int,
            "metrics": [
                {
                    "type*": {"Resource"},
                    "resource": {
                        "name*": {"cpu", "memory"},
                        "target*": {
                            "type*": {"Utilization", "Value", "AverageValue"},
                            "averageUtilization": int,
                        },
                    },
                }
            ],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": int}},
        },
    ),
    "PodDisruptionBudget": ("policy/v1", {"minAvailable": int, "selector": SELECTOR}),
    "NetworkPolicy": (
        "networking.k8s.io/v1",
        {"podSelector*": SELECTOR, "policyTypes": [{"Ingress", "Egress"}], "egress": []},
    ),
}


def faults(value: Any, schema: Any, where: str) -> list[str]:
    """What is wrong with a value."""
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{where}: not a list"]
        if not schema:
            return [f"{where}: not empty"] if value else []
        return [
            text
            for i, item in enumerate(value)
            for text in faults(item, schema[0], f"{where}[{i}]")
        ]
    if isinstance(schema, dict):
        return _object_faults(value, schema, where)
    if isinstance(schema, set):
        fits = isinstance(value, str) and value in schema
    elif isinstance(schema, re.Pattern):
        fits = isinstance(value, str) and schema.fullmatch(value) is not None
    else:
        fits = type(value) is schema
    return [] if fits else [f"{where}: {value!r}"]


def _object_faults(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where}: not an object"]
    if "…" in schema:
        return [text for name in value for text in faults(value[name], schema["…"], where)]
    known = {name.rstrip("*"): part for name, part in schema.items()}
    required = [name.rstrip("*") for name in schema if name.endswith("*")]
    problems = [f"{where}: no {name}" for name in required if name not in value]
    for name, part in value.items():
        if name in known:
            problems += faults(part, known[name], f"{where}.{name}")
        else:
            problems.append(f"{where}: no field {name}")
    return problems


def object_faults(document: dict[str, Any]) -> list[str]:
    kind = document.get("kind")
    if kind not in KINDS:
        return [f"unknown kind {kind}"]
    version, spec = KINDS[kind]
    whole = {"apiVersion*": {version}, "kind*": {kind}, "metadata*": METADATA, "spec*": spec}
    return faults(document, whole, kind)


@pytest.fixture
def kubernetes() -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in documents("kubernetes.yaml")}


def test_the_objects_of_kubernetes_are_valid():
    objects = documents("kubernetes.yaml")
    assert sorted(document["kind"] for document in objects) == sorted(KINDS)
    assert [text for document in objects for text in object_faults(document)] == []


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("spec", "template", "spec", "restart"), "Always", "no field restart"),
        (("spec", "selector"), None, "selector: not an object"),
        (("spec", "replicas"), "2", "replicas: '2'"),
        (("apiVersion",), "extensions/v1beta1", "apiVersion: 'extensions/v1beta1'"),
        (("metadata", "name"), "Regard", "name: 'Regard'"),
        (("spec", "template", "spec", "containers", 0, "args"), [8000], "args[0]: 8000"),
    ],
)
def test_what_is_invalid_is_found(
    kubernetes: dict[str, dict[str, Any]], path: tuple[Any, ...], value: Any, fault: str
):
    part: Any = kubernetes["Deployment"]
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    (problem,) = object_faults(kubernetes["Deployment"])
    assert fault in problem


def test_the_names_of_kubernetes_fit_together(kubernetes: dict[str, dict[str, Any]]):
    deployment = kubernetes["Deployment"]
    pod = deployment["spec"]["template"]
    labels = pod["metadata"]["labels"].items()
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        kubernetes["Service"]["spec"]["selector"],
        kubernetes["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        kubernetes["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector and selector.items() <= labels
    target = kubernetes["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target["apiVersion"] == deployment["apiVersion"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    (container,) = pod["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert kubernetes["Service"]["spec"]["ports"][0]["targetPort"] in ports
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    key = container["args"][container["args"].index("--key-file") + 1]
    assert any(key.startswith(mount["mountPath"] + "/") for mount in container["volumeMounts"])
    replicas = deployment["spec"]["replicas"]
    scaling = kubernetes["HorizontalPodAutoscaler"]["spec"]
    assert kubernetes["PodDisruptionBudget"]["spec"]["minAvailable"] < replicas
    assert scaling["minReplicas"] <= replicas <= scaling["maxReplicas"]


def test_probes_ask_what_the_server_answers(kubernetes: dict[str, dict[str, Any]]):
    (container,) = kubernetes["Deployment"]["spec"]["template"]["spec"]["containers"]
    routes = {getattr(route, "path", "") for route in create_app({}, Metrics(), State()).routes}
    ports = {port["name"] for port in container["ports"]}
    probes = [container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")]
    assert [probe["httpGet"]["path"] for probe in probes] == ["/ready", "/ready", "/health"]
    for probe in probes:
        assert probe["httpGet"]["path"] in routes and probe["httpGet"]["port"] in ports


def options_of_serve() -> set[str]:
    app = typer.Typer()
    app.command()(serve)
    return {name for option in typer.main.get_command(app).params for name in option.opts}


def test_containers_are_started_with_options_that_exist(kubernetes: dict[str, dict[str, Any]]):
    (container,) = kubernetes["Deployment"]["spec"]["template"]["spec"]["containers"]
    (compose,) = documents("compose.yaml")
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", dockerfile, re.MULTILINE)
    entry = yaml.safe_load(entry)
    assert entry[:2] == ["regard", "serve"]
    for arguments in (entry, container["args"], compose["services"]["regard-1"]["command"]):
        options = {word for word in arguments if word.startswith("--")}
        assert options and options <= options_of_serve()
    port = int(entry[entry.index("--port") + 1])
    assert container["ports"][0]["containerPort"] == port
    upstream = (DEPLOY / "upstream.conf").read_text("utf-8")
    servers = re.findall(r"^ *server (\S+):(\d+) ", upstream, re.MULTILINE)
    assert {int(number) for _, number in servers} == {port}


def test_the_services_of_compose_fit_together():
    (compose,) = documents("compose.yaml")
    services = compose["services"]
    upstream = (DEPLOY / "upstream.conf").read_text("utf-8")
    behind = set(re.findall(r"^ *server (\S+):", upstream, re.MULTILINE))
    assert behind == set(services["nginx"]["depends_on"]) == set(services) - {"nginx"}
    assert len(behind) == 2
    for service in services.values():
        assert set(service["networks"]) <= set(compose["networks"])
        assert set(service.get("secrets", ())) <= set(compose["secrets"])
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
    for volume in services["nginx"]["volumes"]:
        source, _, mode = volume.split(":")
        assert (DEPLOY / source).is_file() and mode == "ro"
    build = services["regard-1"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
