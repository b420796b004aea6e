"""Loads libkvcodec.so with ctypes; kvcodec.h says what its functions do. ctypes releases the interpreter's lock during each call."""
import ctypes
import os
import threading
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int32, c_uint32, c_uint64, c_void_p

INTERFACE = 1
TYPES = {"f32": 0, "f16": 1, "bf16": 2}
SIDES = {"key": 0, "value": 1}


class Error(Exception):
    """A file or a request is wrong; the message says how. status: like the program's exit status, or None. printed: what a command
    printed before it ended with that status."""

    def __init__(self, message, status=None, printed=""):
        super().__init__(message)
        self.status, self.printed = status, printed


def require(condition, message):
    if not condition:
        raise Error(message)


class CModel(Structure):
    _fields_ = [("name", c_char_p), ("layers", c_int32), ("query_heads", c_int32), ("rope_theta", c_double), ("rope_scaling", c_char_p),
                ("key_state", c_char_p), ("source", c_char_p), ("scores", c_char_p)]


class CLayer(Structure):
    _fields_ = [("heads", c_uint32), ("key_dims", c_uint32), ("value_dims", c_uint32), ("values_in_keys", c_int32), ("source", c_int32)]


class CDocument(Structure):
    _fields_ = [("name", c_char_p), ("tokens", c_uint64), ("time", c_uint64), ("metadata", c_char_p)]


class CTensor(Structure):
    _fields_ = [("name", c_char_p), ("type", c_char_p), ("dims", c_uint32), ("shape", POINTER(c_uint64)), ("bytes", c_uint64)]


_FUNCTIONS = {
    "interface": (c_int, []),
    "release": (c_char_p, []),
    "error": (c_char_p, []),
    "set_threads": (c_int, [c_int]),
    "open": (c_int, [c_char_p, c_char_p, POINTER(c_void_p)]),
    "close": (None, [c_void_p]),
    "codec": (c_char_p, [c_void_p]),
    "stored_type": (c_int, [c_void_p]),
    "has_ids": (c_int, [c_void_p]),
    "documents": (c_uint64, [c_void_p]),
    "get_document": (c_int, [c_void_p, c_uint64, POINTER(CDocument)]),
    "get_model": (c_int, [c_void_p, POINTER(CModel)]),
    "get_layer": (c_int, [c_void_p, c_int32, POINTER(CLayer), POINTER(c_int)]),
    "left_out": (c_int, [c_void_p, c_uint64, c_int32, POINTER(c_uint64)]),
    "ids": (c_int, [c_void_p, c_uint64, c_uint64, c_uint64, c_void_p]),
    "positions": (c_int, [c_void_p, c_uint64, c_uint64, c_uint64, c_void_p]),
    "decode": (c_int, [c_void_p, c_uint64, c_int32, c_int, c_uint64, c_uint64, c_int, c_void_p]),
    "state_count": (c_int, [c_void_p, c_uint64, POINTER(c_uint64)]),
    "get_state": (c_int, [c_void_p, c_uint64, c_uint64, POINTER(CTensor), c_void_p]),
    "set_state": (c_int, [c_void_p, c_uint64, POINTER(CTensor), POINTER(c_void_p)]),
    "create": (c_int, [c_char_p, c_int, POINTER(CModel), POINTER(CLayer), c_int, c_int, POINTER(c_void_p)]),
    "add": (c_int, [c_void_p, POINTER(CDocument), c_void_p, c_void_p, c_void_p]),
    "append": (c_int, [c_void_p, c_int32, c_int, c_int, c_uint64, c_void_p]),
    "append_queries": (c_int, [c_void_p, c_int32, c_void_p, c_int, c_uint64, c_void_p]),
    "finish": (c_int, [c_void_p, c_char_p]),
    "encode": (c_int, [c_void_p, c_char_p, c_int, POINTER(c_char_p)]),
    "discard": (None, [c_void_p]),
    "run": (c_int, [c_int, POINTER(c_char_p), POINTER(c_char_p)]),
}

_loaded = None
_loading = threading.Lock()


def _load():
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libkvcodec.so")
    name = os.environ.get("KVCODEC_LIBRARY") or (own if os.path.exists(own) else "libkvcodec.so.1")
    # OpenMP's threads wait by spinning unless this is set as it is loaded: beside other programs on all processors they then hold up
    # each other, and many short calls take up to 40 times as long.
    chosen = "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ
    try:
        if not chosen:
            os.environ["OMP_WAIT_POLICY"] = "passive"
        shared = ctypes.CDLL(name)
    except OSError as error:
        raise Error(f"kvcodec's library cannot be loaded ({error}); install kvcodec or the wheel of kvfiles, or name libkvcodec.so by "
                    "KVCODEC_LIBRARY") from None
    finally:
        if not chosen:
            del os.environ["OMP_WAIT_POLICY"]
    try:
        functions = {key: getattr(shared, f"kvcodec_{key}") for key in _FUNCTIONS}
    except AttributeError as error:
        raise Error(f"{name}: is not kvcodec's library ({error})") from None
    for key, (result, arguments) in _FUNCTIONS.items():
        functions[key].restype, functions[key].argtypes = result, arguments
    found = functions["interface"]()
    require(found == INTERFACE, f"{name}: has interface {found}; this package needs {INTERFACE}: install both of one release")
    return functions


def library():
    """The library's functions, by their names without kvcodec_."""
    global _loaded
    if _loaded is None:
        with _loading:
            if _loaded is None:
                _loaded = _load()
    return _loaded


def text(value):
    return "" if value is None else value.decode("utf-8", "replace")


def path_bytes(path):
    encoded = os.fsencode(path)
    require(encoded and b"\0" not in encoded, f"{path!r} is no name of a file")
    return encoded


def text_bytes(value, what):
    try:
        encoded = str(value).encode()
    except UnicodeEncodeError:
        raise Error(f"{what} {value!r} is no text in UTF-8") from None
    require(b"\0" not in encoded, f"{what} {value!r} has a zero byte")
    return encoded


def words(arguments):
    """(number of words, array of words) for the library."""
    encoded = [os.fsencode(word if isinstance(word, os.PathLike) else str(word)) for word in arguments]
    require(not any(b"\0" in word for word in encoded), "an argument has a zero byte")
    return len(encoded), (c_char_p * len(encoded))(*encoded)


def call(function, *arguments):
    """Calls a function that returns a status; a status other than 0 becomes an Error."""
    status = library()[function](*arguments)
    if status != 0:
        raise Error(text(library()["error"]()), status)


def release():
    """The release of kvcodec that the library is of."""
    return text(library()["release"]())


def set_threads(count):
    """Sets with how many threads the library computes; 0 means as many as there are processors."""
    call("set_threads", int(count))


def run(*arguments):
    """Runs a command of the program, such as run("encode", "kv.h5", "--codec", "q4", "-o", "codes.h5"), and returns what it prints. Notes
    go to standard error, unless --quiet is among the arguments."""
    printed = c_char_p()
    status = library()["run"](*words(arguments), ctypes.byref(printed))
    if status != 0 and printed.value is None:
        raise Error(text(library()["error"]()), status)
    if status != 0:
        raise Error(f"kvcodec {' '.join(map(str, arguments))}: ended with status {status}", status, text(printed.value))
    return text(printed.value)
