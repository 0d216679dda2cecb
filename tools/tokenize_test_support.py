"""What tests of tools/tokenize_corpus.py have in common. They skip (exit code 77) where tokenizers is missing."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
except ImportError as missing:
    print(f"SKIPPED: the tests of the tokenizing tool need the Python package tokenizers ({missing})")
    sys.exit(77)

TOOL = Path(__file__).with_name("tokenize_corpus.py")
DOCUMENTS = 3 * [
    "The quick brown fox jumps over the lazy dog.", "A na\u00efve caf\u00e9 \u2013 \U0001F600!", "One\nmore line."]
EOS = "<|end|>"


def program_after(code):
    """The tool as arguments of Python, after some code."""
    return "-c", f"import sys; sys.path.insert(0, {str(TOOL.parent)!r})\n{code}\nimport tokenize_corpus; " \
        "sys.exit(tokenize_corpus.main())"


class TokenizeTest(unittest.TestCase):
    """Runs the tool in a folder of its own, with a tokenizer of 300 tokens."""
    print_documents = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[EOS], show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        self.tokenizer.train_from_iterator(DOCUMENTS, trainer)
        self.tokenizer.save(str(self.folder / "tokenizer.json"))
        self.expected = [self.tokenizer.encode(text).ids + [self.tokenizer.token_to_id(EOS)] for text in DOCUMENTS]

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def command(self, *arguments, output="out", program=(TOOL,)):
        return [str(part) for part in [sys.executable, *program, "--output", self.folder / output, *arguments]]

    def run_tool(self, *arguments, output="out", program=(TOOL,), **options):
        command = self.command(*arguments, output=output, program=program)
        return subprocess.run(command, capture_output=True, text=True, **options)

    def tokenize(self, *arguments):
        result = self.run_tool(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)

    def pair(self, output="out"):
        return [(self.folder / f"{output}{suffix}").read_bytes() for suffix in (".bin", ".idx")]

    def remove_output(self):
        for suffix in (".bin", ".idx"):
            (self.folder / f"out{suffix}").unlink()
        (self.folder / "out.skipped").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "out.tokenizer")

    def read_back(self, vocab_size, output="out"):
        command = [self.print_documents, str(self.folder / output), str(vocab_size)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [[int(token) for token in line.split()] for line in output.splitlines()]

    def json_tokenizer(self):
        return ["--tokenizer", self.folder / "tokenizer.json", "--eod-token", EOS]

    def refused(self, *arguments):
        """The message of a run that ends with exit code 2 and leaves nothing behind."""
        result = self.run_tool(*arguments)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertEqual([path.name for path in self.folder.glob("out*")], [])
        return result.stderr


def run_tests():
    """Runs the tests of the program that calls this, whose last argument is the path of print_documents."""
    TokenizeTest.print_documents = sys.argv.pop()
    unittest.main()
