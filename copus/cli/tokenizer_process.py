"""Encodes and decodes text for `copus generate`, by the package tokenizers.

The program has this file built in (tokenizer_text.cpp) and starts it as `python3 -c`, with the path of a tokenizer.json.
It asks by one JSON value a line on standard input, and is answered likewise on standard output:

  "text"  a list of its token ids
  id      the text that is complete with this token
  null    the rest of the text

Before all answers stands {"end_of_document": an id or null}, {"missing": what Python lacks} or {"error": what is wrong
with the tokenizer}.
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
    """The text of tokens as they come. What a token adds to a text follows from the tokens before it, so they are
    decoded together with those that were told last."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._told, self._untold = [], []

    def add(self, token):
        """The text that is complete with this token."""
        self._untold.append(token)
        text = self.rest()
        if not text or text.endswith("\ufffd"):  # of a character that the next tokens may complete
            return ""
        is_seen_alone = bool(self._tokenizer.decode(self._untold))  # unlike a blank, which begins no text
        self._told, self._untold = self._untold if is_seen_alone else self._told + self._untold, []
        return text

    def rest(self):
        """The text of the tokens that have not been told."""
        before, text = self._tokenizer.decode(self._told), self._tokenizer.decode(self._told + self._untold)
        if text.startswith(before):
            return text[len(before) :]
        return self._tokenizer.decode(self._untold)  # bytes that are no text take those before them along


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


signal.signal(signal.SIGINT, signal.SIG_IGN)  # at Ctrl-C the program ends, and with it the questions
try:
    main(Path(sys.argv[1]))
except ConnectionError:  # as when the program is killed
    pass
