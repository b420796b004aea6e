#!/usr/bin/env python3
"""dump-kv beside transformers (torch on the CPU): the same model, tokens and threads, in turns.

    peers_prefill.py KVCODEC MODEL.gguf TEXT [TOKENS [ROUNDS]]

Documents of 1,024 tokens, TOKENS in all (8,192 by default). kvcodec's time is that of the whole command, which opens the model and
writes a file; transformers' is that of the model alone, on documents one by one, keeping the cache as it keeps it. Two threads, five
rounds unless ROUNDS says otherwise, medians with (smallest .. largest), of the rates and of the rounds' ratios: where other programs
run on the machine, both of a round suffer. Then what both make of the first four documents: the worst relative error of a layer's
keys and of its values against transformers in f32, and the mean NLL of the second halves.

Needs torch, transformers, accelerate, gguf, numpy and h5py from PyPI (made with torch 2.15.0, transformers 5.24.0).
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

THREADS = 2
os.environ["OMP_NUM_THREADS"] = str(THREADS)
os.environ.pop("OPENBLAS_CORETYPE", None)

import h5py  # noqa: E402  (after the environment is set)
import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

LENGTH, JUDGED = 1024, 4
COMPUTE = {"f32": torch.float32, "bf16": torch.bfloat16}


def dump(kvcodec, model, text, tokens, compute, output, *options):
    """Runs dump-kv; seconds that it took, or None where the machine does not multiply so."""
    begin = time.perf_counter()
    result = subprocess.run([kvcodec, "dump-kv", "--model", model, "--text", text, "--chunk", str(LENGTH), "--max-tokens", str(tokens),
                             "--queries", "none", "--compute", compute, "--threads", str(THREADS), "--device", "cpu", "--quiet", "--overwrite",
                             "-o", output, *options], capture_output=True, text=True)
    if result.returncode:
        print(result.stderr.strip())
        return None
    return time.perf_counter() - begin


def run(model, documents):
    begin = time.perf_counter()
    with torch.inference_mode():
        for document in documents:
            model.model(document, use_cache=True)
    return time.perf_counter() - begin


def shown(values, digits):
    return f"{statistics.median(values):8.{digits}f} ({min(values):.{digits}f} .. {max(values):.{digits}f})"


def speed(kvcodec, path, text, tokens, rounds, models, documents, output):
    seconds = {}
    for _ in range(rounds):
        for compute in COMPUTE:
            seconds.setdefault(("kvcodec", compute), []).append(dump(kvcodec, path, text, tokens, compute, output))
            seconds.setdefault(("transformers", compute), []).append(run(models[compute], documents))
    for (name, compute), values in seconds.items():
        if None not in values:
            print(f"{name:<12} {compute:<4} {shown([tokens / s for s in values], 0)} tokens/s", flush=True)
    for compute in COMPUTE:
        own, peer = seconds["kvcodec", compute], seconds["transformers", compute]
        if None not in own:
            print(f"ratio        {compute:<4} {shown([b / a for a, b in zip(own, peer)], 2)}", flush=True)


def cache_of(model, document):
    """[layer][side]: (tokens, heads, dim)."""
    layers = model.model(document, use_cache=True).past_key_values.layers
    return [[x[0].permute(1, 0, 2).float().numpy() for x in (layer.keys, layer.values)] for layer in layers]


def errors(file, expected):
    """The worst relative error of a layer, of keys and of values."""
    worst = [0, 0]
    for layer, sides in enumerate(zip(*expected)):
        for side, name in enumerate(("key", "value")):
            right = np.concatenate([document[side] for document in sides])
            found = file[f"layers/{layer}/{name}"][: len(right)]
            worst[side] = max(worst[side], float(np.sqrt(((found - right) ** 2).sum() / (right**2).sum())))
    return worst


def nll(model, documents):
    """Of the tokens behind the first one of each second half, as eval-model judges them."""
    means = []
    for document in documents:
        logits = torch.log_softmax(model(document).logits[0, LENGTH // 2:-1].float(), -1)
        means.append(-logits.gather(1, document[0, LENGTH // 2 + 1:, None]).mean().item())
    return statistics.mean(means)


def own_nll(kvcodec, path, text, compute):
    result = subprocess.run([kvcodec, "eval-model", "--model", path, "--text", text, "--chunk", str(LENGTH), "--max-documents", str(JUDGED),
                             "--codec", "none", "--compute", compute, "--device", "cpu", "--quiet", "--json"], capture_output=True, text=True, check=True)
    return json.loads(result.stdout)["uncompressed"]["nll"]["mean"]


def main():
    kvcodec, path, text = sys.argv[1:4]
    tokens, rounds = (int(sys.argv[i]) if len(sys.argv) > i else usual for i, usual in ((4, 8192), (5, 5)))
    torch.set_num_threads(THREADS)
    folder, name = os.path.split(os.path.abspath(path))
    models = {compute: AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=dtype).eval() for compute, dtype in COMPUTE.items()}
    with tempfile.TemporaryDirectory() as work:
        output = str(pathlib.Path(work) / "kv.h5")
        dump(kvcodec, path, text, tokens, "f32", output)
        with h5py.File(output) as file:
            ids = torch.tensor(np.array(file["tokens"]).astype(np.int64))
        documents = [ids[i:i + LENGTH][None] for i in range(0, tokens, LENGTH)]
        speed(kvcodec, path, text, tokens, rounds, models, documents, output)
        with torch.inference_mode():
            caches = {compute: [cache_of(models[compute], document) for document in documents[:JUDGED]] for compute in COMPUTE}
            for compute in COMPUTE:
                print(f"transformers {compute:<4} NLL {nll(models[compute], documents[:JUDGED]):.6f}", flush=True)
        for compute in COMPUTE:
            if dump(kvcodec, path, text, JUDGED * LENGTH, compute, output, "--dtype", "f32") is None:
                continue
            with h5py.File(output) as file:
                keys, values = errors(file, caches["f32"])
            print(f"kvcodec      {compute:<4} NLL {own_nll(kvcodec, path, text, compute):.6f}, keys within {keys:.2g}, values within {values:.2g}")
        keys, values = (max(float(np.sqrt(((a[i][s] - b[i][s]) ** 2).sum() / (b[i][s] ** 2).sum()))
                            for a, b in zip(caches["bf16"], caches["f32"]) for i in range(len(b))) for s in (0, 1))
        print(f"transformers bf16 keys within {keys:.2g}, values within {values:.2g}, of a document")


if __name__ == "__main__":
    main()
