# SPDX-License-Identifier: Apache-2.0
"""Random commands with extreme values of flags, and plan files with extreme values of keys.

generate(random, folder) yields the arguments of one command: a verb with valid flags, of which one to four are
replaced by, or joined by, extreme ones. mutate_plan(random, plan) changes one leaf of a plan file.
"""
import copy
import json

USUAL = ["1", "2", "3", "4", "7", "8", "16", "64", "1000", "1024", "4096"]
NUMBERS = ["0", "-1", "1", "2", "3", "7", "1024", "32767", "32768", "65535", "65536", "1048576", "2147483647",
           "2147483648", "4294967295", "4294967296", "1099511627776", "1099511627777", "9007199254740993",
           "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616"]
ODD = ["nan", "inf", "-inf", "-0", "1e308", "-1e308", "1e-308", "0.5", "1e3", "", "text", "0x10", "010", "1'000", "true",
       "-2147483649", "-9223372036854775809", "99999999999999999999999999"]

# Flags that take a plain number, and shapes of those that take more.
PLAIN = ["{}"]
TOKENS = ["{}", "{}k", "{}M"]
LENGTHS = ["{}", "{0},{0}", "256,{}", "{}k,1"]
RATE = ["{}", "{}G", "{}GB/s", "{}T", "{}TB/s", "{}GiB/s"]
BYTES = ["{}", "{}GB", "{}GiB", "{}TiB", "{}B"]
SWEEP = ["seq={}", "seq=4k:{}:x2", "batch={}", "batch=1:{}:x4", "nic={}", "nic=25:{}:x8", "nvlink={}", "memory={}",
         "memory=40GB:{}:+40GB", "nodes={}", "gpus={}", "ring={}", "ulysses={}", "tensor={}", "zero={}", "heads={}",
         "kv_heads={}", "layout={}", "method={}", "recompute={}", "seq=4k:64k:x{}", "batch={}:{}:+{}", "nic=1:2:+{}",
         "{}=1"]
NODES = "node:{} nvswitch gpu:8(h100) nic:8(400G) fabric:rail"
CLUSTERS = ["{}", NODES, "node:2 nvswitch gpu:{}(h100) nic:8(400G)", "node:2 nvswitch gpu:8(h100) nic:{}(400G)",
            "node:2 nvswitch gpu:8(h100) nic:8({}G)", "gpu:{}(a100) nvlink:{}", "gpu:8(h100) numa:{}",
            "node:4 gpu:4(l40s) nic:1(100G) fabric:fat_tree({})", "node:4 gpu:4(l40s) nic:1(100G) fabric:fat_tree(2,{})"]

ATTENTION = {"--heads": PLAIN, "--kv-heads": PLAIN, "--head-dim": PLAIN, "--head-dim-v": PLAIN, "--seq": TOKENS,
             "--batch": PLAIN, "--dtype": PLAIN, "--window": TOKENS, "--documents": LENGTHS}
CLUSTER = {"--cluster": CLUSTERS, "--format": PLAIN, "--device": PLAIN, "--devices": ["{}", "0,{}"], "--nodes": PLAIN,
           "--nic": RATE + ["{}x400G", "8x{}G"], "--fabric": ["{}", "fat_tree({})", "fat_tree(2,{})"],
           "--oversubscription": PLAIN, "--slurm": PLAIN, "--curves": PLAIN, "--pcie": RATE, "--nvlink": RATE,
           "--numa-bandwidth": RATE}
FIXED = {"--ring": PLAIN, "--ulysses": PLAIN, "--data": PLAIN, "--tensor": PLAIN, "--head-chunks": PLAIN,
         "--method": PLAIN, "--layout": PLAIN, "--dkv-return": PLAIN, "--order": PLAIN}
EXECUTION = {"--transport": PLAIN, "--calibration": PLAIN, "--top": PLAIN}
STEP = {"--seq": TOKENS, "--batch": PLAIN, "--dtype": PLAIN, "--documents": LENGTHS, "--document-lengths": ["{}", "@lengths"],
        "--seed": PLAIN, "--recompute": PLAIN, "--zero": PLAIN, "--optimizer": PLAIN, "--microbatches": PLAIN,
        "--pipeline": PLAIN, "--expert": PLAIN, "--memory": BYTES, "--reserve": PLAIN, "--loss-tile": TOKENS,
        "--mlp-tile": TOKENS, **FIXED, **EXECUTION, **CLUSTER}
