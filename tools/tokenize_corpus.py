#!/usr/bin/env python3
"""Tokenizes a corpus into a Megatron pair: token ids in PREFIX.bin, sequences and documents in PREFIX.idx. The tokenizer
goes into the folder PREFIX.tokenizer, where `copus generate` and `copus convert` find it.

    tools/tokenize_corpus.py corpus.txt --tokenizer gpt2 --document-separator '\\n\\n' --output data/corpus
    tools/tokenize_corpus.py *.jsonl.gz --tokenizer my_tokenizer/tokenizer.json --eod-token '<eos>' --output data/corpus

Files ending in .jsonl, .ndjson or .json hold one JSON object a line, its text under --json-key, files ending in .parquet
and folders of datasets.save_to_disk a column of that name; all others are text, one document or cut at
--document-separator. Text and JSONL may be compressed (.gz, .zst). Every document becomes one sequence that ends with
the end-of-document token. The names of special tokens, such as <|endoftext|>, are text where a document holds them,
unless --special-tokens says otherwise; the summary counts them. What a tokenizer's file says of truncation, padding and
dropout is ignored; a note says where a tokenizer loses text.

The documents are cut into pieces of a fixed size, which several processes tokenize, each into a file of its own in
PREFIX.parts; at the end these are joined. So neither the number of processes nor an interruption changes a byte: the
same command goes on with what is there. PREFIX.idx is written last, so that a pair that is there is complete.
"""

import argparse
import bisect
import concurrent.futures
import errno
import fcntl
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import struct
import sys
import threading
import time
import typing
from array import array
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from corpus_readers import BadRecords, CorpusError, files_of, printable, read_documents
from pair_files import MAX_SEQUENCE_LENGTH, open_standard_descriptors, type_code, write_index, writing

PIECE_CHARACTERS = 1 << 22
BATCH_CHARACTERS = 1 << 20
PROGRESS_SECONDS = 2.0

# A document that is longer is tokenized in windows that overlap: encodings take 250 bytes a character.
WINDOW_CHARACTERS = 1 << 19
OVERLAP_CHARACTERS = 1 << 12
AGREEING_TOKENS = 100


def fingerprint(text):
    return hashlib.sha256(text.encode()).hexdigest()


