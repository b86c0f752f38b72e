# SPDX-License-Identifier: Apache-2.0
"""usp model --json against its schema, over every shipped preset and every test config.

Usage: model_json_test.py USP SCHEMA PRESET_DIR CONFIG_DIR
"""
import json
import pathlib
import subprocess
import sys

import jsonschema


def main() -> None:
    usp, schema_path, presets, configs = sys.argv[1:]
    schema = json.loads(pathlib.Path(schema_path).read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    names = [path.stem for path in sorted(pathlib.Path(presets).glob("*.json"))]
    files = [str(path) for path in sorted(pathlib.Path(configs).glob("*.json"))]
    assert len(names) >= 15 and len(files) >= 19, (names, files)
    for name in names + files:
        run = subprocess.run([usp, "model", name, "--json"], capture_output=True, text=True)
        if "llm-analysis" in name:
            assert run.returncode == 3 and "hidden_dim" in run.stderr, (name, run)
            assert json.loads(run.stdout)["format"] == "usp.error", (name, run)
            continue
        assert run.returncode == 0, (name, run)
        document = json.loads(run.stdout)
        validator.validate(document)
        layers = sorted(layer for kind in document["layer_kinds"] for layer in kind["layers"])
        assert layers == list(range(document["layers"])), name
        text = subprocess.run([usp, "model", name], capture_output=True, text=True)
        assert text.returncode == 0 and "even Ulysses degrees" in text.stdout, (name, text)
    piped = subprocess.run([usp, "model", "-", "--json"], input="{", capture_output=True, text=True)
    assert piped.returncode == 3 and "-:1" in piped.stderr, piped
    assert subprocess.run([usp, "model"], capture_output=True).returncode == 2


if __name__ == "__main__":
    main()
