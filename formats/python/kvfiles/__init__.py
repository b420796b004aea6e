"""kvfiles is the Python package of kvcodec; it has another name because PyPI's kvcodec is a package of other people.

It reads and writes kvcodec's files: caches of transformers into kv files and codes, and these back into arrays and caches. All files are
read and written by libkvcodec.so, so they are checked, locked and synced as by the program. The package needs NumPy; torch and transformers
only where their caches are given or wanted.

    import kvfiles
    kvfiles.from_cache(past_key_values, ids, "kv.h5", config=model.config)
    kvfiles.encode(past_key_values, ids, "codes.h5", ["--codec", "q4"], config=model.config)
    past_key_values = kvfiles.to_cache("codes.h5", 0, config=model.config)      # a DynamicCache that generation goes on with

    with kvfiles.open("codes.h5") as file:                                      # also of URLs
        document = file[0]
        document.tokens, document.positions, document.metadata                  # [tokens], [tokens], a dict or None
        document.key(3), document.value(3, "bf16")                              # [tokens, heads, dimensions]

    with kvfiles.Queries(model, last=32) as queries:                            # some codecs use queries beside keys and values
        past_key_values = model(ids, use_cache=True).past_key_values
    kvfiles.from_cache(past_key_values, ids, "kv.h5", config=model.config, queries=queries)

    print(kvfiles.run("info", "codes.h5"))                                      # any command of the program

libkvcodec.so is the one that $KVCODEC_LIBRARY names, or lies in this package's folder (as in the wheel), or is found by the loader.
FORMAT.md describes the files, kvcodec-interop(7) how they go with other programs.
"""
from .files import Document, File, LayerShape, Model, open
from .library import Error, release, run, set_threads
from .queries import Queries
from .restoring import to_cache
from .writing import encode, from_cache

__all__ = ["Document", "Error", "File", "LayerShape", "Model", "Queries", "encode", "from_cache", "open", "release", "run", "set_threads",
           "to_cache"]
__version__ = "0.1.0"
