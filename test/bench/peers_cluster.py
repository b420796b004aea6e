#!/usr/bin/env python3
"""faiss.Kmeans on the keys of kvcodec_bench_cluster, in turns with it.

    peers_cluster.py BUILD/test/bench/kvcodec_bench_cluster [FOLDER]     FOLDER (default /tmp/cluster) takes 34 MB of keys

Spherical k-means, 32,768 keys of 128 dimensions into 400 clusters, 10 rounds, all keys in every round. Keys are given as they are and
scaled to norm 1: faiss assigns by the inner product, for which the norm of a key does not matter, but takes their mean. faiss chooses its SIMD level
by itself unless FAISS_SIMD_LEVEL is set; where AVX512 is there, it is measured as well. Needs numpy and faiss-cpu.
"""
import os
import subprocess
import sys
import time

import numpy as np

SETS = ("keys", "normal")
DIMS, CLUSTERS, ROUNDS, REPEATS = 128, 400, 10, 7


def mean_cosine(keys, centroids):
    import faiss

    index = faiss.IndexFlatIP(DIMS)
    index.add(centroids / np.maximum(np.linalg.norm(centroids, axis=1, keepdims=True), 1e-30))
    best, _ = index.search(keys, 1)
    return float((best[:, 0] / np.linalg.norm(keys, axis=1)).mean())


def measure(folder):
    import faiss

    level = os.environ.get("FAISS_SIMD_LEVEL", "its own choice")
    for name in SETS:
        keys = np.fromfile(f"{folder}/{name}.f32", np.float32).reshape(-1, DIMS)
        for threads in (1, 2):
            faiss.omp_set_num_threads(threads)
            times = []
            for repeat in range(REPEATS + 1):
                kmeans = faiss.Kmeans(DIMS, CLUSTERS, niter=ROUNDS, spherical=True, max_points_per_centroid=len(keys), seed=1 + repeat)
                start = time.perf_counter()
                kmeans.train(keys)
                times.append(time.perf_counter() - start)
            times = sorted(times[1:])  # the first one warms up
            print(f"faiss {faiss.__version__} ({level})  {name:7}  {threads} threads  {times[len(times) // 2] * 1e3:.2f} ms "
                  f"({times[0] * 1e3:.2f} .. {times[-1] * 1e3:.2f})  mean cosine {mean_cosine(keys, kmeans.centroids):.4f}", flush=True)


def main():
    if sys.argv[1] == "--measure":
        return measure(sys.argv[2])
    program, folder = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "/tmp/cluster"
    os.makedirs(folder, exist_ok=True)
    subprocess.run([program, "--export", folder], check=True)
    plain = {name: value for name, value in os.environ.items() if name not in ("FAISS_SIMD_LEVEL", "OPENBLAS_CORETYPE")}
    here = os.path.abspath(__file__)
    for _ in range(2):
        subprocess.run([program, "--kmeans-only"], check=True, env=plain)
        for level in (None, "AVX512"):
            more = {} if level is None else {"FAISS_SIMD_LEVEL": level}
            subprocess.run([sys.executable, here, "--measure", folder], check=True, env={**plain, **more})


if __name__ == "__main__":
    main()