RULES = {"--kv-seq": TOKENS, "--scale": PLAIN, "--softcap": PLAIN, "--dropout": PLAIN, "--blocks": PLAIN,
         "--replicated": TOKENS, "--backend": PLAIN, "--ranks": PLAIN}
LAYOUT = {"--ring": PLAIN, "--ulysses": PLAIN, "--ring-inner": PLAIN, "--head-chunks": PLAIN, "--layout": PLAIN,
          "--method": PLAIN, "--dkv-return": PLAIN, "--order": PLAIN, "--transport": PLAIN, "--calibration": PLAIN}
RUN = {"--layer": PLAIN, "--documents": LENGTHS, "--seed": PLAIN, "--watchdog": PLAIN, "--devices": ["{}", "0,{}"]}

# Valid words of a flag, so that its other words and its neighbours' values meet in all combinations.
WORDS = {"--method": ["ring", "ring_direct", "all_gather_kv", "double_ring"],
         "--layout": ["contiguous", "zigzag", "striped", "balanced"], "--dkv-return": ["circulate", "direct", "cycle"],
         "--order": ["ulysses_inner", "ring_inner"], "--transport": ["copy_engine", "nccl"],
         "--dtype": ["bf16", "fp16", "fp32"], "--recompute": ["none", "selective", "mlp", "keep_attention", "full", "offload"],
         "--zero": ["0", "1", "2", "3"], "--optimizer": ["adamw", "sgd"], "--backend": ["cpu", "mma", "cudnn", "hopper", "hopper_cudnn"],
         "--cluster": ["dgx-h100", "l40s", "gb200-nvl72", NODES.format(64)], "--device": ["h100-sxm", "l40s"],
         "--format": ["auto", "synthetic", "nvidia-smi", "slurm"], "--fabric": ["none", "rail", "fat_tree(2)"],
         "--as": ["cluster", "synthetic", "nvidia-smi", "nccl-xml", "nccl-tests", "slurm", "devices", "plan", "calibration",
                  "model", "score", "lengths"], "--pass": ["forward", "backward"]}
FILES = {"--slurm", "--curves", "--calibration"}  # read as files, whose names are not worth many commands
SWITCHES = {"attention": ["--causal", "--full", "--forward-only", "--json"],
            "rules": ["--alibi", "--sinks", "--lse", "--no-overlap"], "layout": ["--no-overlap", "--prune"],
            "step": ["--causal", "--full", "--forward-only", "--json", "--no-overlap"]}
MODELS = ["llama-3.1-8b", "qwen3-8b", "gpt-oss-20b", "llama-4-scout", "qwen3.5-27b", "mixtral-8x7b", "deepseek-v3"]
CALL = {"--heads": "32", "--kv-heads": "8", "--head-dim": "128", "--seq": "64k"}


def value_of(random, flag, shapes):
    if flag in WORDS and random.random() < 0.9:
        return random.choice(WORDS[flag])
    text = random.choice(random.choices([USUAL, NUMBERS, ODD], [35, 55, 10])[0])
    return random.choice(shapes).format(text, text, text)


def command_of(random, verb, given, extreme, switches=(), positional=()):
    flags = dict(given)
    count = random.choices([1, 2, 3, 4], [4, 3, 2, 1])[0]
    for flag in random.sample(sorted(set(extreme) - (FILES if random.random() < 0.95 else set())), count):
        flags[flag] = value_of(random, flag, extreme[flag])
    arguments = [*verb, *positional]
    for flag, value in flags.items():
        arguments += [f"{flag}={value}"] if flag.startswith("--") else [flag, value]
    return arguments + [switch for switch in switches if random.random() < 0.15]


