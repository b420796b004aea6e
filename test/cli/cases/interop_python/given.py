"""Writing with kvfiles: arrays come back as they were given, and what cannot be stored is refused without a file."""
import json
import os
import types

import numpy as np

import kvfiles

random = np.random.default_rng(1)


def pair(batch, heads, tokens, dim, value_dim=None, kind=np.float16):
    return tuple(random.standard_normal((batch, heads, tokens, d)).astype(kind) for d in (dim, value_dim or dim))


def written(name, cache, ids, mask=None, **more):
    kvfiles.from_cache(cache, ids, name, attention_mask=mask, **more)
    with kvfiles.open(name) as file:
        for b, document in enumerate(file):
            tokens = ids.shape[1]
            first = 0 if mask is None else int(np.flatnonzero(mask[b])[0])
            assert np.array_equal(document.tokens, ids[b, first:])
            assert np.array_equal(document.positions, more["positions"][b, first:] if "positions" in more else np.arange(tokens - first))
            for layer, sides in enumerate(cache):
                for side, array in zip((document.key(layer), document.value(layer)), sides):
                    own = array[b].transpose(1, 0, 2).astype(np.float32)[-(tokens - first):]
                    assert np.array_equal(side, own) and document.kept(layer) == len(own)
        return [document.name for document in file], [document.metadata for document in file], file.dtype


ids = np.arange(40).reshape(2, 20)
assert written("one.h5", [pair(1, 2, 20, 8) for _ in range(3)], ids[:1]) == (["document 0"], [None], "f16")
mask = np.ones((2, 20), int)
mask[1, :6] = 0
facts = written("batch.h5", [pair(2, 2, 20, 8) for _ in range(2)], ids, mask, names=["a", "ü"], metadata=[{"of": "a"}, None])
assert facts[:2] == (["a", "ü"], [{"of": "a"}, None]), facts
written("windows.h5", [pair(1, 2, 5, 8), pair(1, 2, 20, 8)], ids[:1])
narrow = np.ones((2, 20), int)
narrow[1, :17] = 0
written("narrow.h5", [pair(2, 2, 5, 8), pair(2, 2, 20, 8)], ids, narrow)
written("shapes.h5", [pair(1, 2, 20, 8, 4), pair(1, 4, 20, 8)], ids[:1])
assert written("placed.h5", [pair(1, 1, 20, 8, kind=np.float32)], ids[:1], positions=np.arange(100, 140, 2).reshape(1, 20))[2] == "f32"
# Arrays that are views, types that are mixed, and more rows than one piece takes.
view = random.standard_normal((20, 2, 1, 8)).astype(np.float32).transpose(2, 1, 0, 3)
assert written("view.h5", [(view, view.astype(np.float16))], ids[:1])[2] == "f32"
for kind in (np.float32, np.float16):
    odd = [np.frombuffer(b"x" + side.transpose(0, 2, 1, 3).tobytes(), kind, offset=1).reshape(1, 20, 2, 8).transpose(0, 2, 1, 3)
           for side in pair(1, 2, 20, 8, kind=kind)]
    assert not odd[0].flags.aligned
    written(f"odd-{np.dtype(kind).itemsize}.h5", [odd], ids[:1])
kvfiles.from_cache([pair(1, 8, 9000, 128)], None, "long.h5")
assert kvfiles.open("long.h5")[0].tokens is None
# One id more than tokens belongs to a token that is not in the cache yet.
one = [pair(1, 2, 19, 8)]
kvfiles.from_cache(one, ids[:1], "surplus.h5")
assert np.array_equal(kvfiles.open("surplus.h5")[0].tokens, np.arange(19))
kvfiles.encode(one, ids[:1, :19], "given-codes.h5", ["--codec", "q4", "--quiet"], names="it")
with kvfiles.open("given-codes.h5") as codes:
    assert codes.codec == "q4" and codes["it"].kept(0) == 19


def scores(**config):
    """The attribute of a file of that model."""
    kvfiles.from_cache([pair(1, 2, 20, 8) for _ in range(3)], ids[:1], "scores.h5", config=types.SimpleNamespace(num_attention_heads=4, **config),
                       overwrite=True)
    text = kvfiles.open("scores.h5").model.scores
    return json.loads(text) if text else None


mixed = ["sliding_attention", "full_attention", "sliding_attention"]
assert scores(model_type="llama") == {}
assert scores(model_type="mistral", sliding_window=7) == {"windows": [7, 7, 7]}
assert scores(model_type="gemma2", sliding_window=9, layer_types=mixed, attn_logit_softcapping=50.0) == {"cap": 50.0, "windows": [9, 0, 9]}
assert scores(model_type="qwen2", sliding_window=None, layer_types=["full_attention"] * 3) == {}
for unknown in (dict(model_type="bloom"), dict(model_type="gpt_oss", layer_types=mixed, sliding_window=5), dict(model_type="gemma2", sliding_window=9),
                dict(model_type="qwen2", layer_types=["chunked_attention"] * 3), dict(model_type="qwen2", layer_types=mixed[:2]),
                dict(model_type="gemma3_text", use_bidirectional_attention=True)):
    assert scores(**unknown) is None, unknown


