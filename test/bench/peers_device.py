#!/usr/bin/env python3
"""What torch takes on the same device for the work of kvcodec_bench_cuda, at the same sizes.

    peers_device.py [--json FILE]

Times are medians of 15 regions of at least 2 ms between events, as the benchmark's are. torch's results are not the same bits: its
floats are sums of another order, so that ids of near ties may differ. Needs torch with CUDA.
"""
import argparse
import json
import statistics

import torch
import torch.nn.functional as F

LINES = []
DEVICE = "cuda"


def region(work, launches):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(launches):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / launches


def measure(name, shape, work, amount=0.0, unit="GB/s"):
    """A line of the table; `amount` is bytes or operations, of which the rate is."""
    region(work, 3)
    launches = max(1, min(1000, int(2e-3 / region(work, 1))))
    times = [region(work, launches) for _ in range(15)]
    seconds = statistics.median(times)
    scale = {"GB/s": 1e9, "TFLOP/s": 1e12, "M rows/s": 1e6}[unit]
    LINES.append({"name": name, "shape": shape, "seconds": seconds, "least": min(times), "most": max(times),
                  "rate": amount / seconds / scale, "unit": unit})
    print(f"{name:44} {shape:34} {seconds * 1e6:10.1f} us ({min(times) * 1e6:.1f} .. {max(times) * 1e6:.1f}) "
          f"{amount / seconds / scale:9.1f} {unit}", flush=True)


def uniform(*shape, dtype=torch.float32):
    return (torch.rand(*shape, device=DEVICE) * 2 - 1).to(dtype)


def copies():
    size = 2 << 30
    source, target = torch.randint(0, 255, (size,), dtype=torch.uint8, device=DEVICE), torch.empty(size, dtype=torch.uint8, device=DEVICE)
    measure("copy on the device", "2 GiB", lambda: target.copy_(source), 2 * size)
    host = torch.empty(256 << 20, dtype=torch.uint8).pin_memory()
    there = torch.empty_like(host, device=DEVICE)
    measure("copy to the device, page-locked", "256 MiB", lambda: there.copy_(host, non_blocking=True), host.numel())
    measure("copy from the device, page-locked", "256 MiB", lambda: host.copy_(there, non_blocking=True), host.numel())
    plain = torch.randint(0, 255, (256 << 20,), dtype=torch.uint8)
    measure("copy to the device, pageable", "256 MiB", lambda: there.copy_(plain), host.numel())
    measure("copy from the device, pageable", "256 MiB", lambda: plain.copy_(there), host.numel())


def products():
    a, b = uniform(8192, 8192, dtype=torch.bfloat16), uniform(8192, 8192, dtype=torch.bfloat16)
    measure("product bf16", "8192 x 8192 x 8192", lambda: a @ b, 2.0 * 8192**3, "TFLOP/s")
    x, weight = uniform(1024, 4096), uniform(14336, 4096)
    measure("prefill/product, f32", "1024 x 14336 x 4096", lambda: x @ weight.T, 2.0 * 1024 * 14336 * 4096, "TFLOP/s")
    half_x, half_weight = x.bfloat16(), weight.bfloat16()
    measure("prefill/product, bf16", "1024 x 14336 x 4096", lambda: half_x @ half_weight.T, 2.0 * 1024 * 14336 * 4096, "TFLOP/s")
    atoms = uniform(8192, 512)
    measure("pursuit/gram, f32", "8192 x 512", lambda: atoms @ atoms.T, 2.0 * 8192 * 8192 * 512, "TFLOP/s")


