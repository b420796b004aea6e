#!/usr/bin/env python3
"""KVQuant for codec exec: --arguments nuqB, B bits of 2, 3 or 4, with 1% outliers.

Source: Hooper et al., arXiv 2401.18079, sections 3.1 to 3.6, and the project's quant/kvquant/simquant_module_quantizer.py. A vector is a channel of
keys from before the rotary embedding, or a token's values in all heads. Its largest and least half percent are kept apart, 16 bits each and 16
for the place. The rest, from -1 at its least to 1 at its largest, takes the nearest of 2^B levels that all vectors of a side of a layer
share: centres of k-means.
Settings: --rope undo --sink 1 (the paper keeps the first token exactly).

Deviations: the paper learns levels and the keys' ranges from calibration text, and weighs k-means by squared gradients of the loss; here they
are learned from the document itself, unweighed, and stored with it (at 512 tokens 0.06 bits per key). Its Q-Norm is left out. Outliers
are a whole number at each end, at least one: 2 of 128 values are 1.6%.
"""
import numpy as np
from kvfiles.coding import RowCodec


def k_means(x, count):
    """Centres of `count` clusters of numbers from -1 to 1, by Lloyd's rounds over bins of a histogram."""
    mass, edges = np.histogram(x, 4096, (-1, 1))
    middles = (edges[1:] + edges[:-1]) / 2
    mass, moment = np.append(0, mass.cumsum()), np.append(0, (mass * middles).cumsum())
    centres = np.linspace(-1, 1, 2 * count + 1)[1::2]
    for _ in range(50):
        ends = np.r_[0, np.searchsorted(middles, (centres[1:] + centres[:-1]) / 2), len(middles)]
        sizes = np.diff(mass[ends])
        centres = np.where(sizes > 0, np.diff(moment[ends]) / np.maximum(sizes, 1), centres)
    return np.sort(centres).astype("<f2")


class KvQuant(RowCodec):
    def begin(self, arguments):
        if arguments not in ("nuq2", "nuq3", "nuq4"):
            raise ValueError(f"--arguments takes nuq2, nuq3 or nuq4, not '{arguments}'")
        self.bits = int(arguments[3:])

    def shape(self, where):
        """Vectors, numbers in each, outliers of each, and the type of their places."""
        shape = (where.heads * where.dims, where.tokens) if where.side == "key" else (where.tokens, where.heads * where.dims)
        return *shape, min(2 * max(1, round(0.005 * shape[1])), shape[1] - 1), "<u2" if shape[1] <= 65536 else "<u4"

    def encode(self, rows, where, table):
        vectors, size, outliers, place = self.shape(where)
        x = rows.reshape(where.tokens, -1)
        x = np.ascontiguousarray(x.T if where.side == "key" else x)
        order = np.argsort(x, axis=1, kind="stable")
        ends = outliers - outliers // 2, size - outliers // 2
        places = np.sort(np.concatenate([order[:, :ends[0]], order[:, ends[1]:]], 1), 1)
        inner = np.take_along_axis(x, order[:, [ends[0], ends[1] - 1]], 1).astype("<f2")
        least, largest = inner.astype("f4").T[..., None]
        scaled = (2 * x - largest - least) / np.maximum(largest - least, 1e-20)
        inside = np.ones(x.shape, bool)
        np.put_along_axis(inside, places, False, 1)
        levels = k_means(scaled[inside], 2**self.bits)
        middles = (levels[1:].astype("f4") + levels[:-1]) / 2
        numbers = np.searchsorted(middles, scaled).astype(np.uint8)
        bits = np.unpackbits(numbers[..., None], axis=-1, count=self.bits, bitorder="little")
        apart = np.take_along_axis(x, places, 1).astype("<f2")
        return b"".join(array.tobytes() for array in (levels, inner, places.astype(place), apart, np.packbits(bits)))

    def decode(self, data, where, table):
        vectors, size, outliers, place = self.shape(where)
        at = 0

        def take(kind, *shape):
            nonlocal at
            array = np.frombuffer(data, kind, int(np.prod(shape)), at).reshape(shape)
            at += array.nbytes
            return array

        levels, inner = take("<f2", 2**self.bits).astype("f4"), take("<f2", vectors, 2).astype("f4")
        places, apart = take(place, vectors, outliers).astype(int), take("<f2", vectors, outliers)
        bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=at), count=vectors * size * self.bits)
        numbers = np.packbits(bits.reshape(vectors, size, self.bits), axis=-1, bitorder="little")[..., 0]
        x = (levels[numbers] * (inner[:, 1:] - inner[:, :1]) + inner[:, 1:] + inner[:, :1]) / 2
        np.put_along_axis(x, places, apart, 1)
        return (x.T if where.side == "key" else x).reshape(where.shape)


if __name__ == "__main__":
    KvQuant().run()
