#!/usr/bin/env python3
"""Checks the codecs of this folder on made-up rows: bits of keys and values, and that their error is as small as it should be. With gguf installed, that
llama_cpp.py makes its blocks, bit for bit. usage: PYTHONPATH=formats/python python3 check.py
"""
import numpy as np
from kvfiles.coding import Where
import kvquant
import llama_cpp
import nvfp4
import turboquant

# Each codec with its arguments, and the least signal-to-noise ratios of keys and values in dB. Keys of a paper's product form have no bias, but more noise.
FORMS = {
    llama_cpp.LlamaCpp: [("q8_0", 44, 44), ("q5_1", 28, 27), ("q4_0", 20, 20), ("iq4_nl", 21, 21), ("iq4_nl-unrotated", 17, 21)],
    nvfp4.Nvfp4: [("", 19, 19)],
    turboquant.TurboQuant: [("mse-2", 8, 8), ("mse-3", 13, 13), ("mse-4", 18, 19), ("product-4", 11, 19),
                            ("k8v4-of-6", 30, 20), ("4bit_nc-of-6", 19, 20), ("k3v4_nc-of-6", 14, 20),
                            ("3bit_nc-of-6", 14, 13), ("3bit_nc-of-4", 60, 60)],
    kvquant.KvQuant: [("nuq2", 11, 9), ("nuq3", 17, 15), ("nuq4", 22, 21)],
}


def rows_of(side, random):
    """Normal numbers, rounded to bf16; keys with one large channel, as models have them."""
    rows = random.standard_normal((256, 2, 64)).astype("f4")
    if side == "key":
        rows[..., 7] = 4 * rows[..., 7] + 8
    return (rows.view("u4") & 0xFFFF0000).view("f4")


def same_as_gguf(random):
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError:
        return
    x = random.standard_normal((4096, 32)).astype("f4") * np.exp(random.standard_normal((4096, 1)).astype("f4"))
    x[0], x[1], x[2] = 0, 1, (x[2].view("u4") & 0xFFFF0000).view("f4")
    for kind, layout in llama_cpp.LAYOUTS.items():
        blocks, theirs = llama_cpp.quantize(kind, x), GGMLQuantizationType[kind.upper()]
        assert np.array_equal(quants.dequantize(blocks.view("u1").reshape(4096, layout.itemsize), theirs), llama_cpp.dequantize(kind, blocks))
        assert kind == "iq4_nl" or quants.quantize(x, theirs).tobytes() == blocks.tobytes(), kind


random = np.random.default_rng(1)
for codec, arguments, *least in [(codec, *form) for codec, forms in FORMS.items() for form in forms]:
    coder, said = codec(), [codec.__name__, arguments or "-"]
    coder.begin(arguments)
    for side, bound in zip(("key", "value"), least):
        rows, where = rows_of(side, random), Where(side, 2, 0, 256, 2, 64)
        data = coder.encode(rows, where, b"")
        error = coder.decode(data, where, b"") - rows
        ratio = 10 * np.log10(np.square(rows).sum() / max(np.square(error).sum(), 1e-9))
        said.append(f"{8 * len(data) / rows.size:.3f}" + ("" if ratio >= bound else f" only {ratio:.1f} dB"))
    print(*said)
same_as_gguf(random)