# Normalizers and pre-tokenizers after which a text can be put together again.
LOSSLESS = ("Prepend", "ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "FixedLength")
BLANK_MARK = "\u2581"  # what SentencePiece writes in place of a blank

# A text with characters of many kinds, none of which a pattern that cuts texts may leave out.
SAMPLE = "It's 12.5 \u00e9\u0301 \u4e2d\u6587 \U0001F600\u200d_\t\r\n\n  <|x|> \u0000\x7f\u00a0\ufffd\U0010fffd "
RARE = "\U0010fffd"  # a character that hardly any vocabulary has


def leaves_out(split):
    """Whether a pre-tokenizer that keeps what matches its pattern leaves something of a text out."""
    from tokenizers import Regex, pre_tokenizers
    pattern = split["pattern"]
    cut = pre_tokenizers.Split(Regex(pattern["Regex"]) if "Regex" in pattern else pattern["String"], "removed", invert=True)
    return sum(end - begin for _, (begin, end) in cut.pre_tokenize_str(SAMPLE)) < len(SAMPLE)


def parts_of(part):
    """The normalizers or pre-tokenizers that one consists of, as the JSON has them."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [inner for each in part.get("normalizers", part.get("pretokenizers")) for inner in parts_of(each)]


def is_lossless(part):
    """Whether a text can be put together again behind a normalizer or pre-tokenizer."""
    kind = part["type"]
    if kind == "Replace":
        return part["pattern"].get("String") == " " and part["content"] == BLANK_MARK
    if kind in ("Split", "Punctuation"):
        return part["behavior"] != "Removed" or (bool(part.get("invert")) and not leaves_out(part))
    return kind in LOSSLESS


def what_becomes_of_unknown_text(model, is_of_bytes):
    """A sentence on what a model makes of text that its vocabulary lacks, where that is no token; else None."""
    from tokenizers import pre_tokenizers
    never = {chr(byte) for byte in (0xC0, 0xC1, *range(0xF5, 0x100))}  # bytes that UTF-8 does not have
    try:
        for symbol in set(pre_tokenizers.ByteLevel.alphabet()) - never if is_of_bytes else [RARE]:
            if not model.tokenize(symbol):
                return "the tokenizer leaves out characters that its vocabulary lacks: no token takes their place"
    except Exception as error:  # the package raises plain Exception
        return f"the tokenizer has no token for what its vocabulary lacks, and stops at such a text: {error}"
    return None


def neutralise(tokenizer, special_are_text):
    """Takes from a tokenizer of the `tokenizers` package what would cut, fill up or vary what it writes. Returns what is
    left that changes texts, a sentence each."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    tokenizer.encode_special_tokens = special_are_text
    description = json.loads(tokenizer.to_str())
    parts = parts_of(description["normalizer"]) + parts_of(description["pre_tokenizer"])
    losses = [part["type"] for part in parts if not is_lossless(part)]
    strips = [token["content"] for token in description["added_tokens"]
              if (token["lstrip"] or token["rstrip"]) and not (token["special"] and special_are_text)]
    notes = [what_becomes_of_unknown_text(tokenizer.model, any(part["type"] == "ByteLevel" for part in parts))]
    if losses:
        notes.append(f"the tokenizer changes texts before it cuts them into tokens: {', '.join(losses)}")
    if strips:
        notes.append(f"the tokenizer leaves out blanks beside {', '.join(strips)} (lstrip, rstrip)")
    return [note for note in notes if note]


def unknown_token_of(tokenizer):
    """The token of a tokenizer of the `tokenizers` package for what its vocabulary lacks."""
    model = json.loads(tokenizer.to_str())["model"]
    if model.get("unk_id") is not None:  # Unigram
        return tokenizer.id_to_token(model["unk_id"])
    return model.get("unk_token")


def joint(left, right, begin, end):
    """Where two windows can be joined: how many tokens to take of the left one and to leave out of the right one. Their
    tokens, (ids, starts) each, have to agree on either side of that, AGREEING_TOKENS of them with their places: so far
    no window's own end reaches. None where they agree nowhere between `begin` and `end`, as within a long run of one
    character, whose tokens depend on where it begins."""
    step = max(1, (end - begin) // 16)
    middle = (begin + end) // 2
    agreeing = AGREEING_TOKENS
    for place in sorted(range(begin + step, end, step), key=lambda place: abs(place - middle)):
        i, j = bisect.bisect_left(left[1], place), bisect.bisect_left(right[1], place)
        least = min(i, j, len(left[0]) - i, len(right[0]) - j)
        if least >= agreeing and all(a[i - agreeing:i + agreeing] == b[j - agreeing:j + agreeing]
                                     for a, b in zip(left, right)):
            return i, j
    return None


def encode_in_windows(text, encode):
    """The ids of a long text, as an array: those that it has as a whole. `encode` returns those of a text and the
    character that each begins at."""
    size, overlap = WINDOW_CHARACTERS, OVERLAP_CHARACTERS
    ids = array("i")
    begin, end = 0, size
    left = encode(text[:end])
    while end < len(text):
        next_begin = end - overlap
        next_end = next_begin + size
        window_ids, starts = encode(text[next_begin:next_end])
        right = window_ids, [next_begin + start for start in starts]
        place = joint(left, right, next_begin, end)
        if place is None:  # from where the left one begins again, in larger windows
            size, overlap, end = 4 * size, 4 * overlap, begin + 4 * size
            first = left[1][0] if left[1] else begin
            window_ids, starts = encode(text[begin:end])
            starts = [begin + start for start in starts]
            skip = bisect.bisect_left(starts, first)
            left = window_ids[skip:], starts[skip:]
            continue
        ids.extend(left[0][:place[0]])
        left = right[0][place[1]:], right[1][place[1]:]
        begin, end = next_begin, next_end
        size, overlap = WINDOW_CHARACTERS, OVERLAP_CHARACTERS
    ids.extend(left[0])
    return ids


def encode_long(tokenizer, text):
    """The ids of a long text by a tokenizer of the `tokenizers` package."""
    def encode(part):
        encoding = tokenizer.encode(part, add_special_tokens=False)
        return encoding.ids, [start for start, _ in encoding.offsets]

    return encode_in_windows(text, encode)


class JsonTokenizer:
    """A tokenizer.json of the `tokenizers` package."""

    def __init__(self, path, special_are_text):
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise CorpusError(f"--tokenizer {path} needs the Python package tokenizers (pip install)") from error
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises plain Exception
            raise CorpusError(f"--tokenizer {path} is not a tokenizers JSON file: {error}") from error
        self.notes = neutralise(self._tokenizer, special_are_text)
        self.eos_token = None
        self.vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.special_tokens = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()
                               if token.special]
        self.unknown_token = unknown_token_of(self._tokenizer)

    def fingerprint(self):
        return fingerprint(self._tokenizer.to_str())

    def save(self, folder, eod_token):
        """As transformers would, so that it loads the folder as it is, whatever model stands beside it."""
        self._tokenizer.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eod_token}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))

    def encode(self, texts):
        encode_batch = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        return [encoding.ids for encoding in encode_batch(texts, add_special_tokens=False)]

    def encode_long(self, text):
        return encode_long(self._tokenizer, text)


