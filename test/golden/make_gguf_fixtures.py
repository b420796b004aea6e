#!/usr/bin/env python3
"""Makes fixtures of gguf_test.cpp in test/golden/gguf: GGUF files as gguf-py writes them; make_gguf_models.py makes those of models. Needs
numpy, gguf (made with 0.19.0), tokenizers and sentencepiece.

    make_gguf_fixtures.py TEXT          TEXT: a text file in English, to train a small SentencePiece model on

  types.gguf       a tensor (2, 512) of each type, named after it, its blocks random
  types.f32        what gguf.quants.dequantize makes of them, one behind the other in the file's order
  <name>.gguf      tokenizers of test/golden/tokenizer as keys
  spm.gguf         a SentencePiece model, trained here; spm.json: what it makes of strings, [text, ids] each
  pre.json         for each name of tokenizer.ggml.pre the CRC-32 of the ids (u32, little-endian) of all strings of
                   test/golden/tokenizer/strings.json with the tokens of qwen2.json and these splits
"""
import io
import json
import pathlib
import sys
import zlib

import gguf
import numpy as np
import sentencepiece
from gguf.quants import dequantize
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZERS, OUT = (ROOT / "test/golden" / name for name in ("tokenizer", "gguf"))
Q = gguf.GGMLQuantizationType
TYPES = [Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_NL, Q.IQ4_XS, Q.MXFP4]
ROWS, COLS = 2, 512
# Positions of the f16 scales in a block; everything else may be any bits.
SCALES = {Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q8_0: [0], Q.Q2_K: [80, 82], Q.Q3_K: [108], Q.Q4_K: [0, 2],
          Q.Q5_K: [0, 2], Q.Q6_K: [208], Q.IQ4_NL: [0], Q.IQ4_XS: [0], Q.MXFP4: []}
SPECIAL_SCALES = [0.0, -0.0, 6e-8, -5e-6, 65504.0, 1.0]  # subnormal and extreme ones among them


