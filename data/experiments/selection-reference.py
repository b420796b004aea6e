#!/usr/bin/env python3
"""Attention to chosen tokens once more, in numpy, written from the papers and not from kvcodec's sources: what
Self-Indexing KVCache, ClusterKV and Quest cost a model of the Llama family, beside what `kvcodec eval-model` says.

usage: selection-reference.py MODEL.gguf TOKENS.h5 PREFIX BUDGET DOCUMENTS
TOKENS.h5: any kv file of that model (kvcodec dump-kv), whose token ids and documents are taken, nothing else.
Needs numpy, h5py and gguf. Prints for each method the rise of the negative log-likelihood in nats.
"""
import sys

import gguf
import h5py
import numpy as np

DENSE = (0, 1)


class Model:
    """A Llama in float32. Rotary pairs lie half a head apart, as in checkpoints; llama.cpp interleaves them."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = lambda name: reader.fields["llama." + name].contents()
        self.layers, self.heads = field("block_count"), field("attention.head_count")
        self.kv_heads, hidden = field("attention.head_count_kv"), field("embedding_length")
        self.dims, self.epsilon = hidden // self.heads, field("attention.layer_norm_rms_epsilon")
        self.frequencies = field("rope.freq_base") ** (-np.arange(0, self.dims, 2) / self.dims)
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

    def run(self, ids, first, cache, attend):
        """Hidden states of ids, which stand from `first` on. cache: of each layer (keys, values) before them."""
        x, w, made = self.weights["token_embd.weight"][ids], self.weights, []
        for i in range(self.layers):
            at = f"blk.{i}."
            h = self.norm(x, at + "attn_norm.weight")
            part = lambda name, heads: (h @ w[at + name + ".weight"].T).reshape(len(ids), heads, self.dims)
            q, k = self.rope(part("attn_q", self.heads), first), self.rope(part("attn_k", self.kv_heads), first)
            v = part("attn_v", self.kv_heads)
            if cache:
                k, v = np.concatenate((cache[i][0], k)), np.concatenate((cache[i][1], v))
            made.append((k, v, q))
            x = x + attend(i, q, k, v, first) @ w[at + "attn_output.weight"].T
            h = self.norm(x, at + "ffn_norm.weight")
            gate = h @ w[at + "ffn_gate.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w[at + "ffn_up.weight"].T)) @ w[at + "ffn_down.weight"].T
        return self.norm(x, "output_norm.weight"), made

    def surprise(self, hidden, targets):
        logits = hidden @ self.weights.get("output.weight", self.weights["token_embd.weight"]).T
        largest = logits.max(-1, keepdims=True)
        return (np.log(np.exp(logits - largest).sum(-1)) + largest[:, 0] - logits[np.arange(len(targets)), targets])


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def weighted(scores, allowed, values, dims):
    return softmax(np.where(allowed, scores / np.sqrt(dims), -np.inf)) @ values


def attention(model, choose):
    """choose(layer, kv head, queries (n, group, d), keys, first) says which tokens: (n, group, T), or None: all."""
    group = model.heads // model.kv_heads

    def attend(layer, q, k, v, first):
        out, visible = np.empty_like(q), np.arange(len(k)) <= np.arange(first, first + len(q))[:, None]
        for head in range(model.kv_heads):
            own = q[:, head * group:(head + 1) * group]
            chosen = choose(layer, head, own, k[:, head], first) if choose else None
            for g in range(group):
                allowed = visible if chosen is None else visible & chosen[:, g]
                out[:, head * group + g] = weighted(own[:, g] @ k[:, head].T, allowed, v[:, head], model.dims)
        return out.reshape(len(q), -1)

    return attend


def best(scores, first, budget, always):
    """The `budget` best of those each query sees, `always` (n, T) before all others, of these the first 16, then the
    newest; scores: (n, T)."""
    n, tokens = scores.shape
    place = np.arange(tokens)
    seen = place <= np.arange(first, first + n)[:, None]
    ranked = np.where(seen, np.where(always, 1e12 + place + 1e9 * (place < 16), scores.astype(float)), -np.inf)
    order = np.argsort(-ranked, axis=1, kind="stable")[:, :budget]
    chosen = np.zeros((n, tokens), bool)
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen


class SelfIndexing:
    """Signs of centred keys by fours, centroids of each sign pattern; 64 tokens as SnapKV chooses them."""

    def __init__(self, prefix, made, budget):
        self.prefix, self.made, self.budget = prefix, made, budget

    def codes(self, centred):
        bits = (centred.reshape(len(centred), -1, 4) >= 0).astype(int)
        return bits @ np.array([8, 4, 2, 1])

    def __call__(self, layer, head, q, keys, first):
        group = q.shape[1]
        prompt, queries = keys[:self.prefix], self.made[layer][2][-32:, head * group:(head + 1) * group]
        mean = prompt.mean(0)
        codes, parts = self.codes(keys - mean), (prompt - mean).reshape(self.prefix, -1, 4)
        table = np.zeros((q.shape[0], group, codes.shape[1], 16), np.float32)
        for pattern in range(16):
            for j in range(codes.shape[1]):
                mine = codes[:self.prefix, j] == pattern
                if mine.any():
                    table[:, :, j, pattern] = q[:, :, 4 * j:4 * j + 4] @ parts[mine, j].mean(0)
        scores = sum(table[:, :, j, codes[:, j]] for j in range(codes.shape[1])).max(1)
        seen = np.arange(self.prefix) <= np.arange(self.prefix - 32, self.prefix)[:, None]
        weights = sum(softmax(np.where(seen, queries[:, g] @ prompt.T / np.sqrt(q.shape[2]), -np.inf)).sum(0)
                      for g in range(group))
        pooled = np.convolve(weights, np.ones(5), "same")
        always = np.zeros(scores.shape, bool)
        always[:, np.argsort(-pooled, kind="stable")[:64]] = True
        return np.repeat(best(scores, first, self.budget, always)[:, None], group, 1)


class ClusterKV:
    """A cluster for 80 tokens of the prompt behind the first 16, four for each later 320; whole clusters, best first."""

    def __init__(self, prefix, made, budget):
        self.prefix, self.budget, self.random = prefix, budget, np.random.default_rng(1)

    def clusters(self, keys, count):
        unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
        centres = unit[self.random.choice(len(keys), count, replace=False)]
        for _ in range(30):
            labels = (unit @ centres.T).argmax(1)
            for c in range(count):
                if (labels == c).any():
                    centres[c] = unit[labels == c].mean(0)
                    centres[c] /= np.linalg.norm(centres[c])
        return labels, np.stack([keys[labels == c].mean(0) if (labels == c).any() else centres[c] for c in range(count)])

    def __call__(self, layer, head, q, keys, first):
        if layer in DENSE:
            return None
        tokens, ends = len(keys), [self.prefix]
        while ends[-1] + 320 <= tokens:
            ends.append(ends[-1] + 320)
        label, centres = np.full(tokens, -1), []
        for begin, end in zip([16] + ends[:-1], ends):
            own, c = self.clusters(keys[begin:end], self.prefix // 80 if begin == 16 else 4)
            label[begin:end] = own + len(centres)
            centres.extend(c)
        scores = (q @ np.array(centres).T)[:, :, label]
        position = np.arange(first, first + len(q))[:, None]
        done = np.array([[e for e in ends if e <= p + 1][-1] for p in position[:, 0]])[:, None]
        always = (np.arange(tokens) < 16) | (np.arange(tokens) >= done)
        return np.stack([best(scores[:, g], first, self.budget, always) for g in range(q.shape[1])], 1)


class Quest:
    """Bounds of pages of 16; the last page always."""

    def __init__(self, prefix, made, budget):
        self.budget = budget

    def __call__(self, layer, head, q, keys, first):
        if layer in DENSE:
            return None
        out = np.zeros((len(q), q.shape[1], len(keys)), bool)
        whole = len(keys) // 16
        high, low = (f(keys[:whole * 16].reshape(whole, 16, -1), axis=1) for f in (np.max, np.min))
        for i in range(len(q)):
            seen = first + i + 1
            full, pages = seen // 16, -(-seen // 16)
            hi, lo = high[:full], low[:full]
            if pages > full:
                rest = keys[full * 16:seen]
                hi, lo = np.vstack((hi, rest.max(0))), np.vstack((lo, rest.min(0)))
            bound = np.maximum(q[i], 0) @ hi.T + np.minimum(q[i], 0) @ lo.T
            always = np.arange(seen) >= seen - 16
            for g in range(q.shape[1]):
                scores = np.where(always, np.inf, np.repeat(bound[g], 16)[:seen])
                out[i, g, np.argsort(-scores, kind="stable")[:self.budget]] = True
        return out


class Oracle:
    """The true products, of each query head."""

    def __init__(self, prefix, made, budget):
        self.budget = budget

    def __call__(self, layer, head, q, keys, first):
        if layer in DENSE:
            return None
        never = np.zeros((len(q), len(keys)), bool)
        return np.stack([best(q[:, g] @ keys.T, first, self.budget, never) for g in range(q.shape[1])], 1)


def main():
    path, tokens, prefix, budget, documents = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    model = Model(path)
    with h5py.File(tokens) as file:
        ids, offsets = file["tokens"][:].astype(int), file["documents/offset"][:].astype(int)
    methods = {"oracle": Oracle, "quest": Quest, "clusterkv": ClusterKV, "self-indexing": SelfIndexing}
    rises = {name: [] for name in methods}
    for begin, end in list(zip(offsets[:-1], offsets[1:]))[:documents]:
        own = ids[begin:end]
        _, made = model.run(own[:prefix], 0, None, attention(model, None))
        cache = [(k, v) for k, v, _ in made]
        rest, targets = own[prefix:-1], own[prefix + 1:]
        plain = model.surprise(model.run(rest, prefix, cache, attention(model, None))[0], targets).mean()
        for name, method in methods.items():
            hidden, _ = model.run(rest, prefix, cache, attention(model, method(prefix, made, budget)))
            rises[name].append(model.surprise(hidden, targets).mean() - plain)
        print(f"NLL {plain:.4f};", "; ".join(f"{name} +{own[-1]:.4f}" for name, own in rises.items()), file=sys.stderr)
    for name, own in rises.items():
        print(f"{name:14} {np.mean(own):.4f}")


if __name__ == "__main__":
    main()
