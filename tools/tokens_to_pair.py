#!/usr/bin/env python3
"""Turns files of token ids from other programs into a Megatron pair, PREFIX.bin and PREFIX.idx, which Copus reads.

    tools/tokens_to_pair.py fineweb_train_*.bin --eod 50256 --output data/fineweb
    tools/tokens_to_pair.py train.bin --dtype uint16 --eod 50256 --output data/openwebtext

Reads token files of llm.c, NumPy arrays (.npy) of whole numbers, and bare token ids, as nanoGPT writes them (--dtype
uint16). Documents end with --eod, the id of the end-of-document token; without it each file is one document. With
--eod-begins that token begins each document instead, which is always assumed for llm.c's files.
"""

import argparse
import ast
import math
import struct
import sys
from array import array
from pathlib import Path

from corpus_errors import CorpusError, printable
from corpus_readers import BY_PAIRING, format_of
from pair_files import MAX_SEQUENCE_LENGTH, type_code, write_index, writing
from standard_streams import open_standard_descriptors

CODES = {"uint8": "B", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i", "uint64": "Q", "int64": "q"}
NUMPY_CODES = {"u1": "B", "u2": "H", "i2": "h", "u4": "I", "i4": "i", "u8": "Q", "i8": "q"}
LLM_C = {(20240520, 1): "H", (20240801, 7): "I"}  # the first two numbers of its headers: the type of its tokens
LLM_C_MAGICS = [magic for magic, _ in LLM_C]
LLM_C_HEADER = struct.Struct("<256i")
IDS = 1 << 20  # read at once


def numpy_header(file, path):
    """The type code and the count of a .npy file's numbers (numpy.lib.format)."""
    try:
        major, _ = file.read(2)
        width = 2 if major == 1 else 4
        length = int.from_bytes(file.read(width), "little")
        header = ast.literal_eval(file.read(length).decode("utf-8" if major >= 3 else "latin-1"))
        kind, shape, is_fortran = header["descr"], header["shape"], header["fortran_order"]
        count = math.prod(shape)
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise CorpusError(f"{path}: is a damaged .npy file: its header cannot be read") from error
    if not isinstance(kind, str) or kind[:1] not in ("<", "|") or kind[1:] not in NUMPY_CODES:
        raise CorpusError(f"{path}: holds numbers of type {kind!r}; expected whole numbers in the order of this machine, "
                          "such as '<u2': array.astype('<u2') makes them")
    if is_fortran and len(shape) > 1:
        raise CorpusError(f"{path}: is an array in Fortran's order; save numpy.ascontiguousarray of it")
    return NUMPY_CODES[kind[1:]], count


def open_tokens(path, dtype):
    """The open file, behind its header, the type code and count of its tokens, and whether it is one of llm.c's."""
    file = open(path, "rb")
    header = file.read(LLM_C_HEADER.size)
    is_llm_c = False
    if header.startswith(b"\x93NUMPY"):
        file.seek(6)
        code, count = numpy_header(file, path)
    elif len(header) == LLM_C_HEADER.size and (numbers := LLM_C_HEADER.unpack(header))[0] in LLM_C_MAGICS:
        if numbers[:2] not in LLM_C:
            raise CorpusError(f"{path}: is a token file of llm.c of version {numbers[1]}, which is not known")
        code, count, is_llm_c = LLM_C[numbers[:2]], numbers[2], True
    elif dtype is None:
        found = format_of(header, path)
        raise CorpusError(f"{path}: {found}" if found and BY_PAIRING not in found else
                          f"{path}: is neither a .npy file nor one of llm.c; where it is bare token ids, give their type "
                          "by --dtype: nanoGPT writes uint16")
    else:
        file.seek(0)
        code = CODES[dtype]
        count, rest = divmod(path.stat().st_size, array(code).itemsize)
        if rest:
            raise CorpusError(f"{path}: has {path.stat().st_size} bytes, which are no whole number of tokens of {dtype}")
    size, expected = path.stat().st_size, file.tell() + count * array(code).itemsize
    if size < expected:
        raise CorpusError(f"{path}: is cut off: its header says {count} tokens, and {expected - size} bytes are missing")
    if size > expected:
        raise CorpusError(f"{path}: its header says {count} tokens, and {size - expected} bytes follow them; expected one "
                          "array a file")
    return file, code, count, is_llm_c


def read_tokens(path, dtype):
    """Yields the tokens of a file in arrays, after whether it is one of llm.c's."""
    file, code, left, is_llm_c = open_tokens(path, dtype)
    yield is_llm_c
    with file:
        while left:
            ids = array(code)
            ids.fromfile(file, min(left, IDS))
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
    largest, smallest, has_eod = -1, 0, eod is None
    for path in inputs:
        for ids, _ in documents_of(path, dtype, None, False):
            largest, smallest = max(largest, max(ids)), min(smallest, min(ids))
            has_eod = has_eod or eod in ids
    if largest < 0 or smallest < 0 or largest >= 2**31:
        raise CorpusError("the input holds no token ids" if largest < 0 else
                         f"the input holds {smallest if smallest < 0 else largest}, which is no token id; is --dtype right?")
    if not has_eod:
        raise CorpusError(f"--eod {eod}: the input has no such token; expected the id that ends each document. "
                          "Without --eod each file is one document")
    code = type_code(largest + 1)
    lengths, length = array("i"), 0
    paths = [Path(f"{prefix}.bin"), Path(f"{prefix}.idx")]
    partial = [path.with_name(path.name + ".partial") for path in paths]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    try:
        with writing(partial[0]) as file:
            for path in inputs:
                for ids, ends in documents_of(path, dtype, eod, eod_begins):
                    (ids if ids.typecode == code else array(code, ids)).tofile(file)
                    length += len(ids)
                    if length > MAX_SEQUENCE_LENGTH:
                        raise CorpusError(f"{path}: a document has more than {MAX_SEQUENCE_LENGTH} tokens; give the id of the "
                                          "end-of-document token by --eod")
                    if ends and length:
                        lengths.append(length)
                        length = 0
                if length:
                    lengths.append(length)
                    length = 0
        write_index(partial[1], code, lengths)
        for source, path in zip(partial, paths):
            source.rename(path)
    finally:
        for path in partial:
            path.unlink(missing_ok=True)
    return len(lengths), sum(lengths), largest


def main():
    open_standard_descriptors()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, nargs="+", help=".bin files of llm.c, .npy files, or bare token ids")
    parser.add_argument("--output", metavar="PREFIX", required=True, help="writes PREFIX.bin and PREFIX.idx")
    parser.add_argument("--dtype", choices=CODES, help="the type of bare token ids; nanoGPT writes uint16")
    parser.add_argument("--eod", type=int, metavar="ID", help="the id of the end-of-document token, as 50256 of GPT-2")
    parser.add_argument("--eod-begins", action="store_true", help="the token stands before a document, as llm.c has it")
    arguments = parser.parse_args()
    if arguments.eod_begins and arguments.eod is None:
        parser.error("--eod-begins: needs --eod, the id of the token that begins each document")
    try:
        for suffix in (".bin", ".idx"):
            if Path(f"{arguments.output}{suffix}").exists():
                raise CorpusError(f"{arguments.output}{suffix}: exists already; remove it or choose another --output")
        documents, tokens, largest = write_pair(arguments.output, arguments.input, arguments.dtype, arguments.eod,
                                                arguments.eod_begins)
    except CorpusError as error:
        parser.error(printable(error))  # exit code 2
    except OSError as error:
        parser.error(printable(f"{error.filename}: {error.strerror}" if error.filename else error))
    print(f"{arguments.output}.bin/.idx: {documents} documents, {tokens} tokens")
    print(f'train with: data.train = "{arguments.output}", model.vocab_size = {largest + 1} (or more)')
    return 0


if __name__ == "__main__":
    sys.exit(main())
