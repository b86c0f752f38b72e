#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report_browser_test.py USP SOURCE: pages of usp report in a headless Chromium; skipped where there is none.

Every page is opened at four widths, light and dark: nothing lies outside of the window, bars are as long as their
candidates say, and pointing, selecting, sliding and copying do what they are for. report_probe.js runs in the page.
"""
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
SKIPPED = 77
WIDTHS = [400, 800, 1280, 1920]
HOSTILE = "<img src=x onerror=parent.hit()>\"'&</script><script>parent.hit()</script>"
# name: arguments of usp report
PAGES = {"hosts": ["llama-3.1-8b", "--seq", "256k", "--cluster", "dgx-h100", "--nodes", "4"],
         "pcie": ["llama-3.1-8b", "--seq", "64k", "--cluster", "a100-pcie"],
         "large": ["llama-3.1-405b", "--seq", "1M", "--cluster", "dgx-h100", "--nodes", "128", "--tensor", "8"],
         "experts": ["mixtral-8x7b", "--seq", "64k", "--cluster", "gb200-nvl72"],
         "alone": ["llama-3.1-8b", "--seq", "8k", "--cluster", "dgx-h100", "--devices", "0", "--forward-only"]}
# Collects what the probes of its frames send.
FRAMES = """<!DOCTYPE html><meta charset="utf-8"><body><pre id="result"></pre><script>
const wanted = {wanted}, reports = [];
addEventListener("message", (event) => {{
  reports.push(event.data);
  document.getElementById("result").textContent = JSON.stringify(reports);
}});
for (const [file, width] of wanted) {{
  const frame = document.createElement("iframe");
  frame.style = `width:${{width}}px;height:900px;border:0`;
  frame.src = file;
  document.body.append(frame);
}}
</script></body>"""


def write_pages(usp, source, folder):
    probe = (source / "tests" / "cli" / "report_probe.js").read_text()
    config = json.loads((source / "configs/models/llama-3.1-8b.json").read_text())
    config["_name_or_path"] = HOSTILE
    (folder / "model.json").write_text(json.dumps(config))
    hostile = ["model.json", "--seq", "64k", "--cluster", "dgx-h100"]
    for name, args in {**PAGES, "hostile": hostile}.items():
        run = subprocess.run([usp, "report", *args, "-q", "-o", "-"], capture_output=True, text=True, timeout=120,
                             check=True, cwd=folder)
        page = run.stdout.replace("</body>", f"<script>{probe}</script></body>")
        (folder / f"{name}.html").write_text(page)
    return [*PAGES, "hostile"]


def look(browser, folder, names, scheme):
    """What the probes of all pages report, or why they do not."""
    wanted = [[f"{name}.html", width] for name in names for width in WIDTHS]
    (folder / "frames.html").write_text(FRAMES.format(wanted=json.dumps(wanted)))
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
               f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}", "--window-size=2000,1000",
               "--virtual-time-budget=60000", "--dump-dom", f"file://{folder}/frames.html"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    found = re.search(r'<pre id="result">(.*?)</pre>', run.stdout, re.DOTALL)
    reports = json.loads(html.unescape(found[1])) if found and found[1] else []
    faults = [f"{report['page']} at {report['width']} px: {fault}" for report in reports for fault in report["faults"]]
    dark = {report["dark"] for report in reports}
    if dark != {scheme == "dark"}:
        faults.append(f"colours are not {scheme}")
    if len(reports) != len(wanted):
        faults.append(f"{len(reports)} of {len(wanted)} pages reported: {run.stderr[-600:]}")
    return faults


def main():
    usp, source = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"skipped: no browser ({', '.join(BROWSERS)}) on PATH")
        return SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        names = write_pages(usp, source, folder)
        faults = [f"{scheme}: {fault}" for scheme in ("light", "dark") for fault in look(browser, folder, names, scheme)]
    print("\n".join(faults[:40]) or f"{len(names)} pages at {len(WIDTHS)} widths, light and dark")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
