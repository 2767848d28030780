"""zipnn_peer.py: ZipNN, from PyPI, as zipnn.c asks for it: a request a line on stdin, an answer a line on stdout.
Not a program to run by hand.

    file DTYPE PATH       reads the file; the bytes that it compresses to, 0 when it does not come back
    compress THREADS      the seconds it took, of processor time where THREADS is 1
    decompress THREADS    likewise

The first answer, unasked, is ZipNN's version.
"""

import importlib.metadata
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")
from zipnn import ZipNN  # noqa: E402  (it imports what warns)

answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever ZipNN prints is no answer


def seconds(clock, function, data):
    start = clock()
    result = function(data)
    end = clock()
    del result
    return end - start


def main():
    data = packed = dtype = None
    print(importlib.metadata.version("zipnn"), file=answers)
    for request in sys.stdin:
        what, argument = request.rstrip("\n").split(" ", 1)
        if what == "file":
            dtype, path = argument.split(" ", 1)
            with open(path, "rb") as f:
                data = f.read()
            zipnn = ZipNN(input_format="byte", bytearray_dtype=dtype, threads=1)
            packed = zipnn.compress(bytearray(data))
            answer = len(packed) if zipnn.decompress(packed) == data else 0
        else:
            threads = int(argument)
            clock = time.process_time if threads == 1 else time.perf_counter
            zipnn = ZipNN(input_format="byte", bytearray_dtype=dtype, threads=threads)
            if what == "compress":
                answer = seconds(clock, zipnn.compress, bytearray(data))  # a copy, as it changes its input
            else:
                answer = seconds(clock, zipnn.decompress, packed)
        print(answer, file=answers)


main()
