#!/usr/bin/env python3
"""Makes the files of interop_test.cpp in test/golden/interop: caches as other programs save them, each with what it holds.

    make_interop_fixtures.py [--mlx31 FOLDER] [CASE...]

Needs numpy, torch, transformers (5.24), safetensors, mlx-lm (0.32.2) with mlx's CPU part, gguf (0.19.0) and llama-cpp-python (0.3.36).
--mlx31 is a folder with mlx-lm 0.31.3, for the layout of before: pip install --no-deps --target FOLDER mlx-lm==0.31.3. Then only those
files are made.

Files of transformers, safetensors, mlx-lm, NumPy and llama.cpp come from these programs themselves. Those of LMCache, vLLM and SGLang
are put together here from their layouts (formats/INTEROP.md); nothing of the reader is used for that. What a file holds is written
beside it as .f32: of each document and layer the keys [tokens, heads, dimensions], then the values. cases.json has the rest.
"""
import json
import pathlib
import struct
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "test/golden/interop"
CASES = {}


def add(name, files, documents, present, same=True, **options):
    """documents: of each a dict of tokens (or None), positions, and rows: per layer keys and values, zeros where a layer forgot."""
    with open(OUT / f"{name}.f32", "wb") as out:
        for document in documents:
            for sides in document["rows"]:
                for side in sides:
                    out.write(np.ascontiguousarray(side, dtype="<f4").tobytes())
    CASES[name] = {"files": files, "options": options, "same": same, "layers": present,
                   "documents": [{"tokens": d["tokens"], "positions": d["positions"],
                                  "shapes": [[list(side.shape) for side in sides] for sides in d["rows"]]} for d in documents]}


def with_zeros(rows, tokens):
    """Rows of the last tokens, behind zeros."""
    return np.concatenate([np.zeros((tokens - len(rows),) + rows.shape[1:], np.float32), rows])


# transformers ---------------------------------------------------------------------------------------------------------------------

