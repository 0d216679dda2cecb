"""Reads the documents of a corpus one by one: text, JSONL (both may be compressed), parquet, and folders of
`datasets.save_to_disk`. A file may also be behind a URL.

Files are read as streams. Readers also report how many bytes of their files on the disk they have read.
"""

import codecs
import contextlib
import json
import struct
import zlib
from pathlib import Path

from corpus_errors import RESUMES, CorpusError, SetupError, TransferError, printable
from remote_files import RemoteFile

READ_BYTES = 1 << 20
READ_ROWS = 1000
ZSTD_BYTES = 1 << 10  # read at once: each 4 bytes may become 128 KiB
COMPRESSED = (".gz", ".zst")
JSON_LINES = (".jsonl", ".json", ".ndjson")
HEAD_BYTES = 4096  # of a file, by which its format is told


class BadRecord(Exception):
    """A record without text. Its reader passes it to BadRecords and continues if that does not raise."""


class BadRecords:
    """Stops at the first bad record, or skips bad records and lists them in a file, one line each: `where: reason`.

    Skipping stops if more than the fraction `most_bad` of all records is bad. This is checked at the end, and after
    each bad record. The earlier checks count at least 10,000 records as read, so that a few bad records at the
    beginning do not stop a good file.
    """

    FIRST = 10_000

    def __init__(self, largest, most_bad=None, list_path=None):
        self.largest = largest  # bytes of a record of text or JSONL; a longer one is bad
        self.most_bad, self.list_path = most_bad, list_path  # most_bad None: stop at the first one
        self.records = self.bad = 0
        self._list = None

    def add(self, where, reason):
        if self.most_bad is None:
            raise CorpusError(f"{where}: {reason} (--on-bad-record skip passes over such records)")
        self.bad += 1
        if self._list is None:
            self._list = open(self.list_path, "w", encoding="utf-8", errors="backslashreplace")
        self._write(printable(f"{where}: {reason}\n"))
        self._check(max(self.records, self.FIRST))

    def finish(self):
        self._check(self.records)
        if self._list is not None:
            self._write("")
            self._list.close()

    def _check(self, records):
        if self.bad > (self.most_bad or 0) * records:
            raise CorpusError(f"{self.bad:,} of {self.records:,} records are bad, more than --most-bad allows "
                              f"({self.most_bad:.3g} of them); the last ones: {self._last()}")

    def _write(self, text):
        try:
            self._list.write(text)
            if not text:
                self._list.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.list_path)) from error

    def _last(self):
        self._write("")
        lines = self.list_path.read_text(encoding="utf-8").splitlines()
        return "; ".join(lines[-3:])


def suffix_of(path):
    """The ending of a file's name in lower case."""
    return path.suffix.lower()


def identity_of(path):
    """Shows whether a file has changed: its name, its size (None: unknown) and its time of modification."""
    if isinstance(path, RemoteFile):
        return [path.url, path.size, path.version]
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def notes_of(path):
    """Properties of a file that its reader cannot check."""
    return path.notes() if isinstance(path, RemoteFile) else ()


def size_of(path):
    return path.size if isinstance(path, RemoteFile) else path.stat().st_size


def new_decompressor(path):
    if suffix_of(path) == ".gz":
        return zlib.decompressobj(wbits=31)
    try:
        import zstandard
    except ImportError as error:
        raise SetupError(f"{path} needs the Python package zstandard (pip install zstandard)") from error
    return zstandard.ZstdDecompressor().decompressobj()


def decompressed(decompressor, path, block):
    """Yields the decompressed content of a block of a file. zlib can yield the content in small pieces, because it
    keeps the unread rest of its input. zstandard can only decompress the whole block at once."""
    if suffix_of(path) == ".gz":
        while block and not decompressor.eof:
            yield decompressor.decompress(block, READ_BYTES)
            block = decompressor.unconsumed_tail
    else:
        yield decompressor.decompress(block)


