"""A codec of your own in NumPy (or torch, or anything): a program that kvcodec runs as its codec `exec`.
A subclass of RowCodec codes rows; one that must see all rows first sets `surveys` and returns a table from learn(). See kvcodec-exec(7).
"""
import json
import os
import struct
import sys
from dataclasses import dataclass

import numpy as np

VERSION = 1


@dataclass
class Where:
    """The rows that are meant: tokens first, first + 1 … of a document, in one side ("key" or "value") of a layer."""
    side: str
    layer: int
    first: int
    tokens: int
    heads: int
    dims: int

    @property
    def shape(self):
        return self.tokens, self.heads, self.dims


class RowCodec:
    surveys = False

    def begin(self, arguments):
        """Takes the text of kvcodec's option --arguments, before all else."""

    def observe(self, rows, where):
        """Sees rows of the file, piece by piece, once, before the first are encoded."""

    def learn(self, where):
        """Returns the table of a side of a layer, whose rows have all been observed; the next ones are of another survey."""
        return b""

    def encode(self, rows, where, table):
        """Returns the bytes of rows, an f32 array of where.shape."""
        raise NotImplementedError

    def decode(self, data, where, table):
        """Returns the array that encode() made these bytes from, or what is left of it."""
        raise NotImplementedError

    def run(self):
        """Answers kvcodec until it closes standard input. What is printed meanwhile goes to standard error."""
        requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        while size := requests.read(4):
            request = json.loads(requests.read(struct.unpack("<I", size)[0]))
            payload = requests.read(request["bytes"])
            try:
                header, data = self._answer(request, payload[:request["table"]], payload[request["table"]:])
            except Exception as error:  # kvcodec says it, as one line, and ends
                header, data = {"error": f"{type(error).__name__}: {error}"}, b""
            text = json.dumps({**header, "bytes": len(data)}).encode()
            answers.write(struct.pack("<I", len(text)) + text + data)
            answers.flush()

    def _answer(self, request, table, data):
        kind = request["op"]
        if kind == "begin":
            if request["version"] != VERSION:
                raise ValueError(f"kvcodec speaks version {request['version']} of these messages, kvfiles {VERSION}")
            self.begin(request["arguments"])
            return {"surveys": self.surveys}, b""
        where = Where(request["side"], request["layers"][0], request.get("first", 0), request.get("tokens", 0), request["heads"],
                      request["dims"])
        if kind == "learn":
            return {}, bytes(self.learn(where))
        if kind == "decode":
            return {}, np.ascontiguousarray(self.decode(data, where, table), "<f4").tobytes()
        rows = np.frombuffer(data, "<f4").reshape(where.shape)
        if kind == "observe":
            self.observe(rows, where)
            return {}, b""
        return {}, bytes(self.encode(rows, where, table))