def transformers_cases():
    import torch
    from safetensors.torch import save_file
    from transformers import (DeepseekV3Config, DeepseekV3ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM,
                              Qwen3Config, Qwen3ForCausalLM)
    from transformers.cache_utils import DynamicCache
    usual = dict(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                 max_position_embeddings=128)

    def run(model, ids, mask=None):
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids, attention_mask=mask, past_key_values=cache)
        return cache

    def save(name, cache, ids, mask=None, names=("layers.{}.keys", "layers.{}.values"), same=True, beside=True):
        tensors = {}
        for i, layer in enumerate(cache.layers):
            for pattern, side in zip(names, (layer.keys, layer.values)):
                tensors[pattern.format(i)] = side.contiguous()
        if beside:
            tensors["input_ids"] = ids
        if mask is not None:
            tensors["attention_mask"] = mask
        save_file(tensors, OUT / f"{name}.safetensors", {"model": name, "num_attention_heads": "2"})
        documents = []
        for b in range(ids.shape[0]):
            first = 0 if mask is None else int((mask[b] == 0).sum())
            count = ids.shape[1] - first
            rows = []
            for layer in cache.layers:
                sides = []
                for side in (layer.keys, layer.values):
                    own = side[b].float().numpy().transpose(1, 0, 2)
                    sides.append(with_zeros(own[max(0, len(own) - count):], count))
                rows.append(sides)
            documents.append({"tokens": [int(t) for t in ids[b, first:]] if beside else None, "positions": list(range(count)), "rows": rows})
        add(name, [f"{name}.safetensors"], documents, list(range(len(cache.layers))), same=same)

    torch.manual_seed(1)
    llama = LlamaForCausalLM(LlamaConfig(**usual)).to(torch.bfloat16).eval()
    ids = torch.randint(3, 60, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    save("transformers-llama", run(llama, ids[:1]), ids[:1])
    save("transformers-padded", run(llama, ids, mask), ids, mask, same=False)
    save("transformers-legacy", run(llama.half(), ids[:1]), ids[:1], names=("past_key_values.{}.key", "past_key_values.{}.value"), same=False, beside=False)
    save("transformers-tuples", run(llama.half(), ids[:1]), ids[:1], names=("past_key_values.{}.0", "past_key_values.{}.1"), same=False, beside=False)
    save("transformers-qwen3", run(Qwen3ForCausalLM(Qwen3Config(**usual, head_dim=8)).eval(), ids[:1]), ids[:1])
    gemma = Gemma3ForCausalLM(Gemma3TextConfig(**{**usual, "num_hidden_layers": 6}, head_dim=8, sliding_window=5, query_pre_attn_scalar=8))
    save("transformers-gemma3", run(gemma.to(torch.bfloat16).eval(), ids[:1]), ids[:1])
    deepseek = DeepseekV3ForCausalLM(DeepseekV3Config(**{**usual, "num_key_value_heads": 2}, moe_intermediate_size=8, q_lora_rank=8,
                                                      kv_lora_rank=12, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=6,
                                                      n_routed_experts=2, num_experts_per_tok=1, n_group=1, topk_group=1,
                                                      first_k_dense_replace=1))
    save("transformers-deepseek", run(deepseek.to(torch.bfloat16).eval(), ids[:1]), ids[:1])


# mlx-lm ---------------------------------------------------------------------------------------------------------------------------

def mlx_cases(version):
    import mlx.core as mx
    from mlx_lm.models import cache as caches
    mx.random.seed(1)

    def fill(cache, tokens, steps=0, heads=2, dim=32, dtype=mx.bfloat16):
        def rows(count):
            return mx.random.normal((1, heads, count, dim)).astype(dtype)
        cache.update_and_fetch(rows(tokens), rows(tokens))
        for _ in range(steps):
            cache.update_and_fetch(rows(1), rows(1))
        return cache

    def rows_of(cache):
        sides = []
        for side in (cache.keys, cache.values):
            if hasattr(cache, "bits"):
                codes, scales, biases = (np.array(part[..., :cache.offset, :].astype(mx.float32 if i else mx.uint32))[0] for i, part in enumerate(side))
                bits = np.unpackbits(np.ascontiguousarray(codes).view(np.uint8), axis=-1, bitorder="little")
                numbers = (bits.reshape(*codes.shape[:2], -1, cache.bits) @ (1 << np.arange(cache.bits))).astype(np.float32)
                own = numbers * np.repeat(scales, cache.group_size, -1) + np.repeat(biases, cache.group_size, -1)
            else:
                side = cache._temporal_order(side) if hasattr(cache, "max_size") else side[..., :cache.offset, :]
                own = np.array(side.astype(mx.float32))[0]
            sides.append(own.transpose(1, 0, 2))
        return sides

    def save(name, layers, same=True):
        name = f"mlx{version}-{name}"
        caches.save_prompt_cache(str(OUT / f"{name}.safetensors"), layers, {"model": "tiny", "tokenizer_config": "{\"a\": 1}"})
        rows = [rows_of(layer) for layer in layers]
        count, offset = max(len(r[0]) for r in rows), layers[-1].offset
        positions = list(range(offset - count, offset))
        if hasattr(layers[-1], "keep") and layers[-1].keep and count < offset:
            positions[:layers[-1].keep] = range(layers[-1].keep)
        rows = [[with_zeros(side, count) for side in sides] for sides in rows]
        add(name, [f"{name}.safetensors"], [{"tokens": None, "positions": positions, "rows": rows}], list(range(len(layers))), same=same)

    # From 0.32 on tensors have room for 256 tokens; the bytes after the tokens are unused.
    free = version == "0.32"
    count = 7
    shape = dict(heads=1, dim=32)
    save("plain", [fill(caches.KVCache(), count, **shape) for _ in range(2)], same=not free)
    if free:
        save("full", [fill(caches.KVCache(), 256, **shape)])
    save("rotating", [fill(caches.RotatingKVCache(max_size=8), 9, 3, **shape), fill(caches.KVCache(), 12, **shape)], same=False)
    save("kept", [fill(caches.RotatingKVCache(max_size=8, keep=2), 9, 3, **shape)], same=False)
    def save_quantized(*all_bits):
        for bits in all_bits:
            save(f"quantized{bits}", [fill(caches.QuantizedKVCache(group_size=32, bits=bits), count, **shape)], same=not free)
    save_quantized(2, 4, 8)
    save("half", [fill(caches.QuantizedKVCache(group_size=32, bits=4), count, dtype=mx.float16, **shape)], same=not free)
    if free:
        save_quantized(3, 5)


# llama.cpp ------------------------------------------------------------------------------------------------------------------------

GGML = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}


