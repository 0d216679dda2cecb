"""Reads the documents of a corpus, one text after the other: text, JSONL, both compressed too, parquet, and folders of
`datasets.save_to_disk`.

Everything is read as a stream. Beside its texts a reader tells how much of its files it has read, in bytes on the disk.
"""

import codecs
import json
import struct
import zlib
from pathlib import Path

READ_BYTES = 1 << 20
READ_ROWS = 1000
ZSTD_BYTES = 1 << 10  # read at once: each 4 bytes may become 128 KiB
COMPRESSED = (".gz", ".zst")


class CorpusError(Exception):
    """A mistake in what the user gave."""


class BadRecord(Exception):
    """A record that holds no text. Its reader passes it to BadRecords and goes on where that allows it."""


def printable(text):
    """The text with control characters as escapes, since a terminal would obey those of a file."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in str(text))


class BadRecords:
    """Stops at the first bad record, or skips bad records and lists them in a file, a line each: `where: reason`.

    Skipping stops too when more than `most_bad` of all records are bad: at the end, and before that as soon as there are
    too many for the records read so far, of which the first 10,000 count as read.
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
        if self._list is not None:
            self._write("")
            self._list.close()
        self._check(self.records)

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


def new_decompressor(path):
    if path.suffix == ".gz":
        return zlib.decompressobj(wbits=31)
    try:
        import zstandard
    except ImportError as error:
        raise CorpusError(f"{path} needs the Python package zstandard (pip install zstandard)") from error
    return zstandard.ZstdDecompressor().decompressobj()


def decompressed(decompressor, path, block):
    """Yields what a block of a file becomes, in blocks that are small however much it is. A decompressor of zlib keeps
    what it has not yet come to, one of zstandard takes all at once."""
    if path.suffix == ".gz":
        while block and not decompressor.eof:
            yield decompressor.decompress(block, READ_BYTES)
            block = decompressor.unconsumed_tail
    else:
        yield decompressor.decompress(block)


def read_blocks(path, on_bytes):
    """Yields what a file holds, decompressed where its name ends in .gz or .zst, in blocks of any size."""
    decompressor = None
    with open(path, "rb") as file:
        while block := file.read(ZSTD_BYTES if path.suffix == ".zst" else READ_BYTES):
            on_bytes(len(block))
            if path.suffix not in COMPRESSED:
                yield block
            while block and path.suffix in COMPRESSED:  # files that were compressed apart may be joined
                if decompressor is None or decompressor.eof:
                    decompressor = new_decompressor(path)
                try:
                    yield from decompressed(decompressor, path, block)
                except Exception as error:  # zlib.error or zstandard.ZstdError
                    raise CorpusError(f"{path}: is damaged, or no {path.suffix} file: {error}") from error
                block = decompressor.unused_data
    if decompressor is not None and not decompressor.eof:
        raise CorpusError(f"{path}: is cut off: its compressed data do not end")


def read_parts(path, mark, on_bytes, most):
    """Yields the parts of a file that end with `mark` (b"": the file is one part) and the offset of each; in place of
    one of more than `most` bytes None, without keeping it."""
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
    """The text of a document; an empty one in place of a bad one that is skipped."""
    bad.records += 1
    if data is None:
        bad.add(path, f"the document at offset {offset} {too_long(bad.largest)}")
        return ""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        bad.add(path, f"is not UTF-8 text: bad byte at offset {offset + error.start}")
        return ""


def read_text(path, separator, on_bytes, bad):
    """Yields the documents of a text file, without the separators; empty ones too."""
    for data, offset in read_parts(path, separator.encode(), on_bytes, bad.largest):
        yield decode(path, data, offset, bad)


def no_such_key(key, names):
    return (f'has no key "{key}"; name the one of the text by --json-key: '
            f'there {"is" if len(names) == 1 else "are"} {", ".join(map(printable, names)) or "none"}')


