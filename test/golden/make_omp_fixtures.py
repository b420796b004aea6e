#!/usr/bin/env python3
"""Makes omp_fixtures.bin: what scikit-learn's orthogonal_mp_gram finds for dictionaries and signals that omp_test.cpp
makes again from the same numbers.

    python3 make_omp_fixtures.py omp_fixtures.bin       (needs numpy and scikit-learn; made with scikit-learn 1.9.1)

Random numbers: x <- x * 6364136223846793005 + 1442695040888963407 mod 2^64, a uniform number is (x >> 40) / 2^24, a bell-shaped
one the sum of four of them less 2. All sums run from first to last in double; matrices are rounded to float32 at the end.

File, little-endian: u32 number of cases; for each case u32 n, m, s, count, common, kind, percent, u64 seed, u32 xor of the bits of
all float32 of the dictionary, u32 of the signals; then for each signal u16 number of atoms, f64 residual norm, u16 ids,
ascending.
"""
import struct
import sys
import warnings

import numpy as np
from sklearn.linear_model import orthogonal_mp_gram

GAUSSIAN, SPARSE, TARGET = 0, 1, 2  # kinds of signals; TARGET: Gaussian, coded to a relative error of `percent`

# n, m, s, count, percent the atoms have in common, kind, percent of noise or of the error target
CASES = [
    (64, 16, 4, 200, 0, GAUSSIAN, 0),
    (256, 64, 8, 200, 0, GAUSSIAN, 0),
    (256, 64, 8, 200, 70, GAUSSIAN, 0),
    (500, 100, 20, 150, 0, SPARSE, 10),
    (500, 100, 20, 150, 50, SPARSE, 5),
    (1024, 128, 16, 100, 0, GAUSSIAN, 0),
    (1024, 128, 32, 60, 90, GAUSSIAN, 0),
    (1000, 250, 30, 60, 30, SPARSE, 20),
    (300, 48, 40, 100, 0, TARGET, 20),
    (300, 48, 40, 60, 0, TARGET, 5),
]


class Numbers:
    def __init__(self, seed):
        self.x = seed

    def uniform(self, count):
        out = np.empty(count)
        x = self.x
        for i in range(count):
            x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
            out[i] = (x >> 40) / 2.0**24
        self.x = x
        return out

    def bell(self, count):
        u = self.uniform(4 * count).reshape(count, 4)
        return u[:, 0] + u[:, 1] + u[:, 2] + u[:, 3] - 2.0


def dictionary(numbers, n, m, common_percent):
    shared = numbers.bell(m)
    atoms = np.empty((n, m))
    for i in range(n):
        row = common_percent / 100.0 * shared + (100 - common_percent) / 100.0 * numbers.bell(m)
        atoms[i] = row / np.sqrt(np.cumsum(row * row)[-1])  # cumsum adds from first to last
    return atoms.astype(np.float32)


def signals(numbers, count, atoms, s, kind, percent):
    n, m = atoms.shape
    out = np.empty((count, m))
    for i in range(count):
        if kind != SPARSE:
            out[i] = numbers.bell(m)
            continue
        row = np.zeros(m)
        for _ in range(s):
            atom = int(numbers.uniform(1)[0] * n)
            weight = numbers.bell(1)[0]
            row = row + weight * atoms[atom].astype(np.float64)
        out[i] = row + percent / 100.0 * numbers.bell(m) / np.sqrt(float(m))
    return out.astype(np.float32)


def xor(values):
    return int(np.bitwise_xor.reduce(values.view(np.uint32).ravel()))


def main():
    warnings.simplefilter("error")
    with open(sys.argv[1], "wb") as out:
        out.write(struct.pack("<I", len(CASES)))
        for index, (n, m, s, count, common, kind, percent) in enumerate(CASES):
            seed = 1000 + index
            numbers = Numbers(seed)
            atoms = dictionary(numbers, n, m, common)
            y = signals(numbers, count, atoms, s, kind, percent)
            out.write(struct.pack("<IIIIIIIQII", n, m, s, count, common, kind, percent, seed, xor(atoms), xor(y)))
            d = atoms.astype(np.float64)
            gram = d @ d.T
            for signal in y.astype(np.float64):
                energy = signal @ signal
                # copy_*=True: the defaults scramble their arguments.
                if kind == TARGET:
                    # A matrix of one signal, because a tolerance is refused for a vector.
                    coefficients = orthogonal_mp_gram(gram, (d @ signal)[:, np.newaxis], tol=(percent / 100) ** 2 * energy,
                                                      norms_squared=[energy], copy_Gram=True, copy_Xy=True)
                else:
                    coefficients = orthogonal_mp_gram(gram, d @ signal, n_nonzero_coefs=s, copy_Gram=True, copy_Xy=True)
                ids = np.nonzero(coefficients)[0]
                residual = np.linalg.norm(signal - coefficients[ids] @ d[ids])
                out.write(struct.pack("<Hd", len(ids), residual) + ids.astype("<u2").tobytes())


if __name__ == "__main__":
    main()
