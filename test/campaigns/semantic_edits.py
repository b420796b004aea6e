#!/usr/bin/env python3
"""Edits kv and codes files at random as programs of HDF5 could, with h5py, and reads each with kvfiles: it must give an error, or the documents
that it gave before, and never open a file outside. A kv file without one of its layers, or without ids, is whole, too: it says so.

usage: semantic_edits.py COUNT SEED FILE...      exit 1 and a line per fault; PYTHONPATH has formats/python, KVCODEC_LIBRARY names the library
Digests stay as they are: who edits a file on purpose takes them away.
"""
import collections
import ctypes
import os
import random
import shutil
import signal
import sys
import tempfile

import h5py
import numpy as np

import kvfiles


def read_all(path):
    """The names of all documents, and all their numbers: {(what, ...): array}."""
    with kvfiles.open(path) as file:
        found = {("names",): file.names}
        for document in file:
            found["positions", document.number] = document.positions
            if document.tokens is not None:
                found["ids", document.number] = document.tokens
            for layer in file.layers:
                found["layer", document.number, layer, "key"] = document.key(layer)
                found["layer", document.number, layer, "value"] = document.value(layer)
        return found


def outcome_of(found, before):
    if not found.keys() <= before.keys() or not all(np.array_equal(found[key], before[key]) for key in found):
        return "other values"
    missing = before.keys() - found.keys()
    whole = {key[:1] + key[2:3] for key in missing}.isdisjoint(key[:1] + key[2:3] for key in found)  # the ids, or a layer, of all documents
    return "the same" if not missing else "without a part" if whole else "a document lacks a part"


class Outside:
    """A folder with a file like those that are read. opened(): whether this file was opened since the last call."""

    IN_OPEN = 0x20

    def __init__(self, folder):
        self.path = os.path.join(folder, "outside.h5")
        libc = ctypes.CDLL(None, use_errno=True)
        self.watch = libc.inotify_init1(os.O_NONBLOCK)
        assert self.watch >= 0 and libc.inotify_add_watch(self.watch, folder.encode(), self.IN_OPEN) >= 0, "inotify"

    def opened(self):
        try:
            return b"outside.h5" in os.read(self.watch, 65536)  # and not the folder, which others may list
        except BlockingIOError:
            return False


def members(file):
    """The names of all datasets, and of all objects."""
    datasets, objects = [], ["/"]
    file.visititems(lambda name, found: (objects.append(name), datasets.append(name) if isinstance(found, h5py.Dataset) else None) and None)
    return datasets, objects


def other_number(value, rng):
    kind = np.asarray(value).dtype
    if kind.kind in "iu":
        wide = int(value) + rng.choice([1, -1, 7, -int(value), 1 << 20, 1 << 33])
        info = np.iinfo(kind)
        return kind.type(min(max(wide, info.min), info.max))
    if kind.kind == "f":
        return kind.type(rng.choice([float(value) + 1, -float(value), 0.0, float("nan"), float(value) * 1.5]))
    return None


def other_text(value, rng):
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    at = rng.randrange(len(text) + 1)
    return rng.choice([text[:at] + rng.choice("0123456789ax{}\",") + text[at:], text[:at] + text[at + 1:], "", text + text, text[:at] + "1" + text[at + 1:]])


def change_elements(file, rng, outside):
    own = file[rng.choice(members(file)[0])]
    rows = own[()]
    if rows.size == 0:
        return None
    flat = rows.reshape(-1)
    kind = rng.randrange(4)
    a, b = sorted(rng.randrange(flat.size) for _ in range(2))
    if kind == 0:
        changed = other_number(flat[a], rng) if flat.dtype.kind in "iuf" else other_text(flat[a], rng)
        if changed is None:
            return None
        flat[a] = changed
    elif kind == 1:
        flat[a], flat[b] = flat[b], flat[a]
    elif kind == 2 and flat.dtype.kind in "iuf":
        flat[a:b + 1] = 0
    else:
        flat[:] = flat[::-1].copy()
    own[...] = flat.reshape(rows.shape)
    return own.name


def change_attribute(file, rng, outside):
    own = file[rng.choice([name for name in members(file)[1] if len(file[name].attrs)] or ["/"])]
    name = rng.choice(sorted(own.attrs))
    value, kind = own.attrs[name], rng.randrange(3)
    if kind == 0:
        del own.attrs[name]
    elif isinstance(value, (str, bytes)):
        own.attrs[name] = other_text(value, rng)
    elif np.ndim(value) == 0:
        changed = other_number(value, rng)
        if changed is None:
            return None
        own.attrs[name] = changed if kind == 1 else str(changed)
    else:
        rows = np.array(value)
        if rows.size == 0 or rows.dtype.kind not in "iuf":
            return None
        if kind == 1:
            rows.reshape(-1)[rng.randrange(rows.size)] = other_number(rows.reshape(-1)[0], rng)
        own.attrs[name] = rows if kind == 1 else rows[:-1]
    return f"{own.name}@{name}"


