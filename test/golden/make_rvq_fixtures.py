#!/usr/bin/env python3
"""Makes rvq_fixtures.bin: codebooks that faiss's ResidualQuantizer learned, vectors, the codes it finds for them and what they decode to.

    python3 make_rvq_fixtures.py rvq_fixtures.bin       (needs numpy and faiss-cpu; made with faiss 1.15.1)

File, little-endian: u32 number of cases; for each case u32 width, codebooks, entries, vectors learned from, vectors coded; f32 vectors
learned from, [n, width]; f32 codebooks [codebooks, entries, width]; f32 vectors coded [n, width]; then for the beams 1 and 5: u16 codes
[n, codebooks], f32 decoded [n, width].
"""
import struct
import sys

import numpy as np
import faiss

CASES = [(16, 4, 16, 600, 120), (24, 6, 8, 500, 100)]  # width, codebooks, entries, vectors to learn from, vectors coded


def unpacked(codes, stages, bits):
    found = np.zeros((len(codes), stages), dtype="<u2")
    for i, code in enumerate(codes):
        number = int.from_bytes(bytes(code), "little")
        for s in range(stages):
            found[i, s] = number >> (s * bits) & ((1 << bits) - 1)
    return found


def main(path):
    faiss.omp_set_num_threads(1)
    rng = np.random.default_rng(7)
    with open(path, "wb") as out:
        out.write(struct.pack("<I", len(CASES)))
        for width, stages, entries, learned, coded in CASES:
            mixing = rng.standard_normal((width, width)) / np.sqrt(width) + np.eye(width)
            rows = (rng.standard_normal((learned + coded, width)) @ mixing + 0.5).astype("<f4")
            train, test = rows[:learned], rows[learned:]
            bits = entries.bit_length() - 1
            rq = faiss.ResidualQuantizer(width, stages, bits)
            rq.verbose = False
            rq.train(train)
            books = faiss.vector_to_array(rq.codebooks).reshape(stages, entries, width).astype("<f4")
            out.write(struct.pack("<5I", width, stages, entries, learned, coded))
            for array in (train, books, test):
                out.write(np.ascontiguousarray(array).tobytes())
            for beam in (1, 5):
                rq.max_beam_size = beam
                codes = rq.compute_codes(test)
                out.write(unpacked(codes, stages, bits).tobytes())
                out.write(rq.decode(codes).astype("<f4").tobytes())


if __name__ == "__main__":
    main(sys.argv[1])
