"""Reads every dataset of the files with h5py, computes the measures of eval-recon with NumPy, and compares."""
import json
import sys

import h5py
import numpy as np


def read_all(name):
    """Every dataset, read whole; the number of them."""
    with h5py.File(name, "r") as file:
        datasets = []
        file.visititems(lambda path, item: datasets.append(path) if isinstance(item, h5py.Dataset) else None)
        for path in datasets:
            file[path][()]
        return len(datasets)


def close(mine, theirs, what):
    if theirs is None:  # JSON has no infinity
        theirs = np.inf
    if not np.isclose(mine, theirs, rtol=1e-5, atol=1e-7):
        sys.exit(f"{what}: NumPy has {mine}, eval-recon {theirs}")


def compare(x, y, measures, what):
    """x, y: (tokens, heads, head_dim)"""
    error = ((x - y) ** 2).sum()
    energy = (x**2).sum()
    close(error / x.size, measures["mse"], what + " mse")
    close(error / energy, measures["nmse"], what + " nmse")
    with np.errstate(divide="ignore"):
        close(10 * np.log10(energy / error) if error else np.inf, measures["snr_db"], what + " snr")
    close(abs(x - y).max(), measures["max_error"], what + " max")
    if "cosine_mean" in measures:
        cosine = (x * y).sum(-1) / np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
        close(cosine.mean(), measures["cosine_mean"], what + " cosine")
        close(np.percentile(cosine, 1), measures["cosine_first_percentile"], what + " cosine percentile")


def main():
    for name in sys.argv[4:]:
        print(f"{name.split('/')[-1]}: {read_all(name)} datasets read")
    result = json.load(open(sys.argv[3]))["reconstructions"][0]
    checked = 0
    with h5py.File(sys.argv[1], "r") as original, h5py.File(sys.argv[2], "r") as recon:
        for side in ("key", "value"):
            stack = lambda file: np.stack([file[f"layers/{i}/{side}"][()].astype(np.float64) for i in range(4)])
            x, y = stack(original), stack(recon)
            flat = lambda a: a.reshape(-1, *a.shape[2:])
            compare(flat(x), flat(y), result[side], side)
            for i, layer in enumerate(result[side]["layers"]):
                compare(x[i], y[i], layer, f"{side} {i}")
                for h, head in enumerate(layer["heads"]):
                    compare(x[i][:, h : h + 1], y[i][:, h : h + 1], head, f"{side} {i}, {h}")
                    checked += 1
            for d, dimension in enumerate(result[side]["dimensions"]):
                compare(flat(x)[..., d : d + 1], flat(y)[..., d : d + 1], dimension, f"{side} dimension {d}")
                checked += 1
    print(f"{checked} heads and dimensions agree")


main()
