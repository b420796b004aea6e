#!/usr/bin/env python3
"""Sparse coding by kvcodec, SPAMS (spams.omp) and scikit-learn (orthogonal_mp_gram), on the same dictionaries and signals.

    peers_omp.py BENCH_OMP FOLDER        BENCH_OMP is build/test/bench/kvcodec_bench_omp; its numbers are exported to FOLDER

Needs numpy, scikit-learn and spams-bin. kvcodec and SPAMS take turns, shape by shape, so that a machine that slows down slows
both: in each round kvcodec runs (median of its repeats), then SPAMS. The Gram matrix is excluded: scikit-learn takes it as an
argument; SPAMS makes it in every call, so its time is that of all signals less that of a third of them, for the other two thirds.
Shown are medians over the rounds with (smallest .. largest).
"""
import os
import re
import statistics
import subprocess
import sys
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "2")
os.environ.pop("OPENBLAS_CORETYPE", None)

import numpy as np  # noqa: E402  (after the environment is set)
import spams  # noqa: E402
from sklearn.linear_model import orthogonal_mp_gram  # noqa: E402

SHAPES = [(2048, 256, 16), (8192, 512, 32), (8192, 512, 64), (8192, 1024, 128)]
THREADS = (1, 2)
SKLEARN_SIGNALS = 24
ROUNDS = 5


def seconds_of(body):
    start = time.perf_counter()
    body()
    return time.perf_counter() - start


def nmse(signals, atoms, codes):
    return float(((signals - codes @ atoms) ** 2).sum() / (signals**2).sum())


def kvcodec(program, shape):
    """Signals per second by number of threads, and NMSE."""
    output = subprocess.run([program, "--shape", ",".join(map(str, shape))], check=True, capture_output=True, text=True).stdout
    number = r"([\d.]+) \([^)]*\)"
    lines = re.findall(rf"(\d+) threads? +{number} signals/s  nmse ([\d.]+)", output)
    if [int(line[0]) for line in lines] != list(THREADS):
        raise SystemExit(f"peers_omp.py: {program} printed what is not understood:\n{output}")
    return {int(threads): float(rate) for threads, rate, _ in lines}, float(lines[0][2])


def spams_omp(signals, atoms, s, threads):
    """eps is given, since without it some runs of spams-bin stop before the first atom."""
    return spams.omp(signals, atoms, L=s, eps=0.0, numThreads=threads)


def spams_rate(parts, atoms, s, threads):
    few, many = (seconds_of(lambda y=y: spams_omp(y, atoms, s, threads)) for y in parts)
    return (parts[1].shape[1] - parts[0].shape[1]) / (many - few)


def show(shape, name, threads, rates, error):
    n, m, s = shape
    spread = f"{statistics.median(rates):.1f} ({min(rates):.1f} .. {max(rates):.1f})"
    print(f"n {n:4} m {m:4} s {s:3}  {name:8} {threads} threads {spread:>32} signals/s  nmse {error:.4f}", flush=True)


def main(program, folder):
    print(f"load {os.getloadavg()[0]:.2f}", flush=True)
    subprocess.run([program, "--export", folder], check=True)
    for shape in SHAPES:
        n, m, s = shape
        atoms = np.fromfile(f"{folder}/{n}_{m}.dictionary.f32", np.float32).reshape(n, m)
        signals = np.fromfile(f"{folder}/{n}_{m}_{s}.signals.f32", np.float32).reshape(-1, m)
        d = np.asfortranarray(atoms.T)
        parts = [np.asfortranarray(signals[:count].T) for count in (len(signals) // 3, len(signals))]
        ours, theirs = ({t: [] for t in THREADS} for _ in range(2))
        for _ in range(ROUNDS):
            rates, error = kvcodec(program, shape)
            for threads in THREADS:
                ours[threads].append(rates[threads])
                theirs[threads].append(spams_rate(parts, d, s, threads))
        codes = spams_omp(parts[1], d, s, 2)
        if codes.nnz != s * len(signals):
            raise SystemExit(f"peers_omp.py: SPAMS took {codes.nnz} atoms, not {s} for each of {len(signals)} signals")
        their_error = nmse(signals, atoms, codes.toarray().T)
        for threads in THREADS:
            show(shape, "kvcodec", threads, ours[threads], error)
            show(shape, "spams", threads, theirs[threads], their_error)
        wide = atoms.astype(np.float64)
        gram, some = wide @ wide.T, signals[:SKLEARN_SIGNALS].astype(np.float64)
        products = wide @ some.T
        rates = [len(some) / seconds_of(lambda: orthogonal_mp_gram(gram, products, n_nonzero_coefs=s)) for _ in range(3)]
        codes = orthogonal_mp_gram(gram, products, n_nonzero_coefs=s)
        show(shape, "sklearn", 2, rates, nmse(some, wide, codes.T))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(sys.argv[1], sys.argv[2])
