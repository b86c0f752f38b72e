#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What every verb does with the files it is given: an output is never one of the inputs or another output, nothing
waits for a pipe that nobody opens, and text is read alike everywhere.

The flags that name files are taken from --help-all (FILE, OUT-FILE, OUT-FOLDER), so that new ones are checked too.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

VERBS = [["topo"], ["model"], ["plan"], ["plan", "attention"], ["price"], ["explain"], ["validate"], ["run"], ["bench"],
         ["score"], ["whatif"], ["report"]]
# Flags without which a command line is refused before its files are looked at.
NEEDED = {"plan attention": ["--heads", "1", "--kv-heads", "1", "--head-dim", "8", "--seq", "8"],
          "price": ["--heads", "1", "--kv-heads", "1", "--head-dim", "8", "--seq", "8", "--ring", "1", "--ulysses", "1"],
          "whatif": ["--sweep", "seq=1k,2k"]}
OUTPUTS = {"topo": {"--output"}, "plan": {"--output"}, "plan attention": {"--output"}, "report": {"--output"},
           "run": {"--output", "--trace"}, "explain": {"--trace"}}
RESULTS = ["out.npy", "lse.npy", "dq.npy", "dk.npy", "dv.npy", "d_sink.npy"]
TIMEOUT_S = 200


class Usp:
    def __init__(self, binary):
        self.binary = str(pathlib.Path(binary).resolve())

    def __call__(self, *args, cwd=None, **options):
        options = {"stdin": subprocess.DEVNULL, **options}
        return subprocess.run([self.binary, *args], capture_output="stdout" not in options, text=True,
                              timeout=TIMEOUT_S, cwd=cwd, check=False, **options)


def expect(holds, what, run=None):
    if not holds:
        sys.exit(f"FAIL: {what}" + (f"\nexit {run.returncode}\n{run.stdout}\n{run.stderr}" if run else ""))


def file_flags(usp, verb):
    """{"--slurm": "FILE", "PLAN": "FILE"}; MODEL, which is --model too, is that."""
    flags = {}
    for line in usp(*verb, "--help-all").stdout.splitlines():
        found = re.match(r"\s+(\S+) (FILE|OUT-FILE|OUT-FOLDER)\b(?! is)", line)
        if not found:
            continue
        names = found.group(1).split(",")
        flags[next((name for name in names if name.startswith("--")), names[0])] = found.group(2)
    return {flag: kind for flag, kind in flags.items() if "--" + flag.lower() not in flags}


def argument(flag, name):
    return [flag, str(name)] if flag.startswith("--") else [str(name)]


def aliases(folder, name):
    """Other names of one file."""
    (folder / "soft").symlink_to(name)
    os.link(folder / name, folder / "hard")
    return [name, "./" + name, str(folder / name), "soft", "hard"]


def refused(usp, verb, first, second, args, cwd):
    run = usp(*verb, *NEEDED.get(" ".join(verb), []), *args, cwd=cwd)
    words = " ".join([*verb, *args])
    expect(run.returncode == 2, f"usp {words}: not refused", run)
    for flag in (first, second):
        expect(flag in run.stderr, f"usp {words}: does not name {flag}", run)
    expect(not run.stdout, f"usp {words}: printed", run)


def check_pair(usp, verb, flags, output, other):
    """`output` under each name of what `other` names."""
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)
        (folder / "other").write_text("o")
        if flags[output] == "OUT-FOLDER":
            pairs = []
            for result in RESULTS:
                (folder / "results").mkdir(exist_ok=True)
                (folder / "results" / result).write_text("kept")
                pairs.append(("results", "results/" + result))
        else:
            (folder / "kept").write_text("kept")
            pairs = [(name, "kept") for name in aliases(folder, "kept")]
        for written, named in pairs:
            args = argument(output, written) + argument(other, named)
            positional = [flag for flag, kind in flags.items() if kind == "FILE" and not flag.startswith("--")]
            if positional and other not in positional:
                args += ["other"]
            refused(usp, verb, output, other, args, folder)
            expect((folder / named).read_text() == "kept", f"{verb}: {output} replaced {other}")


def check_outputs(usp):
    for verb in VERBS:
        name = " ".join(verb)
        flags = file_flags(usp, verb)
        outputs = {flag for flag, kind in flags.items() if kind.startswith("OUT")}
        expect(outputs == OUTPUTS.get(name, set()), f"usp {name} --help: outputs are {outputs}")
        expect(any(kind == "FILE" for kind in flags.values()), f"usp {name} --help: no input")
        for output in sorted(outputs):
            for other in flags:
                if other != output and flags[other] != "OUT-FOLDER":
                    check_pair(usp, verb, flags, output, other)
    with tempfile.TemporaryDirectory() as tmp:  # a file that neither flag has made yet
        pathlib.Path(tmp, "p.json").write_text("{}")
        refused(usp, ["run"], "--output", "--trace", ["p.json", "-o", "new", "--trace", "./new/lse.npy"], tmp)
        run = usp("run", "p.json", "-o", "new", "--trace", "new/other", cwd=tmp)
        expect(run.returncode == 3, "two outputs of two names are no clash", run)


