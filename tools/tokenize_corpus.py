#!/usr/bin/env python3
"""Tokenizes a corpus into a Megatron pair: token ids in PREFIX.bin, sequences and documents in PREFIX.idx. The tokenizer
goes into the folder PREFIX.tokenizer, where `copus generate` and `copus convert` find it.

    tools/tokenize_corpus.py corpus.txt --tokenizer gpt2 --document-separator '\\n\\n' --output data/corpus
    tools/tokenize_corpus.py *.jsonl.gz --tokenizer my_tokenizer/tokenizer.json --eod-token '<eos>' --output data/corpus

Files ending in .jsonl (or .json) hold one JSON object a line, its text under --json-key, files ending in .parquet and
folders of datasets.save_to_disk a column of that name; all others are text, one document or cut at
--document-separator. Text and JSONL may be compressed (.gz, .zst). Every document becomes one sequence that ends with
the end-of-document token.

The documents are cut into pieces of a fixed size, which several processes tokenize, each into a file of its own in
PREFIX.parts; at the end these are joined. So neither the number of processes nor an interruption changes a byte: the
same command goes on with what is there. PREFIX.idx is written last, so that a pair that is there is complete. The
layout is described in copus/data/megatron_source.h.
"""

import argparse
import concurrent.futures
import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import struct
import sys
import threading
import time
from array import array
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from corpus_readers import CorpusError, files_of, read_documents

# Token ids of vocabularies below this size are stored in two bytes, by Megatron's rule.
UINT16_VOCAB_LIMIT = 65500
DTYPE_UINT16, DTYPE_INT32 = 8, 4
MAX_SEQUENCE_LENGTH = 2**31 - 1

PIECE_CHARACTERS = 1 << 22
BATCH_CHARACTERS = 1 << 20
PROGRESS_SECONDS = 2.0


def fingerprint(text):
    return hashlib.sha256(text.encode()).hexdigest()


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

    def fingerprint(self):
        return fingerprint(self._tokenizer.to_str())

    def save(self, folder, eod_token):
        """As transformers would, so that it loads the folder as it is, whatever model stands beside it."""
        self._tokenizer.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eod_token}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))

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

    def fingerprint(self):
        fast = getattr(self._tokenizer, "backend_tokenizer", None)
        return fingerprint(fast.to_str() if fast else json.dumps(sorted(self.vocabulary.items())))

    def save(self, folder, eod_token):
        self._tokenizer.eos_token = eod_token
        self._tokenizer.save_pretrained(folder)

    def encode(self, texts):
        return self._tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]


def load_tokenizer(name):
    return JsonTokenizer(name) if Path(name).is_file() else HuggingFaceTokenizer(name)


