#!/usr/bin/env python3
"""Turns the dictd edition of the Collaborative International Dictionary of English into plain English text.

Reads the dictionary (gzip or dictzip compressed, or plain) and writes train.txt and held_out.txt: one document per
entry, documents end at "\\n\\n\\n". A document is the headword with its part of speech, then a line for every sense and
for every literary quotation. Etymologies, pronunciation, usage tags, source tags and markup are dropped, line wrapping
is undone, and letters that the ASCII edition spells in brackets (['e], [ae]) become the letters themselves. Entries
that hold no sentence ("See {Lamantin}.") are left out. Needs the standard library only.
"""

import argparse
import gzip
import os
import re
import sys
import unicodedata
import zlib
from pathlib import Path

DOCUMENT_SEPARATOR = "\n\n\n"
HELD_OUT_INTERVAL = 100
HELD_OUT_MAX_BYTES = 400_000

# A document needs this many words after its headword to be worth reading.
MIN_WORDS = 5

# The edition wraps lines at this column: a line with room for the next line's first word was ended on purpose.
WRAP_COLUMN = 64

# Quotations are indented deeper than definitions (3, or 6 under a number).
QUOTATION_INDENT = 9

PARTS_OF_SPEECH = [
    (r"n\. pl\.", "plural noun"),
    (r"prop\. n\.", "proper noun"),
    (r"n\.", "noun"),
    (r"v\. ?t\. (?:&|and) ?i\.", "verb"),
    (r"v\. ?[ti]\.", "verb"),
    (r"v\.", "verb"),
    (r"p\. p\. & a\.", "adjective"),
    (r"(?:imp\. & )?p\. p\.", "participle"),
    (r"p\. (?:pr|a)\.", "adjective"),
    (r"vb\. n\.", "noun"),
    (r"(?:a|adj)\.", "adjective"),
    (r"adv\.", "adverb"),
    (r"prep\.", "preposition"),
    (r"conj\.", "conjunction"),
    (r"pron\.", "pronoun"),
    (r"interj\.", "interjection"),
]

AUTHORS = {
    "Shak.": "Shakespeare",
    "Beau. & Fl.": "Beaumont and Fletcher",
    "Jer. Taylor.": "Jeremy Taylor",
    "Sir W. Scott.": "Walter Scott",
    "Sir T. Browne.": "Thomas Browne",
    "Sir T. More.": "Thomas More",
    "B. Jonson.": "Ben Jonson",
    "J. Taylor.": "Jeremy Taylor",
    "Bp. Hall.": "Bishop Hall",
}

ACCENTS = {"'": "\u0301", "`": "\u0300", '"': "\u0308", "^": "\u0302", "=": "\u0304", "~": "\u0303", ",": "\u0327"}
SYMBOLS = {
    "ae": "\u00e6", "AE": "\u00c6", "oe": "\u0153", "OE": "\u0152", "eth": "\u00f0", "thorn": "\u00fe",
    "deg": "\u00b0", "pound": "\u00a3", "sect": "\u00a7", "frac12": "1/2", "frac14": "1/4", "frac34": "3/4",
    "frac13": "1/3", "frac23": "2/3", "frac18": "1/8", "times": "\u00d7", "divide": "\u00f7", "minus": "-", "ng": "ng",
    "th": "th", "root": "", "hand": "", "prime": "'", "dprime": '"', "min": "'", "sec": '"',
}

SOURCE_TAG = re.compile(
    r"\[(?:1913 Webster|Webster|WordNet|PJC|Century|AS\b|RP\b|MW\b|Wordnet|RH\b|LG\b|\w+ Suppl|AHD|RHUD|Webster's|"
    r"Encyc|Britannica|JPEG)[^\]]*\]?")
ACCENTED_LETTER = re.compile(r"\[([A-Za-z])([\^=\"'`~,])\]|\[([\^=\"'`~,])([A-Za-z])\]")
NAMED_SYMBOL = re.compile(r"\[(" + "|".join(SYMBOLS) + r")\]")
BRACKETS = re.compile(r"\[([^\[\]]*)\]")
PRONUNCIATION = re.compile(r"\\[^\\]*\\")
UNKNOWN_CHARACTER = re.compile(r"\?\w|\w\?\w|\?\?|\uFFFD")
FIELD_LABEL = re.compile(r"^\((?:[A-Z][\w.&' ]*?\.?(?:, |; | & |and )?)+\)\s*")
SENSE_NUMBER = re.compile(r"^(?:\d{1,3}\.|\([a-z]\))\s+")
ATTRIBUTION = re.compile(r"\s*-- ?([A-Z(\d][^-]{1,50}?)$")
CROSS_REFERENCE = re.compile(r"(?:^|(?<=[.;!?,]) ?)(?:See(?: also)?|Cf\.?|Compare)\s(?:Illust\. of |under )?[A-Z][^.]*"
                             r"(?:, (?:n|a|v\. [ti]|adv|under [^.]*))?\.?$")
