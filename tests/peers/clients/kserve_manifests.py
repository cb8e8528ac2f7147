"""Checks the manifests of packaging/kubernetes/kserve by the classes of KServe's client, strictly: no field that a class does not have, and
each value of its type. usage: kserve_manifests.py CHECKOUT. It says "ok" in the end.
"""
import re
import sys
from pathlib import Path

import kserve
import kubernetes.client
import pydantic
import yaml

FOLDER = Path(sys.argv[1]) / "packaging" / "kubernetes" / "kserve"
PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}


def main():
    runtime, = load("runtime.yaml")
    services = load("inference-services.yaml")
    check(runtime, "V1alpha1ClusterServingRuntime", "runtime")
    for service in services:
        check(service, "V1beta1InferenceService", service["metadata"]["name"])
    try:
        check({"spec": {"unknown": 1}}, "V1alpha1ClusterServingRuntime", "runtime")
    except AssertionError:
        pass
    else:
        raise AssertionError("the check is not strict")

    container, = runtime["spec"]["containers"]
    assert container["name"] == "kserve-container", "KServe finds the container by this name"
    formats = {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
    for service in services:
        model = service["spec"]["predictor"]["model"]
        assert model["runtime"] == runtime["metadata"]["name"]
        assert model["modelFormat"]["name"] in formats and model["protocolVersion"] in runtime["spec"]["protocolVersions"]
        for port in model.get("ports", container["ports"]):
            assert any(f"127.0.0.1:{port['containerPort']}" in argument for argument in container["args"])
    print("ok")


def load(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def check(value, kind, place):
    """KIND is a type in the notation of the generated classes: a class, list[KIND] or dict(str, KIND)."""
    if found := re.fullmatch(r"list\[(.*)\]", kind):
        assert isinstance(value, list), f"{place} is no list"
        for index, item in enumerate(value):
            check(item, found[1], f"{place}[{index}]")
    elif found := re.fullmatch(r"dict\(\w+, (.*)\)", kind):
        assert isinstance(value, dict), f"{place} is no map"
        for key, item in value.items():
            check(item, found[1], f"{place}.{key}")
    elif kind in PLAIN:
        assert isinstance(value, PLAIN[kind]) and not (kind == "int" and isinstance(value, bool)), f"{place} is not of type {kind}"
    elif model := getattr(kubernetes.client, kind, None):
        # These classes refuse unknown fields and wrong types themselves.
        try:
            model.model_validate(value)
        except pydantic.ValidationError as error:
            raise AssertionError(f"{place}: {error}") from error
    else:
        model = getattr(kserve, kind)
        assert isinstance(value, dict), f"{place} is no {kind}"
        attributes = {name: attribute for attribute, name in model.attribute_map.items()}
        for key, item in value.items():
            assert key in attributes, f"{place}: {kind} has no {key}"
            check(item, model.openapi_types[attributes[key]], f"{place}.{key}")
        try:
            # The constructor refuses a missing field that is required.
            model(**{attributes[key]: item for key, item in value.items()})
        except ValueError as error:
            raise AssertionError(f"{place}: {error}") from error



main()