def contents(folder):
    """The files of a folder by name, with what they hold."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def save_tokenizer(tokenizer, eod_token, folder, workplace):
    """The folder has its name when it is whole. One that is there may be of a call that was killed after that; whatever
    else it is stays."""
    made = workplace / "tokenizer"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    tokenizer.save(made, eod_token)
    if not folder.exists():
        made.rename(folder)
        return
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names != {path.name for path in made.iterdir()} or contents(folder) != contents(made):
        raise CorpusError(f"{folder}: exists already, and is not this tokenizer; move it and call again, which goes on "
                          "with what is done")


def batched(documents, characters):
    """Lists of documents that together have at least so many characters, but for the last; empty documents are left
    out."""
    batch, count = [], 0
    for document in documents:
        if not document:
            continue
        batch.append(document)
        count += len(document)
        if count >= characters:
            yield batch
            batch, count = [], 0
    if batch:
        yield batch


class Progress:
    """One line on standard error: rewritten on a terminal, repeated otherwise. Only pieces that are done count."""

    def __init__(self, total_bytes):
        self._total = total_bytes
        self._before = self._done = 0  # bytes of input that an earlier call has tokenized, and all that are done
        self.documents = self.tokens = self._tokens_before = 0
        self._started = self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def add(self, size, documents, tokens, is_new):
        self._done += size
        self.documents += documents
        self.tokens += tokens
        if not is_new:
            self._before += size
            self._tokens_before += tokens
        self.show()

    def seconds(self):
        return time.monotonic() - self._started

    def show(self, last=False):
        now = time.monotonic()
        if not last and now - self._shown < PROGRESS_SECONDS:
            return
        self._shown = now
        new, seconds = self._done - self._before, max(1e-9, self.seconds())
        line = (f"{100 * self._done / max(1, self._total):3.0f} %  {self.documents:,} documents  {self.tokens:,} tokens"
                f"  {(self.tokens - self._tokens_before) / seconds:,.0f} tokens/s")
        if new and not last:
            minutes, rest = divmod(int(seconds * (self._total - self._done) / new), 60)
            line += f"  {minutes}:{rest:02d} left"
        end = "\n" if last or not self._terminal else ""
        print(f"\r{line}\033[K" if self._terminal else line, end=end, file=sys.stderr, flush=True)


def close_durably(file):
    file.flush()
    os.fsync(file.fileno())
    file.close()


class Parts:
    """The folder PREFIX.parts: what is tokenized already. A part is a count of documents, their lengths, their ids."""

    def __init__(self, prefix, vocab_size):
        self.folder = Path(f"{prefix}.parts")
        self.code = "H" if vocab_size < UINT16_VOCAB_LIMIT else "i"

    def open(self, plan):
        """Takes the folder for this process; `plan` says what the parts are of, and has to be that of those there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CorpusError(f"{self.folder}: another process is writing it") from error
        path, text = self.folder / "plan.json", json.dumps(plan)
        if path.exists() and path.read_text() != text:
            raise CorpusError(f"{self.folder}: was begun with other input, another tokenizer or other options; "
                              "delete it or choose another --output")
        partial = path.with_suffix(".partial")
        partial.write_text(text)
        partial.rename(path)

    def leave(self):
        """In a child process: the lock is the parent's alone, and ends with it."""
        os.close(self._lock)

    def path(self, number):
        return self.folder / f"{number:06d}"

    def write(self, number, sequences):
        lengths, ids = array("i"), array(self.code)
        for sequence in sequences:
            if len(sequence) > MAX_SEQUENCE_LENGTH:
                raise CorpusError(f"a document has {len(sequence)} tokens, more than the format can hold; cut it with "
                                  "--document-separator")
            lengths.append(len(sequence))
            ids.extend(sequence)
        partial = self.path(number).with_suffix(f".{os.getpid()}")
        with open(partial, "wb") as file:
            file.write(struct.pack("<Q", len(lengths)))
            lengths.tofile(file)
            ids.tofile(file)
            close_durably(file)
        partial.rename(self.path(number))

    def lengths(self, file):
        lengths = array("i")
        lengths.fromfile(file, struct.unpack("<Q", file.read(8))[0])
        return lengths

    def join(self, prefix, count):
        """Writes PREFIX.bin and PREFIX.idx, both under temporary names until they are complete."""
        paths = [Path(f"{prefix}.bin"), Path(f"{prefix}.idx")]
        partial = [path.with_name(path.name + ".partial") for path in paths]
        lengths = array("i")
        with open(partial[0], "wb") as output:
            for number in range(count):
                with open(self.path(number), "rb") as part:
                    lengths.extend(self.lengths(part))
                    shutil.copyfileobj(part, output, 1 << 20)
            close_durably(output)
        with open(partial[1], "wb") as file:
            dtype = DTYPE_UINT16 if self.code == "H" else DTYPE_INT32
            file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, dtype, len(lengths), len(lengths) + 1))
            lengths.tofile(file)
            pointers, offset, size = array("q"), 0, array(self.code).itemsize
            for length in lengths:
                pointers.append(offset)
                offset += length * size
            pointers.tofile(file)
            array("q", range(len(lengths) + 1)).tofile(file)
            close_durably(file)
        for source, path in zip(partial, paths):
            source.rename(path)


class Work:
    """What a worker process does. It is made before the fork, so that nothing has to be loaded again."""

    def __init__(self, tokenizer, eod, parts):
        self.tokenizer, self.eod, self.parts = tokenizer, eod, parts

    def __call__(self, number, documents):
        """Tokenizes a piece; returns how many documents and tokens it has."""
        sequences = [ids + [self.eod] for batch in batched(documents, BATCH_CHARACTERS)
                     for ids in self.tokenizer.encode(batch)]
        self.parts.write(number, sequences)
        return len(sequences), sum(map(len, sequences))


def begin_worker(work):
    global tokenize_piece
    tokenize_piece = work
    work.parts.leave()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent has the pieces ended that are begun

    def end_with_parent():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def call_worker(number, documents):
    return tokenize_piece(number, documents)


