"""Holds kvcodec.py to kvcodec, and what it writes to what it was given."""
import glob
import os
import shutil
import subprocess
import sys

import numpy as np

import kvcodec


def same(a, b):
    for one, two in zip(a, b):
        assert len(one) == len(two) and one.name == two.name, (one.name, two.name)
        assert (one.tokens is None) == (two.tokens is None)
        assert one.tokens is None or np.array_equal(one.tokens, two.tokens)
        assert np.array_equal(one.positions, two.positions) and one.layers == two.layers
        for layer in one.layers:
            for side in ("key", "value"):
                mine, wanted = getattr(one, side)(layer), getattr(two, side)(layer)
                assert mine.dtype == np.float32 and mine.shape == wanted.shape, (mine.shape, wanted.shape)
                assert np.array_equal(mine, wanted), (one.name, layer, side, np.abs(mine - wanted).max())


for path in sorted(glob.glob("*-*.h5")) + ["sparse.h5"]:
    book = ["--book", "data/dict.h5"] if path == "sparse.h5" else []
    subprocess.run(["kvcodec", "decode", path, *book, "-o", "decoded.h5", "--overwrite"], check=True, stdout=subprocess.DEVNULL)
    with kvcodec.open(path, *book[1:]) as codes, kvcodec.open("decoded.h5") as decoded:
        assert len(codes) == len(decoded)
        same(codes, decoded)
        print(path, codes.codec, "here" if codes.here else "by the program", len(codes), "documents")

random = np.random.default_rng(1)


def pair(batch, heads, tokens, dim, value_dim=None):
    return tuple(random.standard_normal((batch, heads, tokens, d)).astype(np.float16) for d in (dim, value_dim or dim))


def written(name, cache, ids, mask=None):
    kvcodec.from_cache(cache, ids, name, attention_mask=mask)
    with kvcodec.open(name) as file:
        for b, document in enumerate(file):
            tokens = ids.shape[1]
            first = 0 if mask is None else int(np.flatnonzero(mask[b])[0])
            assert np.array_equal(document.tokens, ids[b, first:]) and np.array_equal(document.positions, np.arange(tokens - first))
            for layer, sides in enumerate(cache):
                for side, array in zip((document.key(layer), document.value(layer)), sides):
                    own = array[b].transpose(1, 0, 2).astype(np.float32)[-(tokens - first):]
                    assert np.array_equal(side, own) and document.kept(layer) == len(own)


ids = np.arange(40).reshape(2, 20)
written("one.h5", [pair(1, 2, 20, 8) for _ in range(3)], ids[:1])
mask = np.ones((2, 20), int)
mask[1, :6] = 0
written("batch.h5", [pair(2, 2, 20, 8) for _ in range(2)], ids, mask)
written("windows.h5", [pair(1, 2, 5, 8), pair(1, 2, 20, 8)], ids[:1])
# Codes of layers with windows, decoded by the module and by the program.
for codec in ("lossless", "kivi", "kvcomp"):
    for command in (["encode", "windows.h5", "--codec", codec, "-o", "windows-codes.h5"], ["decode", "windows-codes.h5", "-o", "decoded.h5"]):
        subprocess.run(["kvcodec", *command, "--overwrite", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    with kvcodec.open("windows-codes.h5") as codes, kvcodec.open("decoded.h5") as decoded:
        assert codes[0].kept(0) == decoded[0].kept(0) == 5
        same(codes, decoded)
written("shapes.h5", [pair(1, 2, 20, 8, 4), pair(1, 4, 20, 8)], ids[:1])

# A change that was made during a read is in the file's journal, which the module does not read.
shutil.copy("f16-q4.h5", "held.h5")
os.symlink("held.h5", "link.h5")
with kvcodec.open("held.h5") as held, kvcodec.open("f16-q4.h5") as before:
    subprocess.run(["kvcodec", "encode", "more.h5", "--append", "held.h5", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    assert os.path.exists("held.h5.journal")
    same(held, before)
for path in ("held.h5", "link.h5"):
    try:
        kvcodec.open(path)
        print("accepted:", path)
    except kvcodec.Error as error:
        assert "run kvcodec compact" in str(error), error
subprocess.run(["kvcodec", "compact", "held.h5", "--quiet"], check=True, stdout=subprocess.DEVNULL)
with kvcodec.open("held.h5") as held:
    assert len(held) == 4 and held[3].name == "c"
# A file that replaces another does not keep that one's journal; a user's file with the journal's name stays.
with open("one.h5.journal", "w") as journal:
    journal.write("kvcodec journal 1\nof another file")
written("one.h5", [pair(1, 2, 20, 8) for _ in range(3)], ids[:1])
assert not os.path.exists("one.h5.journal")
with open("one.h5.journal", "w") as journal:
    journal.write("Dear diary")
try:
    written("one.h5", [pair(1, 2, 20, 8) for _ in range(3)], ids[:1])
    print("accepted: a journal of another kind")
except kvcodec.Error as error:
    assert "is no journal of kvcodec" in str(error), error
assert os.path.exists("one.h5.journal")
os.unlink("one.h5.journal")

for wrong, words in ((lambda: kvcodec.open("nothing.h5"), "nothing.h5"), (lambda: kvcodec.open("data/dict.h5"), "is dictionary"),
                     (lambda: kvcodec.open("one.h5")["x"], "no document 'x'"), (lambda: kvcodec.open("one.h5")[0].key(9), "no layer 9"),
                     (lambda: kvcodec.from_cache([pair(1, 2, 20, 8)], ids[:1], "x.h5", attention_mask=np.ones((1, 3))), "attention_mask")):
    try:
        wrong()
        print("accepted:", words)
    except kvcodec.Error as error:
        assert words in str(error), error
assert not os.path.exists("x.h5")
print("the module agrees with the program")
