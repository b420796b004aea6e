#!/usr/bin/env python3
"""Makes test/golden/loop/demo-model.json: what transformers says of the demo model's next tokens, with its cache as it is and with
the cache of the prefix rounded to a 16-bit type. Needs torch, transformers, tokenizers.

    make_loop_fixtures.py TEXT          TEXT: a text file in English, from which documents are cut

Of each document: its tokens, the number of tokens in the prefix, and for the tokens behind the first one of the continuation the
negative log-likelihoods in nats (`reference`), and for each type the same (`nll`) and the divergences from the reference (`kl`)
with the prefix's keys and values rounded to it. Everything is computed in float32.
"""
import json
import pathlib
import sys

import tokenizers
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "data/demo-model"
SHAPES = [(0, 1000, 512), (5000, 300, 100), (9000, 70, 1)]  # first token of the text, tokens, of these in the prefix


def log_probabilities(model, tokens, prefix, dtype):
    """Of the tokens prefix + 1 .. end, all of the vocabulary: [n, vocabulary]."""
    ids = torch.tensor([tokens])
    with torch.no_grad():
        past = model(ids[:, :prefix], use_cache=True).past_key_values
        for layer in past.layers:
            layer.keys, layer.values = (x.to(dtype).to(torch.float32) for x in (layer.keys, layer.values))
        logits = model(ids[:, prefix:-1], past_key_values=past, use_cache=True).logits[0]
    return torch.log_softmax(logits.to(torch.float64), dim=-1)


def main():
    text = pathlib.Path(sys.argv[1]).read_text()
    ids = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager")
    documents = []
    for first, count, prefix in SHAPES:
        tokens = ids[first:first + count]
        targets = torch.tensor(tokens[prefix + 1:])[:, None]
        reference = log_probabilities(model, tokens, prefix, torch.float32)
        document = {"tokens": tokens, "prefix": prefix, "reference": (-reference.gather(1, targets)[:, 0]).tolist()}
        for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
            other = log_probabilities(model, tokens, prefix, dtype)
            document[name] = {"nll": (-other.gather(1, targets)[:, 0]).tolist(),
                              "kl": (reference.exp() * (reference - other)).sum(dim=1).tolist()}
        documents.append(document)
    # Seven digits after the point: well below the tolerance.
    rounded = json.loads(json.dumps(documents), parse_float=lambda x: round(float(x), 7))
    out = ROOT / "test/golden/loop/demo-model.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"transformers": transformers.__version__, "documents": rounded}, separators=(",", ":")) + "\n")


main()
