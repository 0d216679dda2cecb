"""Writes the files of a Megatron pair: PREFIX.bin holds token ids, PREFIX.idx sequences and documents. The layout is
described in copus/data/megatron_source.h.
"""

import contextlib
import errno
import os
import resource
import shutil
import struct
from array import array

# Token ids of vocabularies below this size are stored in two bytes, by Megatron's rule.
UINT16_VOCAB_LIMIT = 65500
DTYPE_UINT16, DTYPE_INT32 = 8, 4
MAX_SEQUENCE_LENGTH = 2**31 - 1


def type_code(vocab_size):
    """The array type of the token ids in a .bin file."""
    return "H" if vocab_size < UINT16_VOCAB_LIMIT else "i"


def naming(error, path):
    """The error of a write, with the name of the file, its size, and the limit or free space."""
    if error.filename is not None:
        return error
    size = path.stat().st_size if path.exists() else 0
    room = ""
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY:
            room = f", and files of this process may have {limit:,} bytes (ulimit -f)"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        room = f", and {shutil.disk_usage(path.parent).free:,} bytes are free in {path.parent}"
    return OSError(error.errno, f"{error.strerror} after {size:,} bytes{room}", str(path))


@contextlib.contextmanager
def writing(path):
    """Opens a file and syncs it to the disk when the block ends. After a failure the file is deleted. A write error
    names the file."""
    try:
        with open(path, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        named = naming(error, path) if isinstance(error, OSError) else error
        path.unlink(missing_ok=True)
        raise named


def write_index(path, code, lengths):
    """Writes PREFIX.idx: each sequence, `lengths` tokens of type `code`, is a document."""
    with writing(path) as file:
        dtype = DTYPE_UINT16 if code == "H" else DTYPE_INT32
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, dtype, len(lengths), len(lengths) + 1))
        lengths.tofile(file)
        pointers, offset, size = array("q"), 0, array(code).itemsize
        for length in lengths:
            pointers.append(offset)
            offset += length * size
        pointers.tofile(file)
        array("q", range(len(lengths) + 1)).tofile(file)