def remove(file, rng, outside):
    name = rng.choice(members(file)[1][1:])
    del file[name]
    return name


def exchange(file, rng, outside):
    one, other = rng.sample(members(file)[0], 2)
    file.move(one, "swapped")
    file.move(other, one)
    file.move("swapped", other)
    return f"{one} and {other}"


def rebuild(file, rng, outside):
    """Other shape, type, chunks, filters or size, or rows that lie elsewhere."""
    name = rng.choice(members(file)[0])
    rows = file[name][()]
    attributes = dict(file[name].attrs)
    kind = rng.choice(["shorter", "longer", "shape", "type", "plain", "chunks", "filters", "external storage", "virtual", "external link", "soft link",
                       "hard link", "group", "name"])
    del file[name]
    if kind in ("shorter", "longer") and rows.ndim:
        rows = rows[:-1] if kind == "shorter" else np.concatenate([rows, rows[-1:]])
    elif kind == "shape":
        rows = rows.reshape(-1)
    elif kind == "type" and rows.dtype.kind in "iuf":
        rows = rows.astype(rng.choice(["<f4", ">f4", "<u8", ">u4", "<i2", "u1"]))
    target = rng.choice(members(file)[0] or ["/"])
    if kind == "external link":
        file[name] = h5py.ExternalLink(outside.path, name)
    elif kind == "soft link":
        file[name] = h5py.SoftLink(rng.choice(["/" + target, "/nowhere", "/" + name]))
    elif kind == "hard link":
        file[name] = file[target]
    elif kind == "group":
        file.create_group(name)
    elif kind == "external storage" and rows.dtype.kind in "iuf":
        file.create_dataset(name, rows.shape, rows.dtype, external=[(outside.path, 64, max(1, rows.nbytes))])
    elif kind == "virtual":
        layout = h5py.VirtualLayout(rows.shape, rows.dtype)
        if rows.size:
            layout[...] = h5py.VirtualSource(outside.path, name, rows.shape, rows.dtype)
        file.create_virtual_dataset(name, layout)
    elif kind == "chunks" and rows.size and rows.ndim:
        file.create_dataset(name, data=rows, chunks=tuple(rng.randrange(1, extent + 1) for extent in rows.shape))
    elif kind == "filters" and rows.size and rows.ndim:
        file.create_dataset(name, data=rows, chunks=True, shuffle=True, compression="gzip")
    else:
        file.create_dataset(name + "x" if kind == "name" else name, data=rows)
    if isinstance(file.get(name, getlink=True), h5py.HardLink):
        for attribute, value in attributes.items():
            file[name].attrs[attribute] = value
    return f"{name}: {kind}"


def add(file, rng, outside):
    where = rng.choice([name for name in members(file)[1] if isinstance(file[name], h5py.Group)])
    name = f"{where}/new-{rng.randrange(100)}"
    if rng.randrange(2):
        file[name] = np.arange(9)
    else:
        file[name] = h5py.ExternalLink(outside.path, "/")
    file[where].attrs["new"] = 1
    return name


EDITS = [change_elements, change_elements, change_attribute, change_attribute, remove, exchange, rebuild, rebuild, rebuild, add]


def main(count, seed, sources):
    rng = random.Random(seed)
    counts, faults, stopped = collections.Counter(), 0, []
    with tempfile.TemporaryDirectory() as inside, tempfile.TemporaryDirectory() as folder:
        outside, hurt = Outside(folder), os.path.join(inside, "hurt.h5")
        before = {source: read_all(source) for source in sources}
        signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))  # ends it early, with its counts
        while sum(counts.values()) < count and not stopped:
            source = rng.choice(sources)
            shutil.copy(source, hurt)
            shutil.copy(source, outside.path)
            edit = rng.choice(EDITS)
            try:
                with h5py.File(hurt, "r+") as file:
                    what = edit(file, rng, outside)
            except (OSError, ValueError, TypeError, KeyError, RuntimeError):  # h5py refuses some of it
                continue
            if what is None:
                continue
            outside.opened()
            case, outcome = f"{source}, {edit.__name__}: {what}", "refused"
            signal.alarm(120)  # ends the campaign
            try:
                found = read_all(hurt)
                outcome = outcome_of(found, before[source])
            except kvfiles.Error:
                pass
            except Exception as error:  # noqa: BLE001
                outcome = f"another exception, {error!r}"
            signal.alarm(0)
            if outside.opened():
                outcome = "a file outside was opened"
            counts[outcome] += 1
            if outcome not in ("refused", "the same", "without a part"):
                faults += 1
                print(f"{case}: {outcome}", flush=True)
    print(f"{sum(counts.values())} edits: {counts['refused']} refused, {counts['the same']} read as before, {counts['without a part']} without ids or a layer, "
          f"{faults} faults")
    return faults > 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
