"""Files that another program changed: kvfiles returns no byte that is not the file's own and whole."""
import os
import shutil

import numpy as np

import kvfiles

try:
    import h5py
except ImportError:
    print("without h5py no files are damaged")
    raise SystemExit(0) from None


def read_all(path):
    with kvfiles.open(path) as file:
        for document in file:
            document.tokens, document.positions
            for layer in file.layers:
                document.key(layer), document.value(layer)


def refused(path, what):
    try:
        read_all(path)
    except kvfiles.Error:
        return
    raise AssertionError(f"accepted: {what}")


def damaged(source, what, change):
    shutil.copy(source, "hurt.h5")
    with h5py.File("hurt.h5", "r+") as file:
        change(file)
    refused("hurt.h5", f"{what} of {source}")


def zeroed(file):
    file["/layers/0/key"][10:20] = 0


def other_id(file):
    file["/tokens"][3] += 1


def reversed_names(file):
    file["/documents/name"][:] = file["/documents/name"][:][::-1]


def replaced(make):
    """Puts another object in the place of a dataset."""
    def change(file):
        path = "/layers/0/key" if "layers" in file else "/data"
        rows = file[path][:]
        del file[path]
        make(file, path, rows)
    return change


def external_link(file, path, rows):
    with h5py.File("other.h5", "w") as other:
        other[path] = rows
    file[path] = h5py.ExternalLink("other.h5", path)


def external_storage(file, path, rows):
    rows.tofile("rows.bin")
    file.create_dataset(path, rows.shape, rows.dtype, external=[("rows.bin", 0, rows.nbytes)])


def virtual_dataset(file, path, rows):
    with h5py.File("other.h5", "w") as other:
        other[path] = rows
    layout = h5py.VirtualLayout(rows.shape, rows.dtype)
    layout[:] = h5py.VirtualSource("other.h5", path, rows.shape, rows.dtype)
    file.create_virtual_dataset(path, layout)


read_all("f16.h5")
for source in ("f16.h5", "f16-q4.h5"):
    for change in (external_link, external_storage, virtual_dataset):
        damaged(source, change.__name__, replaced(change))
    damaged(source, "reversed names", reversed_names)
damaged("f16.h5", "zeros", zeroed)
damaged("f16.h5", "another id", other_id)

# Each byte counts, wherever it lies in rows or codes.
random = np.random.default_rng(3)
for source in ("f16.h5", "f16-lossless.h5"):
    size = os.path.getsize(source)
    with kvfiles.open(source) as file:
        wanted = [document.key(layer) for document in file for layer in file.layers]
    for place in random.integers(0, size, 40):
        shutil.copy(source, "hurt.h5")
        with open("hurt.h5", "r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1 << int(random.integers(8))]))
        try:
            with kvfiles.open("hurt.h5") as file:
                found = [document.key(layer) for document in file for layer in file.layers]
        except kvfiles.Error:
            continue
        assert len(found) == len(wanted) and all(map(np.array_equal, found, wanted)), f"byte {place} of {source}"
print("damaged files are refused")