class HuggingFaceTokenizer:
    """A directory or model name that transformers' AutoTokenizer knows."""

    def __init__(self, name, special_are_text):
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise CorpusError(
                f"--tokenizer {name} needs the Python package transformers (pip install transformers); a single "
                "tokenizer.json file needs only tokenizers") from error
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(name)
        except Exception as error:  # a damaged file can make the package raise anything
            raise CorpusError(f"--tokenizer {name} cannot be loaded: {error}") from error
        fast = getattr(self._tokenizer, "backend_tokenizer", None)
        self.notes = neutralise(fast, special_are_text) if fast else []
        self._special_are_text = special_are_text
        self.eos_token = self._tokenizer.eos_token
        self.vocabulary = self._tokenizer.get_vocab()
        self.special_tokens = [token.content for token in self._tokenizer.added_tokens_decoder.values() if token.special]
        self.unknown_token = self._tokenizer.unk_token

    def fingerprint(self):
        fast = getattr(self._tokenizer, "backend_tokenizer", None)
        return fingerprint(fast.to_str() if fast else json.dumps(sorted(self.vocabulary.items())))

    def save(self, folder, eod_token):
        self._tokenizer.eos_token = eod_token
        self._tokenizer.save_pretrained(folder)

    def encode(self, texts):
        return self._tokenizer(texts, add_special_tokens=False, split_special_tokens=self._special_are_text,
                               return_attention_mask=False, verbose=False)["input_ids"]

    def encode_long(self, text):
        fast = getattr(self._tokenizer, "backend_tokenizer", None)
        return encode_long(fast, text) if fast else self.encode([text])[0]


def load_tokenizer(name, special_are_text):
    kind = JsonTokenizer if Path(name).is_file() else HuggingFaceTokenizer
    return kind(name, special_are_text)


def contents(folder):
    """The files of a folder by name, with what they hold."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def save_tokenizer(tokenizer, eod_token, folder, workplace):
    """The folder has its name when it is whole. One that is there may be of a call that was killed after that; whatever
    else it is stays."""
    made = workplace / "tokenizer"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    try:
        tokenizer.save(made, eod_token)
    except Exception as error:  # the package raises plain Exception, also where the disk is full
        raise CorpusError(f"{folder}: cannot be written: {error}; the same command goes on with what is done") from error
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


class Counts(typing.NamedTuple):
    """Of a piece, or of all: documents, their tokens, and in their texts names of special tokens, characters that the
    tokenizer does not know, and tokens that end a document before it ends."""
    documents: int = 0
    tokens: int = 0
    special: int = 0
    unknown: int = 0
    ends: int = 0

    def __add__(self, other):
        return Counts(*map(sum, zip(self, other)))


def discard(stream):
    """Lets a standard stream that cannot be written go nowhere: Python would fail anew as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tell(text, end="\n"):
    """Writes to standard error. A job goes on where nobody can hear of it."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


class Progress:
    """One line on standard error: rewritten on a terminal, repeated otherwise. Only pieces that are done count."""

    def __init__(self, total_bytes):
        self._total = total_bytes
        self._before = self._done = 0  # bytes of input that an earlier call has tokenized, and all that are done
        self.counts = Counts()
        self._tokens_before = 0
        self._started = self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def add(self, size, counts, is_new):
        self._done += size
        self.counts += counts
        if not is_new:
            self._before += size
            self._tokens_before += counts.tokens
        self.show()

    def seconds(self):
        return time.monotonic() - self._started

    def show(self, last=False):
        now = time.monotonic()
        if not last and now - self._shown < PROGRESS_SECONDS:
            return
        self._shown = now
        new, seconds = self._done - self._before, max(1e-9, self.seconds())
        documents, tokens = self.counts[:2]
        line = (f"{100 * self._done / max(1, self._total):3.0f} %  {documents:,} documents  {tokens:,} tokens"
                f"  {(tokens - self._tokens_before) / seconds:,.0f} tokens/s")
        if new and not last:
            minutes, rest = divmod(int(seconds * (self._total - self._done) / new), 60)
            line += f"  {minutes}:{rest:02d} left"
        end = "\n" if last or not self._terminal else ""
        tell(f"\r{line}\033[K" if self._terminal else line, end)


class Parts:
    """The folder PREFIX.parts: what is tokenized already. A part is its Counts, its documents' lengths, their ids."""

    HEADER = struct.Struct("<5Q")

    def __init__(self, prefix, vocab_size):
        self.folder = Path(f"{prefix}.parts")
        self.code = type_code(vocab_size)

    def open(self, plan):
        """Takes the folder for this process; `plan` says what the parts are of, and has to be that of those there."""
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

    def leave(self):
        """In a child process: the lock is the parent's alone, and ends with it."""
        os.close(self._lock)

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

    def lengths(self, file):
        lengths = array("i")
        lengths.fromfile(file, self.read_counts(file).documents)
        return lengths

    def join(self, prefix, count):
        """Writes PREFIX.bin and PREFIX.idx, both under temporary names until they are complete."""
        paths = [Path(f"{prefix}.bin"), Path(f"{prefix}.idx")]
        partial = [path.with_name(path.name + ".partial") for path in paths]
        lengths = array("i")
        with writing(partial[0]) as output:
            for number in range(count):
                with open(self.path(number), "rb") as part:
                    lengths.extend(self.lengths(part))
                    shutil.copyfileobj(part, output, 1 << 20)
        write_index(partial[1], self.code, lengths)
        for source, path in zip(partial, paths):
            source.rename(path)


