#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the draft-07 schemas of configs/schema, and by them the shipped files and what the verbs print.

- every schema is valid draft-07, has a title, and says of each object it describes whether further keys are
  allowed ("additionalProperties"), because an unknown key is an error in this project's own files;
- from version 2 on every property is described, by itself or by the definition that it refers to, and no key ends in
  a unit beside SI base units and bytes;
- every configs/*/*.json fits the schema of its format and version ("format": "usp.cluster", "version": 1 is
  cluster.v1.schema.json; without a format the folder tells); configs/models holds Hugging Face configs, which
  have none;
- every tests/data/plan_requests/*.json fits the schema of plan requests, and no longer with a further key in one of its
  objects;
- with --usp and --cases: the cases of tests/cli that name a schema ({"args": [...], "schema": "<file>"}); the JSON each
  prints on stdout fits it, and what a planned step echoes is a plan request. {source}, {configs} and {data} in an
  argument are folders. Every verb has such a case.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import jsonschema

# Folders below configs whose JSON files are not in a format of this project.
FOREIGN = {"models", "schema", "cmake"}
NESTED = ("properties", "patternProperties", "definitions")
FOREIGN_UNITS = ("_ms", "_us", "_ns", "_kb", "_mb", "_gb", "_kib", "_mib", "_gib", "_gb_s", "_gib_s", "_gflops", "_tflops",
                 "_gflop_s", "_tflop_s", "_percent")
# Verbs that refuse --json.
PRINT_NO_JSON = {"completion", "man"}
TIMEOUT_S = 60
# A step's result echoes its request.
PLAN_RESULT, PLAN_REQUEST = "plan_result.v2.schema.json", "plan_request.v2.schema.json"


def refuse_constant(name):
    raise ValueError(f"{name} is no JSON")


def refuse_duplicates(pairs):
    keys = [key for key, _ in pairs]
    repeated = {key for key in keys if keys.count(key) > 1}
    if repeated:
        raise ValueError(f"repeated keys {sorted(repeated)}")
    return dict(pairs)


def load(text):
    return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=refuse_duplicates)


def open_objects(schema, path="#"):
    """Paths of the described objects that leave further keys unmentioned."""
    if isinstance(schema, list):
        return [found for i, item in enumerate(schema) for found in open_objects(item, f"{path}/{i}")]
    if not isinstance(schema, dict):
        return []
    found = [path] if "properties" in schema and "additionalProperties" not in schema else []
    for key, value in schema.items():
        if key in NESTED:
            for name, nested in value.items():
                found += open_objects(nested, f"{path}/{key}/{name}")
        elif key not in ("enum", "const", "default", "examples"):
            found += open_objects(value, f"{path}/{key}")
    return found


def properties_of(schema, path="#"):
    """(path, name, schema) of every property, at any depth."""
    if isinstance(schema, list):
        for i, item in enumerate(schema):
            yield from properties_of(item, f"{path}/{i}")
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in NESTED:
            for name, nested in value.items():
                if key == "properties":
                    yield f"{path}/{key}/{name}", name, nested
                yield from properties_of(nested, f"{path}/{key}/{name}")
        elif key not in ("enum", "const", "default", "examples"):
            yield from properties_of(value, f"{path}/{key}")


def target(root, reference):
    """The schema that a reference within the document points to; None where it points nowhere."""
    if not reference.startswith("#/"):
        return None
    node = root
    for part in reference[2:].split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or part not in node:
            return None
        node = node[part]
    return node


def is_described(root, schema):
    """By its own description, or by that of what it refers to."""
    seen = []
    while isinstance(schema, dict):
        if schema.get("description"):
            return True
        reference = schema.get("$ref")
        if reference is None or reference in seen:
            return False
        seen.append(reference)
        schema = target(root, reference)
    return False


def version_of(schema):
    version = schema.get("properties", {}).get("version", {})
    return version.get("const", 0) if isinstance(version, dict) else 0


def check_properties(schema):
    """Faults of the properties of a schema from version 2 on."""
    faults = []
    for path, name, nested in properties_of(schema):
        if not is_described(schema, nested):
            faults.append(f"{path}: has no description")
        if f"_{name}".endswith(FOREIGN_UNITS):
            faults.append(f"{path}: ends in a unit that is neither an SI base unit nor bytes")
    return faults


def check_schema(schema):
    """Faults of one schema document."""
    try:
        jsonschema.Draft7Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        return [f"no draft-07 schema: {error.message}"]
    faults = [f"{path}: says nothing about additionalProperties" for path in open_objects(schema)]
    if schema.get("$schema") != "http://json-schema.org/draft-07/schema#":
        faults.append('"$schema" does not name draft-07')
    if not schema.get("title"):
        faults.append("has no title")
    if version_of(schema) >= 2:
        faults += check_properties(schema)
    return faults


def check_document(document, schema):
    """Faults of one document by a schema."""
    errors = jsonschema.Draft7Validator(schema).iter_errors(document)
    return [f"/{'/'.join(str(key) for key in error.absolute_path)}: {error.message[:300]}" for error in errors]


def load_schemas(folder):
    """({name: schema}, faults)"""
    schemas, faults = {}, []
    for file in sorted(folder.glob("*.json")):
        try:
            schemas[file.name] = load(file.read_text())
            faults += [f"{file.name}: {fault}" for fault in check_schema(schemas[file.name])]
        except ValueError as error:
            faults.append(f"{file.name}: {error}")
    return schemas, faults


def schema_name(document, folder):
    """The schema file of a document: by its "format", else by the folder that holds it."""
    if not isinstance(document, dict):
        document = {}
    kind = str(document.get("format", "usp." + folder.removesuffix("s"))).removeprefix("usp.")
    return f"{kind}.v{document.get('version')}.schema.json"


def check_file(file, schemas):
    try:
        document = load(file.read_text())
    except ValueError as error:
        return [str(error)]
    name = schema_name(document, file.parent.name)
    if name not in schemas:
        return [f"needs configs/schema/{name}, which does not exist"]
    return check_document(document, schemas[name])


def check_files(configs, schemas):
    """(faults, how many files were read)"""
    files = sorted(file for file in configs.glob("*/*.json") if file.parent.name not in FOREIGN)
    faults = [f"{file.parent.name}/{file.name}: {fault}" for file in files for fault in check_file(file, schemas)]
    return faults, len(files)


