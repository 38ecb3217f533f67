"""deploy/kubernetes: the manifests fit Kubernetes' schemas, each other, and Perch's processes."""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import requests
import yaml

from controlplane.deployment.supervision import programs_of
from tests.packaging.test_environment import documented
from tests.support.stack import ROOT, Stack

MANIFESTS = ROOT / "deploy" / "kubernetes"
SECOND_HOST = MANIFESTS / "examples" / "second-host"
# What the operator makes: docs/how-to/containers.md.
SECRET_KEYS = {"database-url", "secret-key"}


def kustomizations(directory: Path = MANIFESTS) -> Iterator[tuple[Path, Any]]:
    """Each directory with a kustomization, from the top."""
    read = yaml.safe_load((directory / "kustomization.yaml").read_text())
    yield directory, read
    for name in read["resources"]:
        if (directory / name).is_dir():
            yield from kustomizations(directory / name)


def objects() -> list[Any]:
    return [
        one
        for directory, read in kustomizations()
        for name in read["resources"]
        if (directory / name).is_file()
        for one in yaml.safe_load_all((directory / name).read_text())
    ]


def of_kind(kind: str) -> dict[str, Any]:
    return {one["metadata"]["name"]: one for one in objects() if one["kind"] == kind}


def pods() -> dict[str, Any]:
    """The template of each workload's pods, by the workload's name."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]
        for one in objects()
        if "template" in one.get("spec", {})
    }


def containers() -> list[Any]:
    return [one for pod in pods().values() for one in pod["spec"]["containers"]]


def port_of(container: Any, name: str) -> int:
    (number,) = (one["containerPort"] for one in container["ports"] if one["name"] == name)
    return int(number)


def test_every_file_is_listed() -> None:
    listed = {
        directory / name
        for directory, read in kustomizations()
        for name in ("kustomization.yaml", *read["resources"])
    }
    found = {path for path in MANIFESTS.rglob("*.yaml") if SECOND_HOST not in path.parents}
    assert {path for path in listed if path.is_file()} == found


def test_kubernetes_accepts_every_object() -> None:
    for one in objects():
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    broken = {**objects()[0], "metadate": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


def rendered(directory: Path) -> list[Any]:
    """What kubectl makes of the kustomization in the directory."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed (apt-get install kubernetes-client)")
    done = subprocess.run(["kubectl", "kustomize", directory], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_a_second_host_has_names_and_a_region_of_its_own() -> None:
    first, second = (
        {(one["kind"], one["metadata"]["name"]): one for one in rendered(directory)}
        for directory in (MANIFESTS, SECOND_HOST)
    )
    assert first.keys().isdisjoint(second.keys())
    (settings,) = (one["data"] for (kind, _), one in second.items() if kind == "ConfigMap")
    assert settings == {"PERCH_REGION": "eu", "PERCH_REGION_HOST": "eu.example.com"}
    host = second["StatefulSet", "host-eu"]["spec"]
    assert host["serviceName"] == "host-eu"
    labels = host["template"]["metadata"]["labels"]
    assert second["Service", "proxy-eu"]["spec"]["selector"].items() <= labels.items()
    assert not host["selector"]["matchLabels"].items() <= (
        first["StatefulSet", "host"]["spec"]["template"]["metadata"]["labels"].items()
    )


def test_each_container_runs_a_process_of_the_procfile() -> None:
    names = [one["args"] for one in containers()]
    assert all(len(args) == 1 for args in names)
    programs = {one.name for one in programs_of(ROOT / "Procfile")}
    assert {args[0] for args in names} == programs | {"release"}


def test_a_host_has_its_processes_in_one_pod_with_its_volume() -> None:
    host = of_kind("StatefulSet")["host"]["spec"]
    pod = host["template"]["spec"]
    assert host["replicas"] == 1
    assert pod["shareProcessNamespace"]
    assert [one["args"][0] for one in pod["containers"]] == ["worker", "proxy", "metrics"]
    (claim,) = host["volumeClaimTemplates"]
    for one in pod["containers"]:
        assert {"name": claim["metadata"]["name"], "mountPath": "/var/lib/perch"} in one[
            "volumeMounts"
        ]
    text = (MANIFESTS / "host" / "host.yaml").read_text()
    assert "IF THE POD RESTARTS, ALL COMPUTES OF THE HOST END" in text


def test_no_container_has_rights_of_root_or_writes_to_its_image() -> None:
    for pod in pods().values():
        account = pod["spec"]["securityContext"]
        assert account["runAsNonRoot"]
        assert account["runAsUser"] == account["fsGroup"] == 10001
        # The service `api` would set API_PORT to what gunicorn cannot read.
        assert pod["spec"]["enableServiceLinks"] is False
        assert pod["spec"]["automountServiceAccountToken"] is False
    for one in containers():
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_what_pods_and_services_name_exists() -> None:
    maps = {
        one["name"] for _, read in kustomizations() for one in read.get("configMapGenerator", ())
    }
    claims = of_kind("PersistentVolumeClaim")
    for name, pod in pods().items():
        own = of_kind("StatefulSet").get(name, {"spec": {}})["spec"].get("volumeClaimTemplates", ())
        volumes = {one["name"] for one in (*pod["spec"]["volumes"], *(c["metadata"] for c in own))}
        for volume in pod["spec"]["volumes"]:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or claim in claims
            secret = volume.get("secret")
            assert secret is None or {one["key"] for one in secret["items"]} <= SECRET_KEYS
        for one in pod["spec"]["containers"]:
            assert {mount["name"] for mount in one["volumeMounts"]} <= volumes
            assert {source["configMapRef"]["name"] for source in one.get("envFrom", ())} <= maps
            for variable in one["env"]:
                assert variable["name"] in documented()
                taken = variable.get("valueFrom", {}).get("secretKeyRef")
                assert taken is None or (taken["name"] == "perch" and taken["key"] in SECRET_KEYS)
    for service in of_kind("Service").values():
        (pod,) = (
            pod
            for pod in pods().values()
            if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        )
        named = {port["name"] for one in pod["spec"]["containers"] for port in one.get("ports", ())}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= named
    for name, one in of_kind("StatefulSet").items():
        assert of_kind("Service")[one["spec"]["serviceName"]]["spec"]["clusterIP"] == "None", name


def test_settings_are_variables_of_perch_and_lead_to_its_services() -> None:
    settings = dict(
        line.split("=", 1)
        for _, read in kustomizations()
        for one in read["configMapGenerator"]
        for line in one["literals"]
    )
    assert settings.keys() <= documented().keys()
    address = re.fullmatch(r"http://(\w+):(\d+)/api/v2", settings["MANAGEMENT_API_URL"])
    assert address is not None
    (port,) = of_kind("Service")[address[1]]["spec"]["ports"]
    assert port["port"] == int(address[2])


def test_ports_are_those_on_which_the_processes_listen_by_default() -> None:
    ports = {
        one["args"][0]: port["containerPort"]
        for one in containers()
        for port in one.get("ports", ())
    }
    procfile = (ROOT / "Procfile").read_text()
    assert f"${{API_PORT:-{ports['api']}}}" in procfile
    assert f"${{PORT:-{ports['web']}}}" in procfile
    assert documented()["PERCH_PROXY_PORT"].strip() == f"`{ports['proxy']}`"
    image = (ROOT / "deploy" / "oci" / "Containerfile").read_text()
    assert f"PERCH_METRICS_LISTEN=0.0.0.0:{ports['metrics']}" in image


def test_every_probe_is_answered_by_its_process(stack: Stack) -> None:
    figures = (stack.state_dir / "metrics-address").read_text().removesuffix("/metrics\n")
    addresses = {
        "api": stack.api_url.removesuffix("/api/v2"),
        "web": stack.console_url,
        "metrics": figures,
    }
    asked = set()
    for one in containers():
        process = one["args"][0]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = one.get(kind, {})
            if "httpGet" in probe:
                assert port_of(one, probe["httpGet"]["port"])
                url = addresses[process] + probe["httpGet"]["path"]
                assert requests.get(url, timeout=10).status_code == 200, url
                asked.add((process, probe["httpGet"]["path"]))
            elif "tcpSocket" in probe:
                assert port_of(one, probe["tcpSocket"]["port"])
                assert process == "proxy"
                socket.create_connection(("127.0.0.1", stack.proxy_port), 10).close()
                asked.add((process, ""))
    assert asked == {
        *(("api", "/livez"), ("api", "/readyz"), ("web", "/healthz")),
        *(("metrics", "/metrics"), ("proxy", "")),
    }