def make_gguf(path, arch, layers=2, hidden=32, heads=2, kv=1, dim=32, inner=32, vocabulary=64, norms=(), seed=1):
    """A model of random weights, without tokens."""
    import gguf
    random = np.random.default_rng(seed)
    out = gguf.GGUFWriter(path, arch)
    out.add_context_length(128), out.add_embedding_length(hidden), out.add_block_count(layers), out.add_feed_forward_length(inner)
    out.add_head_count(heads), out.add_head_count_kv(kv), out.add_layer_norm_rms_eps(1e-6), out.add_rope_freq_base(10000.0)
    out.add_key_length(dim), out.add_value_length(dim), out.add_vocab_size(vocabulary), out.add_tokenizer_model("no_vocab"), out.add_file_type(0)
    if arch == "gemma3":
        out.add_sliding_window(5)
    else:
        out.add_rope_dimension_count(dim)
    if arch == "qwen2vl":
        out.add_rope_dimension_sections([4, 6, 6, 0])

    def tensor(name, *shape):
        values = random.standard_normal(shape) / np.sqrt(shape[-1]) if len(shape) > 1 else 1 + 0.1 * random.standard_normal(shape)
        out.add_tensor(name, values.astype(np.float32))
    tensor("token_embd.weight", vocabulary, hidden), tensor("output_norm.weight", hidden)
    if arch != "gemma3":
        tensor("output.weight", vocabulary, hidden)
    for i in range(layers):
        for name, shape in (("attn_norm", (hidden,)), ("attn_q", (heads * dim, hidden)), ("attn_k", (kv * dim, hidden)), ("attn_v", (kv * dim, hidden)),
                            ("attn_output", (hidden, heads * dim)), ("ffn_norm", (hidden,)), ("ffn_gate", (inner, hidden)),
                            ("ffn_up", (inner, hidden)), ("ffn_down", (hidden, inner))):
            tensor(f"blk.{i}.{name}.weight", *shape)
        for name, size in norms:
            tensor(f"blk.{i}.{name}", size)
    out.write_header_to_file(), out.write_kv_data_to_file(), out.write_tensors_to_file(), out.close()


class State:
    """Reads a state of llama.cpp, of one document or several, by nothing but its layout."""
    def __init__(self, path, extension=0):
        self.bytes, self.at = path.read_bytes(), 0
        magic, self.version = self.u32(), self.u32()
        self.tokens = [self.i32() for _ in range(self.u32())]
        if magic == 0x6767736e:
            length = self.u32()
            self.at += length
        self.caches = []
        while self.at < len(self.bytes):
            self.caches.append([self.stream(extension) for _ in range(self.u32())])

    def number(self, kind, size):
        self.at += size
        return struct.unpack("<" + kind, self.bytes[self.at - size:self.at])[0]

    def u32(self):
        return self.number("I", 4)

    def i32(self):
        return self.number("i", 4)

    def stream(self, extension):
        count = self.u32()
        if count == 0:
            return None
        cells = []
        for _ in range(count):
            position, owners = self.i32(), self.u32()
            self.at += extension
            cells.append((position, [self.i32() for _ in range(owners)]))
        transposed, layers = self.u32(), self.u32()
        keys = [self.rows(count) for _ in range(layers)]
        values = [self.transposed(count) if transposed else self.rows(count) for _ in range(layers)]
        return cells, keys, values

    def take(self, size):
        self.at += size
        return np.frombuffer(self.bytes[self.at - size:self.at], np.uint8)

    def rows(self, count):
        import gguf
        kind, size = self.i32(), self.number("Q", 8)
        return gguf.quants.dequantize(self.take(size * count).reshape(count, size), gguf.GGMLQuantizationType(kind)).astype(np.float32)

    def transposed(self, count):
        kind, size, values = self.i32(), self.u32(), self.u32()
        numbers = self.take(size * values * count).view({0: np.float32, 1: np.float16}[kind])
        return numbers.reshape(values, count).T.astype(np.float32)


