#!/usr/bin/env python3
"""Writes the types of the HTTP API for the page, as TypeScript declares them, from `src/http/openapi.json`.

usage: api.py > api.d.ts      then `Api.Key` is the schema Key, and `Api.Answers['/keys']` what `GET /keys` answers

A schema without a shape is `any`.
"""
import json
import re
from pathlib import Path

SPEC = Path(__file__).resolve().parents[3] / "src/http/openapi.json"
PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def type_of(schema):
    if not schema:
        return "any"
    if "$ref" in schema:
        name, *members = schema["$ref"].removeprefix("#/components/schemas/").split("/")
        return f"Api.{name}" + "".join(f"[{json.dumps(one)}]" for one in members if one != "properties")
    for key, sign in (("oneOf", " | "), ("anyOf", " | "), ("allOf", " & ")):
        if key in schema:
            return "(" + sign.join(type_of(one) for one in schema[key]) + ")"
    if "const" in schema or "enum" in schema:
        return "(" + " | ".join(json.dumps(one) for one in schema.get("enum", [schema.get("const")])) + ")"
    kind = schema.get("type")
    if isinstance(kind, list):
        return "(" + " | ".join(type_of({**schema, "type": one}) for one in kind) + ")"
    if kind == "array":
        return f"{type_of(schema.get('items'))}[]"
    if kind == "object" or "properties" in schema:
        return object_of(schema)
    return PLAIN.get(kind, "any")


def object_of(schema):
    required = schema.get("required", [])
    members = [f"{json.dumps(name)}{'' if name in required else '?'}: {type_of(of)};" for name, of in schema.get("properties", {}).items()]
    more = schema.get("additionalProperties", not members)
    if more and not members:
        return f"{{ [name: string]: {type_of(more if isinstance(more, dict) else None)} }}"
    return "{ " + " ".join(members) + " }"


def answers(paths):
    for path, methods in paths.items():
        for status in ("200", "201"):
            content = methods.get("get", {}).get("responses", {}).get(status, {}).get("content", {})
            if "application/json" in content and not re.search(r"\{", path):
                yield path, type_of(content["application/json"].get("schema"))


def main():
    spec = json.loads(SPEC.read_text())
    print("declare namespace Api {")
    for name, schema in spec["components"]["schemas"].items():
        print(f"  type {name} = {type_of(schema)};")
    print("  interface Answers {")
    for path, answer in answers(spec["paths"]):
        print(f"    {json.dumps(path)}: {answer};")
    print("  }\n}")


if __name__ == "__main__":
    main()
