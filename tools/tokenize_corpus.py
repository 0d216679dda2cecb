#!/usr/bin/env python3
"""Tokenizes a corpus into a Megatron pair: token ids in PREFIX.bin, sequences and documents in PREFIX.idx. The
tokenizer is saved in the folder PREFIX.tokenizer, where `copus generate` and `copus convert` find it.

    tools/tokenize_corpus.py corpus.txt --tokenizer gpt2 --document-separator '\\n\\n' --output data/corpus
    tools/tokenize_corpus.py *.jsonl.gz --tokenizer my_tokenizer/tokenizer.json --eod-token '<eos>' --output data/corpus

Files ending in .jsonl, .ndjson or .json have one JSON object per line, with its text under --json-key. Files ending in
.parquet and folders of datasets.save_to_disk have a column of that name. All other files are text: one document, or
several separated by --document-separator. Text and JSONL may be compressed (.gz, .zst). Every document becomes one
sequence that ends with the end-of-document token. Names of special tokens in a document, such as <|endoftext|>, are
text unless --special-tokens says otherwise; the summary counts them. Truncation, padding and dropout of a tokenizer's
file are ignored; a note says where a tokenizer loses text.

Several processes tokenize the documents in pieces of a fixed size, each into a file of its own in PREFIX.parts. At the
end these files are joined. So neither the number of processes nor an interruption changes a byte: the same command
resumes after the finished parts. PREFIX.idx is written last, so a pair that has one is complete.

A file may be behind a URL that fsspec reads: https://, s3://, gs:// and others. If a transfer ends early or stalls for
a minute, the same command resumes.

--shard-tokens COUNT writes shards: the pairs PREFIX-00000-of-00004 and so on. They have the same documents in the same
order as the single pair. The first one has the tokenizer next to it, and the last one's .idx is written last.
"""

import argparse
import errno
import glob
import json
import os
import shutil
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from corpus_errors import RESUMES, CorpusError, SetupError, TransferError, printable
from corpus_parts import Parts
from corpus_progress import Progress
from corpus_readers import BadRecords, files_of, identity_of, notes_of, read_documents
from corpus_shards import refuse_existing_shards, shards_of, write_shards
from corpus_tokenizer import load_tokenizer, save_tokenizer
from corpus_workers import Work, batched, tokenize_pieces, worker_pool
from remote_files import corpus_input
from standard_streams import discard, open_standard_descriptors, tell

PIECE_CHARACTERS = 1 << 22


def refuse_existing(arguments):
    # Next to the parts, files without an .idx are from a call that was killed before its last step.
    is_interrupted = Path(f"{arguments.output}.parts").exists()
    for suffix in (".idx",) if is_interrupted else (".bin", ".idx", ".tokenizer", ".skipped"):
        if Path(f"{arguments.output}{suffix}").exists():
            raise CorpusError(f"{arguments.output}{suffix}: exists already; remove it or choose another --output")
    if arguments.shard_tokens:
        refuse_existing_shards(arguments.output, is_interrupted)


def end_token_of(tokenizer, arguments):
    token = arguments.eod_token or tokenizer.eos_token
    if token is None:
        raise CorpusError(
            f"the tokenizer {arguments.tokenizer} names no end-of-sequence token; give one by --eod-token")
    if token not in tokenizer.vocabulary:
        raise CorpusError(f"the token {token!r} is not in the vocabulary of {arguments.tokenizer}; see --eod-token")
    return token


def begin_parts(parts, arguments, tokenizer, eod):
    """Finds the input's files, opens the folder of their parts, and prints notes. Returns the bytes of the files."""
    files = [file for path in arguments.input for file in files_of(path)]
    identities = [identity_of(file) for file in files]
    parts.open({"input": identities, "tokenizer": tokenizer.fingerprint(), "eod": eod,
                "piece_characters": PIECE_CHARACTERS, "json_key": arguments.json_key,
                "document_separator": arguments.document_separator,
                "special_tokens": arguments.special_tokens, "on_bad_record": arguments.on_bad_record,
                "largest_document": arguments.largest_document, "shard_tokens": arguments.shard_tokens})
    for note in [*tokenizer.notes, *(note for file in files for note in notes_of(file))]:
        tell(f"note: {note}")
    return sum(size or 0 for _, size, _ in identities)


