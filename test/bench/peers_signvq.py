#!/usr/bin/env python3
"""faiss on the keys and the query of kvcodec_bench_signvq, in turns with it.

    peers_signvq.py BUILD/test/bench/kvcodec_bench_signvq [FOLDER]     FOLDER (default /tmp/signvq) takes 600 MB of keys

IndexPQFastScan with M = 32 and 4 bits: 16 bytes a key, as sign codes have, inner product, top-100 of one query. faiss chooses its SIMD level
by itself unless FAISS_SIMD_LEVEL is set; where AVX512 is there, it is measured as well, since it can be faster than the choice. The k-means for
the same codebooks (32 groups of 4 dimensions, 16 centroids, 20 rounds) is faiss.Kmeans over all keys. Needs numpy and faiss-cpu.
"""
import os
import subprocess
import sys
import time

import numpy as np

TOKENS = (32768, 131072, 1048576)
DIMS, WANTED = 128, 100


def median(body, repeats):
    body()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        body()
        times.append(time.perf_counter() - start)
    times.sort()
    return times[len(times) // 2], times[0], times[-1]


def measure(folder, kmeans):
    import faiss

    query = np.fromfile(f"{folder}/query.f32", np.float32).reshape(1, DIMS)
    level = os.environ.get("FAISS_SIMD_LEVEL", "its own choice")
    for tokens in TOKENS:
        keys = np.fromfile(f"{folder}/keys_{tokens}.f32", np.float32).reshape(tokens, DIMS)
        faiss.omp_set_num_threads(2)
        index = faiss.IndexPQFastScan(DIMS, 32, 4, faiss.METRIC_INNER_PRODUCT)
        index.train(keys[:16384])
        index.add(keys)
        scores, ids = np.empty((1, WANTED), np.float32), np.empty((1, WANTED), np.int64)
        # The call beneath the wrapper that checks arrays: Python's remaining share is about a microsecond.
        arguments = (1, faiss.swig_ptr(query), WANTED, faiss.swig_ptr(scores), faiss.swig_ptr(ids))
        for threads in (1, 2):
            faiss.omp_set_num_threads(threads)
            middle, low, high = median(lambda: index.search_c(*arguments), max(101, (1 << 25) // tokens))
            print(f"faiss {faiss.__version__} ({level})  top-{WANTED}  {tokens:8} keys  {threads} threads  "
                  f"{middle * 1e6:8.1f} us ({low * 1e6:.1f} .. {high * 1e6:.1f})", flush=True)
        if kmeans and tokens <= 131072:
            for threads in (1, 2):
                faiss.omp_set_num_threads(threads)
                start = time.perf_counter()
                for group in range(DIMS // 4):
                    part = np.ascontiguousarray(keys[:, 4 * group:4 * group + 4])
                    faiss.Kmeans(4, 16, niter=20, max_points_per_centroid=tokens, seed=1).train(part)
                print(f"faiss {faiss.__version__}  20 rounds of k-means  {tokens:8} keys  {threads} threads  "
                      f"{(time.perf_counter() - start) * 1e3:.1f} ms", flush=True)


def main():
    if sys.argv[1] == "--measure":
        return measure(sys.argv[2], len(sys.argv) > 3)
    program, folder = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "/tmp/signvq"
    subprocess.run([program, "--export", folder], check=True)
    plain = {name: value for name, value in os.environ.items() if name not in ("FAISS_SIMD_LEVEL", "OPENBLAS_CORETYPE")}
    here = os.path.abspath(__file__)
    for turn in range(2):
        subprocess.run([program, "--top-only"], check=True, env=plain)
        for level in (None, "AVX512"):
            more = {} if level is None else {"FAISS_SIMD_LEVEL": level}
            subprocess.run([sys.executable, here, "--measure", folder] + (["kmeans"] if turn == 0 and level else []), check=True,
                           env={**plain, **more})


if __name__ == "__main__":
    main()
