"""Keeps the tokenized parts of a corpus, one file per piece, so that an interrupted call can resume."""

import fcntl
import json
import os
import struct
import typing
from array import array
from pathlib import Path

from corpus_errors import CorpusError
from pair_files import MAX_SEQUENCE_LENGTH, type_code, writing
from standard_streams import tell


class Counts(typing.NamedTuple):
    """Counts of one piece or of all pieces: documents, their tokens, and what should not occur in texts: names of
    special tokens, characters unknown to the tokenizer, and end-of-document tokens before the document's end."""
    documents: int = 0
    tokens: int = 0
    special: int = 0
    unknown: int = 0
    ends: int = 0

    def __add__(self, other):
        return Counts(*map(sum, zip(self, other)))


class Parts:
    """The folder PREFIX.parts of finished parts. A part has its Counts, its documents' lengths, and their ids."""

    HEADER = struct.Struct("<5Q")

    def __init__(self, prefix, vocab_size):
        self.folder = Path(f"{prefix}.parts")
        self.code = type_code(vocab_size)

    def open(self, plan):
        """Locks the folder for this process and for children that it forks later. `plan` describes the input of the
        parts, and must equal the plan of existing parts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CorpusError(f"{self.folder}: another process is writing it") from error
        except OSError:
            tell(f"note: {self.folder}: this file system has no file locks: nothing keeps another process from writing it; "
                 "start one at a time")
        path, text = self.folder / "plan.json", json.dumps(plan)
        if path.exists() and path.read_text() != text:
            raise CorpusError(f"{self.folder}: was begun with other input, another tokenizer or other options; "
                              "delete it or choose another --output")
        partial = path.with_suffix(".partial")
        with writing(partial) as file:
            file.write(text.encode())
        partial.rename(path)

    def path(self, number):
        return self.folder / f"{number:06d}"

    def write(self, number, counts, sequences):
        lengths, ids = array("i"), array(self.code)
        for sequence in sequences:
            if len(sequence) > MAX_SEQUENCE_LENGTH:
                raise CorpusError(f"a document has {len(sequence)} tokens, more than the format can hold; cut it with "
                                  "--document-separator")
            lengths.append(len(sequence))
            ids.extend(iter(sequence))  # a list, or an array of another type
        partial = self.path(number).with_suffix(f".{os.getpid()}")
        with writing(partial) as file:
            file.write(self.HEADER.pack(*counts))
            lengths.tofile(file)
            ids.tofile(file)
        partial.rename(self.path(number))

    def read_counts(self, file):
        return Counts(*self.HEADER.unpack(file.read(self.HEADER.size)))

    def lengths(self, count):
        """The tokens of each document in `count` parts."""
        lengths = array("i")
        for number in range(count):
            with open(self.path(number), "rb") as part:
                lengths.fromfile(part, self.read_counts(part).documents)
        return lengths

    def id_blocks(self, count):
        """Yields the token ids of `count` parts in blocks of bytes."""
        for number in range(count):
            with open(self.path(number), "rb") as part:
                part.seek(self.read_counts(part).documents * array("i").itemsize, os.SEEK_CUR)
                while block := part.read(1 << 20):
                    yield block
