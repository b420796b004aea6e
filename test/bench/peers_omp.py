#!/usr/bin/env python3
"""Sparse coding by SPAMS (spams.omp) and scikit-learn (orthogonal_mp_gram) at the shapes and on the numbers of kvcodec_bench_omp.

    kvcodec_bench_omp --export /tmp/omp && python3 peers_omp.py /tmp/omp

Needs numpy, scikit-learn and spams-bin. The Gram matrix is excluded: scikit-learn takes it as an argument; SPAMS makes it in
every call, so its time is that of all signals less that of a third of them, for the other two thirds. Best of three.
"""
import os
import sys
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "2")
os.environ.pop("OPENBLAS_CORETYPE", None)

import numpy as np  # noqa: E402  (after the environment is set)
import spams  # noqa: E402
from sklearn.linear_model import orthogonal_mp_gram  # noqa: E402

SHAPES = [(2048, 256, 16), (8192, 512, 32), (8192, 512, 64), (8192, 1024, 128)]
SKLEARN_SIGNALS = 24
REPEATS = 3


def best(body):
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        body()
        times.append(time.perf_counter() - start)
    return min(times)


def nmse(signals, atoms, codes):
    return float(((signals - codes @ atoms) ** 2).sum() / (signals**2).sum())


def main(folder):
    for n, m, s in SHAPES:
        atoms = np.fromfile(f"{folder}/{n}_{m}.dictionary.f32", np.float32).reshape(n, m)
        signals = np.fromfile(f"{folder}/{n}_{m}_{s}.signals.f32", np.float32).reshape(-1, m)
        d = np.asfortranarray(atoms.T)
        third = len(signals) // 3
        parts = [np.asfortranarray(signals[:count].T) for count in (third, len(signals))]
        for threads in (1, 2):
            few, all_of_them = (best(lambda y=y: spams.omp(y, d, L=s, numThreads=threads)) for y in parts)
            error = nmse(signals, atoms, spams.omp(parts[1], d, L=s, numThreads=threads).toarray().T)
            rate = (len(signals) - third) / (all_of_them - few)
            print(f"n {n:4} m {m:4} s {s:3}  spams    {threads} threads {rate:10.0f} signals/s  nmse {error:.4f}", flush=True)
        wide = atoms.astype(np.float64)
        gram, some = wide @ wide.T, signals[:SKLEARN_SIGNALS].astype(np.float64)
        products = wide @ some.T
        seconds = best(lambda: orthogonal_mp_gram(gram, products, n_nonzero_coefs=s))
        codes = orthogonal_mp_gram(gram, products, n_nonzero_coefs=s)
        print(f"n {n:4} m {m:4} s {s:3}  sklearn  2 threads {len(some) / seconds:10.1f} signals/s  "
              f"nmse {nmse(some, wide, codes.T):.4f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