# The field of a sense: "(Zool.)", "(Bot. & Med.)". Other text in parentheses is part of the sentence.
FIELD_ABBREVIATION = re.compile(r"\s*\([A-Z][\w.&;, ]{0,30}\.\)")
SENSE_LETTER = re.compile(r"(?<=[.;,:] )\([a-z]\)\s+")
ODD_CHARACTERS = re.compile(r"[|^_~\[\]<>#@*=+\\]|----")
GRAMMAR_LABEL = re.compile(r"^(?:pl|Fig|Hence|fig|Specifically|Specif)\.?:?\s+(?=[A-Z])")


def compose(base, accent):
    """The precomposed letter, or the bare letter where Unicode has none."""
    letter = unicodedata.normalize("NFC", base + ACCENTS[accent])
    return letter if len(letter) == 1 and ord(letter) < 0x100 else base


def restore_letters(text):
    """Replaces the ASCII edition's bracketed letters and symbols. Phonetic marks fall back to the bare letter."""
    text = ACCENTED_LETTER.sub(lambda m: compose(m[1] or m[4], m[2] or m[3]), text)
    text = NAMED_SYMBOL.sub(lambda m: SYMBOLS[m[1]], text)
    text = re.sub(r"\[([a-zA-Z])[^\w\s\].]{1,2}\]|\[[^\w\s\]]{1,2}([a-zA-Z])\]", r"\1\2", text)
    return re.sub(r"\[([a-z])(?:mac|um|cr|acute|hook|sl)\]", r"\1", text)


def drop_brackets(text):
    """Drops tags and etymologies ([Obs.], [L. ad + fatuus]); keeps plain words that an editor put in brackets."""
    def keep_words(match):
        inner = match[1]
        return inner if re.fullmatch(r"[a-z][a-z ,']+", inner) else ""

    while True:
        shorter = BRACKETS.sub(keep_words, text)
        if shorter == text:
            return text
        text = shorter


def tidy(text):
    """One paragraph of clean prose: no markup, single spaces, no space before punctuation."""
    text = drop_brackets(restore_letters(text))
    text = re.sub(r"[{}\\]", "", text)
    text = re.sub(r"\s*\((?:\?|[^()]*\?[^()]*)\)", "", text)
    text = re.sub(r"``|''", '"', text).replace("`", "'").replace("\u2019", "'")
    text = re.sub(r"(?:\. ){2,}\.|\.{3,}", "...", text)
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r" ([,;:.!?])(?!\.\.)", r"\1", text)
    text = re.sub(r"([.;,])(?:\s*[;,.])+(?!\.)", r"\1", text) if "..." not in text else text
    return text.strip(" ,;")


def is_unreadable(text):
    """Whether a character is unknown ("imperial ?way") or belongs to a formula, a table or Greek in ASCII."""
    return UNKNOWN_CHARACTER.search(text) or ODD_CHARACTERS.search(text)


def is_wrapped(line, next_line):
    """Whether `line` was broken because the first word of `next_line` did not fit."""
    return len(line) + 1 + len(next_line.split(None, 1)[0]) > WRAP_COLUMN


def split_head(lines):
    """Splits the first paragraph of an entry into head (word, grammar, etymology) and the definition after it."""
    head = lines[0]
    used = 1
    while used < len(lines):
        stripped = PRONUNCIATION.sub("", head)
        balanced = stripped.count("[") <= stripped.count("]") and stripped.count("(") <= stripped.count(")")
        if balanced and not is_wrapped(lines[used - 1], lines[used]):
            break
        if SENSE_NUMBER.match(lines[used].strip()) and balanced:
            break
        head += " " + lines[used].strip()
        used += 1
    return head, lines[used:]


def read_head(head):
    """Headword and part of speech ("" where unknown) of a head."""
    head = drop_brackets(restore_letters(PRONUNCIATION.sub(",", head)))
    head = re.sub(r"\([^()]*\)", "", head)
    word, _, grammar = re.sub(r"(?:\s*,)+", ",", head).partition(",")
    word = re.sub(r"[{}\"]", "", re.sub(r"\s+", " ", word)).strip(" .")
    first_position, part = len(grammar), ""
    for pattern, name in PARTS_OF_SPEECH:
        match = re.search(r"(?:^|[\s,&])" + pattern, grammar)
        if match and match.start() < first_position:
            first_position, part = match.start(), name
    return word, part


def paragraphs(lines):
    """Cuts an entry's lines at blank lines and at source tags; a paragraph keeps its lines with their indentation."""
    current = []
    for line in lines:
        tag = SOURCE_TAG.match(line.strip())
        if tag or not line.strip():
            if current:
                yield current
            current = []
        else:
            current.append(line)
    if current:
        yield current


def indent_of(line):
    return len(line) - len(line.lstrip())