class Work:
    """What a worker process does. It is made before the fork, so that nothing has to be loaded again."""

    def __init__(self, tokenizer, eod, parts):
        self.tokenizer, self.eod, self.parts = tokenizer, eod, parts
        # GPT-2's tokenizer has one token for both, which ends documents.
        unknown = tokenizer.vocabulary.get(tokenizer.unknown_token)
        self.unknown = None if unknown == eod else unknown
        names = sorted(map(re.escape, tokenizer.special_tokens), key=len, reverse=True)
        self.special = re.compile("|".join(names)) if names else None

    def __call__(self, number, documents):
        """Tokenizes a piece; returns its counts."""
        sequences, special = [], 0
        for batch in batched(documents, BATCH_CHARACTERS):
            if self.special:
                special += sum(1 for text in batch for _ in self.special.finditer(text))
            try:
                sequences += self.encode(batch)
            except Exception:  # the package raises plain Exception, and names no text
                sequences += [ids for text in batch for ids in self.encode_one(text)]
        unknown, ends = (sum(ids.count(token) for ids in sequences) for token in (self.unknown, self.eod))
        for ids in sequences:
            ids.append(self.eod)
        counts = Counts(len(sequences), sum(map(len, sequences)), special, unknown, ends)
        self.parts.write(number, counts, sequences)
        return counts

    def encode(self, batch):
        if max(map(len, batch)) <= WINDOW_CHARACTERS:
            return self.tokenizer.encode(batch)
        return [self.tokenizer.encode_long(text) if len(text) > WINDOW_CHARACTERS else self.tokenizer.encode([text])[0]
                for text in batch]

    def encode_one(self, text):
        try:
            return self.encode([text])
        except Exception as error:
            raise CorpusError(f"the tokenizer stops at the document that begins with {text[:60]!r}: {error}") from error


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
                progress.add(running.pop(future), future.result(), is_new=True)

    try:
        pool.submit(int).result()  # forks, before the readers start threads
        for documents, size in pieces:
            path = work.parts.path(count)
            if path.exists():
                with open(path, "rb") as file:
                    counts = work.parts.read_counts(file)
                progress.add(size, counts, is_new=False)
            else:
                running[pool.submit(call_worker, count, documents)] = size
            count += 1
            collect(processes + 2)
        collect(0)
    finally:
        pool.shutdown(cancel_futures=True)
    return count


