#!/usr/bin/env python3
"""Types of llama.cpp's quantized caches (-ctk, -ctv) for codec exec: --arguments q8_0, q5_1, q4_0 or iq4_nl; q4_0-unrotated and the like.

Source: llama.cpp. Blocks: ggml/src/ggml-quants.c, the reference quantizers; 32 values of a head's row have a scale, f16. Rotation: since April
2026 (pull request 21038, src/llama-kv-cache.cpp) heads of a multiple of 64 dimensions are turned before they are quantized, by an
orthonormal Hadamard matrix: keys, behind the rotary embedding, in blocks of the largest power of two that divides the dimensions, values in
blocks of 64. -unrotated is what it did before, and does with LLAMA_ATTN_ROT_DISABLE=1.
Settings: both sides alike; no exact tokens; keys as the cache has them (--rope keep). 8.5, 6, 4.5 and 4.5 bits.

Bit for bit the reference's blocks: q8_0, q5_1, q4_0 are those of PyPI's gguf (check.py compares them).
Deviations: rows come rounded to bf16 or f16, there as f32. Attention there multiplies turned queries with turned keys, and rounds queries
too; here rows are turned back. A level may differ by one at a half: compilers fuse products and sums there, and on x86 q8_0 rounds halves to
even and multiplies by 127 / largest. Sums of iq4_nl and of the rotation may be added in another order there.
"""
import numpy as np
from kvfiles.coding import RowCodec

BYTES, HALF = np.uint8, "<f2"
SCALED = [("scale", HALF), ("levels", BYTES, 16)]
LAYOUTS = {
    "q8_0": np.dtype([("scale", HALF), ("levels", "i1", 32)]),
    "q5_1": np.dtype([("scale", HALF), ("least", HALF), ("high", "<u4"), ("levels", BYTES, 16)]),
    "q4_0": np.dtype(SCALED),
    "iq4_nl": np.dtype(SCALED),
}
IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], "f4")


def inverse(scales):
    return np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)


def extreme(x):
    """The value of each block that is largest without its sign, the first of equals."""
    return np.take_along_axis(x, np.abs(x).argmax(1, keepdims=True), 1)


def nibbles(levels):
    return levels[:, :16] | levels[:, 16:] << 4


def quantize(kind, x):
    """Blocks of LAYOUTS[kind] of x, f32 [blocks, 32]."""
    blocks = np.zeros(len(x), LAYOUTS[kind])
    if kind == "q8_0":
        scale = np.abs(x).max(1, keepdims=True) / np.float32(127)
        size = np.abs(x * inverse(scale))
        whole = np.floor(size)
        blocks["levels"] = np.copysign(whole + (size - whole >= 0.5), x)
    elif kind == "q5_1":
        least = x.min(1, keepdims=True)
        scale = (x.max(1, keepdims=True) - least) / np.float32(31)
        levels = ((x - least) * inverse(scale) + np.float32(0.5)).astype(BYTES)
        blocks["least"], blocks["levels"] = least[:, 0], nibbles(levels & 15)
        blocks["high"] = np.packbits(levels >> 4, axis=1, bitorder="little").view("<u4")[:, 0]
    elif kind == "q4_0":
        scale = extreme(x) / np.float32(-8)
        blocks["levels"] = nibbles(np.minimum(x * inverse(scale) + np.float32(8.5), 15).astype(BYTES))
    else:
        levels = np.searchsorted((IQ4_NL[1:] + IQ4_NL[:-1]) / 2, x * inverse(extreme(x) / IQ4_NL[0]), side="right")
        values = IQ4_NL[levels]
        weighed = x * x * values  # the scale has the least error, weighed by squares, for these levels
        products, squares = ((weighed * y).cumsum(1, dtype="f4")[:, -1:] for y in (x, values))
        scale = np.divide(products, squares, out=np.zeros_like(products), where=np.abs(extreme(x)) >= 1e-15)
        blocks["levels"] = nibbles(np.where(scale != 0, levels, 0).astype(BYTES))
    blocks["scale"] = scale[:, 0]
    return blocks


def dequantize(kind, blocks):
    scale, levels = blocks["scale"].astype("f4")[:, None], blocks["levels"]
    if kind == "q8_0":
        return levels * scale
    levels = np.concatenate([levels & 15, levels >> 4], 1)
    if kind == "q5_1":
        high = np.unpackbits(blocks["high"].copy().view(BYTES).reshape(-1, 4), axis=1, bitorder="little")
        return (levels | high << 4) * scale + blocks["least"].astype("f4")[:, None]
    return IQ4_NL[levels] * scale if kind == "iq4_nl" else (levels - np.float32(8)) * scale


def turned(rows, side):
    """rows times a Hadamard matrix in blocks, which is its own inverse."""
    dims = rows.shape[-1]
    if dims % 64 != 0:
        return rows
    matrix = np.ones((1, 1), "f4")
    while len(matrix) < (dims & -dims if side == "key" else 64):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (rows.reshape(-1, len(matrix)) @ (matrix / np.sqrt(np.float32(len(matrix))))).reshape(rows.shape)


class LlamaCpp(RowCodec):
    def begin(self, arguments):
        self.kind, _, how = arguments.partition("-")
        if self.kind not in LAYOUTS or how not in ("", "unrotated"):
            raise ValueError(f"--arguments takes {', '.join(LAYOUTS)}, each also with -unrotated, not '{arguments}'")
        self.turned = turned if how == "" else lambda rows, side: rows

    def encode(self, rows, where, table):
        if where.dims % 32 != 0:
            raise ValueError(f"blocks of 32 do not divide heads of {where.dims} dimensions")
        return quantize(self.kind, self.turned(rows, where.side).reshape(-1, 32)).tobytes()

    def decode(self, data, where, table):
        rows = dequantize(self.kind, np.frombuffer(data, LAYOUTS[self.kind])).reshape(where.shape)
        return self.turned(rows, where.side)


if __name__ == "__main__":
    LlamaCpp().run()
