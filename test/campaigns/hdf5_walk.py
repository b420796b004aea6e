#!/usr/bin/env python3
"""Goes through HDF5 files by h5py, each in a process of its own: all objects, attributes and datasets of at most 16 MiB.

usage: hdf5_walk.py FOLDER         with files that `file_campaign headers CASES SEED --write FOLDER FILE...` made

Prints how many files this HDF5 came through, refused, crashed on and hung on. h5py of Debian has HDF5 1.10.8, that of PyPI a newer one.
"""
import os
import pathlib
import signal
import sys

import h5py

MOST_BYTES = 1 << 24


def read(name, thing):
    for value in thing.attrs.values():
        del value
    if isinstance(thing, h5py.Dataset) and thing.nbytes <= MOST_BYTES:
        thing[()]


def outcome(path):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        status = 0
        try:
            with h5py.File(path, "r") as file:
                read("/", file)
                file.visititems(read)
        except Exception:
            status = 1
        os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        return ("read", "refused")[os.WEXITSTATUS(status)]
    return "hung" if os.WTERMSIG(status) == signal.SIGALRM else "crashed"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    counts = {"read": 0, "refused": 0, "crashed": 0, "hung": 0}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.h5")):
        counts[outcome(path)] += 1
    print(f"HDF5 {h5py.version.hdf5_version}:", ", ".join(f"{number:,} {what}" for what, number in counts.items()))


main()
