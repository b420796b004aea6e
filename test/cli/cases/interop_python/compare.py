"""Holds kvfiles to kvcodec: of each file all that the program decodes and exports. Arguments: FILE or FILE=BOOK."""
import json
import subprocess
import sys

import numpy as np

import kvfiles


def tensors(path):
    """A safetensors file."""
    with open(path, "rb") as file:
        data = file.read()
    begin = 8 + int.from_bytes(data[:8], "little")
    types = {"F32": np.float32, "I64": np.int64, "I32": np.int32, "U32": np.uint32}
    return {name: np.frombuffer(data, types[own["dtype"]], -1 if 0 in own["shape"] else int(np.prod(own["shape"])),
                                begin + own["data_offsets"][0]).reshape(own["shape"])
            for name, own in json.loads(data[8:begin]).items() if name != "__metadata__"}


def wide(array, kind):
    return (array.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else array.astype(np.float32)


def run(*words):
    subprocess.run(["kvcodec", *words, "--overwrite", "--quiet"], check=True, stdout=subprocess.DEVNULL)


def compare(path, book):
    info = json.loads(subprocess.run(["kvcodec", "info", path, "--json"], check=True, capture_output=True, text=True).stdout)
    file = kvfiles.open(path, book)
    kv = path
    if file.codec:
        kv = "decoded.h5"
        run("decode", path, *(["--book", book] if book else []), "-o", kv)
    assert [own["name"] for own in info["documents"]] == file.names == [document.name for document in file], file.names
    for number, document in enumerate(file):
        assert len(document) == info["documents"][number]["tokens"] and file[number - len(file)].name == document.name
        assert len(document.tokens) == len(document.positions) == len(document)
        if len(document) == 0:
            assert document.key(0).shape == (0, *file.shape(0)[:2])
            continue
        run("export", kv, "--documents", str(number), "--to", "transformers", "--type", "f32", "-o", "one.safetensors")
        wanted = tensors("one.safetensors")
        assert np.array_equal(document.tokens, wanted["input_ids"][0]) and np.array_equal(document.positions, wanted["position_ids"][0])
        assert document.layers == [layer for layer in range(file.model.layers) if f"layers.{layer}.keys" in wanted]
        for layer in document.layers:
            for side in ("key", "value"):
                rows = wanted[f"layers.{layer}.{side}s"][0].transpose(1, 0, 2)
                read = getattr(document, side)
                kept = document.kept(layer)
                assert kept == len(rows), (path, layer, kept, len(rows))
                own = read(layer, file.dtype)
                assert own.shape == rows.shape and np.array_equal(wide(own, file.dtype), rows), (path, number, layer, side)
                floats = read(layer)
                assert floats.dtype == np.float32 and np.abs(floats - rows).max() <= np.abs(rows).max() / 128
                some = read(layer, first=kept // 3, count=kept // 2)
                assert np.array_equal(some, floats[kept // 3:kept // 3 + kept // 2]) and np.array_equal(read(layer, first=kept - 1), floats[-1:])
                if file.dtype == "f16":
                    assert np.array_equal(read(layer, "f16"), rows.astype(np.float16)) and read(layer, "bf16").dtype == np.uint16
    print(path, file.codec or "kv", len(file), "documents")
    file.close()


for argument in sys.argv[1:]:
    name, _, book_name = argument.partition("=")
    compare(name, book_name or None)
print("the package agrees with the program")