def read_block(file, path, size):
    try:
        return file.read(size)
    except OSError as error:  # which names no file
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_blocks(path, on_bytes):
    """Yields the content of a file in blocks of any size, decompressed if its name ends in .gz or .zst."""
    decompressor, suffix = None, suffix_of(path)
    has_size = size_of(path) is not None  # of an unknown size no share is read
    with path.open("rb") as file:
        while block := read_block(file, path, ZSTD_BYTES if suffix == ".zst" else READ_BYTES):
            if has_size:
                on_bytes(len(block))
            if suffix not in COMPRESSED:
                yield block
            while block and suffix in COMPRESSED:  # files that were compressed apart may be joined
                if decompressor is not None and decompressor.eof:
                    block = block.lstrip(b"\0")  # files on tapes are filled up with zeros
                    if not block:
                        break
                if decompressor is None or decompressor.eof:
                    decompressor = new_decompressor(path)
                try:
                    yield from decompressed(decompressor, path, block)
                except Exception as error:  # zlib.error or zstandard.ZstdError
                    raise CorpusError(f"{path}: is damaged, or no {suffix} file: {error}") from error
                block = decompressor.unused_data
    if decompressor is not None and not decompressor.eof:
        if not has_size:  # a server that announces no size may have ended the transfer early
            raise TransferError(f"{path}: its compressed data do not end; {RESUMES}, if the transfer ended early")
        raise CorpusError(f"{path}: is cut off: its compressed data do not end")


def read_parts(path, mark, on_bytes, most):
    """Yields the parts of a file that end with `mark` (b"": the file is one part), and the offset of each part. Yields
    None instead of a part of more than `most` bytes, which is not kept."""
    pending, offset = bytearray(), 0  # the current part so far, and where it starts
    dropped = searched = 0  # bytes of it that are not kept, and bytes in which no mark begins
    for block in read_blocks(path, on_bytes):
        pending += block
        begin = 0
        while mark and (end := pending.find(mark, max(begin, searched))) >= 0:
            size = dropped + end - begin
            yield (bytes(pending[begin:end]) if size <= most else None), offset
            offset, dropped, begin = offset + size + len(mark), 0, end + len(mark)
        del pending[:begin]
        searched = max(0, len(pending) - len(mark) + 1)
        if dropped + len(pending) > most:
            dropped += searched
            del pending[:searched]  # the rest may be the beginning of a mark
            searched = 0
    yield (bytes(pending) if dropped + len(pending) <= most else None), offset


def too_long(most):
    return f"is longer than {most / 2**20:g} MiB; --largest-document allows more"


def decode(path, data, offset, bad):
    """The text of a document; an empty text for a bad one that is skipped."""
    bad.records += 1
    if data is None:
        bad.add(path, f"the document at offset {offset} {too_long(bad.largest)}")
        return ""
    if offset == 0:
        data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        bad.add(path, f"is not UTF-8 text: bad byte at offset {offset + error.start}")
        return ""


def read_text(path, separator, on_bytes, bad):
    """Yields the documents of a text file without the separators, empty ones too."""
    for data, offset in read_parts(path, separator.encode(), on_bytes, bad.largest):
        yield decode(path, data, offset, bad)


def no_such_key(key, names):
    return (f'has no key "{key}"; name the one of the text by --json-key: '
            f'there {"is" if len(names) == 1 else "are"} {", ".join(map(printable, names)) or "none"}')