def search(name, n, k, d):
    """Ids of the nearest of k entries for n rows: rows of products in pieces that fit the memory, then the largest."""
    rows, entries = uniform(n, d), uniform(k, d)
    bias = -0.5 * (entries * entries).sum(1)
    piece = min(n, (1 << 30) // k)

    def work():
        for first in range(0, n, piece):
            torch.addmm(bias, rows[first : first + piece], entries.T).max(1)

    operations = 2.0 * n * k * d
    measure(f"{name}, f32", f"{n} x {k} entries x {d}", work, operations, "TFLOP/s")
    torch.backends.cuda.matmul.allow_tf32 = True
    measure(f"{name}, tf32", f"{n} x {k} entries x {d}", work, operations, "TFLOP/s")
    torch.backends.cuda.matmul.allow_tf32 = False


def clusters():
    n, k, d = 1 << 19, 6400, 128
    rows, labels = uniform(n, d), torch.randint(0, k, (n,), device=DEVICE)

    def means():
        sums = torch.zeros(k, d, device=DEVICE).index_add_(0, labels, rows)
        return sums / torch.bincount(labels, minlength=k).clamp(min=1).unsqueeze(1)

    measure("nearest/means", f"{n} rows x {d} in {k}", means, n * (4.0 * d + 4))
    labels = torch.randint(0, k, (1 << 20,), device=DEVICE, dtype=torch.int32)
    measure("cluster/sort", f"{1 << 20} rows, {k} clusters", lambda: torch.sort(labels, stable=True), 12.0 * (1 << 20))


def attention():
    heads, tokens, d, queries, chosen = 64, 32768, 128, 4, 2457
    keys, values = (uniform(heads, tokens, d) for _ in range(2))
    query = uniform(heads, queries, d)
    measure("attention/dense", f"{heads} heads x {tokens}, {queries} queries",
            lambda: F.scaled_dot_product_attention(query, keys, values), heads * tokens * 8.0 * d)
    ids = torch.stack([torch.randperm(tokens, device=DEVICE)[:chosen].sort().values for _ in range(heads)])
    ids = ids.unsqueeze(2).expand(-1, -1, d)
    measure("attention/chosen", f"{heads} heads x {chosen} of {tokens}, {queries} queries",
            lambda: F.scaled_dot_product_attention(query, keys.gather(1, ids), values.gather(1, ids)), heads * chosen * (8.0 * d + 4))
    for q_heads, kv_heads, dims in ((32, 8, 128), (32, 32, 64)):
        query = uniform(1, q_heads, 8192, dims)
        keys, values = uniform(1, kv_heads, 8192, dims), uniform(1, kv_heads, 8192, dims)
        operations = 4.0 * 8192 * 8193 / 2 * q_heads * dims
        for dtype in (torch.float32, torch.bfloat16):
            q, k, v = query.to(dtype), keys.to(dtype), values.to(dtype)
            if q_heads != kv_heads:
                k, v = (t.repeat_interleave(q_heads // kv_heads, 1) for t in (k, v))
            measure(f"prefill/attention, {str(dtype)[6:]}", f"8192 tokens, {q_heads}/{kv_heads} x {dims}",
                    lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True), operations, "TFLOP/s")


def codebooks():
    for entries, rows in ((256, 1 << 18), (4096, 1 << 16), (65536, 1 << 14)):
        stages, d = 8, 128
        books = [uniform(entries, d) for _ in range(stages)]
        biases = [-0.5 * (book * book).sum(1) for book in books]
        values = uniform(rows, d)
        piece = min(rows, (1 << 29) // entries)

        def encode(books=books, biases=biases, values=values, piece=piece):
            for first in range(0, len(values), piece):
                residual = values[first : first + piece].clone()
                for book, bias in zip(books, biases):
                    residual -= book[torch.addmm(bias, residual, book.T).argmax(1)]

        measure("rvq/encode, f32", f"{rows} rows, {stages} x {entries} x {d}", encode, 2.0 * rows * stages * entries * d, "TFLOP/s")
        table = torch.cat(books)
        ids = torch.randint(0, entries, (1 << 18, stages), device=DEVICE) + torch.arange(stages, device=DEVICE) * entries
        measure("rvq/decode, ids not packed", f"{1 << 18} rows, {stages} x {entries} x {d}",
                lambda table=table, ids=ids: F.embedding_bag(ids, table, mode="sum"), (1 << 18) * d * 2.0)
    atoms, ids = uniform(8192, 128), torch.randint(0, 8192, (1 << 18, 16), device=DEVICE)
    weights = uniform(1 << 18, 16)
    measure("reconstruct/f32, ids not packed", f"{1 << 18} x 16 of 8192 x 128",
            lambda: F.embedding_bag(ids, atoms, per_sample_weights=weights, mode="sum"), (1 << 18) * 128 * 4.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.manual_seed(1)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    parts = [copies, products, lambda: search("nearest/k-means", 262144, 400, 128), lambda: search("nearest/codebook", 65536, 65536, 128),
             clusters, attention, codebooks]
    for part in parts:
        try:
            part()
        except RuntimeError as error:  # the others can still run
            print(f"failed: {error}", flush=True)
        if options.json:
            with open(options.json, "w") as out:
                json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "cases": LINES}, out, indent=1)


if __name__ == "__main__":
    main()
