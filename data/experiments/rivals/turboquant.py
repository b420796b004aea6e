#!/usr/bin/env python3
"""TurboQuant for codec exec, as its paper has it and as vLLM stores it.

--arguments mse-B, B bits (paper, algorithm 1): a vector of a head, over its norm, times a random rotation; each coordinate takes the nearest of
  the 2^B levels that are best (Lloyd-Max) for a coordinate of a random point of the sphere. B + 16 / dimensions bits: the norm is an f16.
--arguments product-B (algorithm 2): keys by B - 1 such bits, and the sign of each coordinate of the rest times a matrix of normal numbers, with the
  rest's norm, an f16 too: products with any query have no bias. Values by mse-B.
--arguments k8v4-of-L, 4bit_nc-of-L, k3v4_nc-of-L or 3bit_nc-of-L (vLLM's turboquant_... of a model of L layers): keys as E4M3 without a scale, or
  times an orthonormal Hadamard matrix, by levels for normal numbers, what is read scaled to norm 1 again before the stored norm, f16, is
  multiplied (nc); values by steps from the least to the largest of a head's vector, both f16; the first and the last two layers stay at 16 bits.

Sources: Zandieh et al., arXiv 2504.19874; vLLM since 0.20: vllm/v1/attention/ops/triton_turboquant_store.py, ..._decode.py,
v1/attention/backends/turboquant_attn.py, model_executor/layers/quantization/turboquant/ (config.py, centroids.py).
Settings: keys as the cache has them (--rope keep); no exact tokens.
Deviations: the paper gives more bits to 32 outlier channels (so it has 2.5 and 3.5 bits) and does not say how it finds them: left out. Nor does it
say which form it used for values. The rotation is the same for all heads; it is made anew, so that it takes no bytes. Levels come from a
finer grid than vLLM's. The layers at 16 bits are f16.
"""
import numpy as np
from kvfiles.coding import RowCodec

