# SPDX-License-Identifier: Apache-2.0
"""The examples of the package run and print what they promise."""

import re
import runpy

import pytest
from launch import run
from paths import REPOSITORY

EXAMPLES = REPOSITORY / "runtime/python/examples"


@pytest.mark.parametrize("name,text", [("planning", "sp.loader(loader)"), ("diffusion_attention", "greatest difference")])
def test_in_one_process(name, text, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("name,arguments,text", [
    ("fsdp2_loop", ["--ring", "2", "--ulysses", "1", "--steps", "2", "--tokens", "64"], "loss "),
    ("trainer_packed", [], "losses ["),
])
def test_in_two_processes(name, arguments, text):
    assert text in run(2, *arguments, program=EXAMPLES / f"{name}.py")[0]


def test_programs_of_the_readme():
    text = (REPOSITORY / "runtime/python/README.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(programs) >= 4
    for program in programs:
        compile(program, "README.md", "exec")
    names = set(re.findall(r"\busp\.(?:hf\.)?(\w+)", "\n".join(programs)))
    import usp_attention as usp

    assert names - {"hf"} <= {*usp.__all__, *usp.hf.__all__}
