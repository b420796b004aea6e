"""Caches of transformers' classes through from_cache and to_cache: the model's logits are those of its own cache to 1e-5."""
import copy
import json
import subprocess
import sys

import torch
from models import FAMILIES, HYBRIDS, SHARING, SINKS, made, prompt
from transformers import DynamicCache, QuantizedCache, StaticCache

import kvfiles

torch.set_num_threads(1)
torch.set_grad_enabled(False)
TOKENS = 60


def run(*words):
    subprocess.run(["kvcodec", *words, "--overwrite", "--quiet"], check=True, stdout=subprocess.DEVNULL)


def refused(words, wrong):
    try:
        wrong()
    except kvfiles.Error as error:
        assert words in str(error), f"{words!r} is not in: {error}"
    else:
        raise AssertionError(f"accepted: {words}")


def filled(model, cache, ids):
    """Most of the ids at once, the last ones by themselves."""
    model(ids[:, :-4], past_key_values=cache)
    for i in range(ids.shape[1] - 4, ids.shape[1]):
        model(ids[:, i:i + 1], past_key_values=cache)
    return cache


def difference(model, one, other, steps=6):
    largest, token = 0.0, torch.tensor([[7]])
    for _ in range(steps):
        a, b = (model(token, past_key_values=cache).logits[0, -1] for cache in (one, other))
        largest, token = max(largest, float((a - b).abs().max())), a.argmax().reshape(1, 1)
    return largest


def held_to(model, cache, ids, what, steps=6, limit=1e-5):
    kvfiles.from_cache(cache, ids, "kv.h5", config=model.config, overwrite=True)
    restored = kvfiles.to_cache("kv.h5", config=model.config)
    with kvfiles.open("kv.h5") as file:
        assert len(file[0]) == TOKENS and file[0].positions[-1] == TOKENS - 1, what
    found = difference(model, copy.deepcopy(cache) if steps > 1 else cache, restored, steps)
    assert found <= limit, (what, found)


ids = prompt(TOKENS)
for name, make in FAMILIES.items():
    model = made(make)
    held_to(model, filled(model, DynamicCache(config=model.config), ids), ids, name)
    # The cache that the model makes by itself, and one id more than it holds, as after generate().
    held_to(model, model(ids, use_cache=True).past_key_values, torch.cat([ids, ids[:, :1]], dim=1), f"{name}, by itself")
    held_to(model, filled(model, StaticCache(config=model.config, max_cache_len=100), ids), None, f"{name}, static")
    print(f"{name}: the same logits from a dynamic and from a static cache")

model = made(SHARING)
cache = filled(model, DynamicCache(config=model.config), ids)
held_to(model, cache, ids, "sharing")
with kvfiles.open("kv.h5") as file:
    assert file.layers == [0, 1, 2, 3] and [file.shape(layer).source for layer in (4, 5)] == [2, 3]
print("layers that share keys and values: the same logits")

dense = made(FAMILIES["Llama"])
kvfiles.from_cache(filled(dense, DynamicCache(config=dense.config), ids), ids, "dense.h5", config=dense.config)
for name, make in HYBRIDS.items():
    model = made(make)
    held_to(model, model(ids, use_cache=True).past_key_values, ids, name)
    run("encode", "kv.h5", "--codec", "lossless", "-o", "codes.h5")
    with kvfiles.open("kv.h5") as file, kvfiles.open("codes.h5") as codes:
        one, other = file[0].state, codes[0].state
        assert one and one.keys() == other.keys(), name
        assert all(one[key][0] == other[key][0] and (one[key][1] == other[key][1]).all() for key in one), name
    refused("has none here" if name == "Falcon-H1" else "the model keeps", lambda: kvfiles.to_cache("dense.h5", config=model.config))
    print(f"{name}: the same logits, with its state")

model = made(FAMILIES["Llama"])
dense = filled(model, DynamicCache(config=model.config), ids)
GROUPS = dict(nbits=4, q_group_size=16, residual_length=32)
for backend, options in (("quanto", GROUPS), ("hqq", {**GROUPS, "axis_key": 1, "axis_value": 1}), ("fp8", {})):
    try:
        cache = QuantizedCache(backend, model.config, **options)
    except (ImportError, TypeError, ValueError):  # not installed, or not known to this release of transformers
        print(f"quantized by {backend}: the same logits")  # nothing is tested without it
        print(f"without {backend}", file=sys.stderr)
        continue
    limit = 1e-2 if backend == "fp8" else 1e-5  # a layer of fp8 rounds the next token, too
    model(ids, past_key_values=cache)
    held_to(model, cache, ids, f"{backend}, all quantized", 1, limit)
    cache = filled(model, QuantizedCache(backend, model.config, **options), ids)
    held_to(model, cache, ids, f"{backend}, some not quantized yet", 1, limit)
    key = kvfiles.open("kv.h5")[0].key(0)
    wanted = dense.layers[0].keys[0].transpose(0, 1).numpy()
    assert 0 < abs(key - wanted).max() < abs(wanted).max(), backend
    print(f"quantized by {backend}: the same logits")

