# compare.py KV RECON OUTPUTS REPORT: attention by NumPy, in double, over RECON, which was decoded from the codes, must be that of
# OUTPUTS, and over KV that which REPORT (JSON) measures the error against. Windows, caps and sinks are those that KV names; values may
# lie in keys.
import json
import sys

import h5py
import numpy as np

kv, recon, out = (h5py.File(path) for path in sys.argv[1:4])
report = json.load(open(sys.argv[4]))
scores_of = json.loads(kv.attrs.get("scores", "{}"))
value_dims = kv.attrs.get("layer_value_dim")
q_heads, kv_heads, dim = (int(kv.attrs[name]) for name in ("num_q_heads", "num_kv_heads", "head_dim"))


def floats(dataset):
    return dataset.astype("f4")[:].astype("f8")


def tokens(file):
    """Row of each (name, position)."""
    offset, position = file["/documents/offset"][:].astype(int), file["/positions"][:].astype(int)
    return {(name, position[t]): t for i, name in enumerate(file["/documents/name"][:])
            for t in range(offset[i], offset[i + 1])}


def attention(layer, query, keys, values):
    result = np.zeros((q_heads, values.shape[2]))
    for h in range(q_heads):
        g = h // (q_heads // kv_heads)
        scores = keys[:, g] @ query[h] / np.sqrt(dim)
        if "cap" in scores_of:
            scores = scores_of["cap"] * np.tanh(scores / scores_of["cap"])
        weights = np.exp(scores - scores.max())
        beside = np.exp(scores_of["sinks"][layer][h] - scores.max()) if "sinks" in scores_of else 0
        result[h] = weights @ values[:, g] / (weights.sum() + beside)
    return result


rows_of = {"kv": tokens(kv), "recon": tokens(recon)}
query_row = list(kv["/query_position"][:].astype(int))
asked = tokens(out)  # rows of outputs
for entry in report["layers"]:
    layer = entry["layer"]
    output, queries = floats(out[f"/layers/{layer}/output"]), floats(kv[f"/layers/{layer}/query"])
    expected = {}
    for name, file in (("kv", kv), ("recon", recon)):
        keys = floats(file[f"/layers/{layer}/key"])
        values = keys[:, :, :value_dims[layer]] if value_dims is not None else floats(file[f"/layers/{layer}/value"])
        window = scores_of.get("windows", [0] * (layer + 1))[layer]
        expected[name] = np.zeros_like(output)
        for (document, position), i in asked.items():
            row = rows_of["kv"][document, position]
            assert out["/query_position"][i] == row, "query_position"
            seen = [rows_of[name][key] for key in rows_of["recon"] if key[0] == document and key[1] <= position
                    and (window == 0 or key[1] + window > position)]
            expected[name][i] = attention(layer, queries[query_row.index(row)], keys[seen], values[seen])
    difference = np.abs(output - expected["recon"]).max() / np.abs(expected["recon"]).max()
    error = np.linalg.norm(output - expected["kv"]) / np.linalg.norm(expected["kv"])
    assert difference < 2e-5, f"layer {layer}: outputs differ by {difference}"
    assert abs(error - entry["relative_error"]) < 1e-5, f"layer {layer}: {error}, reported {entry['relative_error']}"
print(f"{len(report['layers'])} layers, {len(asked)} queries: as NumPy says")
