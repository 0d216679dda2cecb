"""The progress of a corpus' tokenization."""

import sys
import time

from corpus_parts import Counts
from standard_streams import tell

PROGRESS_SECONDS = 2.0


class Progress:
    """One line on standard error: rewritten on a terminal, repeated otherwise. Only finished pieces count."""

    def __init__(self, total_bytes):
        self._total = total_bytes
        self._before = self._done = 0  # bytes of input that an earlier call has tokenized, and all that are done
        self.counts = Counts()
        self._tokens_before = 0
        self._started = self._shown = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def add(self, size, counts, is_new):
        self._done += size
        self.counts += counts
        if not is_new:
            self._before += size
            self._tokens_before += counts.tokens
        self.show()

    def seconds(self):
        return time.monotonic() - self._started

    def show(self, last=False):
        now = time.monotonic()
        if not last and now - self._shown < PROGRESS_SECONDS:
            return
        self._shown = now
        new, seconds = self._done - self._before, max(1e-9, self.seconds())
        documents, tokens = self.counts[:2]
        line = (f"{100 * self._done / max(1, self._total):3.0f} %  {documents:,} documents  {tokens:,} tokens"
                f"  {(tokens - self._tokens_before) / seconds:,.0f} tokens/s")
        if new and not last:
            minutes, rest = divmod(int(seconds * (self._total - self._done) / new), 60)
            line += f"  {minutes}:{rest:02d} left"
        end = "\n" if last or not self._terminal else ""
        tell(f"\r{line}\033[K" if self._terminal else line, end)
