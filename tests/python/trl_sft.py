#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""trl's own script for supervised fine-tuning (trl/scripts/sft.py, as it is installed), changed by two lines, beside itself
on one process: a tiny random model and a small text set made on the spot. Needs trl and datasets; exit 77 without.

    PYTHONPATH=build/runtime/python build/python-env/bin/python3 tests/python/trl_sft.py
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

LINE = "    from trl import SFTTrainer, get_dataset, get_peft_config, get_quantization_config\n"
TWO_LINES = """
    import usp_attention as usp; from torch.distributed.device_mesh import init_device_mesh
    SFTTrainer = usp.hf.on_mesh(SFTTrainer, init_device_mesh("cpu", (2, 1), mesh_dim_names=("ring", "ulysses")))
"""
STEPS, SAMPLES_PER_STEP = 6, 4


def make_model(folder: pathlib.Path) -> None:
    import tokenizers
    import torch
    import transformers

    vocabulary = {chr(i): i for i in range(256)} | {"<end>": 256, "<pad>": 257}
    raw = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", pad_token="<pad>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=258, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, eos_token_id=256, pad_token_id=257)).save_pretrained(folder)


def make_data(folder: pathlib.Path) -> None:
    folder.mkdir()
    lines = [{"text": f"text {i}: {'more and ' * (i % 7)}enough of {i}"} for i in range(48)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))


def losses(script: pathlib.Path, folder: pathlib.Path, ranks: int, *options: str) -> list[float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out = folder / f"out{ranks}"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(port),
               str(script), "--model_name_or_path", str(folder / "model"), "--dataset_name", str(folder / "data"),
               "--output_dir", str(out), "--max_steps", str(STEPS), "--per_device_train_batch_size", "1",
               "--gradient_accumulation_steps", str(SAMPLES_PER_STEP), "--logging_steps", "1", "--save_steps", str(STEPS),
               "--use_cpu", "--report_to", "none", "--bf16", "False", "--dtype", "float32", "--lr_scheduler_type",
               "constant", "--learning_rate", "1e-3", "--eos_token", "<end>", *options]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
                                             "HF_HOME": str(folder / "cache")})
    state = json.loads((out / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def main() -> int:
    try:
        import datasets  # noqa: F401
        import trl
    except ImportError as error:
        print(f"skipped: {error}; pip install trl datasets")
        return 77
    source = (pathlib.Path(trl.__file__).parent / "scripts/sft.py").read_text()
    assert source.count(LINE) == 1, f"trl {trl.__version__} has another script; change LINE"
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        make_model(folder / "model")
        make_data(folder / "data")
        (folder / "sft.py").write_text(source)
        (folder / "sft_usp.py").write_text(source.replace(LINE, LINE + TWO_LINES))
        options = sys.argv[1:]
        alone = losses(folder / "sft.py", folder, 1, *options)
        shared = losses(folder / "sft_usp.py", folder, 2, *options)
    difference = max(abs(a - b) / a for a, b in zip(alone, shared))
    print(json.dumps({"trl": trl.__version__, "options": options, "alone": alone, "ring 2": shared,
                      "greatest_relative_difference": difference}))
    return 0 if len(alone) == len(shared) == STEPS and difference < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
