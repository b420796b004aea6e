#!/usr/bin/env python3
"""Attention to chosen tokens once more, in numpy, written from the texts of Self-Indexing KVCache, ClusterKV and Quest and not from
kvcodec's sources. Where the papers are silent: of tokens with equal scores the first is taken, also within the last cluster, which
is trimmed.

usage: selection-reference.py loss MODEL TOKENS.h5 PREFIX BUDGET DOCUMENTS [CLUSTERS BATCH BATCH_CLUSTERS]
  What the methods cost a model of the Llama family (a GGUF file or a folder with safetensors): prints for each the rise of the negative
  log-likelihood in nats, beside what `kvcodec eval-model` says. TOKENS.h5: any kv file of that model (kvcodec dump-kv), whose token ids
  and documents are taken, nothing else.
usage: selection-reference.py signs SELECTION.h5 KV.h5 PROMPT.h5
       selection-reference.py clusters SELECTION.h5 KV.h5 PROMPT INDEX.h5
  Compares what `kvcodec select --setup paper` chose, of the one document in KV.h5, with the papers' choice. PROMPT.h5: a kv file of its
  prompt alone; PROMPT: its tokens. Starts of k-means are random, so clusters are those of INDEX.h5, and it is checked that they are what
  k-means comes to. Prints how many selections are equal, and how many differ by ties.
Needs numpy and h5py, for a GGUF file gguf.
"""
import json
import os
import sys

import h5py
import numpy as np

DENSE = (0, 1)  # layers that attend to all tokens: ClusterKV and Quest
HEAVY, OBSERVED, POOLED = 64, 32, 5  # sink tokens of Self-Indexing, chosen as SnapKV does
SINK, BATCH, BATCH_CLUSTERS, TOKENS_PER_CLUSTER = 16, 320, 4, 80  # ClusterKV
# Scores of float sums of some 16 to 64 terms are off by about 1e-6 of the largest.
TIE = 1e-6


