#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""framework_classes.py FRAMEWORK < EXPORT.json: gives the arguments and texts of an export to the framework's own parsers
and classes, and compares what these hold with the export. Runs in an interpreter that has the package.
"""
import argparse
import ast
import dataclasses
import importlib.metadata
import inspect
import json
import shlex
import sys


def words_of(export):
    """Arguments as a launcher sees them."""
    return [word for item in export["arguments"] for word in [item["name"]] + (item["value"] or "").split()]


def ranks_of(command):
    """Processes that a torchrun line starts."""
    words = shlex.split(command)
    count = {flag: int(words[words.index(flag) + 1]) for flag in ("--nnodes", "--nproc-per-node") if flag in words}
    return count.get("--nnodes", 1) * count["--nproc-per-node"]


def keywords(call):
    return {keyword.arg: keyword.value for keyword in call.keywords}


def calls(code):
    return {ast.unparse(node.func): node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)}


def expect(holds, fault):
    if not holds:
        sys.exit(fault)


def accelerate(export):
    from accelerate import Accelerator
    from accelerate.commands.launch import launch_command_parser

    command = export["launch"][0]["command"].replace('"${ARGS[@]}"', shlex.join(words_of(export)))
    for variable in ("$NODE_RANK", "$MASTER_ADDR"):
        command = command.replace(variable, "0")
    parsed = launch_command_parser().parse_args(shlex.split(command)[2:])
    expect(parsed.num_processes and parsed.training_script == "train.py", f"launch read {parsed}")
    scope = {}
    code = export["texts"][0]["text"]
    exec(code.split("accelerator =")[0], scope)  # noqa: S102 - the text under test
    made = calls(code)["Accelerator"]
    inspect.signature(Accelerator.__init__).bind_partial(None, **keywords(made))
    ranks = export["mode"]["ring"] * export["mode"]["ulysses"] if "ring" in export["mode"] else None
    config = scope.get("parallelism")
    if config is not None:
        sequence = config.cp_size * config.sp_size
        expect(ranks in (None, sequence), f"{config} has {sequence} sequence ranks, the plan {ranks}")
        transformers(config)
    return "accelerate"


def transformers(parallelism):
    """The Trainer takes the same object."""
    try:
        from transformers import TrainingArguments
    except ImportError:
        return
    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    expect({"parallelism_config", "gradient_accumulation_steps"} <= fields, "TrainingArguments lacks parallelism_config")
    TrainingArguments(output_dir="out", parallelism_config=parallelism, use_cpu=True, report_to=[])


def torchtitan(export):
    import tyro
    from torchtitan.config import configs

    job = dataclasses.make_dataclass("Job", [("parallelism", configs.ParallelismConfig), ("training", configs.TrainingConfig)])
    parsed = tyro.cli(job, args=words_of(export))
    for item in export["arguments"]:
        section, name = item["name"].removeprefix("--").split(".")
        held = getattr(getattr(parsed, section), name)
        expect(str(held) == item["value"], f"{item['name']} {item['value']} became {held}")
    return "torchtitan"


def deepspeed(export):
    from deepspeed import comm as deepspeed_dist
    from deepspeed import initialize
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter

    [config] = [json.loads(text["text"]) for text in export["texts"] if text["title"].endswith(".json")]
    sequence, ranks = config.get("sequence_parallel_size", 1), ranks_of(export["launch"][0]["command"])
    deepspeed_dist.get_rank, deepspeed_dist.get_world_size = (lambda *_: 0), (lambda *_: ranks)
    held = DeepSpeedConfig(dict(config))
    expect(held.zero_optimization_stage == config["zero_optimization"]["stage"], "the ZeRO stage is another")
    expect(held.world_size == ranks / sequence, f"{held.world_size} data ranks of {ranks} with {sequence} of a sequence")
    expect(held.train_micro_batch_size_per_gpu == config["train_micro_batch_size_per_gpu"], "the batch is another")
    signatures = {"UlyssesSPAttentionHF.register_with_transformers": UlyssesSPAttentionHF.register_with_transformers,
                  "UlyssesSPDataLoaderAdapter": UlyssesSPDataLoaderAdapter, "deepspeed.initialize": initialize}
    for text in export["texts"]:
        if text["title"].endswith(".json"):
            continue
        for name, call in calls(text["text"]).items():
            if name in signatures:
                inspect.signature(signatures[name]).bind(*call.args, **keywords(call))
    return "deepspeed"


def xdit(export):
    from xfuser.config.args import FlexibleArgumentParser, xFuserArgs

    parser = xFuserArgs.add_cli_args(FlexibleArgumentParser())
    parsed = parser.parse_args(["--model", "m", *words_of(export)])
    for item in export["arguments"]:
        held = getattr(parsed, item["name"].removeprefix("--"))
        expect(str(held) == item["value"], f"{item['name']} {item['value']} became {held}")
    return "xfuser"


def main():
    export = json.load(sys.stdin)
    try:
        package = globals()[sys.argv[1]](export)
    except argparse.ArgumentError as error:
        sys.exit(str(error))
    print(f"{package} {importlib.metadata.version(package)} takes it")


if __name__ == "__main__":
    main()
