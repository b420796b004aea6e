"""Holds a file on a server to the same file here. Arguments: URL FILE."""
import sys

import numpy as np

import kvfiles

url, path = sys.argv[1:]
with kvfiles.open(url) as far, kvfiles.open(path) as near:
    assert far.path == url and far.names == near.names and far.codec == near.codec
    for one, other in zip(far, near):
        assert np.array_equal(one.tokens, other.tokens) and np.array_equal(one.value(1), other.value(1))
try:
    kvfiles.open(f"{url}.missing")
    raise AssertionError("accepted: a file that the server does not have")
except kvfiles.Error as error:
    assert "404" in str(error), error
print("a file on a server is read like one here")