class Weights(list):
    """As far as kvfiles looks at a tensor of weights."""

    detach = float = lambda self: self
    tolist = lambda self: list(self)  # noqa: E731


sinks = [[layer + head / 4 for head in range(4)] for layer in range(3)]
model = types.SimpleNamespace(
    config=types.SimpleNamespace(model_type="gpt_oss", layer_types=mixed, sliding_window=5, num_attention_heads=4),
    named_parameters=lambda: [("model.norm.weight", Weights()), *((f"model.layers.{n}.self_attn.sinks", Weights(own)) for n, own in enumerate(sinks))])
kvfiles.from_cache([pair(1, 2, 20, 8) for _ in range(3)], ids[:1], "scores.h5", config=model, overwrite=True)
with kvfiles.open("scores.h5") as file:
    assert json.loads(file.model.scores) == {"windows": [5, 0, 5], "sinks": sinks} and file.model.query_heads == 4
kvfiles.from_cache([pair(1, 2, 20, 8)], ids[:1], "scores.h5", overwrite=True)
assert kvfiles.open("scores.h5").model.scores == ""


def refused(words, cache=None, given=ids[:1], path="x.h5", **more):
    before = sorted(os.listdir())
    try:
        kvfiles.from_cache([pair(1, 2, 20, 8)] if cache is None else cache, given, path, **more)
    except kvfiles.Error as error:
        assert words in str(error), f"{words!r} is not in: {error}"
    else:
        raise AssertionError(f"accepted: {words}")
    assert sorted(os.listdir()) == before, f"{words}: {set(os.listdir()) ^ set(before)}"


def changed(value):
    return np.concatenate([ids[0, :19].astype(type(value)), [value]])[None]


refused("hold -1", given=changed(-1))
refused("hold 4294967296", given=changed(1 << 32))
refused("of the type float64", given=changed(1.7))
refused("there are 18 ids", given=ids[:1, :18])
refused("there are 40 ids", given=ids.reshape(1, 40))
refused("ids have the shape", given=ids)
refused("same name", [pair(2, 2, 20, 8)], ids, names=["a", "a"])
refused("1 names and 2 documents", [pair(2, 2, 20, 8)], ids, names=["a"])
refused("zero byte", names=["a\0b"])
refused("values of the shape", [(pair(1, 2, 20, 8)[0], pair(1, 2, 21, 8)[0])])
refused("values of the shape", [(pair(1, 2, 20, 8)[0], pair(1, 3, 20, 8)[0])])
refused("layer 1 holds 2 documents", [pair(1, 2, 20, 8), pair(2, 2, 20, 8)])
refused("of the type int64", [tuple(np.ones((1, 2, 20, 8), int) for _ in range(2))])
refused("have the shape (2, 20, 8)", [tuple(np.ones((2, 20, 8), np.float16) for _ in range(2))])
refused("no layers with keys and values", [])
refused("is no cache", 7)
refused("no pair", [7])
refused("no arrays", [([1], [2])])
refused("holds no tokens", [pair(1, 2, 0, 8)], None)
refused("attention_mask", attention_mask=np.ones((1, 3)))
refused("no run of ones", attention_mask=np.r_[np.ones(9), 0, np.ones(10)][None])
refused("positions must rise", positions=np.r_[np.arange(19), 18])
refused("there are 19 positions", positions=np.arange(19))
refused("positions hold -1", positions=np.arange(-1, 19))
refused("metadata", metadata={"a": float("nan")})
refused("a dict, or None", metadata=["text"])
for value in (np.nan, np.inf):
    broken = pair(1, 2, 20, 8)
    broken[1][0, 1, 7, 3] = value
    refused("token 7", [broken])
far = pair(1, 2, 20, 8, kind=np.float64)
far[0][0, 0, 2, 1] = 1e300
refused("token 2", [far])


def beyond():
    kvfiles.from_cache([tuple(array * 1e5 for array in pair(1, 2, 20, 8, kind=np.float32))], ids[:1], "large.h5")
    kvfiles.open("large.h5")[0].key(0, "f16")


try:
    beyond()
    raise AssertionError("accepted: numbers beyond float16")
except kvfiles.Error as error:
    assert "beyond float16" in str(error), error

# Names that are taken.
with open("one.h5", "rb") as file:
    before = file.read()
refused("one.h5: exists already", path="one.h5")
with open("one.h5", "rb") as file:
    assert file.read() == before
kvfiles.from_cache([pair(1, 2, 20, 8) for _ in range(3)], ids[:1], "one.h5", overwrite=True)
with open("one.h5", "rb") as file:
    assert file.read() != before
os.symlink("nowhere.h5", "dangling.h5")
refused("dangling.h5", path="dangling.h5")
assert not os.path.exists("nowhere.h5") and os.path.islink("dangling.h5")
# A name like those of temporary files leads nowhere.
os.symlink("victim", f"y.h5.{os.getpid()}.tmp")
kvfiles.from_cache([pair(1, 2, 20, 8)], ids[:1], "y.h5")
assert not os.path.exists("victim")
print("the package writes and refuses")
