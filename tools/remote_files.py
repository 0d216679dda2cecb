"""Reads files behind URLs by fsspec, which is imported only for them. Every answer has a deadline. A file that ends
before its announced size is an error. Without an announced size, an early end goes unnoticed.
"""

import io
import queue
import threading
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from corpus_errors import RESUMES, CorpusError, SetupError, TransferError

STALL_SECONDS = 60.0  # without data, after which a transfer has stalled
BUFFER_BYTES = 1 << 20
BLOCK_BYTES = 4 << 20  # one request to a store that sends no streams; has to arrive within STALL_SECONDS
PACKAGES = {"http": "aiohttp", "https": "aiohttp", "s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
# Names of a file's version in fsspec's file systems, in lower case, the most reliable first.
VERSIONS = ("etag", "last-modified", "lastmodified", "last_modified", "mtime", "updated", "modified", "created")


class Stalled(Exception):
    """No answer came within STALL_SECONDS."""


def within_deadline(call, *arguments):
    """Makes a call, and returns its result or raises its exception. A thread whose call stalls is abandoned, and does
    not keep the program alive."""
    answers = queue.SimpleQueue()

    def answer():
        try:
            answers.put((call(*arguments), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=answer, daemon=True).start()
    try:
        result, error = answers.get(timeout=STALL_SECONDS)
    except queue.Empty:
        raise Stalled(f"no data came within {STALL_SECONDS:g} s") from None
    if error is not None:
        raise error
    return result


def open_file_system(url):
    """fsspec's file system for a URL, and the file's path there."""
    import fsspec
    options = {}
    if urlsplit(url).scheme in ("http", "https"):
        import aiohttp

        # A server that calls a .gz file encoded text sends the file, and a long transfer has as much time as it needs.
        options["client_kwargs"] = {"auto_decompress": False, "headers": {"Accept-Encoding": "identity"},
                                    "timeout": aiohttp.ClientTimeout(total=None), "trust_env": True}
    return fsspec.core.url_to_fs(url, **options)


def missing_packages(url, error):
    scheme = urlsplit(url).scheme
    names = ["fsspec"] if error.name == "fsspec" else []
    names += [PACKAGES[scheme]] if scheme in PACKAGES else []
    if not names:
        return f"{url} needs a Python package that is missing: {error}"
    packages = "packages" if len(names) > 1 else "package"
    return f"{url} needs the Python {packages} {' and '.join(names)} (pip install {' '.join(names)})"


class RemoteReader(io.RawIOBase):
    """An open file of fsspec, `size` bytes long (None: unknown)."""

    def __init__(self, url, file, size):
        self._url, self._file, self._size = url, file, size
        self._position = 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self._position

    def seek(self, offset, whence=io.SEEK_SET):
        try:
            self._position = self._file.seek(offset, whence)
        except Exception as error:  # a server that sent ranges may stop to
            raise self._failure(error) from error
        return self._position

    def readinto(self, buffer):
        try:
            block = within_deadline(self._file.read, len(buffer))
        except Exception as error:  # each file system has errors of its own
            raise self._failure(error) from error
        self._position += len(block)
        if self._size is not None and self._position > self._size:
            raise CorpusError(f"{self._url}: has more than the {self._size:,} bytes that were announced; it has "
                              "changed since the start: call again")
        if not block and len(buffer) and self._size is not None and self._position < self._size:
            raise self._failure("the data end there")
        buffer[:len(block)] = block
        return len(block)

    def close(self):
        if not self.closed:
            self._file.close()
        super().close()

    def _failure(self, reason):
        size = "an unknown number of" if self._size is None else f"{self._size:,}"
        return TransferError(f"{self._url}: the transfer stopped when {self._position:,} of {size} bytes were read: "
                             f"{reason}; {RESUMES}")


class RemoteFile:
    """A file behind a URL, used like a Path by the readers of corpora. look_up() must be called to know its size and
    version."""

    def __init__(self, url):
        self.url = url
        self._name = PurePosixPath(urlsplit(url).path)
        self.size = self.version = self._file_system = self._path = None

    def __str__(self):
        return self.url

    @property
    def suffix(self):
        return self._name.suffix

    @property
    def stem(self):
        return self._name.stem

    def is_dir(self):
        return False  # look_up() refuses folders

    def look_up(self):
        """Asks for the size (None: unknown) and version of the file. Throws CorpusError where there is no such file."""
        try:
            self._file_system, self._path = within_deadline(open_file_system, self.url)
            info = within_deadline(self._file_system.info, self._path)
        except ImportError as error:
            raise SetupError(missing_packages(self.url, error)) from error
        except FileNotFoundError as error:
            raise CorpusError(f"{self}: no such file" if error.__cause__ is None else
                              f"{self}: cannot be opened: {error.__cause__}") from error
        except Exception as error:  # each file system has errors of its own
            raise CorpusError(f"{self}: cannot be opened: {error}") from error
        if info.get("type") == "directory":
            raise CorpusError(f"{self}: is a folder; name the files in it")
        self.size = info.get("size")
        known = {name.lower(): value for name, value in info.items()}
        self.version = next((str(known[name]) for name in VERSIONS if known.get(name)), None)

    def notes(self):
        """Returns which properties of this file cannot be checked, because the server does not report enough. Call
        look_up() first."""
        if self.size is None:
            yield (f"{self}: the server does not say how long the file is, so a transfer that ends early goes "
                   "unnoticed")
        if self.version is None:
            yield (f"{self}: the server names no version of the file (an ETag or a date), so a resumed call does not notice "
                   "a changed file of the same size")

    def open(self, mode="rb"):
        """Opens the file to be read from its beginning to its end."""
        is_http = urlsplit(self.url).scheme in ("http", "https")
        return self._reader(self._open(mode, 0 if is_http else BLOCK_BYTES))  # 0: as a stream

    def check_is_seekable(self):
        """Throws CorpusError if the server sends the file only from its beginning."""
        def look_at_end():
            with self._file_system.open(self._path, "rb", block_size=BLOCK_BYTES) as file:
                file.seek(max(0, self.size - 1))
                file.read(1)

        try:
            if self.size is None:
                raise ValueError("it does not say how long the file is")
            within_deadline(look_at_end)
        except ValueError as error:
            raise CorpusError(f"{self}: this format is read at several places, and the server sends files only from "
                              f"their beginning; download the file and name its path ({error})") from error
        except Exception as error:
            raise TransferError(f"{self}: cannot be read: {error}; {RESUMES}") from error

    def open_seekable(self):
        """Opens the file for reading at any position."""
        return self._reader(self._open("rb", BLOCK_BYTES))

    def _open(self, mode, block_size):
        try:
            return within_deadline(lambda: self._file_system.open(self._path, mode, block_size=block_size))
        except Exception as error:
            raise TransferError(f"{self}: cannot be opened: {error}; {RESUMES}") from error

    def _reader(self, file):
        return io.BufferedReader(RemoteReader(self.url, file, self.size), BUFFER_BYTES)


def corpus_input(text):
    """The input that an argument names: a RemoteFile for a URL, otherwise a Path."""
    return RemoteFile(text) if "://" in text else Path(text)
