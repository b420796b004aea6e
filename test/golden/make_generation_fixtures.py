#!/usr/bin/env python3
"""Makes test/golden/generation.json: for small random models of test/golden/model, one of each family, the 64 likeliest tokens one after
the other that transformers writes behind a prompt of 40 ids, in float32. Needs torch and transformers.

Random models repeat themselves less than trained ones, and their two likeliest tokens are seldom close: the smallest difference of their
logits on the way is kept as `margin`, so that a test can tell rounding from a fault.

make_generation_fixtures.py [NAME ...]   only these anew, and the others as they are; all without names
"""
import json
import pathlib
import sys

import torch
import transformers

ROOT = pathlib.Path(__file__).parent
PROMPT, NEW = 40, 64


def main():
    wanted = sys.argv[1:]
    found = json.loads((ROOT / "generation.json").read_text())["models"] if wanted else {}
    for folder in [ROOT / "model" / name for name in wanted] or sorted((ROOT / "model").glob("*-1")):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        vocabulary = model.config.get_text_config().vocab_size
        ids = [i * i * 7 % vocabulary for i in range(PROMPT)]
        margin, past, fresh = float("inf"), None, torch.tensor([ids])
        with torch.no_grad():
            for _ in range(NEW):
                out = model(fresh, past_key_values=past, use_cache=True)
                past = out.past_key_values
                best = out.logits[0, -1].topk(2)
                margin = min(margin, float(best.values[0] - best.values[1]))
                ids.append(int(best.indices[0]))
                fresh = torch.tensor([ids[-1:]])
        found[folder.name] = {"tokens": ids[PROMPT:], "margin": round(margin, 6)}
        print(folder.name, margin)
    text = json.dumps({"transformers": transformers.__version__, "models": dict(sorted(found.items()))}, separators=(",", ":"))
    (ROOT / "generation.json").write_text(text.replace('},"', '},\n"') + "\n")


main()
