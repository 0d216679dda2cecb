"""Loads a Hugging Face tokenizer for a corpus, without truncation, padding and dropout, and saves it next to the
corpus. Notes say where the tokenizer loses text.
"""

import hashlib
import json
import shutil
from pathlib import Path

from corpus_errors import RESUMES, CorpusError, SetupError
from token_windows import encode_long


def fingerprint(text):
    return hashlib.sha256(text.encode()).hexdigest()


# Normalizers and pre-tokenizers after which a text can be reconstructed.
LOSSLESS = ("Prepend", "ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "FixedLength")
BLANK_MARK = "\u2581"  # what SentencePiece writes in place of a blank

# A text with many kinds of characters. A pattern that splits texts must drop none of them.
SAMPLE = "It's 12.5 \u00e9\u0301 \u4e2d\u6587 \U0001F600\u200d_\t\r\n\n  <|x|> \u0000\x7f\u00a0\ufffd\U0010fffd "
RARE = "\U0010fffd"  # a character that hardly any vocabulary has


def leaves_out(split):
    """Whether a pre-tokenizer that keeps only the matches of its pattern drops some part of a text."""
    from tokenizers import Regex, pre_tokenizers
    pattern = split["pattern"]
    cut = pre_tokenizers.Split(Regex(pattern["Regex"]) if "Regex" in pattern else pattern["String"], "removed", invert=True)
    return sum(end - begin for _, (begin, end) in cut.pre_tokenize_str(SAMPLE)) < len(SAMPLE)


def parts_of(part):
    """The normalizers or pre-tokenizers of which this one consists, as in the JSON."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [inner for each in part.get("normalizers", part.get("pretokenizers")) for inner in parts_of(each)]


def is_lossless(part):
    """Whether a text can be reconstructed after a normalizer or pre-tokenizer."""
    kind = part["type"]
    if kind == "Replace":
        return part["pattern"].get("String") == " " and part["content"] == BLANK_MARK
    if kind in ("Split", "Punctuation"):
        return part["behavior"] != "Removed" or (bool(part.get("invert")) and not leaves_out(part))
    return kind in LOSSLESS


def what_becomes_of_unknown_text(model, is_of_bytes):
    """A sentence on what a model does with text that its vocabulary lacks; None if it writes a token."""
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
    """Removes from a tokenizer of the `tokenizers` package all settings that truncate, pad or vary its output. Returns
    one sentence for each remaining step that changes texts."""
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
    """The token with which a tokenizer of the `tokenizers` package replaces what its vocabulary lacks."""
    model = json.loads(tokenizer.to_str())["model"]
    if model.get("unk_id") is not None:  # Unigram
        return tokenizer.id_to_token(model["unk_id"])
    return model.get("unk_token")


class JsonTokenizer:
    """A tokenizer.json of the `tokenizers` package."""

    def __init__(self, path, special_are_text):
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise SetupError(f"--tokenizer {path} needs the Python package tokenizers (pip install tokenizers)") from error
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
        """Saves as transformers would, so that transformers loads the folder whatever model is next to it."""
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
    """The contents of a folder's files, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def save_tokenizer(tokenizer, eod_token, folder, workplace):
    """Saves the tokenizer in a temporary folder and renames it when it is complete. An existing folder with the same
    contents stays, since it is from an earlier call that was killed. Any other existing folder is an error."""
    made = workplace / "tokenizer"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    try:
        tokenizer.save(made, eod_token)
    except Exception as error:  # the package raises plain Exception, also where the disk is full
        raise CorpusError(f"{folder}: cannot be written: {error}; {RESUMES}") from error
    if not folder.exists():
        made.rename(folder)
        return
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names != {path.name for path in made.iterdir()} or contents(folder) != contents(made):
        raise CorpusError(f"{folder}: exists already, and is not this tokenizer; move it, and {RESUMES}")
