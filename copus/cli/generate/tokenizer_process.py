"""Encodes and decodes text for `copus generate`, with the package tokenizers.

The program has this file built in (tokenizer_text.cpp) and starts it as `python3 -c`, with the path of a
tokenizer.json. It sends one JSON value per line on standard input, and reads an answer in the same form from standard
output:

  "text"  a list of its token ids
  id      the text that this token completes
  null    the rest of the text

The first line of output is {"end_of_document": an id or null}, {"missing": what Python lacks} or {"error": what is
wrong with the tokenizer}.
"""

import json
import signal
import sys
from pathlib import Path


def end_of_document(tokenizer, config):
    token = json.loads(config.read_text("utf-8")).get("eos_token") if config.is_file() else None
    if isinstance(token, dict):
        token = token["content"]
    return tokenizer.token_to_id(token) if token else None


class TextStream:
    """The text of tokens that arrive one by one. The text that a token adds depends on the tokens before it, so new
    tokens are decoded together with the tokens of the last returned text."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._told, self._untold = [], []

    def add(self, token):
        """Returns the text that this token completes."""
        self._untold.append(token)
        text = self.rest()
        if not text or text.endswith("\ufffd"):  # part of a character that the next tokens may complete
            return ""
        is_seen_alone = bool(self._tokenizer.decode(self._untold))  # unlike a blank, which cannot begin a text
        self._told, self._untold = self._untold if is_seen_alone else self._told + self._untold, []
        return text

    def rest(self):
        """Returns the text of the tokens whose text has not been returned yet."""
        before, text = self._tokenizer.decode(self._told), self._tokenizer.decode(self._told + self._untold)
        if text.startswith(before):
            return text[len(before) :]
        return self._tokenizer.decode(self._untold)  # invalid bytes merge with those before them


def tell(answer):
    print(json.dumps(answer), flush=True)


def main(path):
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        tell({"missing": str(error)})
        return
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tell({"end_of_document": end_of_document(tokenizer, path.with_name("tokenizer_config.json"))})
    except Exception as error:  # the package raises plain Exception
        tell({"error": str(error)})
        return
    stream = TextStream(tokenizer)
    for line in sys.stdin.buffer:
        question = json.loads(line)
        if isinstance(question, str):
            tell(tokenizer.encode(question, add_special_tokens=False).ids)
        elif question is None:
            tell(stream.rest())
        else:
            tell(stream.add(question))


signal.signal(signal.SIGINT, signal.SIG_IGN)  # at Ctrl-C the program ends and sends no more requests
try:
    main(Path(sys.argv[1]))
except ConnectionError:  # for example if the program is killed
    pass
