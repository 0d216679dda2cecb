"""Collects the commands in README.md and docs/, and the output that the pages show.

Commands are the lines of blocks of `sh`, and texts in backticks that begin with build/copus. A block of `text` that
follows a block of `sh`, with only empty lines between them, is the output of that block's last command.
"""

import pathlib
import re
import shlex
from typing import Iterator, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Command(NamedTuple):
    page: str
    line: int
    text: str  # without trailing comments, with continued lines joined

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


class Block(NamedTuple):
    language: str
    first: int  # the line after the fence
    lines: list[str]
    before: str  # the text between the previous block and this one


def without_comment(line: str) -> str:
    return re.sub(r"(^|\s)# .*", "", line).strip()


def blocks_of(text: str) -> Iterator[Block]:
    lines, block, between = text.splitlines(), None, []
    for number, line in enumerate(lines, start=1):
        fence = re.match(r" *```(\w*)", line)
        if fence and block is None:
            block = Block(fence[1], number + 1, [], "\n".join(between))
        elif fence:
            yield block
            block, between = None, []
        else:
            (between if block is None else block.lines).append(line)


def commands_of_block(page: str, first: int, block: list[str]) -> Iterator[Command]:
    if block[0].startswith("#!"):
        yield Command(page, first, "\n".join(block))
        return
    lines = enumerate(block, start=first)
    for number, line in lines:
        text = without_comment(line)
        while text.endswith("\\"):
            text = f"{text[:-1].strip()} {without_comment(next(lines)[1])}"
        until = re.search(r"<<'(\w+)'", text)
        end = until[1] if until else "done" if text.startswith("until ") else None
        while end and not text.endswith(f"\n{end}"):
            text += "\n" + next(lines)[1]
        if text:
            yield Command(page, number, text)


def commands_of(page: str, text: str) -> list[Command]:
    blocks = list(blocks_of(text))
    found = [command for block in blocks if block.language == "sh"
             for command in commands_of_block(page, block.first, block.lines)]
    in_blocks = {number for block in blocks for number in range(block.first, block.first + len(block.lines))}
    for number, line in enumerate(text.splitlines(), start=1):
        if number not in in_blocks:
            found += [Command(page, number, each) for each in re.findall(r"`(build/copus \w[^`]*)`", line)]
    return sorted(found, key=lambda command: command.line)


def outputs_of(page: str, text: str) -> list[tuple[Command, list[str]]]:
    """The commands whose output a page shows, with its lines."""
    blocks, shown = list(blocks_of(text)), []
    for block, output in zip(blocks, blocks[1:]):
        if (block.language, output.language) == ("sh", "text") and not output.before.strip():
            shown.append((list(commands_of_block(page, block.first, block.lines))[-1], output.lines))
    return shown


def saved_files(text: str) -> dict[str, str]:
    """The files that a page shows under "Save this as `NAME`"."""
    blocks = ((re.findall(r"Save this as `([\w.-]+)`:\s*$", block.before), block) for block in blocks_of(text))
    return {names[0]: "\n".join(block.lines) + "\n" for names, block in blocks if names}


def prose_of(text: str) -> str:
    return "\n".join(block for number, block in enumerate(re.split(r"(?m)^ *```.*\n", text)) if number % 2 == 0)


def stand_ins(text: str) -> set[str]:
    """The names that a page explains by "stands for": `A` stands for a file of yours, `B` for another."""
    sentences = re.split(r"(?<=[.:])\s+|\n\n", prose_of(text))
    return {name for sentence in sentences if re.search(r"\bstands? for\b", sentence)
            for name in re.findall(r"`([\w./-]+)`", sentence)}


def page_text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def pages() -> list[str]:
    """README.md first, then the other pages in the order in which it lists them."""
    listed = re.findall(r"\((docs/[\w-]+\.md)\)", page_text("README.md").split("## Where to read next")[1])
    others = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md"))
    return list(dict.fromkeys(["README.md", *listed, *others]))


def documented_commands() -> dict[str, list[Command]]:
    """The commands by page, in the order of pages()."""
    found = {page: commands_of(page, page_text(page)) for page in pages()}
    return {page: commands for page, commands in found.items() if commands}


NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def is_near(one: str, other: str) -> bool:
    """Whether two printed numbers have the same number of decimals and differ by at most one in the last digit, because
    another processor may round differently. Counts below 100, such as degrees of parallelism, must be equal."""
    decimals = {len(number.partition(".")[2]) for number in (one, other)}
    values = [float(number.replace(",", "")) for number in (one, other)]
    if decimals == {0} and min(values) < 100:
        return one == other
    return len(decimals) == 1 and abs(values[0] - values[1]) * 10 ** decimals.pop() < 1.5


def is_alike(one: str, other: str) -> bool:
    """Whether two texts are equal, including spaces, except for numbers that are near."""
    numbers = [NUMBER.findall(text) for text in (one, other)]
    return NUMBER.split(one) == NUMBER.split(other) and all(map(is_near, *numbers))


# Options whose value is a file or folder that the command writes.
WRITTEN_BY_OPTION = {"--run-dir", "--to", "--output", "--machine", "--write", "--plot", "--out", "--output_path", ">"}
# Options of our own programs whose value is a file or folder that the command reads.
READ_BY_OPTION = {"--checkpoint", "--config", "--data", "--from", "--model", "--profile", "--tokenizer"}
FILE_NAME = re.compile(r"(?!\.venv/|build/|/)[\w.-]*(?:/[\w.-]+)+|[\w.-]+\.(?:toml|json|jsonl|txt|html|svg|yaml)"
                       r"|[A-Z]{3,}(?:\.[a-z]+)?")


def words_of(command: str) -> list[str]:
    words = shlex.split(command.split("\n")[0].split("<<")[0].replace(";", " "), comments=False)
    return [word for word in words if not re.match(r"[A-Z_]+=|\$", word)]


def files_written(command: str) -> set[str]:
    words = words_of(command)
    made = {value for option, value in zip(words, words[1:]) if option in WRITTEN_BY_OPTION}
    if words[:1] in (["scripts/fetch-corpus"], ["mkdir"], ["git"]):
        made.add(words[-1])
    if words[1:2] == ["compare"]:
        made.add(f"runs/{pathlib.PurePosixPath(words[2]).stem}")
    body = command.split("\n", 1)[1:]
    return made | {name for text in body for name in re.findall(r'(?:Path|save)\("([\w./-]+)"\)', text)}


def files_named(command: str) -> set[str]:
    """The files and folders that a command reads or writes, judged by how its words look."""
    words = words_of(command)
    values = [re.sub(r"^[\w.-]+=", "", word) for word in words]
    is_ours = any(re.match(r"build/copus$|tools/", word) for word in words)
    read = {value for option, value in zip(words, words[1:]) if is_ours and option in READ_BY_OPTION}
    shipped = {value for value in read if list(ROOT.glob(f"configs/*/{value}.*"))}
    return (read | {value for value in values if FILE_NAME.fullmatch(value)}) - shipped
