#!/usr/bin/env python3
"""Turns files of token ids that others have written into a Megatron pair, PREFIX.bin and PREFIX.idx, which Copus reads.

    tools/tokens_to_pair.py fineweb_train_*.bin --eod 50256 --output data/fineweb
    tools/tokens_to_pair.py train.bin --dtype uint16 --eod 50256 --output data/openwebtext

Reads token files of llm.c, NumPy arrays (.npy) of whole numbers, and bare token ids, as nanoGPT writes them
(--dtype uint16). Documents end behind --eod, the id of the end-of-document token; without it each file is one document.
llm.c puts that token before each document: --eod-begins says so, and is taken for granted for its files.
"""

import argparse
import ast
import os
import struct
import sys
from array import array
from pathlib import Path

DTYPE_UINT16, DTYPE_INT32 = 8, 4
MAX_SEQUENCE_LENGTH = 2**31 - 1
CODES = {"uint8": "B", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i", "uint64": "Q", "int64": "q"}
NUMPY_CODES = {"u1": "B", "u2": "H", "i2": "h", "u4": "I", "i4": "i", "u8": "Q", "i8": "q"}
LLM_C = {(20240520, 1): "H", (20240801, 7): "I"}  # of its headers' first two numbers: what its tokens are
LLM_C_HEADER = struct.Struct("<256i")
IDS = 1 << 20  # read at once


class TokenError(Exception):
    """A mistake in what the user gave."""


def numpy_header(file, path):
    """The type code and the count of a .npy file's numbers (numpy.lib.format)."""
    major = file.read(2)[0]
    length, = struct.unpack("<H" if major == 1 else "<I", file.read(2 if major == 1 else 4))
    try:
        header = ast.literal_eval(file.read(length).decode("latin-1"))
        order, kind = header["descr"][0], header["descr"][1:]
        count = 1
        for size in header["shape"]:
            count *= size
    except (ValueError, SyntaxError, KeyError, TypeError) as error:
        raise TokenError(f"{path}: is a damaged .npy file: its header cannot be read") from error
    if order not in "<|" or kind not in NUMPY_CODES:
        raise TokenError(f"{path}: holds numbers of type {header['descr']!r}; expected whole numbers, as of uint16")
    if header["fortran_order"] and len(header["shape"]) > 1:
        raise TokenError(f"{path}: is an array in Fortran's order; save numpy.ascontiguousarray of it")
    return NUMPY_CODES[kind], count


def open_tokens(path, dtype):
    """The open file, behind its header, the type code and count of its tokens, and whether it is one of llm.c's."""
    file = open(path, "rb")
    magic = file.read(6)
    if magic == b"\x93NUMPY":
        return file, *numpy_header(file, path), False
    file.seek(0)
    header = file.read(LLM_C_HEADER.size)
    if len(header) == LLM_C_HEADER.size:
        numbers = LLM_C_HEADER.unpack(header)
        if numbers[0] in (20240520, 20240801):
            if numbers[:2] not in LLM_C:
                raise TokenError(f"{path}: is a token file of llm.c of version {numbers[1]}, which is not known")
            return file, LLM_C[numbers[:2]], numbers[2], True
    if dtype is None:
        raise TokenError(f"{path}: is neither a .npy file nor one of llm.c; where it is bare token ids, say of what type "
                         "by --dtype: nanoGPT writes uint16")
    file.seek(0)
    size, width = path.stat().st_size, array(CODES[dtype]).itemsize
    if size % width:
        raise TokenError(f"{path}: has {size} bytes, which are no whole number of tokens of {dtype}")
    return file, CODES[dtype], size // width, False


def read_tokens(path, dtype):
    """Yields the tokens of a file in arrays, after whether it is one of llm.c's."""
    file, code, left, is_llm_c = open_tokens(path, dtype)
    yield is_llm_c
    with file:
        while left:
            ids = array(code)
            try:
                ids.fromfile(file, min(left, IDS))
            except (EOFError, ValueError) as error:  # ValueError: it ends within one
                raise TokenError(f"{path}: is cut off: {left - len(ids)} of its tokens are missing") from error
            left -= len(ids)
            yield ids


def places_of(value, ids):
    place = -1
    while True:
        try:
            place = ids.index(value, place + 1)
        except ValueError:
            return
        yield place


def documents_of(path, dtype, eod, eod_begins):
    """Yields (ids, whether a document ends behind them)."""
    parts = read_tokens(path, dtype)
    begins = next(parts) or eod_begins
    is_first = True
    for ids in parts:
        if eod is None:
            yield ids, False
            continue
        begin = 0
        for place in places_of(eod, ids):
            if begins and is_first and place == begin == 0:  # the file begins with the token of its first document
                is_first = False
                continue
            end = place if begins else place + 1
            yield ids[begin:end], True
            begin = end
        is_first = False
        yield ids[begin:], False


def write_pair(prefix, inputs, dtype, eod, eod_begins):
    """Returns documents, tokens and the largest id. The .idx is written last, so that a pair that is there is whole."""
    # The type of the pair follows from the largest id, which is known at the end: the ids are read twice.
    largest, smallest = -1, 0
    for path in inputs:
        for ids, _ in documents_of(path, dtype, None, False):
            largest, smallest = max(largest, max(ids)), min(smallest, min(ids))
    if largest < 0 or smallest < 0 or largest >= 2**31:
        raise TokenError("the input holds no token ids" if largest < 0 else
                         f"the input holds {smallest if smallest < 0 else largest}, which is no token id; is --dtype right?")
    code = "H" if largest < 65500 else "i"
    lengths, length = array("i"), 0
    partial = Path(f"{prefix}.bin.partial")
    with open(partial, "wb") as file:
        for path in inputs:
            for ids, ends in documents_of(path, dtype, eod, eod_begins):
                (ids if ids.typecode == code else array(code, ids)).tofile(file)
                length += len(ids)
                if length > MAX_SEQUENCE_LENGTH:
                    raise TokenError(f"{path}: a document has more than {MAX_SEQUENCE_LENGTH} tokens; give the id of the "
                                     "end-of-document token by --eod")
                if ends and length:
                    lengths.append(length)
                    length = 0
            if length:
                lengths.append(length)
                length = 0
        file.flush()
        os.fsync(file.fileno())
    width, count = array(code).itemsize, len(lengths)
    pointers, position = array("q"), 0
    for each in lengths:
        pointers.append(position)
        position += each * width
    os.rename(partial, f"{prefix}.bin")
    index = Path(f"{prefix}.idx.partial")
    with open(index, "wb") as file:
        dtype_code = DTYPE_UINT16 if code == "H" else DTYPE_INT32
        file.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, dtype_code, count, count + 1))
        lengths.tofile(file)
        pointers.tofile(file)
        array("q", range(count + 1)).tofile(file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(index, f"{prefix}.idx")
    return count, position // width, largest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, nargs="+", help=".bin files of llm.c, .npy files, or bare token ids")
    parser.add_argument("--output", metavar="PREFIX", required=True, help="writes PREFIX.bin and PREFIX.idx")
    parser.add_argument("--dtype", choices=CODES, help="the type of bare token ids; nanoGPT writes uint16")
    parser.add_argument("--eod", type=int, metavar="ID", help="the id of the end-of-document token, as 50256 of GPT-2")
    parser.add_argument("--eod-begins", action="store_true", help="the token stands before a document, as llm.c has it")
    arguments = parser.parse_args()
    try:
        for suffix in (".bin", ".idx"):
            if Path(f"{arguments.output}{suffix}").exists():
                raise TokenError(f"{arguments.output}{suffix}: exists already; remove it or choose another --output")
        documents, tokens, largest = write_pair(arguments.output, arguments.input, arguments.dtype, arguments.eod,
                                                arguments.eod_begins)
    except (TokenError, OSError) as error:
        for suffix in (".bin.partial", ".idx.partial"):
            Path(f"{arguments.output}{suffix}").unlink(missing_ok=True)
        if isinstance(error, OSError):
            error = f"{error.filename or arguments.output}: {error.strerror}"
        parser.error("".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(error)))  # exit code 2
    print(f"{arguments.output}.bin/.idx: {documents} documents, {tokens} tokens")
    print(f'train with: data.train = "{arguments.output}", model.vocab_size = {largest + 1} (or more)')
    return 0


if __name__ == "__main__":
    sys.exit(main())
