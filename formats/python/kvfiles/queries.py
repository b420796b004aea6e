"""Queries of a run of a model, which some codecs and measures use beside keys and values."""
import math

import numpy as np

from .library import require


class Queries:
    """Keeps the queries of the last tokens while a model of transformers runs, as attention uses them. last: how many tokens."""

    def __init__(self, model, last=32):
        self.model, self.last, self.layers = model, last, {}

    def __enter__(self):
        from transformers import AttentionInterface
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
        self.before = self.model.config._attn_implementation
        require(self.before in ALL_ATTENTION_FUNCTIONS, f"attention of the kind '{self.before}' shows nobody its queries; load the model with "
                "attn_implementation='sdpa'")
        attend = ALL_ATTENTION_FUNCTIONS[self.before]

        def keep(module, query, key, value, mask, **options):
            scale = options.get("scaling")
            scale = 1.0 if scale is None else scale * math.sqrt(query.shape[-1])  # scores are q · k / sqrt(dimensions)
            self.layers[module.layer_idx] = (query[:, :, -self.last:].detach().float() * scale).cpu().numpy()
            return attend(module, query, key, value, mask, **options)

        name = f"kvfiles_{self.before}"
        AttentionInterface.register(name, keep)
        # Masks are made for the kind of attention there was.
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[self.before])
        self.model.set_attn_implementation(name)
        return self

    def __exit__(self, *_):
        self.model.set_attn_implementation(self.before)

    def rows(self, dims, heads, tokens):
        """Of layers, with the dimensions of their keys, the queries of the last tokens: {layer: [tokens, heads, dimensions]}."""
        missing = sorted(set(dims) - set(self.layers))
        require(not missing, f"the queries of layers {', '.join(map(str, missing))} were not seen")
        for layer, wanted in dims.items():
            batch, found_heads, _, found = self.layers[layer].shape
            require(batch == 1, "queries of batches cannot be stored")
            require(found == wanted, f"layer {layer}: queries have {found} dimensions and the keys of the cache {wanted}, so they cannot be kept")
            require(found_heads == heads, f"layer {layer}: there are {found_heads} query heads, where {heads} are expected; give the model's config")
        count = min(tokens, *(self.layers[layer].shape[2] for layer in dims))
        return {layer: np.ascontiguousarray(self.layers[layer][0, :, self.layers[layer].shape[2] - count:].transpose(1, 0, 2), np.float32)
                for layer in dims}
