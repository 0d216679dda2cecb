#!/usr/bin/env python3
"""Turns the dictd edition of WordNet into plain text: one document for each entry, its lines unwrapped. The edition
lists a definition under each of its synonyms. Only its first occurrence is kept, so that held-out text is never trained
on.

Usage: clean_wordnet.py DICTIONARY OUT_DIR
"""

import gzip
import pathlib
import re
import sys

from split_documents import split_documents


def main() -> None:
    text = gzip.open(sys.argv[1], "rt", encoding="utf-8", errors="replace").read()
    seen, documents = set(), []
    headword, senses = "", []

    def finish() -> None:
        definitions = [re.sub(r"\s*\[(syn|ant|also): .*", "", sense) for sense in senses]  # synonyms follow the definition
        fresh = [definition for definition in definitions if definition not in seen]
        seen.update(fresh)
        if headword and fresh:
            documents.append(headword + "\n" + "\n".join(fresh))

    for line in text.splitlines():
        if line and not line[0].isspace():
            finish()
            headword, senses = line.strip(), []
        elif line.strip():
            stripped = line.strip()
            begins = re.match(r"((n|v|adj|adv) )?(\d+: |: )", stripped)
            if begins:
                senses.append(stripped[begins.end():])
            elif senses:
                senses[-1] += " " + stripped
    finish()
    documents = [document for document in documents if "00-database" not in document]
    split_documents(documents, pathlib.Path(sys.argv[2]))


if __name__ == "__main__":
    main()