def tokenize(arguments):
    """Writes the pair; returns the lines of the summary."""
    files = [file for path in arguments.input for file in files_of(path)]
    # Beside its parts, what is there without an .idx is of a call that was killed before its last step.
    is_interrupted = Path(f"{arguments.output}.parts").exists()
    for suffix in (".idx",) if is_interrupted else (".bin", ".idx", ".tokenizer", ".skipped"):
        if Path(f"{arguments.output}{suffix}").exists():
            raise CorpusError(f"{arguments.output}{suffix}: exists already; remove it or choose another --output")
    tokenizer = load_tokenizer(arguments.tokenizer, arguments.special_tokens == "text")
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
                "json_key": arguments.json_key, "document_separator": arguments.document_separator,
                "special_tokens": arguments.special_tokens, "on_bad_record": arguments.on_bad_record,
                "largest_document": arguments.largest_document})
    for note in tokenizer.notes:
        tell(f"note: {note}")
    skipped = Path(f"{arguments.output}.skipped")
    skips = arguments.on_bad_record == "skip"
    bad = BadRecords(int(arguments.largest_document * 2**20),
                     *([arguments.most_bad / 100, skipped] if skips else []))
    progress = Progress(sum(each.st_size for each in status))
    read = [0]

    def on_bytes(count):
        read[0] += count

    def pieces():
        documents = (document for path in arguments.input
                     for document in read_documents(path, arguments.json_key, arguments.document_separator, on_bytes,
                                                    bad))
        before = 0
        for piece in batched(documents, PIECE_CHARACTERS):
            yield piece, read[0] - before
            before = read[0]

    try:
        work = Work(tokenizer, eod, parts)
        count = tokenize_pieces(pieces(), work, arguments.processes, progress)
        bad.finish()
        if count == 0:
            raise CorpusError("the input is empty: it holds no text")
    except CorpusError:
        shutil.rmtree(parts.folder)  # other input, or other options, will be tokenized anew
        skipped.unlink(missing_ok=True)
        raise
    save_tokenizer(tokenizer, eod_token, Path(f"{arguments.output}.tokenizer"), parts.folder)
    parts.join(arguments.output, count)
    shutil.rmtree(parts.folder)
    progress.show(last=True)
    counts = progress.counts
    lines = [f"{arguments.output}.bin/.idx: {counts.documents} documents, {counts.tokens} tokens, "
             f"{progress.seconds():.1f} s"]
    if bad.bad:
        lines.append(f"skipped: {bad.bad:,} of {bad.records:,} records are bad; {skipped} lists them")
    if counts.special:
        what = ("they were written as text; --special-tokens token writes the tokens" if arguments.special_tokens == "text"
                else "they were written as tokens")
        lines.append(f"special tokens: documents name them {counts.special:,} times; {what}")
    if counts.ends:
        lines.append(f"ends: {counts.ends:,} times the end-of-document token {eod_token!r} stands inside a document")
    if counts.unknown:
        lines.append(f"unknown: {counts.unknown:,} tokens are {tokenizer.unknown_token!r}: their text is not in the "
                     "vocabulary")
    lines.append(f'train with: data.train = "{arguments.output}", model.vocab_size = {vocab_size} (or more)')
    return lines


def print_summary(lines, prefix):
    try:
        print(*lines, sep="\n", flush=True)
    except OSError as error:
        discard(sys.stdout)
        raise CorpusError(f"standard output: {error.strerror}; the summary is lost, and {prefix}.bin/.idx are complete"
                          ) from error


def percent(text):
    """A number of percent from 0 to 100, with or without its sign."""
    value = float(text.removesuffix("%"))
    if not 0 <= value <= 100:
        raise ValueError
    return value


def positive(text):
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def main():
    open_standard_descriptors()
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
                        help='what the text of a record is under: default "text"; "meta.text" is the text inside the '
                        'object "meta"')
    parser.add_argument("--eod-token", metavar="TOKEN", help="ends every document; default: the tokenizer's eos token")
    parser.add_argument("--special-tokens", choices=("text", "token"), default="text",
                        help="what becomes of the names of special tokens inside documents, such as <|endoftext|>: "
                        "ordinary text (default), or the tokens themselves")
    parser.add_argument("--on-bad-record", choices=("stop", "skip"), default="stop",
                        help="a record that holds no text (invalid JSON or UTF-8, no string under the key): stop "
                        "(default), or skip it and list it by file and line in PREFIX.skipped")
    parser.add_argument("--most-bad", type=percent, default=0.1, metavar="PERCENT",
                        help="with --on-bad-record skip: stop where more of all records are bad; default: 0.1")
    parser.add_argument("--largest-document", type=positive, default=1024, metavar="MIB",
                        help="text and JSONL, unpacked: a longer record is a bad one; default: 1024. A process needs "
                        "up to 400 MiB where no document is longer than 8 MiB, and up to 11 bytes for each byte beyond")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), metavar="COUNT",
                        help="default: %(default)s, as many as there are cores")
    arguments = parser.parse_args()
    if arguments.processes < 1:
        parser.error("--processes: expected 1 or more")
    arguments.document_separator = arguments.document_separator.replace("\\n", "\n").replace("\\t", "\t")
    try:
        print_summary(tokenize(arguments), arguments.output)
    except CorpusError as error:
        parser.error(printable(error))  # exit code 2
    except OSError as error:
        lacks_room = error.errno in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT)
        kept = "; make room, and the same command goes on with what is done" if lacks_room else ""
        parser.error(printable(f"{error.filename}: {error.strerror}{kept}" if error.filename else error))
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
