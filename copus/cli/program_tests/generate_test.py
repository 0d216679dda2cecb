"""Tests `copus generate` with a model that uses a tokenizer. The test trains a tokenizer, tokenizes the corpus with it,
and compares input and output text with its own encoding and decoding.

Usage: generate_test.py PATH_TO_COPUS [unittest options]. Exits with 77, which CTest takes for skipped, if the clone's
Python lacks the package tokenizers.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

from program_test_support import MODEL, ROOT, RUN, ProgramTest

PYTHON = str(ROOT / ".venv" / "bin" / "python")
END = "<|end|>"
TRAIN_TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train([sys.argv[1]], trainers.BpeTrainer(vocab_size=300, special_tokens=[sys.argv[2]], show_progress=False,
                                                   initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
tokenizer.save("tokenizer.json")
"""
# As in SentencePiece tokenizers: characters that are in no other token are spelled by bytes.
MAKE_BYTE_FALLBACK = """
import sys
from tokenizers import Tokenizer, decoders, models, normalizers
tokens = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)] + list("\u2581aehkstny")
tokens += [f"\u2581w{i}" for i in range(299 - len(tokens))]
vocabulary = {token: i for i, token in enumerate([sys.argv[1]] + tokens)}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
tokenizer.add_special_tokens([sys.argv[1]])
tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
tokenizer.save("tokenizer.json")
"""
# Each byte that is not UTF-8 becomes one replacement character, unless the bytes before it complete a character.
DECODE_WITH_BYTES = """
import json, re, sys
from tokenizers import Tokenizer
tokenizer, text, run = Tokenizer.from_file("tokenizer.json"), "", b""
for token in [*map(int, sys.argv[1].split()), None]:
    name = None if token is None else tokenizer.id_to_token(token)
    if name and re.fullmatch("<0x..>", name):
        run += bytes([int(name[3:5], 16)])
        continue
    try:
        text += run.decode()
    except UnicodeDecodeError as error:
        text += run[:error.start].decode() + (len(run) - error.start) * "\ufffd"
    run, text = b"", text + (name or "").replace("\u2581", " ")
print(json.dumps(text.removeprefix(" ")))
"""
ENCODE = """
import sys
from tokenizers import Tokenizer
print(*Tokenizer.from_file("tokenizer.json").encode(sys.argv[1]).ids)
"""
DECODE = """
import sys
from tokenizers import Tokenizer
print(Tokenizer.from_file("tokenizer.json").decode([int(token) for token in sys.argv[1].split()]))
"""
# Letters of many scripts and further symbols: characters of one to four bytes.
CORPUS = "".join(f"line {i}: na\u00efve caf\u00e9 \u2013 the sea \u6d77 and the sky \U0001F600 {i * i}\n"
                 for i in range(400))
PROMPT = "the sea \u6d77 "
BYTES_PROMPT = "the sky \u6d77\u6d77 \U0001F600 caf\u00e9 "


