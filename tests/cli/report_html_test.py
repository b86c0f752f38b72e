#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the page of usp report with html.parser: every element is closed in order, ids are unique, nothing is
loaded from elsewhere, hostile names of models and files stay text, and every picture has title, desc and size.

usage: report_html_test.py USP SOURCE
"""
import html.parser
import json
import pathlib
import subprocess
import sys
import tempfile

VOID = {"meta", "br", "img", "link", "input", "hr"}
ALLOWED = {"html", "head", "meta", "title", "style", "body", "main", "section", "footer", "h1", "h2", "h3", "p",
           "div", "span", "strong", "ul", "li", "table", "caption", "tr", "th", "td", "details", "summary", "svg",
           "desc", "rect", "line", "polyline", "circle", "text"}
HOSTILE = "<script>alert('x')</script>&\""


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.faults, self.ids, self.svgs, self.text = [], [], set(), 0, []

    def handle_starttag(self, tag, attrs):
        if tag not in ALLOWED:
            self.faults.append(f"unexpected element {tag}")
        for name, value in attrs:
            if name in ("src", "href", "srcset") or name.startswith("on"):
                self.faults.append(f"attribute {name} on {tag}")
            if name == "id":
                if value in self.ids:
                    self.faults.append(f"id {value} twice")
                self.ids.add(value)
            if name in ("x", "y", "width", "height", "cx", "cy", "r", "x1", "x2", "y1", "y2"):
                try:
                    if not -10 <= float(value) <= 20000:
                        self.faults.append(f"{tag} {name}={value} lies outside")
                except ValueError:
                    self.faults.append(f"{tag} {name}={value} is no number")
        if tag == "svg":
            self.svgs += 1
            if "viewbox" not in dict(attrs):
                self.faults.append("svg without viewBox")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing at {self.getpos()}")

    def handle_data(self, data):
        self.text.append(data)


def faults_of(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    faults = reader.faults + [f"{tag} left open" for tag in reader.open]
    if reader.svgs < 6:
        faults.append(f"only {reader.svgs} pictures")
    if "url(" in page or "@import" in page:
        faults.append("the style loads something")
    return faults, "".join(reader.text)


def main():
    usp, source = sys.argv[1], pathlib.Path(sys.argv[2])
    # The checker itself must see faults.
    assert faults_of("<p><b></p>")[0] and faults_of("<img src='x'>")[0]
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
            run = subprocess.run([usp, "report", *args, "-q", "-o", "-"], capture_output=True, text=True, timeout=60,
                                 check=False)
            found, text = faults_of(run.stdout) if run.returncode == 0 else ([run.stderr.strip()[:400]], "")
            if args is runs[0] and not found and "&'model" not in text:
                found.append("the model's name is not shown as it is")
            print(" ".join(args), "ok" if not found else found[:10])
            failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