def tokenize_pieces(pieces, work, processes, progress):
    """Has all pieces tokenized that have not been; returns their number. `pieces`: documents, and bytes of input."""
    # Each process works on one core; a few pieces more are read ahead.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    pool = concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), begin_worker, (work,))
    count, running = 0, {}

    def collect(most_left):
        while len(running) > most_left:
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                progress.add(running.pop(future), *future.result(), is_new=True)

    try:
        pool.submit(int).result()  # forks, before the readers start threads
        for documents, size in pieces:
            path = work.parts.path(count)
            if path.exists():
                with open(path, "rb") as file:
                    lengths = work.parts.lengths(file)
                progress.add(size, len(lengths), sum(lengths), is_new=False)
            else:
                running[pool.submit(call_worker, count, documents)] = size
            count += 1
            collect(processes + 2)
        collect(0)
    finally:
        pool.shutdown(cancel_futures=True)
    return count


def tokenize(arguments):
    files = [file for path in arguments.input for file in files_of(path)]
    # Beside its parts, what is there without an .idx is of a call that was killed before its last step.
    is_interrupted = Path(f"{arguments.output}.parts").exists()
    for suffix in (".idx",) if is_interrupted else (".bin", ".idx", ".tokenizer"):
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

    parts = Parts(arguments.output, vocab_size)
    status = [file.stat() for file in files]
    parts.open({"input": [[str(file.resolve()), each.st_size, each.st_mtime_ns] for file, each in zip(files, status)],
                "tokenizer": tokenizer.fingerprint(), "eod": eod, "piece_characters": PIECE_CHARACTERS,
                "json_key": arguments.json_key, "document_separator": arguments.document_separator})
    progress = Progress(sum(each.st_size for each in status))
    read = [0]

    def on_bytes(count):
        read[0] += count

    def pieces():
        documents = (document for path in arguments.input
                     for document in read_documents(path, arguments.json_key, arguments.document_separator, on_bytes))
        before = 0
        for piece in batched(documents, PIECE_CHARACTERS):
            yield piece, read[0] - before
            before = read[0]

    try:
        count = tokenize_pieces(pieces(), Work(tokenizer, eod, parts), arguments.processes, progress)
        if count == 0:
            raise CorpusError("the input is empty: it holds no text")
    except CorpusError:
        shutil.rmtree(parts.folder)  # other input, or other options, will be tokenized anew
        raise
    save_tokenizer(tokenizer, eod_token, Path(f"{arguments.output}.tokenizer"), parts.folder)
    parts.join(arguments.output, count)
    shutil.rmtree(parts.folder)
    progress.show(last=True)
    print(f"{arguments.output}.bin/.idx: {progress.documents} documents, {progress.tokens} tokens, "
          f"{progress.seconds():.1f} s\n"
          f'train with: data.train = "{arguments.output}", model.vocab_size = {vocab_size} (or more)')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, nargs="+", help="text, .jsonl (UTF-8; also .gz, .zst) or .parquet "
                        "files, or folders of datasets.save_to_disk")
    parser.add_argument("--output", metavar="PREFIX", required=True, help="writes PREFIX.bin and PREFIX.idx")
    parser.add_argument("--tokenizer", metavar="DIR_OR_NAME", required=True,
                        help="a Hugging Face directory or model name, or a tokenizers JSON file")
    parser.add_argument("--document-separator", default="", metavar="STRING",
                        help=r"text files: documents end at this string (\n and \t are understood); default: a file is "
                        "one document")
    parser.add_argument("--json-key", default="text", metavar="KEY",
                        help='what the text of a record is under: default "text"')
    parser.add_argument("--eod-token", metavar="TOKEN", help="ends every document; default: the tokenizer's eos token")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), metavar="COUNT",
                        help="default: %(default)s, as many as there are cores")
    arguments = parser.parse_args()
    if arguments.processes < 1:
        parser.error("--processes: expected 1 or more")
    arguments.document_separator = arguments.document_separator.replace("\\n", "\n").replace("\\t", "\t")
    try:
        tokenize(arguments)
    except CorpusError as error:
        parser.error(str(error))  # exit code 2
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on with what is done", file=sys.stderr)
        return 130
    except BrokenProcessPool:
        print("a process ended before its time, perhaps for want of memory; the same command, "
              "with fewer --processes too, goes on with what is done", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