def with_newlines(text):
    """Converts line ends as reading the program's output does."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


class Generate(ProgramTest):
    def setUp(self):
        super().setUp()
        self.write("corpus.txt", CORPUS)
        self.python(TRAIN_TOKENIZER, "corpus.txt", END)
        self.tokenize("pair")
        model = MODEL.replace("vocab_size = 256", "vocab_size = 300")
        run = RUN.format(steps=2, checkpoint_interval=0)
        self.write("run.toml", model + run.replace('"corpus.txt"', '[{ path = "pair", weight = 2 }]'))
        self.hint = self.assert_done("train", "run.toml", "--run-dir", "r").stdout.splitlines()[-1]

    def python(self, program, *arguments):
        command = [PYTHON, "-c", program, *arguments]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout

    def tokenize(self, output):
        command = [PYTHON, ROOT / "tools" / "tokenize_corpus.py", "corpus.txt", "--document-separator", "\\n",
                   "--tokenizer", "tokenizer.json", "--eod-token", END, "--output", output]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    def generate(self, *arguments, checkpoint="r", tokens="30", temperature="9"):
        """The output of a model that has learned next to nothing, so that any token may follow any other."""
        options = ["--checkpoint", checkpoint, "--tokens", tokens, "--temperature", temperature]
        return self.assert_done("generate", *options, *arguments).stdout

    def test_text_is_that_of_the_tokens(self):
        ids = self.python(ENCODE, PROMPT).strip()
        ends = 0
        for seed in ("1", "2", "3"):
            tokens = self.generate("--ids", "--prompt", ids, "--seed", seed, tokens="200").split()
            if "0" in tokens:  # the end of the document, which only a tokenizer knows
                ends += 1
                tokens = tokens[:tokens.index("0")]
            text = self.generate("--prompt", PROMPT, "--seed", seed, tokens="200")
            self.assertTrue(text.startswith(PROMPT), text)
            self.assertEqual(text, self.python(DECODE, " ".join(tokens)))
        self.assertGreater(ends, 0, "with other seeds documents end")

    def test_bytes_that_stand_for_characters(self):
        self.python(MAKE_BYTE_FALLBACK, END)
        shutil.copy(self.folder / "tokenizer.json", self.folder / "pair.tokenizer")
        ids = self.python(ENCODE, BYTES_PROMPT).strip()
        for seed in ("1", "2"):
            tokens = self.generate("--ids", "--prompt", ids, "--seed", seed, tokens="200")
            tokens = tokens.split(" 0 ")[0]
            text = self.generate("--prompt", BYTES_PROMPT, "--seed", seed, tokens="200")
            self.assertTrue(text.startswith(BYTES_PROMPT), text)
            self.assertEqual(text, with_newlines(json.loads(self.python(DECODE_WITH_BYTES, tokens))) + "\n")
            self.assertIn("\ufffd", text)

    def test_without_a_prompt_a_document_begins(self):
        self.assertNotIn(END, self.generate())
        self.assertEqual(self.generate("--seed", "5"), self.generate("--seed", "5", "--prompt", END))

    def test_the_hint_at_the_end_of_a_run_works(self):
        self.assertTrue(self.hint.endswith("copus generate --checkpoint r"), self.hint)
        self.assert_done(*self.hint.split()[-3:])
        shutil.rmtree(self.folder / "pair.tokenizer")
        output = self.assert_done("train", "run.toml", "--run-dir", "r2").stdout
        self.assertIn("--checkpoint r2 --tokenizer DIR, with the folder of your tokenizer", output)
        self.assertTrue(self.generate("--tokenizer", "tokenizer.json", "--prompt", PROMPT).startswith(PROMPT))

    def test_an_export_takes_the_tokenizer_along(self):
        self.assertIn("Copied from pair.tokenizer: tokenizer.json, tokenizer_config.json.",
                      self.assert_done("convert", "--from", "r", "--to", "hf").stdout)
        shutil.rmtree(self.folder / "pair.tokenizer")
        written = self.generate("--prompt", PROMPT, checkpoint="hf", tokens="10")
        self.assertEqual(written, self.generate("--tokenizer", "hf", "--prompt", PROMPT, tokens="10"))
        run = (self.folder / "run.toml").read_text()
        self.write("again.toml", "[model]\ninit_from = \"hf\"\n" + run[run.index("[data]"):])
        self.assert_done("train", "again.toml", "--run-dir", "r2")
        self.assertTrue(self.generate("--prompt", PROMPT, checkpoint="r2").startswith(PROMPT))

    def test_a_model_whose_tokenizer_is_in_other_files_takes_that_of_the_data(self):
        self.assert_done("convert", "--from", "r", "--to", "hf")
        (self.folder / "hf" / "tokenizer.json").rename(self.folder / "hf" / "tokenizer.model")
        run = (self.folder / "run.toml").read_text()
        self.write("again.toml", "[model]\ninit_from = \"hf\"\n" + run[run.index("[data]"):])
        hint = self.assert_done("train", "again.toml", "--run-dir", "r2").stdout.splitlines()[-1]
        self.assertTrue(hint.endswith("copus generate --checkpoint r2"), hint)
        self.assertTrue(self.generate("--prompt", PROMPT, checkpoint="r2").startswith(PROMPT))
        shutil.rmtree(self.folder / "pair.tokenizer")
        output = self.assert_done("train", "again.toml", "--run-dir", "r3").stdout
        self.assertIn("--checkpoint r3 --tokenizer DIR, with the folder of your tokenizer", output)

    def refused(self, *arguments, says, **options):
        self.assert_refused("generate", "--checkpoint", "r", *arguments, says=says, leaves_run_dir=True, **options)

    def test_mistakes(self):
        self.refused("--ids", "--prompt", "the sea", says=["'the' is no token id", "0 to 299"])
        self.refused("--ids", says=["--prompt: give what to begin with"])
        self.refused("--ids", "--tokenizer", "pair.tokenizer", says=["--ids", "does not go together", "--tokenizer"])
        self.refused("--tokenizer", "r", says=["no r/tokenizer.json", "save_pretrained"])
        (self.folder / "broken").mkdir()
        self.write("broken/tokenizer.json", "{}")
        self.refused("--tokenizer", "broken", says=["broken/tokenizer.json is not a file of Hugging Face's tokenizers"])
        words = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
                 "model": {"type": "WordLevel", "vocab": {"the": 0, "sea": 300}, "unk_token": "the"}}
        self.write("broken/tokenizer.json", json.dumps(words))
        self.refused("--tokenizer", "broken", "--prompt", "the sea", says=["token 300", "--tokenizer"])
        self.refused("--tokenizer", "broken", says=["--prompt: give what to begin with"])
        self.write("broken/tokenizer_config.json", "{")
        self.refused("--tokenizer", "broken", says=["tokenizer_config.json beside it is damaged"])
        shutil.rmtree(self.folder / "pair.tokenizer")
        self.refused("--prompt", "the sea", says=["tokens of r/checkpoints", "not bytes", "--tokenizer DIR", "--ids"])

    def test_a_missing_package_is_told_with_each_python(self):
        self.write("tokenizers.py", "raise ImportError('there is none')")
        environment = os.environ | {"PYTHONPATH": str(self.folder)}
        self.refused("--prompt", "the sea", env=environment,
                     says=["python3: there is none", "pip install tokenizers", "--ids"])
        environment["PATH"] = str(self.folder)
        self.refused("--prompt", "the sea", env=environment, says=["python3: No such file", "pip install tokenizers"])


if __name__ == "__main__":
    has_package = pathlib.Path(PYTHON).exists() and not subprocess.run(
        [PYTHON, "-c", "import tokenizers"], stderr=subprocess.DEVNULL).returncode
    if not has_package:
        print("skipped: .venv has no Python package tokenizers")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
