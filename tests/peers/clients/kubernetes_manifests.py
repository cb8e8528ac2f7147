"""Checks the manifests of packaging/kubernetes strictly: by the schemas of Kubernetes and of the Prometheus Operator, and what they say of each
other. usage: kubernetes_manifests.py CHECKOUT KUSTOMIZE, where KUSTOMIZE is the program. It says "ok" in the end.
"""
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import kubernetes_validate
import yaml
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator

# The oldest with all fields, and the newest.
VERSIONS = ("1.30", "1.37")
CHECKOUT, KUSTOMIZE = Path(sys.argv[1]), sys.argv[2]
FOLDER = CHECKOUT / "packaging" / "kubernetes"


def main():
    base, replicas = render("base"), render("replicas")
    monitored = render("replicas", "monitoring")
    for manifests in (base, replicas, monitored):
        for manifest in manifests.values():
            check_schema(manifest)
        check_pod(manifests)
    assert refused({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"unknown": 1}}), "the schemas are not strict"

    assert base["Deployment"]["spec"]["replicas"] == 1
    assert base["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    assert base["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert "PersistentVolumeClaim" not in replicas and "PodDisruptionBudget" in replicas
    assert replicas["Deployment"]["spec"]["strategy"]["type"] == "RollingUpdate"
    check_monitoring(monitored)
    print("ok")


def render(name, *components):
    """The manifests of a folder with components, by their kinds."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        kustomization = {"resources": [f"../{name}"], "components": [f"../{component}" for component in components]}
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        text = subprocess.run([KUSTOMIZE, "build", folder], check=True, stdout=subprocess.PIPE, text=True).stdout
    manifests = list(yaml.safe_load_all(text))
    by_kind = {manifest["kind"]: manifest for manifest in manifests}
    assert len(by_kind) == len(manifests), f"two manifests of one kind in {name}"
    return by_kind


def check_schema(manifest):
    if manifest["apiVersion"].startswith("monitoring.coreos.com/"):
        # The classes drop unknown fields, so compare with what went in.
        model = getattr(prometheus_operator, manifest["kind"]).model_validate(manifest)
        known = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
        assert known == manifest, f"{manifest['kind']} has fields that the operator does not know"
    else:
        for version in VERSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)


def refused(manifest):
    try:
        check_schema(manifest)
    except kubernetes_validate.ValidationError:
        return True
    return False


def check_pod(manifests):
    """The pod is confined, and what names another part of it, or another manifest, names one that is there."""
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    container, = pod["containers"]
    user = int(re.search(r"^USER = (\d+)$", (CHECKOUT / "packaging/image/__main__.py").read_text(), re.MULTILINE)[1])
    security = pod["securityContext"]
    assert security["runAsNonRoot"] and {security[key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {user}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "privileged": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert not pod["automountServiceAccountToken"]
    assert container["resources"]["requests"] == container["resources"]["limits"], "only then the kubelet gives cores to the pod alone"

    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == volumes.keys()
    assert volumes["configuration"]["configMap"]["name"] == manifests["ConfigMap"]["metadata"]["name"]

    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in (("startupProbe", "live"), ("livenessProbe", "live"), ("readinessProbe", "ready")):
        assert container[probe]["httpGet"] == {"path": f"/v2/health/{path}", "port": "https", "scheme": "HTTPS"}
    for port in manifests["Service"]["spec"]["ports"]:
        assert ports[port["targetPort"]] == port["port"]
    allowed = {port["port"] for rule in manifests["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]}
    assert allowed == ports.keys()

    settings = tomllib.loads(manifests["ConfigMap"]["data"]["ledge.toml"])
    listen = [address for section in ("http", "grpc") for address in settings[section]["listen"] if address.startswith("https://")]
    assert {int(address.rsplit(":", 1)[1]) for address in listen} == set(ports.values())
    for key in ("certificate_file", "key_file", "client_ca_file"):
        assert os.path.dirname(settings["http"]["tls"][key]) in mounts

    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [manifests["Deployment"]["spec"]["selector"]["matchLabels"], manifests["Service"]["spec"]["selector"],
                 manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]]
    if "PodDisruptionBudget" in manifests:
        selectors.append(manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"])
    assert all(selector == {"app.kubernetes.io/name": "ledge"} for selector in selectors) and selectors[0].items() <= labels.items()


def check_monitoring(manifests):
    """The rules are those of Prometheus itself, and they find what the monitor scrapes."""
    sys.path.insert(0, str(FOLDER / "monitoring"))
    import rules

    written = (FOLDER / "monitoring" / "prometheus-rule.yaml").read_text()
    assert written == rules.prometheus_rule(), "run packaging/kubernetes/monitoring/rules.py"
    assert manifests["PrometheusRule"]["spec"] == yaml.safe_load(rules.RULES.read_text())
    monitor, service = manifests["ServiceMonitor"]["spec"], manifests["Service"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "ledge" and 'job="ledge"' in written
    endpoint, = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


main()