def tokenize(arguments):
    """Writes the pair or the shards. Returns what was written, and the lines of the summary."""
    refuse_existing(arguments)
    tokenizer = load_tokenizer(arguments.tokenizer, arguments.special_tokens == "text")
    eod_token = end_token_of(tokenizer, arguments)
    eod = tokenizer.vocabulary[eod_token]
    vocab_size = max(tokenizer.vocabulary.values()) + 1

    parts = Parts(arguments.output, vocab_size)
    skipped = Path(f"{arguments.output}.skipped")
    skips = arguments.on_bad_record == "skip"
    bad = BadRecords(int(arguments.largest_document * 2**20),
                     *([arguments.most_bad / 100, skipped] if skips else []))
    with worker_pool(Work(tokenizer, eod, parts), arguments.processes) as pool:
        progress = Progress(begin_parts(parts, arguments, tokenizer, eod))  # readers of URLs start threads
        try:
            # A few pieces are read ahead.
            count = tokenize_pieces(pieces_of(arguments, bad), pool, parts, arguments.processes + 2, progress)
            bad.finish()
            if count == 0:
                raise CorpusError("the input is empty: it holds no text")
        except CorpusError as error:
            can_continue = isinstance(error, TransferError) or (isinstance(error, SetupError) and parts.path(0).exists())
            if not can_continue:  # other input, or other options, will be tokenized anew
                shutil.rmtree(parts.folder)
                skipped.unlink(missing_ok=True)
            raise
    lengths = parts.lengths(count)
    shards = shards_of(arguments.output, lengths, arguments.shard_tokens)
    # A run looks for the tokenizer next to the first pair of its training data.
    save_tokenizer(tokenizer, eod_token, Path(f"{shards[0].prefix}.tokenizer"), parts.folder)
    write_shards(shards, lengths, parts, count)
    shutil.rmtree(parts.folder)
    progress.show(last=True)
    counts = progress.counts
    written = " to ".join(f"{prefix}.bin/.idx" for prefix in dict.fromkeys([shards[0].prefix, shards[-1].prefix]))
    lines = [f"{written}: {counts.documents} documents, {counts.tokens} tokens, {progress.seconds():.1f} s"]
    if bad.bad:
        lines.append(f"skipped: {bad.bad:,} of {bad.records:,} records are bad; {skipped} lists them")
    lines += remarks(counts, arguments, eod_token, tokenizer.unknown_token)
    train = arguments.output
    if arguments.shard_tokens:
        train = f"{glob.escape(arguments.output)}-*-of-{len(shards):05d}"
        if too_long := sum(length > arguments.shard_tokens for length in lengths):
            lines.append(f"shards: {too_long:,} documents have more than {arguments.shard_tokens:,} tokens; each is a "
                         "shard of its own")
    train = json.dumps(train, ensure_ascii=False)
    lines.append(f"train with: data.train = {train}, model.vocab_size = {vocab_size} (or more)")
    return written, lines


def pieces_of(arguments, bad):
    """Yields the input as lists of documents, and how many bytes of files were read for each."""
    read = before = 0

    def on_bytes(count):
        nonlocal read
        read += count

    documents = (document for path in arguments.input
                 for document in read_documents(path, arguments.json_key, arguments.document_separator, on_bytes, bad))
    for piece in batched(documents, PIECE_CHARACTERS):
        yield piece, read - before
        before = read


def remarks(counts, arguments, eod_token, unknown_token):
    """Lines of the summary about special contents of the texts."""
    if counts.special:
        what = ("they were written as text; --special-tokens token writes the tokens" if arguments.special_tokens == "text"
                else "they were written as tokens")
        yield f"special tokens: documents name them {counts.special:,} times; {what}"
    if counts.ends:
        yield f"ends: {counts.ends:,} times the end-of-document token {eod_token!r} stands inside a document"
    if counts.unknown:
        yield f"unknown: {counts.unknown:,} tokens are {unknown_token!r}: their text is not in the vocabulary"


def print_summary(written, lines):
    try:
        print(*lines, sep="\n", flush=True)
    except OSError as error:
        discard(sys.stdout)
        raise CorpusError(f"standard output: {error.strerror}; the summary is lost, and {written} are complete") from error


def percent(text):
    """A percentage from 0 to 100, with or without its sign."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"expected a percentage from 0 to 100, such as 0.1, and not {text!r}")
    return value


def positive(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, and not {text!r}")
    return value


def token_count(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if value < 1 or not value.is_integer():
        raise argparse.ArgumentTypeError(f"expected a whole number of tokens, 1 or more, as 1e8, and not {text!r}")
    return int(value)


def main():
    open_standard_descriptors()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=corpus_input, nargs="+", help="text, .jsonl (UTF-8; also .gz, .zst) or .parquet "
                        "files, URLs of such files, or folders of datasets.save_to_disk")
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
                        help="with --on-bad-record skip: stop if more than this share of all records is bad; default: 0.1")
    parser.add_argument("--largest-document", type=positive, default=1024, metavar="MIB",
                        help="the longest record or document of text and JSONL, uncompressed; a longer one counts as bad; "
                        "default: 1024. A process needs up to 400 MiB for documents of at most 8 MiB, and up to 11 bytes "
                        "for each byte above 8 MiB")
    parser.add_argument("--shard-tokens", type=token_count, metavar="COUNT",
                        help="write shards PREFIX-00000-of-00004.bin/.idx of at most COUNT tokens, such as 1e8, each of "
                        "whole documents; a longer document is a shard of its own")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), metavar="COUNT",
                        help="default: %(default)s, as many as there are cores")
    arguments = parser.parse_args()
    if arguments.processes < 1:
        parser.error("--processes: expected 1 or more")
    if "://" in arguments.output:
        parser.error("--output: expected a path on this machine, and no URL")
    arguments.document_separator = arguments.document_separator.replace("\\n", "\n").replace("\\t", "\t")
    try:
        print_summary(*tokenize(arguments))
    except CorpusError as error:
        parser.error(printable(error))  # exit code 2
    except OSError as error:
        lacks_room = error.errno in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT)
        kept = f"; make room, and {RESUMES}" if lacks_room else ""
        parser.error(printable(f"{error.filename}: {error.strerror}{kept}" if error.filename else error))
    except KeyboardInterrupt:
        print(f"\nstopped; {RESUMES}", file=sys.stderr)
        return 130
    except BrokenProcessPool:
        print(f"a process ended before its time, perhaps for want of memory; {RESUMES}, also with fewer --processes",
              file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