def write(name, arch, fill):
    writer = gguf.GGUFWriter(OUT / name, arch)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_tensor(kind, rng):
    values, size = gguf.GGML_QUANT_SIZES[kind]
    if kind == Q.F32:
        return rng.standard_normal((ROWS, COLS)).astype(np.float32)
    if kind == Q.F16:
        return rng.standard_normal((ROWS, COLS)).astype(np.float16)
    if kind == Q.BF16:
        floats = rng.standard_normal((ROWS, COLS)).astype(np.float32)
        return (floats.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    blocks = rng.integers(0, 256, (ROWS * COLS // values, size), dtype=np.uint8)
    for place in SCALES[kind]:
        scales = (rng.standard_normal(len(blocks)) * 0.1).astype(np.float16)
        if len(blocks) > 8:
            scales[:len(SPECIAL_SCALES)] = SPECIAL_SCALES
        blocks[:, place:place + 2] = scales.view(np.uint8).reshape(-1, 2)
    if kind == Q.MXFP4:  # exponents: those of usual weights, and the ends
        blocks[:, 0] = rng.integers(110, 130, len(blocks))
        blocks[:5, 0] = [0, 1, 2, 3, 252]
    return blocks.reshape(ROWS, -1)


def make_types():
    rng = np.random.default_rng(1)
    tensors = {kind: random_tensor(kind, rng) for kind in TYPES}

    def fill(writer):
        for kind, data in tensors.items():
            plain = kind in (Q.F32, Q.F16)
            writer.add_tensor(kind.name, data, raw_dtype=None if plain else kind)
    write("types.gguf", "llama", fill)
    floats = [dequantize(data.view(np.uint8) if kind == Q.BF16 else data, kind).astype("<f4") for kind, data in tensors.items()]
    assert all(x.size == ROWS * COLS and np.isfinite(x).all() for x in floats)
    (OUT / "types.f32").write_bytes(b"".join(x.tobytes() for x in floats))


def byte_level_keys(writer, tokenizer, pre):
    model, added = tokenizer["model"], {token["id"]: token for token in tokenizer["added_tokens"]}
    tokens = {number: text for text, number in model["vocab"].items()} | {number: token["content"] for number, token in added.items()}
    kinds = []
    for number in range(max(tokens) + 1):
        token = added.get(number)
        kinds.append((gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED) if token
                     else gguf.TokenType.NORMAL if number in tokens else gguf.TokenType.UNUSED)
    writer.add_bos_token_id(next(number for number, token in added.items() if token["content"] == "<s>"))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([tokens.get(number, f"[PAD{number}]") for number in range(max(tokens) + 1)])
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])


def make_tokenizer(name, pre):
    tokenizer = json.loads((TOKENIZERS / f"{name}.json").read_text())
    write(f"{name}.gguf", "llama", lambda writer: byte_level_keys(writer, tokenizer, pre))


def make_sentence_piece(text):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()), model_writer=model, model_type="bpe", vocab_size=700, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True, character_coverage=0.9995,
        minloglevel=2)
    spm = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(spm.get_piece_size())

    def fill(writer):
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([spm.id_to_piece(i) for i in ids])
        writer.add_token_scores([spm.get_score(i) for i in ids])
        writer.add_token_types([gguf.TokenType.UNKNOWN if spm.is_unknown(i) else gguf.TokenType.CONTROL if spm.is_control(i)
                                else gguf.TokenType.BYTE if spm.is_byte(i) else gguf.TokenType.NORMAL for i in ids])
        writer.add_bos_token_id(spm.bos_id())
        writer.add_eos_token_id(spm.eos_id())
        writer.add_unk_token_id(spm.unk_id())
    write("spm.gguf", "llama", fill)
    # SentencePiece treats control tokens in a text as plain text, other tokenizers as tokens.
    strings = [s for s in json.loads((TOKENIZERS / "strings.json").read_text()) if s and not any(t in s for t in ("<s>", "</s>", "<unk>", "\0"))]
    pairs = [[s, spm.encode(s)] for s in strings[::8]]
    (OUT / "spm.json").write_text(json.dumps(pairs, separators=(",", ":")) + "\n")


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def mixed_case(ending, number):
    start = r"[^\r\n\p{L}\p{N}]?"
    return rf"{start}{UPPER}*{LOWER}+{ending}|{start}{UPPER}+{LOWER}*{ending}|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{TAIL}"


PRE = {
    "gpt-2": [GPT2], "smollm": [r"\p{N}", GPT2], "llama-bpe": [LLAMA3], "dbrx": [LLAMA3], "qwen2": [LLAMA3.replace("{1,3}", "")],
    "stablelm2": [LLAMA3.replace("{1,3}", "")], "tekken": [mixed_case("", r"\p{N}")],
    "gpt-4o": [mixed_case("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}")],
    "seed-coder": [LLAMA3.replace("{1,3}", "").replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"
                    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + TAIL],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}


def make_pre():
    tokenizer = json.loads((TOKENIZERS / "qwen2.json").read_text())
    tokenizer["added_tokens"], tokenizer["normalizer"] = [], None
    strings = json.loads((TOKENIZERS / "strings.json").read_text())
    sums = {}
    for name, splits in PRE.items():
        tokenizer["model"]["ignore_merges"] = name in ("llama-bpe", "tekken")
        own = Tokenizer.from_str(json.dumps(tokenizer))
        if name == "qwen2":
            own.normalizer = normalizers.NFC()
        own.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated") for split in splits]
                                                    + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        ids = [i for s in strings for i in own.encode(s, add_special_tokens=False).ids]
        sums[name] = zlib.crc32(np.array(ids, dtype="<u4").tobytes())
    (OUT / "pre.json").write_text(json.dumps(sums, indent=1) + "\n")


def main():
    OUT.mkdir(exist_ok=True)
    make_types()
    for name, pre in (("llama3", "llama-bpe"), ("qwen2", "qwen2"), ("smollm", "smollm")):
        make_tokenizer(name, pre)
    make_sentence_piece(pathlib.Path(sys.argv[1]).read_text())
    make_pre()


main()
