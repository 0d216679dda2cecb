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


def tell(answer):
    print(json.dumps(answer), flush=True)


def main(path):
    try:
        from tokenizers import Tokenizer
        from tokenizers.decoders import DecodeStream  # since 0.21
    except ImportError as error:
        tell({"missing": str(error)})
        return
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tell({"end_of_document": end_of_document(tokenizer, path.with_name("tokenizer_config.json"))})
    except Exception as error:  # the package raises plain Exception
        tell({"error": str(error)})
        return
    stream, ids, told = DecodeStream(skip_special_tokens=True), [], ""
    for line in sys.stdin.buffer:
        question = json.loads(line)
        if isinstance(question, str):
            tell(tokenizer.encode(question, add_special_tokens=False).ids)
        elif question is None:
            tell(tokenizer.decode(ids)[len(told) :])
        else:
            ids.append(question)
            try:
                text = stream.step(tokenizer, question) or ""
            except Exception:  # where bytes fall back, what follows may change the text before: it begins anew here
                stream = DecodeStream(skip_special_tokens=True)
                text = stream.step(tokenizer, question) or ""
            told += text
            tell(text)


signal.signal(signal.SIGINT, signal.SIG_IGN)  # at Ctrl-C the program ends, and with it the questions
try:
    main(Path(sys.argv[1]))
except ConnectionError:  # as when the program is killed
    pass
