#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the usp command line by tables of cases and compares what it prints.

A table is a JSON array of cases:
  name        what the case shows
  args        arguments; {configs}, {data}, {source} are folders, {tmp} is a fresh one shared by the table
  stdin       text for standard input (default: none)
  exit        expected exit code (default 0)
  stdout      substrings that standard output holds;  not_stdout: that it does not hold
  stderr      the same for standard error;            not_stderr
  json        {"path": value}: stdout is one JSON document and the value at the dotted path (list indices are
              numbers) equals it; "exists", "absent", "null" in {"is": ...} test presence instead
  files       files the run must have written (placeholders allowed)
  schema      file of configs/schema that describes stdout; checked by tests/schema, which runs the case alone

For every case: no signal, no hang; a failing run explains itself on stderr and prints nothing on
stdout, or under --json a document of format usp.error, unless the case expects something else.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

KEYS = {"name", "args", "stdin", "exit", "stdout", "not_stdout", "stderr", "not_stderr", "json", "files",
        "schema"}
TIMEOUT_S = 200
ABSENT = object()


def expand(text, folders):
    for name, folder in folders.items():
        text = text.replace("{" + name + "}", str(folder))
    return text


def refuse_constant(name):
    raise ValueError(f"{name} is no JSON")


def lookup(document, path):
    value = document
    for key in path.split(".") if path else []:
        if isinstance(value, list) and key.lstrip("-").isdigit() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            return ABSENT
    return value


def check_value(path, value, wanted):
    if isinstance(wanted, dict) and set(wanted) == {"is"}:
        kinds = {"exists": value is not ABSENT, "absent": value is ABSENT, "null": value is None}
        return [] if kinds[wanted["is"]] else [f"json {path}: not {wanted['is']}"]
    if value is ABSENT:
        return [f"json {path}: missing"]
    return [] if value == wanted and type(value) is type(wanted) else [f"json {path}: {value!r}, not {wanted!r}"]


def check_json(text, wanted):
    try:
        document = json.loads(text, parse_constant=refuse_constant)
    except ValueError as error:
        return [f"stdout is not one JSON document: {error}"]
    return [fault for path, value in wanted.items() for fault in check_value(path, lookup(document, path), value)]


def check_streams(case, out, err, folders):
    faults = []
    for stream, text in (("stdout", out), ("stderr", err)):
        for part in case.get(stream, []):
            if expand(part, folders) not in text:
                faults.append(f"{stream} lacks {part!r}")
        for part in case.get("not_" + stream, []):
            if expand(part, folders) in text:
                faults.append(f"{stream} holds {part!r}")
    return faults


def check_failure(run, as_json):
    """A failing run prints nothing on stdout; under --json why it failed."""
    if not as_json:
        return ["a failing run printed on stdout, which the case does not expect"] if run.stdout else []
    return check_json(run.stdout, {"format": "usp.error", "exit_code": run.returncode, "problem": {"is": "exists"}})


def run_case(usp, case, folders):
    """Returns (faults, stdout, stderr)."""
    unknown = set(case) - KEYS
    if unknown:
        return [f"unknown keys in the case: {sorted(unknown)}"], "", ""
    command = [str(usp)] + [expand(arg, folders) for arg in case["args"]]
    try:
        run = subprocess.run(command, input=case.get("stdin", ""), capture_output=True, text=True,
                             timeout=TIMEOUT_S, cwd=folders["tmp"], check=False)
    except subprocess.TimeoutExpired:
        return [f"still running after {TIMEOUT_S} s"], "", ""
    faults = []
    wanted_exit = case.get("exit", 0)
    if run.returncode != wanted_exit:
        faults.append(f"exit {run.returncode}, not {wanted_exit}")
    if run.returncode != 0 and not run.stderr:
        faults.append("a failing run must explain itself on stderr")
    if run.returncode != 0 and not {"stdout", "json"} & set(case):
        faults += check_failure(run, "--json" in case["args"])
    faults += check_streams(case, run.stdout, run.stderr, folders)
    if "json" in case:
        faults += check_json(run.stdout, case["json"])
    for file in case.get("files", []):
        if not pathlib.Path(expand(file, folders)).is_file():
            faults.append(f"did not write {file}")
    return faults, run.stdout, run.stderr


def run_table(usp, cases, folders, report=print):
    """Runs all cases; returns how many failed."""
    failed = 0
    for case in cases:
        faults, out, err = run_case(usp, case, folders)
        report(("FAIL " if faults else "ok   ") + case["name"])
        if faults:
            failed += 1
            report("     usp " + " ".join(case["args"]))
            for fault in faults:
                report("     " + fault)
            report("     stdout: " + out[:2000] + "\n     stderr: " + err[:2000])
    return failed


def main():
    parser = argparse.ArgumentParser(description="Run command-line cases.")
    parser.add_argument("--usp", required=True, type=pathlib.Path)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("tables", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    failed = total = 0
    for table in args.tables:
        cases = json.loads(table.read_text())
        with tempfile.TemporaryDirectory() as tmp:
            folders = {"tmp": tmp, "source": args.source, "configs": args.source / "configs",
                       "data": args.source / "tests" / "data"}
            failed += run_table(args.usp.resolve(), cases, folders)
        total += len(cases)
    print(f"{total - failed} of {total} cases passed")
    return 1 if failed or not total else 0


if __name__ == "__main__":
    sys.exit(main())