def has_half_characters(text):
    """Whether a text, as JSON's escapes can make one, holds surrogates that stand alone, which no encoding can write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def parse_json(line):
    try:
        return json.loads(line)
    except UnicodeDecodeError as error:
        raise BadRecord("is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise BadRecord(f"is not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise BadRecord("is JSON that nests too deeply") from error
    except ValueError as error:  # a number of more digits than Python reads
        raise BadRecord(f"is JSON that Python does not read: {error}") from error


def text_under(record, key):
    """The text of a record. A key with dots that the record does not have itself leads to objects inside."""
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
    """Names a file that is one JSON value over many lines, by its first line."""
    if line.strip() in (b"[", b"{") or line.lstrip().startswith(b"[{"):
        kind = "array" if line.lstrip().startswith(b"[") else "object"
        raise CorpusError(f"{path}: is one JSON {kind}; expected one object a line. To turn an array into that: "
                          "jq -c '.[]' FILE.json > FILE.jsonl")


def read_jsonl(path, key, on_bytes, bad):
    """Yields the text of every line."""
    for number, (line, _) in enumerate(read_parts(path, b"\n", on_bytes, bad.largest), start=1):
        if line is None:
            bad.records += 1
            bad.add(f"{path}:{number}", too_long(bad.largest))
            continue
        if not line.strip():
            continue
        if number == 1:
            check_is_jsonl(path, line)
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
        raise CorpusError(f"{path} needs the Python package pyarrow (pip install pyarrow)") from error
    return pyarrow


def texts_of(path, schema, batches, key, bad):
    """Yields the texts in a column of tables, an empty one in place of a bad one, and the rows read so far."""
    column = key if key in schema.names else key.split(".")[0]
    if column not in schema.names:
        raise CorpusError(f"{path}: {no_such_key(key, schema.names)}")
    rows = 0
    for batch in batches:
        for value in batch.column(batch.schema.get_field_index(column)).to_pylist():
            rows += 1
            bad.records += 1
            try:
                yield text_under({column: value}, key), rows
            except BadRecord as error:
                bad.add(f"{path}, row {rows}", error)
                yield "", rows


def read_parquet(path, key, on_bytes, bad):
    pyarrow = import_pyarrow(path)
    read, size = 0, path.stat().st_size
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
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
    splits = folder / "dataset_dict.json"
    if splits.is_file():
        names = json.loads(splits.read_text())["splits"]
        raise CorpusError(f"{folder}: holds the splits {', '.join(names)}; name those to read, as {folder / names[0]}")
    state = folder / "state.json"
    if not state.is_file():
        raise CorpusError(f"{folder}: is a directory, and none that datasets.save_to_disk wrote, without a "
                          "state.json; name the files in it")
    try:
        return [folder / Path(entry["filename"]).name for entry in json.loads(state.read_text())["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{state}: is not as datasets.save_to_disk writes it") from error


def counted(batches, size, on_bytes):
    """Passes the batches of a file on. They lie in it as they are, but for what describes them."""
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


def files_of(path):
    """Returns the files that are read for an input."""
    if path.is_dir():
        return files_of_dataset(path)
    if not path.is_file():
        raise CorpusError(f"{path}: no such file")
    return [path]


# How files of other formats begin, what they are, and what to do with them; copus/data/file_format.cpp knows more.
BY_PAIRING = "tools/tokens_to_pair.py makes a pair of its token ids"
FORMATS = [
    (b"\x93NUMPY", "a NumPy array (.npy)", BY_PAIRING),
    (struct.pack("<i", 20240520), "a token file of llm.c", BY_PAIRING),
    (struct.pack("<i", 20240801), "a token file of llm.c (Llama 3)", BY_PAIRING),
    (b"MMIDIDX\0\0", "the index of a pair", "it is tokenized already: train with the prefix of the pair"),
    (b"\x1f\x8b", "compressed by gzip", "give it a name that ends in .gz, as a.jsonl.gz"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "give it a name that ends in .zst, as a.jsonl.zst"),
    (b"PAR1", "a parquet file", "give it a name that ends in .parquet"),
    (b"ARROW1", "an Arrow (Feather) file", "save it as parquet"),
    (b"\xff\xff\xff\xff", "a stream of Arrow", "give the folder of datasets.save_to_disk that it is in"),
    (b"BZh", "compressed by bzip2", "unpack it, or compress it by gzip or zstd"),
    (b"\xfd7zXZ", "compressed by xz", "unpack it, or compress it by gzip or zstd"),
    (b"PK\x03\x04", "a zip archive", "unpack it, and give the files in it"),
    (b"GGUF", "a model's weights (GGUF)", "it holds no text"),
    (b"\x89HDF", "an HDF5 file", "save its texts as JSONL"),
    (b"SQLite format 3", "an SQLite database", "save its texts as JSONL"),
    (b"%PDF", "a PDF document", "extract its text first"),
    (b"\xff\xfe", "text in UTF-16", "iconv -f UTF-16 -t UTF-8 converts it"),
    (b"\xfe\xff", "text in UTF-16", "iconv -f UTF-16 -t UTF-8 converts it"),
    (b"\x80\x04", "a pickled object of Python", "save its texts as JSONL"),
]


def check_format(path):
    """Names a file that is of another format than the text that its name promises."""
    with open(path, "rb") as file:
        head = file.read(4096)
    for mark, what, remedy in FORMATS:
        if head.startswith(mark):
            raise CorpusError(f"{path}: is {what}; {remedy}")
    if head[8:10] == b'{"' and 0 < int.from_bytes(head[:8], "little") < path.stat().st_size:
        raise CorpusError(f"{path}: is a model's weights (safetensors); it holds no text")
    if path.suffix == ".bin" and not is_utf8_so_far(head):
        raise CorpusError(f"{path}: looks like bare token ids, as nanoGPT writes them (uint16); {BY_PAIRING}")
    if path.suffix == ".json" and b'"added_tokens"' in head:
        raise CorpusError(f"{path}: is a tokenizer; give it by --tokenizer, and the text as input")


def is_utf8_so_far(head):
    """Whether the beginning of a file is UTF-8 text; a character may be cut at its end."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def read_documents(path, key, separator, on_bytes, bad):
    """Yields the documents of a file or folder. `key` names the text of a record, `separator` ends one in a text."""
    if path.is_dir():
        return read_dataset(path, key, on_bytes, bad)
    if path.suffix not in (*COMPRESSED, ".parquet"):
        check_format(path)
    kind = path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix
    if kind == ".parquet":
        return read_parquet(path, key, on_bytes, bad)
    if kind in (".jsonl", ".json"):
        return read_jsonl(path, key, on_bytes, bad)
    return read_text(path, separator, on_bytes, bad)
