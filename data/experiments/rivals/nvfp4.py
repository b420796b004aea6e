#!/usr/bin/env python3
"""NVFP4 caches, as TensorRT-LLM, vLLM and FlashInfer have them, for codec exec.

Source: NVIDIA's description of the format. A value is E2M1 (0, .5, 1, 1.5, 2, 3, 4, 6 and a sign); 16 values along a head's dimensions share a
scale, E4M3: their largest / 6; all of a tensor share one, f32: its largest / (6 * 448). All rounding is to the nearest, halves to even.
Settings: no exact tokens; keys as the cache has them (--rope keep). 4.5 bits.

Deviations: the tensor's scale is that of a document's side of a layer, stored with it; servers have one from calibration, or 1. Values are
divided by the exact product of both scales, not multiplied by a reciprocal of few bits. vLLM's later search for the better of two scales
(4 over 6) is left out.
"""
import numpy as np
from kvfiles.coding import RowCodec

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], "f4")
# Codes 0 to 126: eight subnormal numbers, then a mantissa of three bits; 448 is the largest.
E4M3 = np.array([(c if c < 8 else (8 + c % 8) * 2.0 ** (c // 8 - 1)) / 512 for c in range(127)], "f4")


def nearest(table, x):
    """Indices of the numbers of a rising table that x >= 0 round to, halves to even indices."""
    middles = (table[1:] + table[:-1]) / 2
    low, high = np.searchsorted(middles, x, "left"), np.searchsorted(middles, x, "right")
    return np.where(low % 2 == 0, low, high).astype(np.uint8)


class Nvfp4(RowCodec):
    def encode(self, rows, where, table):
        if where.dims % 16 != 0:
            raise ValueError(f"blocks of 16 do not divide heads of {where.dims} dimensions")
        blocks = rows.reshape(-1, 16)
        largest = np.abs(blocks).max(1)
        whole = np.float32(max(largest.max() / (6 * 448), np.finfo("f4").tiny))
        scales = nearest(E4M3, largest / 6 / whole)
        divisors = E4M3[scales][:, None] * whole
        levels = nearest(E2M1, np.abs(np.divide(blocks, divisors, out=np.zeros_like(blocks), where=divisors > 0)))
        levels |= np.signbit(blocks).astype(np.uint8) << 3
        return whole.tobytes() + scales.tobytes() + (levels[:, ::2] | levels[:, 1::2] << 4).tobytes()

    def decode(self, data, where, table):
        count = where.tokens * where.heads * where.dims // 16
        whole = np.frombuffer(data, "<f4", 1)
        scales = E4M3[np.frombuffer(data, np.uint8, count, 4)] * whole
        packed = np.frombuffer(data, np.uint8, offset=4 + count).reshape(count, 8, 1)
        levels = np.concatenate([packed & 15, packed >> 4], 2).reshape(count, 16)
        return (np.where(levels < 8, 1, -1) * E2M1[levels & 7] * scales[:, None]).reshape(where.shape)


if __name__ == "__main__":
    Nvfp4().run()
