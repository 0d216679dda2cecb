"""Joins the parts of a corpus into one pair, or into shards: pairs with a limited number of tokens."""

import os
import re
import typing
from array import array
from pathlib import Path

from corpus_errors import CorpusError
from pair_files import write_index, writing


class Shard(typing.NamedTuple):
    """The documents of a pair, from `begin` to before `end`."""
    prefix: str
    begin: int
    end: int


def shards_of(prefix, lengths, most_tokens):
    """Splits documents of these lengths into shards. A shard gets as many complete documents as fit into `most_tokens`
    tokens, but at least one. Without `most_tokens`, one pair holds all documents."""
    if most_tokens is None:
        return [Shard(prefix, 0, len(lengths))]
    begins, tokens = [0], 0
    for document, length in enumerate(lengths):
        if tokens and tokens + length > most_tokens:
            begins.append(document)
            tokens = 0
        tokens += length
    ends = [*begins[1:], len(lengths)]
    return [Shard(f"{prefix}-{number:05d}-of-{len(ends):05d}", begin, end)
            for number, (begin, end) in enumerate(zip(begins, ends))]


def refuse_existing_shards(prefix, is_interrupted):
    """Raises CorpusError if the shards exist already. Shards of an interrupted call lack the last index, which is
    written last, so they do not count."""
    folder, name = os.path.split(prefix)
    pattern = re.compile(re.escape(name) + r"-(\d{5,})-of-(\d{5,})\.(bin|idx|tokenizer)")
    for path in Path(folder).glob("*-of-*"):
        found = pattern.fullmatch(path.name)
        if found and (not is_interrupted or (found[3] == "idx" and int(found[1]) + 1 == int(found[2]))):
            raise CorpusError(f"{path}: exists already; remove the shards or choose another --output")


def write_shards(shards, lengths, parts, count):
    """Writes the pairs under temporary names until they are complete. A failure deletes the files with temporary
    names."""
    # The indices come last, since a pair with an .idx counts as complete.
    names = {Path(f"{shard.prefix}{suffix}.partial"): f"{shard.prefix}{suffix}"
             for suffix in (".bin", ".idx") for shard in shards}
    try:
        write_partial_shards(shards, lengths, parts, count)
        for partial, name in names.items():
            partial.rename(name)
    finally:
        for partial in names:
            partial.unlink(missing_ok=True)


def write_partial_shards(shards, lengths, parts, count):
    blocks, block = parts.id_blocks(count), b""
    for shard in shards:
        shard_lengths = lengths[shard.begin:shard.end]
        left = sum(shard_lengths) * array(parts.code).itemsize
        with writing(Path(f"{shard.prefix}.bin.partial")) as output:
            while left:
                block = block or memoryview(next(blocks))
                written = output.write(block[:left])
                block, left = block[written:], left - written
        write_index(Path(f"{shard.prefix}.idx.partial"), parts.code, shard_lengths)
