#!/usr/bin/env python3
"""Tokenizes text or JSONL into a Megatron pair: token ids in PREFIX.bin, sequences and documents in PREFIX.idx.

    tools/tokenize_corpus.py corpus.txt --tokenizer gpt2 --document-separator '\\n\\n' --output data/corpus
    tools/tokenize_corpus.py *.jsonl --tokenizer my_tokenizer/tokenizer.json --eod-token '<eos>' --output data/corpus

Files ending in .jsonl (or .json) hold one JSON object a line, its text under --json-key; all others are text, one
document or cut at --document-separator. Every document becomes one sequence that ends with the end-of-document token.
Input is read as a stream; only the index (20 bytes a document) is kept in memory. PREFIX.idx is written last, so that
a pair that is there is complete. The layout is described in copus/data/megatron_source.h.
"""

import argparse
import json
import os
import struct
import sys
import time
from array import array
from pathlib import Path

# Token ids of vocabularies below this size are stored in two bytes, by Megatron's rule.
UINT16_VOCAB_LIMIT = 65500
DTYPE_UINT16, DTYPE_INT32 = 8, 4
MAX_SEQUENCE_LENGTH = 2**31 - 1

READ_BYTES = 1 << 20
BATCH_CHARACTERS = 1 << 20
PROGRESS_SECONDS = 2.0


class CorpusError(Exception):
    """A mistake in what the user gave."""


class JsonTokenizer:
    """A tokenizer.json of the `tokenizers` package."""

    def __init__(self, path):
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise CorpusError(f"--tokenizer {path} needs the Python package tokenizers (pip install)") from error
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises plain Exception
            raise CorpusError(f"--tokenizer {path} is not a tokenizers JSON file: {error}") from error
        self.eos_token = None
        self.vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)

    def encode(self, texts):
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]


class HuggingFaceTokenizer:
    """A directory or model name that transformers' AutoTokenizer knows."""

    def __init__(self, name):
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise CorpusError(
                f"--tokenizer {name} needs the Python package transformers (pip install transformers); a single "
                "tokenizer.json file needs only tokenizers") from error
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError) as error:
            raise CorpusError(f"--tokenizer {name} cannot be loaded: {error}") from error
        self.eos_token = self._tokenizer.eos_token
        self.vocabulary = self._tokenizer.get_vocab()

    def encode(self, texts):
        return self._tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]


def load_tokenizer(name):
    return JsonTokenizer(name) if Path(name).is_file() else HuggingFaceTokenizer(name)


def decode(path, data, offset):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: is not UTF-8 text: bad byte at offset {offset + error.start}") from error


def read_text(path, separator, on_bytes):
    """Yields the documents of a text file, without the separators; empty ones too."""
    mark = separator.encode()
    pending, offset, searched = b"", 0, 0  # bytes of the current document, where it starts, bytes searched
    with open(path, "rb") as file:
        while block := file.read(READ_BYTES):
            on_bytes(len(block))
            pending += block
            if not mark:
                continue
            begin = 0
            while (end := pending.find(mark, max(begin, searched))) >= 0:
                yield decode(path, pending[begin:end], offset + begin)
                begin = end + len(mark)
            pending, offset = pending[begin:], offset + begin
            searched = max(0, len(pending) - len(mark) + 1)
    yield decode(path, pending, offset)