def check_defaults_and_stdin(usp):
    with tempfile.TemporaryDirectory() as tmp:
        model = pathlib.Path(tmp, "usp-report.html")
        model.write_text("{}")
        refused(usp, ["report"], "--output", "--model", [str(model), "--seq", "8k", "--cluster", "l40s"], tmp)
        with model.open() as stdin:
            run = usp("topo", "-", "-o", str(model), cwd=tmp, stdin=stdin)
        expect(run.returncode == 2 and "--output" in run.stderr, "stdin is the output", run)
        expect(model.read_text() == "{}", "stdin was replaced")
    run = usp("plan", "-", "--seq", "8k", "--cluster", "-")
    expect(run.returncode == 2 and "stdin" in run.stderr, "stdin read twice", run)
    run = usp("topo", "l40s", "-o", "/dev/null", "--json")
    expect(run.returncode == 0, "a device is no file that could be replaced", run)


def check_pipes(usp):
    """Every flag that names a file, given a named pipe: an answer, not a wait."""
    with tempfile.TemporaryDirectory() as tmp:
        pipe = str(pathlib.Path(tmp, "pipe"))
        os.mkfifo(pipe)
        plan = str(pathlib.Path(tmp, "p.json"))
        made = usp("plan", "attention", "--heads", "2", "--kv-heads", "2", "--head-dim", "8", "--seq", "64", "--ranks", "2",
                   "-o", plan)
        expect(made.returncode == 0, "a plan to run", made)
        for args in (["validate", pipe], ["model", pipe], ["explain", pipe], ["topo", pipe], ["run", pipe], ["bench", pipe],
                     ["score", pipe, "--cluster", "l40s"], ["run", plan, "--q", pipe],
                     ["topo", "l40s", "--slurm", pipe], ["topo", "l40s", "--curves", pipe],
                     ["plan", "llama-3.1-8b", "--seq", "8k", "--cluster", pipe],
                     ["plan", "llama-3.1-8b", "--seq", "8k", "--cluster", "l40s", "--calibration", pipe],
                     ["plan", "llama-3.1-8b", "--seq", "8k", "--cluster", "l40s", "--document-lengths", pipe]):
            run = usp(*args)
            expect(run.returncode == 3 and "named pipe" in run.stderr, " ".join(args), run)
        for args in (["topo", "l40s", "-o", pipe], ["run", plan, "--trace", pipe]):
            run = usp(*args)
            expect(run.returncode == 5 and "named pipe" in run.stderr, " ".join(args), run)
        # What a shell's <(...) passes is read, and only as far as it can be an answer.
        with open(plan, encoding="utf-8") as text, \
                subprocess.Popen(["cat"], stdin=text, stdout=subprocess.PIPE) as cat:
            run = usp("validate", f"/dev/fd/{cat.stdout.fileno()}", pass_fds=[cat.stdout.fileno()])
        expect(run.returncode == 0, "a plan through a pipe", run)
        with open("/dev/zero", "rb") as zero:
            for args in (["validate", "-"], ["run", plan, "--q", "-"], ["run", plan, "--q", "/dev/stdin"]):
                run = usp(*args, stdin=zero)
                expect(run.returncode == 3, " ".join(args) + " < /dev/zero", run)
        sparse = pathlib.Path(tmp, "sparse.npy")
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 5000000000, 1, 1), }"
        sparse.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        os.truncate(sparse, 10 + len(header) + 4 * 5000000000)
        run = usp("run", plan, "--q", str(sparse))
        expect(run.returncode == 3 and "shape" in run.stderr, "a sparse tensor of 20 GB", run)


def check_text(usp, source):
    """A byte order mark is taken and a NUL byte refused by validate and by whoever uses the file."""
    with tempfile.TemporaryDirectory() as tmp:
        plan = pathlib.Path(tmp, "p.json")
        made = usp("plan", "attention", "--heads", "2", "--kv-heads", "2", "--head-dim", "8", "--seq", "64", "--ranks", "2",
                   "-o", str(plan))
        expect(made.returncode == 0, "a plan to damage", made)
        data = source / "tests" / "data"
        uses = [(plan, [["explain", "{}"], ["run", "{}"]]),
                (source / "configs" / "models" / "llama-3.1-8b.json", [["model", "{}"]]),
                (data / "topo" / "02_h20_8gpu_nv18_nonic.txt", [["topo", "{}"]]),
                (data / "nccl_xml" / "azure-ndv4-topo.xml", [["topo", "{}"]]),
                (source / "configs" / "clusters" / "l40s.json", [["topo", "{}"]]),
                (source / "tests" / "fuzz" / "corpus" / "slurm" / "two_roots", [["topo", "{}"]])]
        for path, verbs in uses:
            content = path.read_bytes()
            for what, damaged, code in (("BOM", b"\xef\xbb\xbf" + content, 0), ("NUL", content + b"\0", 3),
                                        ("UTF-16", content.decode().encode("utf-16"), 3)):
                file = pathlib.Path(tmp, what)
                file.write_bytes(damaged)
                for verb in [["validate", "{}"], *verbs]:
                    run = usp(*[part.format(file) for part in verb])
                    expect(run.returncode == code, f"{verb[0]} of {path.name} with {what}", run)


def check_full(usp):
    with open("/dev/full", "w", encoding="utf-8") as full:
        for args in (["--help"], ["--version"], ["run", "--help"], ["topo", "--list"]):
            run = usp(*args, stdout=full, stderr=subprocess.PIPE)
            expect(run.returncode == 5 and run.stderr, " ".join(args) + " > /dev/full", run)
    for args in (["--help"], ["--version"], ["run", "--help"]):
        expect(usp(*args).returncode == 0, " ".join(args))


def main():
    usp = Usp(sys.argv[1])
    check_outputs(usp)
    check_defaults_and_stdin(usp)
    check_pipes(usp)
    check_text(usp, pathlib.Path(sys.argv[2]))
    check_full(usp)
    print("files are distinguished, pipes are not waited for, text is read alike")


if __name__ == "__main__":
    main()