class Model:
    """A Llama in float32. Rotary pairs lie half a head apart, as in checkpoints; llama.cpp interleaves them."""

    def __init__(self, path):
        (self.read_folder if os.path.isdir(path) else self.read_gguf)(path)
        self.frequencies = self.theta ** (-np.arange(0, self.dims, 2) / self.dims)

    def read_folder(self, path):
        config = json.load(open(os.path.join(path, "config.json")))
        self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.kv_heads, self.dims = config["num_key_value_heads"], config["head_dim"]
        self.epsilon, self.theta = config["rms_norm_eps"], config["rope_theta"]
        data = open(os.path.join(path, "model.safetensors"), "rb").read()
        begin = 8 + int.from_bytes(data[:8], "little")
        self.weights = {}
        for name, tensor in json.loads(data[8:begin]).items():
            if name == "__metadata__":
                continue
            raw = data[slice(*(begin + at for at in tensor["data_offsets"]))]
            if tensor["dtype"] == "BF16":
                values = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
            else:
                values = np.frombuffer(raw, {"F16": "<f2", "F32": "<f4"}[tensor["dtype"]]).astype("<f4")
            for long, short in (("model.", ""), ("layers.", "blk."), ("self_attn.", ""), ("mlp.", ""), ("_proj", ""),
                                ("embed_tokens", "token_embd"), ("input_layernorm", "attn_norm"), ("lm_head", "output"),
                                ("post_attention_layernorm", "ffn_norm")):
                name = name.replace(long, short)
            parts = name.split(".")
            parts[-2] = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up",
                         "down": "ffn_down", "norm": "output_norm"}.get(parts[-2], parts[-2])
            self.weights[".".join(parts)] = values.reshape(tensor["shape"])

    def read_gguf(self, path):
        import gguf
        reader = gguf.GGUFReader(path)
        field = lambda name: reader.fields["llama." + name].contents()
        self.layers, self.heads = field("block_count"), field("attention.head_count")
        self.kv_heads, hidden = field("attention.head_count_kv"), field("embedding_length")
        self.dims, self.epsilon = hidden // self.heads, field("attention.layer_norm_rms_epsilon")
        self.theta = field("rope.freq_base")
        self.weights = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
                        for t in reader.tensors}
        for i in range(self.layers):
            for name, heads in (("attn_q", self.heads), ("attn_k", self.kv_heads)):
                key = f"blk.{i}.{name}.weight"
                w = self.weights[key].reshape(heads, self.dims // 2, 2, hidden)
                self.weights[key] = w.swapaxes(1, 2).reshape(-1, hidden)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.weights[name]

    def rope(self, x, first):
        angles = np.outer(np.arange(first, first + len(x)), self.frequencies)[:, None]
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)

    def run(self, ids, first, cache, choose):
        """Hidden states of ids, which stand from `first` on, and of each layer keys, values and queries. cache: of each layer (keys,
        values) before them. choose(layer, kv head, queries (n, group, d), keys) says which tokens: (n, group, T), or None: all."""
        x, w, made, group = self.weights["token_embd.weight"][ids], self.weights, [], self.heads // self.kv_heads
        for i in range(self.layers):
            at = f"blk.{i}."
            h = self.norm(x, at + "attn_norm.weight")
            part = lambda name, heads: (h @ w[at + name + ".weight"].T).reshape(len(ids), heads, self.dims)
            q, k = self.rope(part("attn_q", self.heads), first), self.rope(part("attn_k", self.kv_heads), first)
            v = part("attn_v", self.kv_heads)
            if cache:
                k, v = np.concatenate((cache[i][0], k)), np.concatenate((cache[i][1], v))
            made.append((k, v, q))
            out, visible = np.empty_like(q), np.arange(len(k)) <= np.arange(first, first + len(q))[:, None]
            for head in range(self.kv_heads):
                own = q[:, head * group:(head + 1) * group]
                chosen = choose(i, head, own, k[:, head]) if choose else None
                for g in range(group):
                    allowed = visible if chosen is None else visible & chosen[:, g]
                    scores = np.where(allowed, own[:, g] @ k[:, head].T / np.sqrt(self.dims), -np.inf)
                    out[:, head * group + g] = softmax(scores) @ v[:, head]
            x = x + out.reshape(len(q), -1) @ w[at + "attn_output.weight"].T
            h = self.norm(x, at + "ffn_norm.weight")
            gate = h @ w[at + "ffn_gate.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w[at + "ffn_up.weight"].T)) @ w[at + "ffn_down.weight"].T
        return self.norm(x, "output_norm.weight"), made

    def surprise(self, hidden, targets):
        logits = hidden @ self.weights.get("output.weight", self.weights["token_embd.weight"]).T
        largest = logits.max(-1, keepdims=True)
        return np.log(np.exp(logits - largest).sum(-1)) + largest[:, 0] - logits[np.arange(len(targets)), targets]


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Choice:
    """Of each query the tokens that it must attend to beside the budget and within it, and scores of those open to choice."""

    def __init__(self, queries, tokens, first):
        self.seen = np.arange(tokens) <= np.arange(first, first + queries)[:, None]
        self.beside = np.zeros_like(self.seen)  # not counted
        self.always = np.zeros_like(self.seen)  # counted
        self.scores = None  # (queries, tokens)

    def tokens(self, budget):
        """The papers' choice, (queries, tokens)."""
        always = self.always & self.seen & ~self.beside
        open_ = self.seen & ~self.beside & ~always
        ranked = np.where(open_, self.scores.astype(float), -np.inf)
        order = np.argsort(-ranked, axis=1, kind="stable")
        chosen = self.beside & self.seen | always
        for i, left in enumerate(budget - always.sum(1)):
            best = order[i, :max(left, 0)]
            chosen[i, best[open_[i, best]]] = True
        return chosen


class SelfIndexing:
    """Signs of centred keys by fours, centroids of each sign pattern; 64 tokens as SnapKV chooses them; generated tokens always.
    queries: of the prompt, (n, group, d), the last ones; stored: centroids as the codes hold them, relative to the channel's largest
    magnitude, in 16 bits."""

    def __init__(self, prompt, queries, stored=False):
        self.prompt, self.size, dims = prompt, len(prompt), prompt.shape[1]
        self.mean = prompt.astype(float).mean(0).astype(np.float32)
        parts, codes = (prompt - self.mean).reshape(self.size, -1, 4), self.codes(prompt)
        self.centroids = np.zeros((dims // 4, 16, 4), np.float32)
        magnitudes = np.abs(parts.astype(float)).mean(0)
        for j in range(dims // 4):
            for pattern in range(16):
                mine = codes[:, j] == pattern
                # A pattern that no key of the prompt has: any estimate of its sign. The paper has none.
                signs = np.array([1 if pattern >> (3 - i) & 1 else -1 for i in range(4)])
                self.centroids[j, pattern] = parts[mine, j].astype(float).mean(0) if mine.any() else signs * magnitudes[j]
        if stored:
            largest = np.abs(parts).max(0)[:, None]
            self.centroids = (self.centroids / largest).astype(np.float16).astype(np.float32) * largest
        n, group = queries.shape[:2]
        seen = np.arange(self.size) <= np.arange(self.size - n, self.size)[:, None]
        weights = sum(softmax(np.where(seen, queries[:, g].astype(float) @ prompt.T.astype(float) / np.sqrt(dims), -np.inf)).sum(0)
                      for g in range(group))
        pooled = np.convolve(weights, np.ones(POOLED), "same")
        self.heavy = np.argsort(-pooled, kind="stable")[:HEAVY]

    def codes(self, keys):
        return ((keys - self.mean).reshape(len(keys), -1, 4) >= 0).astype(int) @ np.array([8, 4, 2, 1])

    def choice(self, queries, keys, first):
        table = np.einsum("ngjc,jpc->ngjp", queries.reshape(*queries.shape[:2], -1, 4).astype(float), self.centroids.astype(float))
        codes = self.codes(keys)
        made = Choice(len(queries), len(keys), first)
        made.scores = sum(table[:, :, j, codes[:, j]] for j in range(codes.shape[1])).max(1)
        made.always[:, self.heavy] = True
        made.beside[:, self.size:] = True
        return [made] * queries.shape[1]


class ClusterKV:
    """Clusters of the prompt behind the first 16 tokens, and of each whole batch of generated ones; best first, whole, the last one
    trimmed. Tokens that wait for their batch, beside the budget. label: of each token; centroids; ends: of batches."""

    def __init__(self, label, centroids, ends):
        self.label, self.centroids, self.ends = label, centroids, np.array(ends)

    def choice(self, queries, keys, first):
        all_scores = queries.astype(float) @ self.centroids.T.astype(float)
        place, choices = np.arange(len(keys)), []
        for g in range(queries.shape[1]):
            made = Choice(len(queries), len(keys), first)
            made.scores = np.where(self.label >= 0, all_scores[:, g][:, self.label], 0)
            made.always[:, :SINK] = True
            for i in range(len(queries)):
                done = self.ends[self.ends <= first + i + 1].max()
                made.beside[i] = place >= done
            choices.append(made)
        return choices


def k_means(keys, count, random):
    """By the cosine; starts are keys; until no key changes its cluster."""
    unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    centres, labels = keys[random.choice(len(keys), count, replace=False)], None
    while True:
        new = (unit @ (centres / np.linalg.norm(centres, axis=1, keepdims=True)).T).argmax(1)
        if labels is not None and (new == labels).all():
            return labels, centres
        labels = new
        centres = np.stack([keys[labels == c].mean(0) if (labels == c).any() else centres[c] for c in range(count)])


def cluster(keys, prompt, clusters, batch, batch_clusters, random):
    ends = list(range(prompt, len(keys) + 1, batch))
    label, centroids = np.full(len(keys), -1), []
    for begin, end in zip([SINK] + ends[:-1], ends):
        own, centres = k_means(keys[begin:end], clusters if begin == SINK else batch_clusters, random)
        label[begin:end] = own + len(centroids)
        centroids.extend(centres)
    return ClusterKV(label, np.array(centroids), ends)


class Quest:
    """Bounds of pages of 16; the last page always."""

    def choice(self, queries, keys, first):
        choices = [Choice(len(queries), len(keys), first) for _ in range(queries.shape[1])]
        for i in range(len(queries)):
            seen = first + i + 1
            pages = [keys[begin:min(begin + 16, seen)] for begin in range(0, seen, 16)]
            high, low = (np.stack([f(page, axis=0) for page in pages]) for f in (np.max, np.min))
            bound = np.maximum(queries[i], 0) @ high.T + np.minimum(queries[i], 0) @ low.T
            for g, made in enumerate(choices):
                if made.scores is None:
                    made.scores = np.zeros(made.seen.shape)
                made.scores[i, :seen] = np.repeat(bound[g], 16)[:seen]
                made.always[i, max(0, seen - 16):seen] = True
        return choices


class Oracle:
    """The true products, of each query head."""

    def choice(self, queries, keys, first):
        choices = []
        for g in range(queries.shape[1]):
            choices.append(Choice(len(queries), len(keys), first))
            choices[-1].scores = queries[:, g] @ keys.T
        return choices


def loss(path, tokens, prefix, budget, documents, clusters=0, batch=BATCH, batch_clusters=BATCH_CLUSTERS):
    model, prefix, budget, random = Model(path), int(prefix), int(budget), np.random.default_rng(1)
    group = model.heads // model.kv_heads
    with h5py.File(tokens) as file:
        ids, offsets = file["tokens"][:].astype(int), file["documents/offset"][:].astype(int)

    def selector(name, made):
        """choose() of Model.run."""
        def choose(layer, head, queries, keys):
            if name != "self-indexing" and layer in DENSE:
                return None
            if name == "self-indexing":
                last = made[layer][2][-OBSERVED:, head * group:(head + 1) * group]
                method = SelfIndexing(keys[:prefix], last)
            elif name == "clusterkv":
                method = cluster(keys, prefix, int(clusters) or prefix // TOKENS_PER_CLUSTER, int(batch), int(batch_clusters), random)
            else:
                method = {"quest": Quest, "oracle": Oracle}[name]()
            return np.stack([made.tokens(budget) for made in method.choice(queries, keys, prefix)], 1)
        return choose

    rises = {name: [] for name in ("oracle", "quest", "clusterkv", "self-indexing")}
    for begin, end in list(zip(offsets[:-1], offsets[1:]))[:int(documents)]:
        own = ids[begin:end]
        _, made = model.run(own[:prefix], 0, None, None)
        cache = [(k, v) for k, v, _ in made]
        rest, targets = own[prefix:-1], own[prefix + 1:]
        plain = model.surprise(model.run(rest, prefix, cache, None)[0], targets).mean()
        for name in rises:
            hidden, _ = model.run(rest, prefix, cache, selector(name, made))
            rises[name].append(model.surprise(hidden, targets).mean() - plain)
    for name, own in rises.items():
        print(f"{name:14} {np.mean(own):.6f}")


def floats(dataset):
    return dataset.astype("f4")[:]


def compare(what, selection, kv, prompt, index=None):
    kv, selection = h5py.File(kv), h5py.File(selection)
    heads, q_heads = int(kv.attrs["num_kv_heads"]), int(kv.attrs["num_q_heads"])
    group, rows = q_heads // heads, kv["query_position"][:].astype(int)
    assert (selection["query_position"][:] == rows).all() and (np.diff(rows) == 1).all()
    budget, equal, ties, beside = json.loads(selection.attrs["parameters"])["budget"], 0, 0, set()
    for name in sorted(selection["layers"]):
        layer = int(name)
        if what == "clusters" and layer in DENSE:
            continue
        found, keys = selection[f"layers/{name}/token"][:], floats(kv[f"layers/{name}/key"])
        queries = floats(kv[f"layers/{name}/query"]).reshape(len(rows), heads, group, -1)
        for head in range(heads):
            if what == "signs":
                with h5py.File(prompt) as file:
                    last = floats(file[f"layers/{name}/query"]).reshape(-1, heads, group, keys.shape[2])[-OBSERVED:, head]
                    method = SelfIndexing(floats(file[f"layers/{name}/key"])[:, head], last, stored=True)
            else:
                method = read_clusters(index, layer, head, heads, keys[:, head], int(prompt))
            for g, made in enumerate(method.choice(queries[:, head], keys[:, head], rows[0])):
                if found.shape[1] == heads and g > 0:
                    break
                chosen, place = made.tokens(budget), head if found.shape[1] == heads else head * group + g
                beside.update((made.beside & made.seen).sum(1))
                for i, own in enumerate(found[:, place]):
                    own = own[own != 0xffffffff]
                    theirs = np.zeros(chosen.shape[1], bool)
                    theirs[own] = True
                    assert theirs.sum() == len(own) == chosen[i].sum(), (name, head, i, len(own), chosen[i].sum())
                    apart = np.flatnonzero(theirs != chosen[i])
                    if len(apart) > 0:
                        scores = made.scores[i]
                        spread = scores[apart].max() - scores[apart].min()
                        assert not (made.always | made.beside)[i, apart].any(), (name, head, i, apart)
                        assert spread <= TIE * np.abs(scores[made.seen[i]]).max(), (name, head, i, apart, spread)
                    equal, ties = equal + (len(apart) == 0), ties + (len(apart) > 0)
    print(f"{equal + ties} selections of {budget} beside {min(beside)} to {max(beside)}: as NumPy chooses")
    print(f"{ties} of them differ by ties", file=sys.stderr)


def read_clusters(index, layer, head, heads, keys, prompt):
    """Of the one document of an index file; checks that they are what k-means comes to."""
    with h5py.File(index) as file:
        ends = file["batches/end"][:].astype(int)
        of_head = file[f"layers/{layer}/clusters"][:].astype(int)
        first, last = of_head[:head].sum(), of_head[:head + 1].sum()
        sizes = file[f"layers/{layer}/size"][:].astype(int)
        tokens = file[f"layers/{layer}/token"][sizes[:first].sum():sizes[:last].sum()].astype(int)
        centroids = floats(file[f"layers/{layer}/centroid"])[first:last]
    label = np.full(len(keys), -1)
    label[tokens] = np.repeat(np.arange(last - first), sizes[first:last])
    assert ends[0] == prompt and (label[SINK:ends[-1]] >= 0).all() and (label[:SINK] < 0).all() and (label[ends[-1]:] < 0).all()
    unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for begin, end in zip([SINK] + list(ends[:-1]), ends):
        own = np.unique(label[begin:end])
        means = np.stack([keys[begin:end][label[begin:end] == c].astype(float).mean(0) for c in own])
        assert np.allclose(means, centroids[own], rtol=1e-5, atol=1e-5 * np.abs(keys).max()), "centroids are no means"
        cosines = unit(keys[begin:end].astype(float)) @ unit(means).T
        nearest = cosines[np.arange(end - begin), np.searchsorted(own, label[begin:end])]
        assert (cosines.max(1) - nearest).max() < TIE, "a key lies nearer to another centroid"
        if begin == SINK:
            assert len(own) == max(1, prompt // TOKENS_PER_CLUSTER), len(own)
    return ClusterKV(label, centroids, ends)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "loss":
        loss(*sys.argv[2:])
    elif len(sys.argv) > 1 and sys.argv[1] in ("signs", "clusters"):
        compare(*sys.argv[1:])
    else:
        sys.exit(__doc__)