def llama_cases():
    import ctypes
    import os
    import tempfile
    import llama_cpp.llama_cpp as lib
    lib.llama_backend_init()
    folder = pathlib.Path(tempfile.mkdtemp())
    norms = [(f"{name}.weight", size) for name, size in (("attn_q_norm", 32), ("attn_k_norm", 32), ("post_attention_norm", 32), ("post_ffw_norm", 32))]
    make_gguf(folder / "llama", "llama")
    make_gguf(folder / "gemma3", "gemma3", layers=6, norms=norms)
    make_gguf(folder / "qwen2vl", "qwen2vl", hidden=64, norms=[("attn_q.bias", 64), ("attn_k.bias", 32), ("attn_v.bias", 32)])
    tokens = [int(t) for t in np.random.default_rng(1).integers(3, 60, 9)]

    class Context:
        def __init__(self, model, key="f16", value="f16", flash=1, sequences=1, unified=True):
            usual = lib.llama_model_default_params()
            self.model = lib.llama_model_load_from_file(str(folder / model).encode(), usual)
            params = lib.llama_context_default_params()
            params.n_ctx = params.n_batch = 256
            params.n_threads = params.n_threads_batch = 1
            params.type_k, params.type_v, params.n_seq_max = GGML[key], GGML[value], sequences
            params.flash_attn_type, params.kv_unified = flash, unified
            self.context = lib.llama_init_from_model(self.model, params)

        def run(self, ids, first=0, sequence=0):
            batch = lib.llama_batch_init(len(ids), 0, 1)
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, first + i, 1, sequence, 1
            assert lib.llama_decode(self.context, batch) == 0
            lib.llama_batch_free(batch)

        def save(self, path, ids, session=False):
            array = (lib.llama_token * len(ids))(*ids)
            if session:
                assert lib.llama_state_save_file(self.context, str(path).encode(), array, len(ids))
            else:
                assert lib.llama_state_seq_save_file(self.context, str(path).encode(), 0, array, len(ids)) > 0

    def documents_of(state, order, ids):
        """order: per cache, the layers of the model."""
        found = []
        for s, stream in enumerate(state.caches[0]):
            if stream is None:
                continue
            for sequence in sorted({owner for _, owners in stream[0] for owner in owners}):
                layers = {}
                for cache, numbers in zip(state.caches, order):
                    cells, keys, values = cache[s]
                    own = sorted((position, i) for i, (position, owners) in enumerate(cells) if sequence in owners)
                    places = [i for _, i in own]
                    for number, key, value in zip(numbers, keys, values):
                        layers[number] = [side[places].reshape(len(places), 1, -1) for side in (key, value)]
                    if cache is state.caches[0]:
                        positions = [position for position, _ in own]
                rows = [[with_zeros(side, len(positions)) for side in layers[i]] for i in sorted(layers)]
                found.append({"tokens": [ids[p] for p in positions] if ids else None, "positions": positions, "rows": rows})
        return found

    def case(name, context, ids, session=False, order=((0, 1),), extension=0, same=True, known=True, **options):
        name = f"llama-{name}"
        path = OUT / (name + (".session" if session else ".bin"))
        context.save(path, ids, session)
        documents = documents_of(State(path, extension), order, ids if known else None)
        add(name, [path.name], documents, sorted(i for part in order for i in part), same=same, heads=1, **options)

    os.environ["LLAMA_ATTN_ROT_DISABLE"] = "1"
    for kind in GGML:
        context = Context("llama", kind, kind)
        context.run(tokens)
        case(kind, context, tokens)
    context = Context("llama", flash=0)
    context.run(tokens)
    case("transposed", context, tokens)
    case("session", context, tokens, session=True)
    context = Context("gemma3")
    context.run(tokens)
    windows = [0, 1, 2, 3, 4]
    case("gemma3", context, tokens, order=((5,), windows), window_layers=windows)
    context = Context("qwen2vl")
    context.run(tokens)
    case("extension", context, tokens, extension=12)
    context = Context("llama")
    context.run(tokens)
    lib.llama_memory_seq_rm(lib.llama_get_memory(context.context), 0, 3, 5)
    case("gap", context, tokens)
    for unified in (True, False):
        context = Context("llama", sequences=2, unified=unified)
        context.run(tokens)
        context.run(tokens[:5], sequence=1)
        case("unified" if unified else "streams", context, [], session=True, known=False)
    # Version 2 of a sequence's file is version 3 with another number in models without extensions.
    for old, new, version in (("llama-f16.bin", "llama-version2", 2), ("llama-session.session", "llama-version9", 9)):
        bytes_there = bytearray((OUT / old).read_bytes())
        bytes_there[4:8] = struct.pack("<I", version)
        (OUT / f"{new}.bin").write_bytes(bytes_there)
        source = "llama-f16" if version == 2 else "llama-session"
        (OUT / f"{new}.f32").write_bytes((OUT / f"{source}.f32").read_bytes())
        CASES[new] = {**CASES[source], "files": [f"{new}.bin"]}
    # Extensions of 8 bytes, and a server's packed list of tokens, according to INTEROP.md: this llama.cpp writes neither.
    state = State(OUT / "llama-f16.bin")
    body = (OUT / "llama-f16.bin").read_bytes()
    head = 12 + 4 * len(tokens)
    for name, words, extension in (("llama-extension8", tokens, 2), ("llama-packed", [-1, 1, len(tokens), *tokens, 0], 0)):
        out = struct.pack("<3I", 0x67677371, 3, len(words)) + struct.pack(f"<{len(words)}i", *words) + struct.pack("<2I", 1, len(tokens))
        for position, owners in state.caches[0][0][0]:
            out += struct.pack("<iI", position, 1) + struct.pack("<i", position) * extension + struct.pack("<i", owners[0])
        (OUT / f"{name}.bin").write_bytes(out + body[head + 8 + 12 * len(tokens):])
        (OUT / f"{name}.f32").write_bytes((OUT / "llama-f16.f32").read_bytes())
        CASES[name] = {**CASES["llama-f16"], "files": [f"{name}.bin"]}


