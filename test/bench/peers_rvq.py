#!/usr/bin/env python3
"""Residual codes by kvcodec and faiss (ResidualQuantizer), with the same codebooks and vectors.

    peers_rvq.py BENCH_RVQ FOLDER [ENTRIES [BEAM [VECTORS]]]
                                           speed: BENCH_RVQ is build/test/bench/kvcodec_bench_rvq; with ENTRIES (256, 1024, 65536) and BEAM
                                           that setting alone, in some ten seconds once FOLDER has its codebooks
    peers_rvq.py --error TRAIN TEST N_Q N_C WIDTH
                                           error of faiss's own training on TRAIN, TEST: files of 32-bit floats, (n, WIDTH)

Needs numpy and faiss-cpu (from PyPI: its build with AVX-512). Speed: faiss trains the codebooks on part of the vectors; kvcodec and
faiss then take turns in encoding the rest, five rounds, two threads. Shown are medians with (smallest .. largest). Both search with
the beam named. Codebooks that FOLDER already has are used again. faiss runs with tables of products of entries (use_beam_LUT) and without, whichever is faster. NMSEs are of the same data.
"""
import os
import re
import statistics
import subprocess
import sys
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "2")

import numpy as np  # noqa: E402  (after the environment is set)
import faiss  # noqa: E402

SHAPES = [(128, 8, 256, 60000), (128, 8, 1024, 20000), (128, 1, 65536, 8000)]
ROUNDS = 5
BEAMS = (1, 5)


def shown(rates):
    return f"{statistics.median(rates):10.0f} ({min(rates):.0f} .. {max(rates):.0f})"


def nmse(rows, decoded):
    return float(((rows - decoded) ** 2).sum() / (rows**2).sum())


def quantizer(width, stages, entries, train, books):
    bits = entries.bit_length() - 1
    rq = faiss.ResidualQuantizer(width, stages, bits)
    if books is not None and len(books) == stages * entries * width:
        faiss.copy_array_to_vector(books, rq.codebooks)
        rq.is_trained = True
        rq.compute_codebook_tables()
    elif entries > 4096:  # training that many is not what is measured: entries are vectors
        faiss.copy_array_to_vector(np.ascontiguousarray(train[:entries]).ravel(), rq.codebooks)
        rq.is_trained = True
        rq.compute_codebook_tables()
    else:
        rq.train_type = faiss.ResidualQuantizer.Train_default
        rq.max_beam_size = 1
        rq.train(train)
    return rq


def faiss_rate(rq, rows, beam, tables):
    rq.max_beam_size = beam
    rq.use_beam_LUT = tables
    start = time.perf_counter()
    codes = rq.compute_codes(rows)
    return len(rows) / (time.perf_counter() - start), codes


def kvcodec(program, folder, shape, beam):
    command = [program, "--fixed", folder, *map(str, shape), str(beam), os.environ["OMP_NUM_THREADS"]]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found = {}
    for line in lines:
        match = re.search(r"beam +(\d+)  (\d) threads? +([\d.]+) .*vectors/s  nmse ([\d.]+)", line)
        if match and match[2] == os.environ["OMP_NUM_THREADS"]:
            found[int(match[1])] = (float(match[3]), float(match[4]))
    return found


def speed(program, folder, only_entries=None, only_beam=None, vectors=None):
    faiss.omp_set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    os.makedirs(folder, exist_ok=True)
    print(f"faiss {faiss.__version__}, {faiss.get_compile_options().strip()}, {os.environ['OMP_NUM_THREADS']} threads")
    for width, stages, entries, count in SHAPES:
        if only_entries not in (None, entries):
            continue
        count = vectors or count
        beams = BEAMS if stages > 1 else (1,)
        beams = [beam for beam in beams if only_beam in (None, beam)]
        here = f"{folder}/{entries}"
        os.makedirs(here, exist_ok=True)
        rng = np.random.default_rng(1)
        rows = rng.standard_normal((count + max(32 * 256, entries), width), dtype=np.float32)
        train, rows = rows[count:], rows[:count]
        books = f"{here}/codebooks.f32"
        rq = quantizer(width, stages, entries, train, np.fromfile(books, "<f4") if os.path.exists(books) else None)
        faiss.vector_to_array(rq.codebooks).astype("<f4").tofile(books)
        rows.astype("<f4").tofile(f"{here}/vectors.f32")
        ours, theirs, errors = {}, {}, {}
        for _ in range(ROUNDS):
            for beam in beams:
                rate, error = kvcodec(program, here, (width, stages, entries, count), beam)[beam]
                ours.setdefault(beam, []).append(rate)
                errors[beam, "kvcodec"] = error
                for tables in (False, True) if stages > 1 else (False,):
                    rate, codes = faiss_rate(rq, rows, beam, int(tables))
                    theirs.setdefault((beam, tables), []).append(rate)
                    errors[beam, tables] = nmse(rows, rq.decode(codes))
        for beam in beams:
            best = max((key for key in theirs if key[0] == beam), key=lambda key: statistics.median(theirs[key]))
            ratio = statistics.median(ours[beam]) / statistics.median(theirs[best])
            print(f"d {width} codebooks {stages} entries {entries} beam {beam}: kvcodec {shown(ours[beam])} vectors/s, nmse "
                  f"{errors[beam, 'kvcodec']:.6f}; faiss {shown(theirs[best])}{' with tables' if best[1] else ''}, nmse "
                  f"{errors[best]:.6f}; {ratio:.2f} times as fast")


def error(train, test, stages, entries, width):
    train, test = (np.fromfile(name, "<f4").reshape(-1, width) for name in (train, test))
    rq = faiss.ResidualQuantizer(width, stages, entries.bit_length() - 1)
    start = time.perf_counter()
    rq.train(train)
    print(f"faiss trained on {len(train)} vectors in {time.perf_counter() - start:.1f} s")
    for beam in BEAMS:
        rq.max_beam_size = beam
        print(f"beam {beam}: nmse {nmse(train, rq.decode(rq.compute_codes(train))):.5f} of TRAIN, "
              f"{nmse(test, rq.decode(rq.compute_codes(test))):.5f} of TEST")


if __name__ == "__main__":
    if len(sys.argv) == 7 and sys.argv[1] == "--error":
        error(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]))
    elif 3 <= len(sys.argv) <= 6 and sys.argv[1] != "--error":
        speed(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
    else:
        raise SystemExit(__doc__)