def has_half_characters(text):
    """Whether a text holds unpaired surrogates, which JSON's escapes allow and no encoding can write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def parse_json(line):
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadRecord("is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise BadRecord(f"is not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise BadRecord("is JSON that nests too deeply") from error
    except ValueError as error:  # a number of more digits than Python reads
        raise BadRecord(f"is JSON that Python does not read: {error}") from error


def text_under(record, key):
    """The text of a record. If the record lacks a key with dots, the dots lead to inner objects."""
    if not isinstance(record, dict):
        raise BadRecord(f'is not an object; expected one with the text under "{key}"')
    for name in [key] if key in record else key.split("."):
        if not isinstance(record, dict) or name not in record:
            raise BadRecord(no_such_key(key, list(record) if isinstance(record, dict) else []))
        record = record[name]
    if not isinstance(record, str):
        raise BadRecord(f'the value of "{key}" is not a string')
    if has_half_characters(record):
        raise BadRecord(f'the value of "{key}" has half of a character, such as \\ud83d alone')
    return record


def check_is_jsonl(path, line):
    """Reports a file that is one JSON value over many lines, with its first line that is not blank."""
    text = line.removeprefix(codecs.BOM_UTF8).strip()
    if text == b"[" or (text.startswith(b"[") and text[1:].lstrip().startswith(b"{")):
        raise CorpusError(f"{path}: is one JSON array; expected one object a line. To turn an array into that: "
                          "jq -c '.[]' FILE.json > FILE.jsonl")
    if text.startswith(b"{") and text.endswith((b"{", b"[", b":")):
        raise CorpusError(f"{path}: is one JSON object over several lines; expected one object a line. "
                          "jq -c . FILE.json > FILE.jsonl writes each object on a line; where the records are an array "
                          "under a key, as \"data\": jq -c '.data[]'")


def read_jsonl(path, key, on_bytes, bad):
    """Yields the text of every line."""
    is_first = True
    for number, (line, _) in enumerate(read_parts(path, b"\n", on_bytes, bad.largest), start=1):
        if line is None:
            bad.records += 1
            bad.add(f"{path}:{number}", too_long(bad.largest))
            continue
        if not line.strip():
            continue
        if is_first:
            check_is_jsonl(path, line)
            is_first = False
        bad.records += 1
        try:
            yield text_under(parse_json(line), key)
        except BadRecord as error:
            bad.add(f"{path}:{number}", error)


def import_pyarrow(path):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SetupError(f"{path} needs the Python package pyarrow (pip install pyarrow)") from error
    return pyarrow


def values_of(column):
    """The values of a column as Python objects; a UnicodeDecodeError instead of a string that is not UTF-8."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [value_of(scalar) for scalar in column]


def value_of(scalar):
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error


def texts_of(path, schema, batches, key, bad):
    """Yields the texts in a column of tables (an empty one for a bad one), and the rows read so far."""
    column = key if key in schema.names else key.split(".")[0]
    if column not in schema.names:
        raise CorpusError(f"{path}: {no_such_key(key, schema.names)}")
    rows = 0
    for batch in batches:
        if column not in batch.schema.names:  # a group of parquet without this field
            raise CorpusError(f"{path}: {no_such_key(key, schema.names)}")
        for value in values_of(batch.column(batch.schema.names.index(column))):
            rows += 1
            bad.records += 1
            try:
                if isinstance(value, UnicodeDecodeError):
                    raise BadRecord("is not UTF-8 text")
                yield text_under({column: value}, key), rows
            except BadRecord as error:
                bad.add(f"{path}, row {rows}", error)
                yield "", rows


def read_parquet(path, key, on_bytes, bad):
    pyarrow = import_pyarrow(path)
    read, size = 0, size_of(path)
    try:
        with (path.open_seekable() if isinstance(path, RemoteFile) else contextlib.nullcontext(path)) as source, \
                pyarrow.parquet.ParquetFile(source) as file:
            batches = file.iter_batches(READ_ROWS, columns=[key])
            for text, rows in texts_of(path, file.schema_arrow, batches, key, bad):
                now = size * rows // file.metadata.num_rows
                on_bytes(now - read)
                read = now
                yield text
    except (pyarrow.ArrowException, OSError) as error:
        raise CorpusError(f"{path}: cannot be read as parquet: {error}") from error


