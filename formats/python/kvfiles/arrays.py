"""Tensors of torch and arrays of NumPy, as rows that the library takes."""
import numpy as np

from .library import Error, require

PIECE_BYTES = 4 << 20


def is_tensor(array):
    return hasattr(array, "detach")


def kind_of(array):
    """bf16 and f16 of arrays of these types, f32 of all others."""
    name = str(array.dtype).rpartition(".")[2]
    return {"bfloat16": "bf16", "float16": "f16"}.get(name, "f32")


def check_floats(array, what):
    floats = array.dtype.is_floating_point if is_tensor(array) else array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    require(floats, f"{what} are of the type {array.dtype}; floating-point numbers are wanted")


def rows_of(part):
    """The array [heads, tokens, dimensions] as a NumPy array [tokens, heads, dimensions] without gaps, of uint16 for bf16. It is a copy only
    where the order of numbers, the type or the device changes."""
    kind = kind_of(part)
    if is_tensor(part):
        import torch
        part = part.detach().transpose(0, 1)
        part = part.to(torch.float32) if kind == "f32" else part.view(torch.int16)
        part = part.contiguous().cpu().numpy()
        return part if kind == "f32" else part.view(np.uint16 if kind == "bf16" else np.float16)
    part = part.transpose(1, 0, 2)
    lies = ("C_CONTIGUOUS", "ALIGNED")
    if kind == "bf16":
        return np.require(part, None, lies).view(np.uint16)
    with np.errstate(over="ignore"):  # the library refuses numbers that are not finite, by their places
        return np.require(part, np.float16 if kind == "f16" else np.float32, lies)


def pieces(array, first, last):
    """Rows [first, last) of an array [heads, tokens, dimensions], a few MiB at a time."""
    heads, _, dims = array.shape
    step = max(1, PIECE_BYTES // (4 * heads * dims))
    for begin in range(first, last, step):
        yield rows_of(array[:, begin:min(begin + step, last)])


def state_of(array):
    """(type, NumPy array without gaps) of a tensor of state; of bf16 the bits."""
    name = str(array.dtype).rpartition(".")[2]
    kind = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64", "uint8": "u8"}.get(name)
    require(kind is not None, f"state of the type {array.dtype} cannot be stored")
    if is_tensor(array):
        import torch
        array = array.detach().cpu().contiguous()
        array = (array.view(torch.int16) if kind == "bf16" else array).numpy()
    return kind, np.ascontiguousarray(array.view(np.uint16) if kind == "bf16" else array)


def tensor_of_state(kind, array, device):
    """The inverse: a tensor of torch, with a batch of one before its shape."""
    import torch
    tensor = torch.from_numpy(array.view(np.int16) if kind == "bf16" else array)
    return (tensor.view(torch.bfloat16) if kind == "bf16" else tensor).unsqueeze(0).to(device=device)


def whole_numbers(values, what, limit):
    """An array of integers from 0 to limit - 1."""
    if is_tensor(values):
        values = values.detach().cpu().numpy()
    try:
        values = np.asarray(values)
    except ValueError:
        raise Error(f"{what} are no array of numbers") from None
    if values.size == 0:
        return values.astype(np.uint64)
    require(values.dtype.kind in "iu", f"{what} are of the type {values.dtype}; whole numbers from 0 to {limit - 1} are wanted")
    for wrong in (values.min(), values.max()):
        require(0 <= int(wrong) < limit, f"{what} hold {wrong}; whole numbers from 0 to {limit - 1} are possible")
    return values.astype(np.uint64)


def tensor_of(rows, kind):
    """The inverse of rows_of: rows [tokens, heads, dimensions] as a tensor of torch [1, heads, tokens, dimensions] of their type."""
    import torch
    tensor = torch.from_numpy(rows.view(np.int16) if kind == "bf16" else rows)
    if kind == "bf16":
        tensor = tensor.view(torch.bfloat16)
    return tensor.transpose(0, 1).unsqueeze(0)
