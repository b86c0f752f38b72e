#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usp topo: shipped files and written files obey their schemas, --json has its keys, errors exit with their code."""
import json
import pathlib
import subprocess
import sys

import jsonschema

usp, configs, data = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
schema = json.loads((configs / "schema/cluster.v2.schema.json").read_text())
jsonschema.Draft7Validator.check_schema(schema)
checker = jsonschema.Draft7Validator(schema)


def run(*arguments, code=0):
    done = subprocess.run([usp, "topo", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done


devices = json.loads((configs / "schema/devices.v2.schema.json").read_text())
jsonschema.validate(json.loads((configs / "devices/devices.json").read_text()), devices)
for preset in sorted((configs / "clusters").glob("*.json")):
    checker.validate(json.loads(preset.read_text()))
    checker.validate(json.loads(run(preset.stem, "-q", "-o", "-").stdout))

for text in sorted((data / "topo").glob("*.txt")):
    refused = text.name.startswith(("24_", "26_"))
    done = run(str(text), "--json", "-q", code=3 if refused else 0)
    if refused:
        assert text.name in done.stderr, done.stderr
        continue
    topo = json.loads(done.stdout)
    ids = [device["id"] for device in topo["devices"]]
    assert ids == list(range(len(ids))) and ids, text
    assert all(device["name"] is None for device in topo["devices"]), text
    assert all(link["a"] < link["b"] for link in topo["links"]), text
    assert sorted(sum(topo["islands"], [])) == ids, text
    checker.validate(json.loads(run(str(text), "-q", "-o", "-").stdout))

islands = json.loads(run(str(next((data / "topo").glob("28_*"))), "--json", "-q").stdout)["islands"]
assert islands == [[0, 1, 2, 3], [4, 5, 6, 7]], islands
run("no-such-cluster", code=3)
run("dgx-h100", "--device", "h1000", code=2)
run("dgx-h100", "--nods", "3", code=2)
run(code=2)