def read_jsonl(path, key, on_bytes):
    """Yields the text of every line."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            on_bytes(len(line))
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except UnicodeDecodeError as error:
                raise CorpusError(f"{path}:{number}: is not UTF-8 text") from error
            except json.JSONDecodeError as error:
                raise CorpusError(f"{path}:{number}: is not JSON: {error.msg} at column {error.colno}") from error
            if not isinstance(record, dict):
                raise CorpusError(f"{path}:{number}: is not an object; expected one with the text under \"{key}\"")
            if key not in record:
                raise CorpusError(f'{path}:{number}: has no key "{key}"; name the one of the text by --json-key: '
                                  f'there {"is" if len(record) == 1 else "are"} {", ".join(record) or "none"}')
            text = record[key]
            if not isinstance(text, str):
                raise CorpusError(f'{path}:{number}: the value of "{key}" is not a string')
            yield text


def batched(documents):
    """Lists of documents that together are worth one call of the tokenizer."""
    batch, characters = [], 0
    for document in documents:
        if not document:
            continue
        batch.append(document)
        characters += len(document)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class Progress:
    """One line on standard error: rewritten on a terminal, repeated otherwise."""

    def __init__(self, total_bytes):
        self._total = total_bytes
        self._read = 0
        self._started = self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def on_bytes(self, count):
        self._read += count

    def seconds(self):
        return time.monotonic() - self._started

    def show(self, documents, tokens, last=False):
        now = time.monotonic()
        if not last and now - self._shown < PROGRESS_SECONDS:
            return
        self._shown = now
        share = 100 * self._read / max(1, self._total)
        speed = tokens / max(1e-9, self.seconds())
        line = f"{share:3.0f} %  {documents:,} documents  {tokens:,} tokens  {speed:,.0f} tokens/s"
        end = "\n" if last or not self._terminal else ""
        print(f"\r{line}" if self._terminal else line, end=end, file=sys.stderr, flush=True)


class PairWriter:
    """Writes PREFIX.bin as it grows and PREFIX.idx at the end, both under temporary names until they are complete."""

    def __init__(self, prefix, vocab_size):
        self._paths = [Path(f"{prefix}.bin"), Path(f"{prefix}.idx")]
        self._partial = [path.with_name(path.name + ".partial") for path in self._paths]
        self._dtype, self._code = (DTYPE_UINT16, "H") if vocab_size < UINT16_VOCAB_LIMIT else (DTYPE_INT32, "i")
        self._lengths = array("i")
        self._paths[0].parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._partial[0], "wb")
        self.tokens = 0

    @property
    def documents(self):
        return len(self._lengths)

    def add(self, ids):
        if len(ids) > MAX_SEQUENCE_LENGTH:
            raise CorpusError(f"a document has {len(ids)} tokens, more than the format can hold; cut it with "
                              "--document-separator")
        array(self._code, ids).tofile(self._file)
        self._lengths.append(len(ids))
        self.tokens += len(ids)

    def finish(self):
        self._close(self._file)
        with open(self._partial[1], "wb") as file:
            count = len(self._lengths)
            file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, self._dtype, count, count + 1))
            self._lengths.tofile(file)
            pointers, offset, size = array("q"), 0, array(self._code).itemsize
            for length in self._lengths:
                pointers.append(offset)
                offset += length * size
            pointers.tofile(file)
            array("q", range(count + 1)).tofile(file)
            self._close(file)
        for partial, path in zip(self._partial, self._paths):
            partial.rename(path)

    def discard(self):
        self._file.close()
        for partial in self._partial:
            partial.unlink(missing_ok=True)

    @staticmethod
    def _close(file):
        file.flush()
        os.fsync(file.fileno())
        file.close()


def tokenize(arguments):
    for path in arguments.input:
        if not path.is_file():
            raise CorpusError(f"{path}: {'is a directory' if path.is_dir() else 'no such file'}")
    for suffix in (".bin", ".idx"):
        if Path(f"{arguments.output}{suffix}").exists():
            raise CorpusError(f"{arguments.output}{suffix}: exists already; remove it or choose another --output")
    tokenizer = load_tokenizer(arguments.tokenizer)
    eod_token = arguments.eod_token or tokenizer.eos_token
    if eod_token is None:
        raise CorpusError(
            f"the tokenizer {arguments.tokenizer} names no end-of-sequence token; give one by --eod-token")
    if eod_token not in tokenizer.vocabulary:
        raise CorpusError(f"the token {eod_token!r} is not in the vocabulary of {arguments.tokenizer}; see --eod-token")
    eod = tokenizer.vocabulary[eod_token]
    vocab_size = max(tokenizer.vocabulary.values()) + 1

    progress = Progress(sum(path.stat().st_size for path in arguments.input))

    def documents():
        for path in arguments.input:
            if path.suffix in (".jsonl", ".json"):
                yield from read_jsonl(path, arguments.json_key, progress.on_bytes)
            else:
                yield from read_text(path, arguments.document_separator, progress.on_bytes)

    writer = PairWriter(arguments.output, vocab_size)
    try:
        for batch in batched(documents()):
            for ids in tokenizer.encode(batch):
                writer.add(ids + [eod])
            progress.show(writer.documents, writer.tokens)
        if writer.documents == 0:
            raise CorpusError("the input is empty: it holds no text")
        writer.finish()
    except BaseException:
        writer.discard()
        raise
    progress.show(writer.documents, writer.tokens, last=True)
    print(f"{arguments.output}.bin/.idx: {writer.documents} documents, {writer.tokens} tokens, "
          f"{progress.seconds():.1f} s\n"
          f'train with: data.train = "{arguments.output}", model.vocab_size = {vocab_size} (or more)')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, nargs="+", help="text or .jsonl files, UTF-8")
    parser.add_argument("--output", metavar="PREFIX", required=True, help="writes PREFIX.bin and PREFIX.idx")
    parser.add_argument("--tokenizer", metavar="DIR_OR_NAME", required=True,
                        help="a Hugging Face directory or model name, or a tokenizers JSON file")
    parser.add_argument("--document-separator", default="", metavar="STRING",
                        help=r"text files: documents end at this string (\n and \t are understood); default: a file is "
                        "one document")
    parser.add_argument("--json-key", default="text", metavar="KEY", help='JSONL files: default "text"')
    parser.add_argument("--eod-token", metavar="TOKEN", help="ends every document; default: the tokenizer's eos token")
    arguments = parser.parse_args()
    arguments.document_separator = arguments.document_separator.replace("\\n", "\n").replace("\\t", "\t")
    try:
        tokenize(arguments)
    except CorpusError as error:
        parser.error(str(error))  # exit code 2
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
