"""Reading with kvfiles beside what compare.py does: journals, latent attention, names, and requests that are wrong."""
import os
import shutil
import subprocess
import threading

import numpy as np

import kvfiles


def refused(wrong, words, kind=kvfiles.Error):
    try:
        wrong()
    except kind as error:
        assert words in str(error), f"{words!r} is not in: {error}"
    else:
        raise AssertionError(f"accepted: {words}")


# A change that was made during a read is in the file's journal.
shutil.copy("f16-q4.h5", "held.h5")
os.symlink("held.h5", "link.h5")
with kvfiles.open("held.h5") as held:
    before = held[0].key(0)
    subprocess.run(["kvcodec", "encode", "more.h5", "--append", "held.h5", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    assert os.path.exists("held.h5.journal")
    assert len(held) == 3 and np.array_equal(held[0].key(0), before)
    for path in ("held.h5", "link.h5"):
        with kvfiles.open(path) as grown:
            assert len(grown) == 4 and grown[-1].name == "c" and len(grown["c"].value(1)) == 40
with kvfiles.open("held.h5") as grown:
    assert len(grown) == 4

with kvfiles.open("latent.h5") as latent:
    assert latent.layers == [0] and latent.shape(1).source == 0 and latent.shape(0).values_in_keys
    assert np.array_equal(latent[0].value(0), latent[0].key(0)[:, :, :16]) and latent[0].value(0).shape == (30, 1, 16)
    refused(lambda: latent[0].key(1), "no layer 1")
with kvfiles.open("twins.h5") as twins:
    refused(lambda: twins["a"], "2 documents are called 'a'")

with kvfiles.open("bf16.h5") as file:
    document = file[0]
    assert document.metadata is None and document.time == 0 and file.model.key_state == "post-rope" and file.dtype == "bf16"
    refused(lambda: file[3], "no document 3", IndexError)
    refused(lambda: file[-4], "no document -4", IndexError)
    refused(lambda: file["x"], "no document 'x'")
    refused(lambda: document.key(9), "no layer 9")
    refused(lambda: document.key(-1), "no layer -1")
    refused(lambda: document.key(0, "f64"), "no type 'f64'")
    refused(lambda: document.key(0, first=140, count=11), "there are no 11 from 140 on")
    refused(lambda: document.key(0, first=-1), "holds 150 tokens")
    refused(lambda: document.kept(7), "layer 7")
    # Threads share a file.
    wanted, found = document.key(1), []
    threads = [threading.Thread(target=lambda: found.append(file[0].key(1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(np.array_equal(rows, wanted) for rows in found)
refused(lambda: document.key(0), "is closed")
refused(lambda: kvfiles.open("nothing.h5"), "nothing.h5")
refused(lambda: kvfiles.open("data/dict.h5"), "dictionary")
refused(lambda: kvfiles.open("sparse.h5")[0].key(0), "book")
refused(lambda: kvfiles.open("a\0b"), "no name of a file")

assert kvfiles.__version__ == kvfiles.release() and kvfiles.run("--version").split()[-1] == kvfiles.release()
refused(lambda: kvfiles.run("encode", "nothing.h5", "--codec", "q4", "-o", "x.h5", "--quiet"), "nothing.h5")
refused(lambda: kvfiles.run("no-command"), "no-command")
print("the package reads and refuses")
