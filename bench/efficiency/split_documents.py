"""Writes a corpus's documents into the two files of the experiment: every fiftieth document is held out."""

import pathlib


def split_documents(documents: list[str], output: pathlib.Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("held_out.txt", documents[::50]),
                         ("train.txt", [document for i, document in enumerate(documents) if i % 50])):
        (output / name).write_text("\n\n\n".join(chosen) + "\n", encoding="utf-8")
        print(f"{len(chosen)} documents in {name}")