def objects_of(value, path=""):
    """(path, object) of the objects of a document, at any depth."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from objects_of(item, f"{path}/{i}")
    if isinstance(value, dict):
        yield path, value
        for key, nested in value.items():
            yield from objects_of(nested, f"{path}/{key}")


def check_requests(folder, schema):
    """(faults, how many files were read)"""
    files, faults = sorted(folder.glob("*.json")), []
    for file in files:
        document = load(file.read_text())
        faults += [f"{file.name}: {fault}" for fault in check_document(document, schema)]
        for path, nested in list(objects_of(document)):
            nested["unknown_key"] = None
            if not check_document(document, schema):
                faults.append(f"{file.name}: an unknown key in {path or '/'} fits the schema")
            del nested["unknown_key"]
    return faults, len(files)


def described_cases(folder):
    return [case for file in sorted(folder.glob("*.json")) for case in load(file.read_text()) if "schema" in case]


def verbs_of(usp):
    text = subprocess.run([str(usp), "--help"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout
    return [line.split()[0] for line in text.split("Subcommands:")[1].split("\n\n")[0].splitlines() if re.match(r"  \S", line)]


def check_verbs(verbs, entries):
    """Verbs whose JSON no case checks."""
    checked = {entry["args"][0] for entry in entries}
    return [f"usp {verb}: no case of tests/cli/cases names a schema" for verb in verbs
            if verb not in checked and verb not in PRINT_NO_JSON]


def check_output(usp, entry, source, schemas):
    folders = {"source": source, "configs": source / "configs", "data": source / "tests" / "data"}
    args = entry["args"]
    for name, folder in folders.items():
        args = [arg.replace("{" + name + "}", str(folder)) for arg in args]
    label = "usp " + " ".join(entry["args"])
    if entry["schema"] not in schemas:
        return [f"{label}: no schema {entry['schema']}"]
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([str(usp)] + args, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
                             cwd=folder)
    if run.returncode != entry.get("exit", 0):
        return [f"{label}: exit {run.returncode}: {run.stderr.strip()[:500]}"]
    try:
        document = load(run.stdout)
    except ValueError as error:
        return [f"{label}: {error}"]
    faults = check_document(document, schemas[entry["schema"]])
    if entry["schema"] == PLAN_RESULT:
        faults += [f"/request{fault}" for fault in check_document(document["request"], schemas[PLAN_REQUEST])]
    return [f"{label}: {fault}" for fault in faults]


def main():
    parser = argparse.ArgumentParser(description="Check schemas, shipped files and printed JSON.")
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--usp", type=pathlib.Path)
    parser.add_argument("--cases", type=pathlib.Path)
    args = parser.parse_args()
    configs = args.source / "configs"
    schemas, faults = load_schemas(configs / "schema")
    if args.usp:
        entries, usp = described_cases(args.cases), args.usp.resolve()
        checked = len(entries)
        faults += check_verbs(verbs_of(usp), entries)
        for entry in entries:
            faults += check_output(usp, entry, args.source.resolve(), schemas)
    else:
        found, checked = check_files(configs, schemas)
        requests, requested = check_requests(args.source / "tests" / "data" / "plan_requests", schemas[PLAN_REQUEST])
        faults += found + requests
        checked += requested
    for fault in faults:
        print(fault)
    print(f"{len(schemas)} schemas and {checked} documents checked, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
