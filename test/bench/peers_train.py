#!/usr/bin/env python3
"""Dictionaries learned by kvcodec, SPAMS (trainDL) and scikit-learn (MiniBatchDictionaryLearning) from the same keys in the same time.

    peers_train.py KVCODEC KV FOLDER [--atoms N] [--sparsity S] [--layer-group L] [--seconds T,...] [--optimizer NAME,...]

KV is a kv file with several documents; a fifth of them, the last, is held out. All learn from the same signals: centred and divided by
the layers' loudness as kvcodec's dictionary says. Shown is the NMSE of the signals held out, all dictionaries with the same coder
(spams.omp, S atoms), and how long learning took. Two threads each. Needs numpy, h5py, scikit-learn and spams-bin.
"""
import argparse
import json
import os
import subprocess
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "2")

import h5py  # noqa: E402  (after the environment is set)
import numpy as np  # noqa: E402
import spams  # noqa: E402
from sklearn.decomposition import MiniBatchDictionaryLearning  # noqa: E402

THREADS = 2


def signals_of(kv, book, group, tokens):
    """Signals (rows) of the keys of those tokens, as kvcodec makes them for a dictionary with center channel and normalize layer."""
    layers = kv.attrs["num_layers"]
    scale, mean = book["key/layer_scale"][:], book["key/channel_mean"][:]
    rows = []
    for first in range(0, layers, group):
        parts = []
        for layer in range(first, first + group):
            keys = kv[f"layers/{layer}/key"][tokens].astype(np.float32)
            parts.append(((keys - mean[layer]) / scale[layer]).reshape(len(keys), -1))
        rows.append(np.concatenate(parts, axis=1))
    return np.concatenate(rows)


def nmse(signals, atoms, s):
    """Error energy over energy, as columns of Fortran order that SPAMS wants."""
    columns, d = np.asfortranarray(signals.T), np.asfortranarray(atoms.T)
    codes = spams.omp(columns, d, L=s, eps=0.0, numThreads=THREADS)
    return float(((columns - d @ codes) ** 2).sum() / (columns**2).sum())


def atoms_of(book):
    """The atoms of the keys as floats, whatever the type they are stored in."""
    atoms = book["key/atoms"][:].astype(np.float32)
    return (atoms - 128) * book["key/atom_scale"][:][:, None] if "key/atom_scale" in book else atoms


def learn_kvcodec(program, kv, options, documents, seconds, optimizer, path):
    command = [program, "train-dict", kv, "--atoms", str(options.atoms), "--sparsity", str(options.sparsity), "--layer-group",
               str(options.layer_group), "--documents", documents, "--optimizer", optimizer, "--seconds", str(seconds), "--epochs", "1000000",
               "--tolerance", "0", "--threads", str(THREADS), "--json", "--quiet", "--overwrite", "-o", path]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    with h5py.File(path) as book:
        return atoms_of(book), result["key"]["seconds"], result["key"]["steps"]


def learn_spams(signals, options, seconds):
    columns = np.asfortranarray(signals.T)
    start = time.perf_counter()
    atoms = spams.trainDL(columns, K=options.atoms, lambda1=options.sparsity, mode=3, iter=-seconds, batchsize=512, numThreads=THREADS, verbose=False)
    return np.ascontiguousarray(atoms.T), time.perf_counter() - start


def learn_sklearn(signals, options, seconds, alpha):
    model = MiniBatchDictionaryLearning(n_components=options.atoms, alpha=alpha, batch_size=512, fit_algorithm="cd", n_jobs=THREADS,
                                        dict_init=signals[np.random.default_rng(1).permutation(len(signals))[: options.atoms]])
    order = np.random.default_rng(2).permutation(len(signals))
    start, first, batches = time.perf_counter(), 0, 0
    while time.perf_counter() - start < seconds:
        if first + 512 > len(order):
            first = 0
        model.partial_fit(signals[order[first : first + 512]])
        first, batches = first + 512, batches + 1
    took = time.perf_counter() - start
    atoms = model.components_
    norms = np.linalg.norm(atoms, axis=1, keepdims=True)
    return (atoms / np.maximum(norms, 1e-12)).astype(np.float32), took, batches


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvcodec")
    parser.add_argument("kv")
    parser.add_argument("folder")
    parser.add_argument("--atoms", type=int, default=1024)
    parser.add_argument("--sparsity", type=int, default=32)
    parser.add_argument("--layer-group", type=int, default=4)
    parser.add_argument("--seconds", default="10,30")
    parser.add_argument("--optimizer", default="adam")
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    with h5py.File(options.kv) as kv:
        offsets = kv["documents/offset"][:].tolist()
        if len(offsets) and offsets[-1] < len(kv["tokens"]):
            offsets.append(len(kv["tokens"]))
        documents = len(offsets) - 1
        if documents < 5:
            raise SystemExit(f"peers_train.py: {options.kv} has {documents} documents; five are needed, one of them to hold out")
        held_out = documents // 5
        names = f"0-{documents - held_out - 1}"
        cut = offsets[documents - held_out]
        print(f"{documents} documents, {cut} tokens to learn from, {offsets[-1] - cut} held out; load {os.getloadavg()[0]:.2f}")
        signals = None
        for seconds in [int(text) for text in options.seconds.split(",")]:
            for optimizer in options.optimizer.split(","):
                path = f"{options.folder}/{optimizer}-{seconds}.h5"
                atoms, took, steps = learn_kvcodec(options.kvcodec, options.kv, options, names, seconds, optimizer, path)
                if signals is None:
                    with h5py.File(path) as book:
                        signals = signals_of(kv, book, options.layer_group, slice(0, cut))
                        validation = signals_of(kv, book, options.layer_group, slice(cut, offsets[-1]))[:4096]
                    print(f"n {options.atoms} m {signals.shape[1]} s {options.sparsity}: {len(signals)} signals, {len(validation)} held out")
                print(f"kvcodec {optimizer:8} {took:6.1f} s {steps:5} steps  nmse {nmse(validation, atoms, options.sparsity):.4f}", flush=True)
            atoms, took = learn_spams(signals, options, seconds)
            print(f"SPAMS trainDL    {took:6.1f} s              nmse {nmse(validation, atoms, options.sparsity):.4f}", flush=True)
            for alpha in (1.0, 5.0):
                atoms, took, batches = learn_sklearn(signals, options, seconds, alpha)
                print(f"scikit-learn {alpha:3} {took:6.1f} s {batches:5} steps  nmse {nmse(validation, atoms, options.sparsity):.4f}", flush=True)


main()