def clean_quotation(text):
    author = ATTRIBUTION.search(text)
    if author:
        text = text[: author.start()]
    text = tidy(text)
    if not text or is_unreadable(text):
        return ""
    name = tidy(author[1]) if author else ""
    name = AUTHORS.get(name, re.sub(r"^Bp\. ", "Bishop ", name).rstrip("."))
    if '"' not in text:
        text = f'"{text}"'
    return f"{text} -- {name}" if name else text


def clean_definition(text):
    is_phrase = text.startswith("{")
    text = tidy(SENSE_NUMBER.sub("", text.strip()))
    text = SENSE_NUMBER.sub("", text)
    text = re.sub(r"^(?:Note|Usage):\s*", "", text)
    text = re.sub(r"^Syn(?:onyms)?[.:]?\s*(?:--)?\s*", "Synonyms: ", text)
    text = re.sub(r"^-- ", "", text)
    while True:
        shorter = GRAMMAR_LABEL.sub("", FIELD_LABEL.sub("", text))
        if shorter == text:
            break
        text = shorter
    text = ATTRIBUTION.sub("", text)
    text = re.sub(r"(?<=[.!?]) -- [a-z].*$", "", text)
    text = SENSE_LETTER.sub("", FIELD_ABBREVIATION.sub("", text))
    text = CROSS_REFERENCE.sub("", text).strip()
    text = re.sub(r" (?:--|[;,:])$", "", text).strip()
    if not re.search(r"[A-Za-z]{2}", text) or is_unreadable(text) or re.fullmatch(r"Synonyms:\W*", text):
        return ""
    if is_phrase and len(text.split()) < 4:
        return ""
    text = text[0].upper() + text[1:]
    return text if text[-1] in '.!?"' else text.rstrip(",;:") + "."


def clean_entry(lines):
    """One document: "Affect, verb.\\nTo act upon; ..." or "" where nothing readable is left."""
    first = True
    result = []
    head = ""
    for paragraph in paragraphs(lines):
        if first:
            head, paragraph = split_head(paragraph)
            first = False
            if not paragraph:
                continue
        # A paragraph may run from a definition straight into another, each starting with its number.
        pieces = [[paragraph[0]]]
        for previous, line in zip(paragraph, paragraph[1:]):
            if SENSE_NUMBER.match(line.strip()) and not is_wrapped(previous, line):
                pieces.append([line])
            else:
                pieces[-1].append(line)
        for piece in pieces:
            text = " ".join(line.strip() for line in piece)
            is_quotation = indent_of(piece[0]) >= QUOTATION_INDENT and not SENSE_NUMBER.match(text)
            text = clean_quotation(text) if is_quotation else clean_definition(text)
            if text:
                result.append(text)
    word, part = read_head(head)
    if not result or not re.search(r"[A-Za-z]", word) or sum(len(line.split()) for line in result) < MIN_WORDS:
        return ""
    return "\n".join([f"{word}, {part}." if part else f"{word}."] + result)


def split_entries(text):
    """Yields the lines of every entry: a headword starts at the left margin of a line that follows a blank one."""
    entry = []
    after_blank = True
    for line in text.split("\n"):
        line = line.rstrip()
        starts = bool(line) and line[0] not in " [" and after_blank and "\\" in line
        if starts:
            if entry:
                yield entry
            entry = [line]
        elif entry:
            entry.append(line)
        after_blank = not line
    if entry:
        yield entry


def write_atomically(path, documents):
    temporary = path.with_name(path.name + ".partial")
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            for document in documents:
                file.write(document + DOCUMENT_SEPARATOR)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_corpus(documents, folder):
    """Writes train.txt and held_out.txt."""
    train, held_out, held_out_bytes = [], [], 0
    for index, document in enumerate(documents):
        size = len(document.encode()) + len(DOCUMENT_SEPARATOR)
        if index % HELD_OUT_INTERVAL == HELD_OUT_INTERVAL - 1 and held_out_bytes + size <= HELD_OUT_MAX_BYTES:
            held_out.append(document)
            held_out_bytes += size
        else:
            train.append(document)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "held_out.txt", held_out)
    write_atomically(folder / "train.txt", train)
    print(f"{len(train)} documents in train.txt, {len(held_out)} in held_out.txt")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dictionary", type=Path, help="gcide.dict.dz, or the same uncompressed")
    parser.add_argument("output", type=Path, help="directory for train.txt and held_out.txt")
    arguments = parser.parse_args()
    if not arguments.dictionary.is_file():
        parser.error(f"{arguments.dictionary}: no such file; expected the dictionary gcide.dict.dz")
    try:
        raw = arguments.dictionary.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("cp1252", errors="replace")
    except (OSError, EOFError, zlib.error) as error:
        parser.error(f"{arguments.dictionary}: cannot be read or decompressed: {error}")

    documents = [document for document in map(clean_entry, split_entries(text)) if document]
    if not documents:
        parser.error(f"{arguments.dictionary}: no entries found; expected the dictd edition of GCIDE")
    try:
        write_corpus(documents, arguments.output)
    except OSError as error:
        parser.error(f"{error.filename or arguments.output}: cannot be written: {error.strerror}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
