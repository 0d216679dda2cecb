"""Tokenizes the pieces of a corpus in several processes."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import re
import signal
import threading

from corpus_parts import Counts
from corpus_errors import CorpusError, TransferError
from token_windows import WINDOW_CHARACTERS

BATCH_CHARACTERS = 1 << 20


def batched(documents, characters):
    """Yields lists of documents with at least this many characters in total, except the last list. Empty documents are
    left out."""
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


class Work:
    """The work of a worker process. It is made before the fork, so that nothing has to be loaded again."""

    def __init__(self, tokenizer, eod, parts):
        self.tokenizer, self.eod, self.parts = tokenizer, eod, parts
        # GPT-2's unknown token is also its end-of-document token.
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent lets begun pieces finish

    def end_with_parent():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def call_worker(number, documents):
    return tokenize_piece(number, documents)


@contextlib.contextmanager
def worker_pool(work, processes):
    """Returns a pool of processes for tokenize_pieces. All are forked at once. This program must not have started a
    thread before, because a lock that a thread holds at the fork stays locked in the child."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process uses one core
    pool = concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), begin_worker, (work,))
    try:
        pool.submit(int).result()  # the first call forks
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def tokenize_pieces(pieces, pool, parts, most_running, progress):
    """Tokenizes all pieces that are not finished yet, and returns the number of all pieces. Each piece is a list of
    documents and the number of input bytes that they took. Shuts the pool down, so that no worker writes a part
    afterwards."""
    count, running = 0, {}

    def collect(most_left):
        while len(running) > most_left:
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                progress.add(running.pop(future), future.result(), is_new=True)

    try:
        for documents, size in pieces:
            path = parts.path(count)
            if path.exists():
                with open(path, "rb") as file:
                    counts = parts.read_counts(file)
                progress.add(size, counts, is_new=False)
            else:
                running[pool.submit(call_worker, count, documents)] = size
            count += 1
            collect(most_running)
        collect(0)
    except TransferError:
        collect(0)  # these pieces were read completely, so the next call need not tokenize them
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return count