# Bits of 16-bit types, a batch with padding, queries, and codes made at once.
for dtype, kind in ((torch.bfloat16, "bf16"), (torch.float16, "f16")):
    half = DynamicCache([(torch.randn(1, 2, 20, 16).to(dtype), torch.randn(1, 2, 20, 16).to(dtype)) for _ in range(2)])
    kvfiles.from_cache(half, None, "half.h5", overwrite=True)
    back = kvfiles.to_cache("half.h5")
    assert all(torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values) for a, b in zip(half.layers, back.layers))
    with kvfiles.open("half.h5") as file:
        bits = torch.from_numpy(file[0].key(0, kind).view("int16")).view(dtype)
        assert file.dtype == kind and torch.equal(bits, half.layers[0].keys[0].transpose(0, 1))
padded, mask = torch.cat([ids, prompt(TOKENS, 1).flip(1)]), torch.ones(2, TOKENS, dtype=torch.long)
mask[1, :9] = 0
cache = DynamicCache(config=model.config)
model(padded, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), past_key_values=cache)  # as generate() does
kvfiles.from_cache(cache, padded, "batch.h5", attention_mask=mask, config=model.config, names=["whole", "padded"])
alone = DynamicCache(config=model.config)
model(padded[1:, 9:], past_key_values=alone)
assert difference(model, alone, kvfiles.to_cache("batch.h5", "padded")) <= 1e-5
with kvfiles.Queries(model, last=8) as queries:
    cache = model(ids, use_cache=True).past_key_values
kvfiles.from_cache(cache, ids, "queries.h5", config=model.config, queries=queries)
assert "queries" in kvfiles.run("info", "queries.h5")
refused("queries", lambda: kvfiles.from_cache(cache, ids, "x.h5", config=model.config, queries=kvfiles.Queries(model)))
kvfiles.encode(cache, ids, "made.h5", ["--codec", "q4", "--quiet"], config=model.config)
run("encode", "queries.h5", "--codec", "q4", "-o", "codes.h5")
with kvfiles.open("made.h5") as made_codes, kvfiles.open("codes.h5") as codes:
    assert (made_codes[0].key(3) == codes[0].key(3)).all() and made_codes.model.query_heads == 4

# What the model does to scores is as the program reads it from the model's own files.
for make in (*(FAMILIES[name] for name in ("Llama", "Mistral", "Gemma 3")), SINKS):
    own = made(make)
    own.save_pretrained("model")
    cache = own(ids, use_cache=True).past_key_values
    kvfiles.from_cache(cache, ids, "scores.h5", config=own, overwrite=True)
    run("export", "scores.h5", "--to", "transformers", "-o", "scores.safetensors")
    run("import", "scores.safetensors", "--model", "model", "-o", "imported.h5")
    texts = [kvfiles.open(path).model.scores for path in ("scores.h5", "imported.h5")]
    assert json.loads(texts[0]) == json.loads(texts[1]), texts
kvfiles.from_cache(cache, ids, "scores.h5", config=own.config, overwrite=True)
assert kvfiles.open("scores.h5").model.scores == "", "sinks are not known without the model"

# Parts of a document: refused where the model would go on at a wrong position, kept where its windows end in them.
run("decode", "codes.h5", "--tokens", "20:60", "-o", "part.h5")
refused("go on at 40 instead of 60", lambda: kvfiles.to_cache("part.h5", config=model.config))
refused("go on at 40 instead of 60", lambda: kvfiles.to_cache("part.h5"))
kvfiles.from_cache(cache, ids, "gaps.h5", positions=torch.arange(TOKENS) * 2)
refused("have gaps", lambda: kvfiles.to_cache("gaps.h5"))
mistral = made(FAMILIES["Mistral"])
cache = filled(mistral, DynamicCache(config=mistral.config), ids)
kvfiles.from_cache(cache, ids, "kv.h5", config=mistral.config, overwrite=True)
refused("give the model's config", lambda: kvfiles.to_cache("kv.h5"))
kvfiles.from_cache(model(ids[:, 20:], position_ids=torch.arange(20, 60)[None]).past_key_values, ids[:, 20:], "x.h5", positions=torch.arange(20, 60))
refused("go on at 40", lambda: kvfiles.to_cache("x.h5", config=model.config))
last = DynamicCache([(layer.keys, layer.values) for layer in cache.layers])
kvfiles.from_cache(last, ids[:, -11:], "last.h5", positions=torch.arange(TOKENS - 11, TOKENS), config=mistral.config)
assert difference(mistral, cache, kvfiles.to_cache("last.h5", config=mistral.config)) <= 1e-5
wider = copy.deepcopy(mistral.config)
wider.sliding_window = 30
refused("holds the last 11 tokens", lambda: kvfiles.to_cache("kv.h5", config=wider))
fewer = copy.deepcopy(model.config)
fewer.num_hidden_layers = 3
refused("the model keeps 3", lambda: kvfiles.to_cache("queries.h5", config=fewer))
print("parts, batches, queries and types")
