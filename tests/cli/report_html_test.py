#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the page of usp report with html.parser, without a browser: every element is closed in order, ids are
unique, nothing is loaded from elsewhere, hostile names of models and files stay text, and the plan that the page
holds is the document of usp plan --json.

usage: report_html_test.py USP SOURCE
"""
import html.parser
import json
import pathlib
import re
import subprocess
import sys
import tempfile

VOID = {"meta", "br", "input", "hr"}
ALLOWED = {"html", "head", "meta", "title", "style", "body", "main", "header", "section", "footer", "noscript", "h2", "p",
           "div", "details", "summary", "pre", "svg", "script"}
HOSTILE = "<script>alert('x')</script>&\"</script><!--"
LOADING = re.compile(r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(|eval\(|innerHTML|https?://")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.faults, self.ids, self.text, self.data, self.code = [], [], set(), [], "", []
        self.policy, self.scripts = "", []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if tag not in ALLOWED:
            self.faults.append(f"unexpected element {tag}")
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action") or name.startswith("on"):
                self.faults.append(f"attribute {name} on {tag}")
            if name == "id":
                if value in self.ids:
                    self.faults.append(f"id {value} twice")
                self.ids.add(value)
        if tag == "meta" and named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named["content"]
        if tag == "script":
            self.scripts.append(named.get("type", ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing at {self.getpos()}")

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside == "script" and self.scripts[-1] == "application/json":
            self.data += data
        elif inside in ("script", "style"):
            self.code.append(data)
        else:
            self.text.append(data)


def read(page):
    """Faults of a page, its text, and the JSON that it holds."""
    reader = Reader()
    reader.feed(page)
    reader.close()
    faults = reader.faults + [f"{tag} left open" for tag in reader.open]
    if reader.scripts != ["application/json", ""]:
        faults.append(f"scripts {reader.scripts}")
    if reader.policy != POLICY:
        faults.append("no policy that forbids the network")
    loads = LOADING.search("".join(reader.code))
    if loads:
        faults.append(f"style or script has {loads.group()}")
    return faults, "".join(reader.text), json.loads(reader.data) if reader.data else None


def plan_faults(usp, args, data):
    """What of the embedded plan is not the document of usp plan."""
    run = subprocess.run([usp, "plan", *args, "-q", "--json"], capture_output=True, text=True, timeout=200, check=True)
    plan = json.loads(run.stdout)
    return [f"plan.{key} differs from usp plan --json" for key in plan if plan[key] != data["plan"].get(key)] + (
        [] if set(plan) == set(data["plan"]) else ["keys of the plan differ"])


def sum_faults(data):
    """Terms and memory of the drawn candidates add up to what the plan says; ranks stand on devices once."""
    faults = []
    for drawn, candidate in zip(data["candidates"], data["plan"]["candidates"]):
        step = sum(term["time_s"] for term in drawn["terms"])
        if abs(step - candidate["time_s"]) > 1e-9 * step:
            faults.append(f"{drawn['name']}: terms sum to {step}, the step is {candidate['time_s']}")
        memory = sum(row["bytes"] for row in drawn["memory"])
        if memory != candidate["memory_bytes"]:
            faults.append(f"{drawn['name']}: rows sum to {memory} of {candidate['memory_bytes']} bytes")
    seats = {device["rank"]: device["id"] for device in data["machine"]["devices"] if device["rank"] >= 0}
    placed = dict(enumerate(data["plan"]["best"]["placement"]))
    if any(placed[rank] != device for rank, device in seats.items()):
        faults.append("a rank stands on another device than the plan's placement says")
    return faults


def command_faults(usp, folder, data, args):
    """The first command of the page gives the plan of the page."""
    first = data["commands"][0]["command"]
    run = subprocess.run(["bash", "-c", first.replace("usp ", f"{usp} ", 1) + " -q --json"], capture_output=True,
                         text=True, timeout=200, check=False, cwd=folder)
    if run.returncode != 0:
        return [f"'{first}' ends with {run.returncode}: {run.stderr.strip()[:200]}"]
    same = json.loads(run.stdout)["best"] == data["plan"]["best"]
    return [] if same else [f"'{first}' gives another plan than {args}"]


def main():
    usp, source = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])
    # The checker itself must see faults.
    assert read("<p><b></p>")[0] and read("<img src='x'>")[0] and read("<style>a{background:url(x)}</style>")[0]
    config = json.loads((source / "configs/models/llama-3.1-8b.json").read_text())
    config["_name_or_path"] = HOSTILE
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "<i>&'model.json"
        model.write_text(json.dumps(config))
        runs = [[str(model), "--seq", "256k", "--cluster", "dgx-h100", "--nodes", "4"],
                ["qwen3-8b", "--seq", "64k", "--cluster", "l40s", "--documents", "32k,16k,16k"],
                ["llama-3.1-8b", "--seq", "8k", "--cluster", "dgx-h100", "--devices", "0", "--forward-only"],
                ["gpt-oss-20b", "--seq", "64k", "--cluster", "dgx-h100", "--devices", "0,1", "--forward-only"]]
        failed = 0
        for args in runs:
            run = subprocess.run([usp, "report", *args, "-q", "-o", "-"], capture_output=True, text=True, timeout=200,
                                 check=False)
            if run.returncode != 0:
                found = [run.stderr.strip()[:400]]
            else:
                found, text, data = read(run.stdout)
                found += plan_faults(usp, args, data) + sum_faults(data) + command_faults(usp, folder, data, args)
                if args is runs[0] and "&'model" not in text:
                    found.append("the model's name is not shown as it is")
            print(" ".join(args), "ok" if not found else found[:10])
            failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