SERVED = {"k8v4": (8, 4), "4bit_nc": (4, 4), "k3v4_nc": (3, 4), "3bit_nc": (3, 3)}
E4M3 = np.array([(c if c < 8 else (8 + c % 8) * 2.0 ** (c // 8 - 1)) / 512 for c in range(127)], "f4")


def lloyd_max(bits, density, reach):
    """The levels of least mean squared error for numbers of this density between -reach and reach."""
    grid = np.linspace(-reach, reach, 40001)
    mass = density(grid)
    mass, moment = np.append(0, mass.cumsum()), np.append(0, (mass * grid).cumsum())
    levels = np.linspace(-reach, reach, 2**bits + 2)[1:-1] * 0.7
    for _ in range(500):
        ends = np.r_[0, np.searchsorted(grid, (levels[1:] + levels[:-1]) / 2), len(grid)]
        levels = np.diff(moment[ends]) / np.maximum(np.diff(mass[ends]), 1e-300)
    return levels.astype("f4")


def hadamard(dims):
    matrix = np.ones((1, 1))
    while len(matrix) < dims:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    if len(matrix) != dims:
        raise ValueError(f"heads of {dims} dimensions, no power of two")
    return matrix / dims**0.5


def nearest(levels, x):
    return np.searchsorted((levels[1:] + levels[:-1]) / 2, x, side="right").astype(np.uint8)


def pack(numbers, bits):
    """Numbers of so many bits, [vectors, dimensions], as bytes, [vectors, ...]."""
    ones = np.unpackbits(numbers[..., None], axis=-1, count=bits, bitorder="little")
    return np.packbits(ones.reshape(len(numbers), -1), axis=1, bitorder="little")


def unpack(data, dims, bits):
    ones = np.unpackbits(data, axis=1, count=dims * bits, bitorder="little")
    return np.packbits(ones.reshape(len(data), dims, bits), axis=-1, bitorder="little")[..., 0]


class TurboQuant(RowCodec):
    def begin(self, arguments):
        self.form, _, rest = arguments.partition("-")
        self.bits, self.last, self.made = 0, 0, {}
        if self.form in SERVED and rest.startswith("of-"):
            self.last = int(rest[3:])
        elif self.form in ("mse", "product") and rest.isdigit():
            self.bits = int(rest)
        else:
            raise ValueError(f"--arguments takes mse-B, product-B and {', '.join(name + '-of-L' for name in SERVED)}, not '{arguments}'")

    def kind(self, where):
        """What is done with this side of a layer, in how many bits, and what is stored of a vector."""
        kind, bits = "levels", self.bits
        if self.form == "product" and where.side == "key":
            kind, bits = "signs", self.bits - 1
        elif self.last:
            bits = SERVED[self.form][where.side == "value"]
            kind = "steps" if where.side == "value" else "cast" if bits == 8 else "levels"
            if where.layer < 2 or where.layer >= self.last - 2:
                kind = "exact"
        packed = ("numbers", "u1", -(-where.dims * bits // 8))
        stored = {
            "exact": [("x", "<f2", where.dims)],
            "cast": [packed],
            "steps": [packed, ("step", "<f2"), ("least", "<f2")],
            "levels": [packed, ("norm", "<f2")],
            "signs": [packed, ("norm", "<f2"), ("rest", "<f2"), ("signs", "u1", -(-where.dims // 8))],
        }
        return kind, bits, np.dtype(stored[kind])

    def tools(self, dims, bits):
        """The rotation, the levels and, for the signs, a matrix of normal numbers."""
        if (dims, bits) not in self.made:
            random = np.random.default_rng(0)
            if self.last:
                turn, density, reach = hadamard(dims), lambda x: np.exp(-dims * x * x / 2), 10 / dims**0.5
            else:
                turn, reach = np.linalg.qr(random.standard_normal((dims, dims)))[0], 1
                density = lambda x: np.maximum(1 - x * x, 0) ** ((dims - 3) / 2)
            made = turn, lloyd_max(bits, density, reach), random.standard_normal((dims, dims))
            self.made[dims, bits] = tuple(array.astype("f4") for array in made)
        return self.made[dims, bits]

    def encode(self, rows, where, table):
        kind, bits, layout = self.kind(where)
        x = rows.reshape(-1, where.dims)
        slots = np.zeros(len(x), layout)
        if kind == "exact":
            slots["x"] = x
        elif kind == "cast":
            slots["numbers"] = nearest(E4M3, np.abs(x)) | np.signbit(x).astype(np.uint8) << 7
        elif kind == "steps":
            least = x.min(1, keepdims=True)
            step = np.maximum((x.max(1, keepdims=True) - least) / np.float32(2**bits - 1), np.float32(1e-8))
            slots["numbers"] = pack(np.minimum((x - least) / step + 0.5, 2**bits - 1).astype(np.uint8), bits)
            slots["step"], slots["least"] = step[:, 0], least[:, 0]
        else:
            turn, levels, normal = self.tools(where.dims, bits)
            norms = np.linalg.norm(x, axis=1, keepdims=True)
            unit = x / np.maximum(norms, 1e-30)
            numbers = nearest(levels, unit @ turn)
            slots["numbers"], slots["norm"] = pack(numbers, bits), norms[:, 0]
            if kind == "signs":
                rest = unit - levels[numbers] @ turn.T
                slots["rest"] = np.linalg.norm(rest, axis=1)
                slots["signs"] = pack((rest @ normal.T >= 0).astype(np.uint8), 1)
        return slots.tobytes()

    def decode(self, data, where, table):
        kind, bits, layout = self.kind(where)
        slots = np.frombuffer(data, layout)
        column = lambda name: slots[name].astype("f4")[:, None]
        if kind == "exact":
            return slots["x"].reshape(where.shape)
        numbers = unpack(slots["numbers"], where.dims, bits)
        if kind == "cast":
            return (np.where(numbers < 128, 1, -1) * E4M3[numbers & 127]).reshape(where.shape)
        if kind == "steps":
            return (numbers * column("step") + column("least")).reshape(where.shape)
        turn, levels, normal = self.tools(where.dims, bits)
        unit = levels[numbers]
        if self.form.endswith("nc"):
            unit /= np.linalg.norm(unit, axis=1, keepdims=True) + 1e-16
        unit = unit @ turn.T
        if kind == "signs":
            signs = 2 * unpack(slots["signs"], where.dims, 1).astype("f4") - 1
            unit += (np.pi / 2) ** 0.5 / where.dims * column("rest") * (signs @ normal)
        return (column("norm") * unit).reshape(where.shape)


if __name__ == "__main__":
    TurboQuant().run()