def files_of_dataset(folder):
    """Returns the Arrow files of a folder that `datasets.save_to_disk` wrote."""
    splits, state = folder / "dataset_dict.json", folder / "state.json"
    if splits.is_file():
        try:
            names = json.loads(splits.read_text())["splits"]
            example = folder / names[0]
        except (ValueError, LookupError, TypeError) as error:
            raise CorpusError(f"{splits}: is not as datasets.save_to_disk writes it") from error
        raise CorpusError(f"{folder}: holds the splits {', '.join(names)}; name those to read, as {example}")
    if not state.is_file():
        raise CorpusError(f"{folder}: is a directory, and none that datasets.save_to_disk wrote, without a "
                          "state.json; name the files in it")
    try:
        return [folder / Path(entry["filename"]).name for entry in json.loads(state.read_text())["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{state}: is not as datasets.save_to_disk writes it") from error


def counted(batches, size, on_bytes):
    """Yields the batches of a file and counts their bytes, which are about the bytes read: a file holds the batches
    unchanged, except for their descriptions."""
    for batch in batches:
        now = min(batch.nbytes, size)
        on_bytes(now)
        size -= now
        yield batch
    on_bytes(size)


def read_dataset(folder, key, on_bytes, bad):
    for path in files_of_dataset(folder):
        pyarrow = import_pyarrow(path)
        try:
            with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as reader:
                batches = counted(reader, path.stat().st_size, on_bytes)
                for text, _ in texts_of(path, reader.schema, batches, key, bad):
                    yield text
        except (pyarrow.ArrowException, OSError) as error:
            raise CorpusError(f"{path}: cannot be read as a file of datasets: {error}") from error


def kind_of(path):
    """The ending that gives the format of a file, without the ending of its compression."""
    return suffix_of(Path(path.stem) if suffix_of(path) in COMPRESSED else path)


def files_of(path):
    """Returns the files of an input. For one behind a URL, asks for its size and version."""
    if isinstance(path, RemoteFile):
        path.look_up()
        if kind_of(path) == ".parquet":
            path.check_is_seekable()  # before there is work to lose
        return [path]
    if path.is_dir():
        return files_of_dataset(path)
    if not path.exists():
        raise CorpusError(f"{path}: no such file")
    if not path.is_file():
        raise CorpusError(f"{path}: is no regular file; an interrupted call reads its input again: write it to a file")
    path.open("rb").close()  # one that cannot be read is named before there is work to lose
    return [path]


BY_PAIRING = "tools/tokens_to_pair.py makes a pair of its token ids"
BY_UNPACKING = "unpack it, and give the files in it"
BY_RENAMING = "give it a name that ends in {0}, as a.jsonl{0}"
TO_JSONL = "save its texts as JSONL"
NO_TEXT = "it holds no text"
UTF16, UTF32 = (f"iconv -f {name} -t UTF-8 converts it" for name in ("UTF-16", "UTF-32"))
# Marks of other formats: the bytes, their offset, the format, and what to do. Copus has the same table for data.train:
# copus/data/file_format.cpp.
FORMATS = [
    (b"\x93NUMPY", 0, "a NumPy array (.npy)", BY_PAIRING),
    (struct.pack("<i", 20240520), 0, "a token file of llm.c", BY_PAIRING),
    (struct.pack("<i", 20240801), 0, "a token file of llm.c (Llama 3)", BY_PAIRING),
    (struct.pack("<i", 20240326), 0, "a model's weights as llm.c writes them", NO_TEXT),
    (b"MMIDIDX\0\0", 0, "the index of a pair", "it is tokenized already: train with the prefix of the pair"),
    (b"TNTIDX\0\0", 0, "the index of an old pair of Megatron", "tokenize the texts that it was made of"),
    (b"\x1f\x8b", 0, "compressed by gzip", BY_RENAMING.format(".gz")),
    (b"\x28\xb5\x2f\xfd", 0, "compressed by zstd", BY_RENAMING.format(".zst")),
    (b"PAR1", 0, "a parquet file", "give it a name that ends in .parquet"),
    (b"ARROW1", 0, "an Arrow (Feather) file", "save it as parquet"),
    (b"\xff\xff\xff\xff", 0, "a stream of Arrow", "give the folder of datasets.save_to_disk that it is in"),
    (b"ORC", 0, "an ORC file", "save it as parquet"),
    (b"Obj\x01", 0, "an Avro file", TO_JSONL),
    (b"BZh", 0, "compressed by bzip2", "unpack it, or compress it by gzip or zstd"),
    (b"\xfd7zXZ", 0, "compressed by xz", "unpack it, or compress it by gzip or zstd"),
    (b"\x04\x22\x4d\x18", 0, "compressed by lz4", "unpack it, or compress it by gzip or zstd"),
    (b"7z\xbc\xaf\x27\x1c", 0, "a 7-zip archive", BY_UNPACKING),
    (b"PK\x03\x04", 0, "a zip archive (.zip, .npz, .docx, or what torch.save wrote)", BY_UNPACKING),
    (b"ustar\0", 257, "a tar archive", BY_UNPACKING),  # POSIX
    (b"ustar  \0", 257, "a tar archive", BY_UNPACKING),  # GNU
    (b"GGUF", 0, "a model's weights (GGUF)", NO_TEXT),
    (b"\x89HDF", 0, "an HDF5 file", TO_JSONL),
    (b"SQLite format 3", 0, "an SQLite database", TO_JSONL),
    (b"%PDF", 0, "a PDF document", "extract its text first"),
    (b"\x89PNG", 0, "an image", NO_TEXT),
    (b"\xff\xd8\xff", 0, "an image", NO_TEXT),
    (b"\x7fELF", 0, "a program", NO_TEXT),
    (b"\xff\xfe\0\0", 0, "text in UTF-32", UTF32),
    (b"\0\0\xfe\xff", 0, "text in UTF-32", UTF32),
    (b"\xff\xfe", 0, "text in UTF-16", UTF16),
    (b"\xfe\xff", 0, "text in UTF-16", UTF16),
    *[(bytes([0x80, protocol]), 0, "a pickled object of Python", TO_JSONL) for protocol in range(2, 6)],
]
# Extensions of files of bare token ids: nanoGPT's .bin, dolma's .npy without a header, any of np.memmap.
TOKEN_SUFFIXES = (".bin", ".npy", ".dat", ".u16", ".u32")


def format_of(head, path):
    """Returns what a file is and what to do with it, if it is not the text that its name promises; otherwise None.
    `head` is the beginning of the file, uncompressed."""
    for mark, offset, what, remedy in FORMATS:
        # A text may begin with ORCHID.
        if head.startswith(mark, offset) and (mark != b"ORC" or any(byte < 9 for byte in head[:64])):
            return f"is {what}; {remedy}"
    if head[8:10] == b'{"' and 0 < int.from_bytes(head[:8], "little") < (size_of(path) or 0):
        return f"is a model's weights (safetensors); {NO_TEXT}"
    if head.startswith(b"\n") and b"<unk>" in head[:64] and not is_utf8_so_far(head):
        return "is a tokenizer of SentencePiece; give its folder by --tokenizer, and the text as input"
    is_half_zeros = head.count(0) >= max(2, len(head) // 2)
    if suffix_of(path) in TOKEN_SUFFIXES and (is_half_zeros or not is_utf8_so_far(head)):
        return ("looks like bare token ids, as nanoGPT writes them (uint16); "
                f"{BY_PAIRING}, with the type that --dtype names")
    if is_half_zeros:
        return ("is no UTF-8 text: half of its bytes are 0; iconv -f UTF-16LE -t UTF-8 converts UTF-16, and "
                f"of token ids {BY_PAIRING.replace('its token ids', 'them')}")
    if suffix_of(path) == ".json" and b'"added_tokens"' in head:
        return "is a tokenizer; give it by --tokenizer, and the text as input"
    return None


def check_format(path):
    head = b""
    for block in read_blocks(path, lambda count: None):
        head += block
        if len(head) >= HEAD_BYTES:
            break
    found = format_of(head[:HEAD_BYTES], path)
    if found:
        raise CorpusError(f"{path}: {'what it unpacks to ' if suffix_of(path) in COMPRESSED else ''}{found}")


def is_utf8_so_far(head):
    """Whether the beginning of a file is UTF-8 text. Its last character may be incomplete."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def read_documents(path, key, separator, on_bytes, bad):
    """Yields the documents of a file or folder. `key` is the field with a record's text, and `separator` ends a
    document within a text file."""
    if path.is_dir():
        return read_dataset(path, key, on_bytes, bad)
    kind = kind_of(path)
    if kind == ".parquet":
        return read_parquet(path, key, on_bytes, bad)
    check_format(path)
    if kind in JSON_LINES:
        return read_jsonl(path, key, on_bytes, bad)
    return read_text(path, separator, on_bytes, bad)