# LMCache, vLLM, SGLang, NumPy -----------------------------------------------------------------------------------------------------

def bf16(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def array_cases():
    from safetensors.numpy import save_file
    import ml_dtypes
    layers, tokens, heads, dim = 2, 10, 2, 8
    random = np.random.default_rng(1)
    cache = from_bf16(bf16(random.standard_normal((2, layers, tokens, heads, dim)))).reshape(2, layers, tokens, heads, dim)

    def documents(values):
        rows = [[values[s, i] for s in range(2)] for i in range(layers)]
        return [{"tokens": None, "positions": list(range(values.shape[2])), "rows": rows}]

    def lmcache(name, kind, shape_of, pieces):
        files = []
        for i, piece in enumerate(pieces):
            payload = bf16(piece).tobytes()
            shape = list(shape_of(piece)) + [0] * (4 - len(shape_of(piece)))
            files.append(f"{name}-{i}.data")
            (OUT / files[-1]).write_bytes(struct.pack("<7i", len(payload), kind, 3, *shape) + payload)
        return files

    flat = cache.reshape(2, layers, tokens, heads * dim)
    whole = lmcache("lmcache1", 1, np.shape, [flat[:, :, :6], flat[:, :, 6:]])
    add("lmcache1", whole, documents(cache), [0, 1], heads=heads)
    by_layer = [flat[:, i, first:end] for first, end in ((0, 6), (6, 10)) for i in range(layers)]
    add("lmcache3", lmcache("lmcache3", 3, np.shape, by_layer), documents(cache), [0, 1], heads=heads, layer_count=layers)
    turned = [piece.transpose(1, 0, 2) for piece in by_layer]
    add("lmcache2", lmcache("lmcache2", 2, np.shape, turned), documents(cache), [0, 1], heads=heads, layer_count=layers)

    files = []
    for i in range(layers):
        files.append(f"vllm-model.layers.{i}.self_attn.attn.safetensors")
        save_file({"kv_cache": np.ascontiguousarray(flat[:, i, :8]).astype(ml_dtypes.bfloat16)}, OUT / files[-1])
    add("vllm", files, documents(cache[:, :, :8]), [0, 1], heads=heads, page_tokens=4)

    shape = dict(heads=heads, head_dim=dim, layer_count=layers)
    for name, kind, layout, axes in (("sglang-layer-first", "sglang", "layer-first", "sltHd"), ("sglang-page-first", "sglang", "page-first", "stlHd"),
                                     ("vllm-blocks-hnd", "vllm-blocks", "v2-hnd", "lHtsd"), ("vllm-blocks-nhd", "vllm-blocks", "v2-nhd", "ltHsd"),
                                     ("vllm-blocks-separate", "vllm-blocks", "separate", "lstHd")):
        files = []
        for page in range(2):
            part = cache[:, :, 5 * page:5 * page + 5]
            moved = part.transpose(["sltHd".index(axis) for axis in axes])
            files.append(f"{name}-{page}.bin")
            (OUT / files[-1]).write_bytes(bf16(moved).tobytes())
        add(name, files, documents(cache), [0, 1], layout=layout, **{"from": kind}, **shape)

    arrays = {f"layers.{i}.{side}": cache[s, i].transpose(1, 0, 2).astype(np.float16) for i in range(layers) for s, side in enumerate(("keys", "values"))}
    np.savez(OUT / "numpy-layers.npz", **arrays)
    half = cache.astype(np.float16).astype(np.float32)
    add("numpy-layers", ["numpy-layers.npz"], documents(half), [0, 1], same=False)
    np.save(OUT / "numpy-cache.npy", cache.transpose(0, 1, 3, 2, 4))
    add("numpy-cache", ["numpy-cache.npy"], documents(cache), [0, 1])
    np.save(OUT / "numpy-keys.npy", np.asfortranarray(cache[0]))
    np.save(OUT / "numpy-values.npy", cache[1].astype(np.float64))
    add("numpy-two", ["numpy-keys.npy", "numpy-values.npy"], documents(cache), [0, 1], same=False, layout="lthd")
    np.savez(OUT / "numpy-stacked.npz", **{"layers.0.keys": cache[0], "layers.0.values": cache[1]})
    add("numpy-stacked", ["numpy-stacked.npz"], documents(cache), [0, 1], same=False, layout="lthd")


def main():
    words = sys.argv[1:]
    OUT.mkdir(exist_ok=True)
    known = OUT / "cases.json"
    if known.exists():
        CASES.update(json.loads(known.read_text()))
    if words[:1] == ["--mlx31"]:
        sys.path.insert(0, words[1])
        mlx_cases("0.31")
    else:
        for name, make in (("transformers", transformers_cases), ("mlx", lambda: mlx_cases("0.32")), ("llama", llama_cases), ("arrays", array_cases)):
            if not words or name in words:
                make()
    known.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(CASES[name])}" for name in sorted(CASES)) + "\n}\n")


if __name__ == "__main__":
    main()