def plan_step(random, folder, verb="plan"):
    given = {"--seq": "64k", "--cluster": "dgx-h100"}
    more = dict(STEP)
    if verb == "whatif":
        given["--sweep"] = "seq=32k,64k"
        more["--sweep"] = SWEEP
        del more["--top"]
    if verb == "report":
        given["-o"] = folder / "report.html"
    switches = SWITCHES["step"] + (["--no-break-even"] if verb == "whatif" else [])
    return command_of(random, [verb], given, more, switches, [random.choice(MODELS)])


def plan_attention(random, _):
    machine = {"--ranks": "8"} if random.random() < 0.5 else {"--cluster": "dgx-h100"}
    return command_of(random, ["plan", "attention"], {**CALL, **machine},
                      {**ATTENTION, **RULES, **FIXED, **EXECUTION, **CLUSTER},
                      SWITCHES["attention"] + SWITCHES["rules"])


def price(random, _):
    return command_of(random, ["price"], {**CALL, "--ring": "2", "--ulysses": "4", "--cluster": "dgx-h100"},
                      {**ATTENTION, **LAYOUT, **CLUSTER}, SWITCHES["attention"] + SWITCHES["layout"])


def topo(random, _):
    source = value_of(random, "--cluster", CLUSTERS)
    flags = {flag: shapes for flag, shapes in CLUSTER.items() if flag != "--cluster"}
    return command_of(random, ["topo"], {}, flags, ["--json"], [source])


def explain(random, folder):
    return command_of(random, ["explain"], {}, {"--rank": PLAIN, "--pass": PLAIN, "--layer": PLAIN, "--documents": LENGTHS},
                      ["--json"], [random.choice([folder / "plan.json", folder / "step.json"])])


def validate(random, folder):
    files = [folder / name for name in ("plan.json", "step.json", "lengths", "scores.csv")]
    return ["validate", random.choice(files), "--as=" + value_of(random, "--as", PLAIN)]


def model(random, folder):
    config = json.loads((folder / "config.json").read_text())
    leaves = [key for key, value in config.items() if isinstance(value, (int, float)) and not isinstance(value, bool)]
    for key in random.sample(leaves, random.randint(1, 2)):
        config[key] = json_value(random)
    path = folder / f"config-{random.getrandbits(64):x}.json"
    path.write_text(json.dumps(config))
    return random.choice([["model", path], ["plan", path, "--seq=64k", "--cluster=dgx-h100"]])


def score(random, folder):
    header, row = (folder / "scores.csv").read_text().splitlines()[:2]
    cells = row.split(",")
    for index in random.sample(range(len(cells)), random.randint(0, 3)):
        cells[index] = random.choice(NUMBERS + ODD)
    path = folder / f"scores-{random.getrandbits(64):x}.csv"
    path.write_text(f"{header}\n{','.join(cells)}\n")
    return command_of(random, ["score"], {"--cluster": "dgx-h100"},
                      {"--gate": TOKENS, "--calibration": PLAIN, **CLUSTER}, ["--json"], [path])


def run(random, folder):
    return command_of(random, ["run"], {}, RUN, ["--json", "--forward-only"], [folder / "plan.json", "--dry-run"])


VERBS = [(plan_step, 5), (plan_attention, 5), (price, 5), (topo, 3), (lambda r, f: plan_step(r, f, "whatif"), 2),
         (lambda r, f: plan_step(r, f, "report"), 1), (explain, 2), (validate, 1), (model, 2), (score, 1), (run, 2)]


def generate(random, folder):
    """One command's arguments."""
    make = random.choices([verb for verb, _ in VERBS], [weight for _, weight in VERBS])[0]
    return [str(argument).replace("@lengths", str(folder / "lengths")) for argument in make(random, folder)]


def json_value(random):
    """A number beyond JSON's range, or text, stands for what no reader may take."""
    numbers = [0, -1, 1, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**40 + 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
               1e308, -1e308, 0.5, -0.0]
    return random.choice(numbers + ["", "text", None, True, [], {}])


def leaves_of(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None or not value:
        return [path]
    return [leaf for key, part in items for leaf in leaves_of(part, (*path, key))]


def mutate_plan(random, plan):
    """A copy of a plan with one or two leaves changed."""
    plan = copy.deepcopy(plan)
    for path in random.sample(leaves_of(plan), random.randint(1, 2)):
        part = plan
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = json_value(random)
    return plan
