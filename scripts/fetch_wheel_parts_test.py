#!/usr/bin/env python3
"""Tests scripts/fetch_wheel_parts.py with an index and a server of wheels of our own."""

import base64
import contextlib
import hashlib
import http.server
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile

SCRIPTS = pathlib.Path(__file__).resolve().parent
WHEEL = "some_thing-1.0+cpu-py3-none-any.whl"
FILES = {
    "some/lib/first.so": random.Random(1).randbytes(3 << 20),
    "some/lib/large.so": random.Random(2).randbytes(8 << 20),
    "some/lib/second.so": b"text " * 1000,
    "some/include/second.h": b"a header\n",
    "some/data/large": random.Random(3).randbytes(4 << 20),
}
WANTED = ["some/lib/first.so", "some/lib/second.so", "some/include/*"]


class Server(http.server.BaseHTTPRequestHandler):
    """Serves one project in its index, and redirects requests for its wheel. The wheel and the behaviour are attributes
    of the class."""
    wheel = b""
    has_parts = True
    breaks_after = None
    sent = 0

    def do_GET(self):
        if self.path == "/simple/some-thing/":
            self.answer(200, b'<a href="../../files/x.whl#sha256=1">x</a> '
                        b'<a href="../../files/some_thing-1.0%2Bcpu-py3-none-any.whl#sha256=1">y</a>')
        elif self.path.startswith("/files/"):
            self.answer(302, b"", Location="/moved/" + self.path.removeprefix("/files/"))
        elif not self.path.startswith("/moved/"):
            self.answer(404, b"")
        elif not Server.has_parts:
            self.answer(200, Server.wheel)
        else:
            first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
            self.answer(206, Server.wheel[first:last + 1],
                        **{"Content-Range": f"bytes {first}-{last}/{len(Server.wheel)}"})

    def answer(self, status, content, **headers):
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if Server.breaks_after is not None and len(content) > Server.breaks_after:
            content = content[:Server.breaks_after]
            Server.breaks_after = None
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content)
        Server.sent += len(content)

    def log_message(self, *_):
        pass


class FetchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "got").mkdir()
        self.record = "".join(
            f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},"
            f"{len(content)}\n" for name, content in FILES.items()) + "some_thing-1.0.dist-info/RECORD,,\n"
        self.serve(FILES)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever).start()
        self.index = f"http://127.0.0.1:{server.server_port}/simple"

    def serve(self, files):
        path = self.folder / "wheel"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.mkdir("some/include")
            for name, content in files.items():
                archive.writestr(name, content)
            archive.writestr("some_thing-1.0.dist-info/RECORD", self.record)
        Server.wheel, Server.has_parts, Server.breaks_after, Server.sent = path.read_bytes(), True, None, 0

    def fetch(self, patterns=WANTED, wheel=WHEEL, record_sha256=None):
        record_sha256 = record_sha256 or hashlib.sha256(self.record.encode()).hexdigest()
        return subprocess.run([sys.executable, SCRIPTS / "fetch_wheel_parts.py", self.index, wheel, record_sha256,
                               self.folder / "got", *patterns], text=True, capture_output=True)

    def assert_unpacks(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        subprocess.run([sys.executable, SCRIPTS / "unpack_wheel.py", self.folder / "got" / WHEEL,
                        self.folder / "unpacked", *WANTED], check=True)
        for name in ("some/lib/first.so", "some/lib/second.so", "some/include/second.h"):
            self.assertEqual((self.folder / "unpacked" / name).read_bytes(), FILES[name], name)

    def assert_refused(self, result, reason):
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, f"^note: some.* could not be downloaded in parts: .*{reason}.*\n$")
        self.assertEqual(list((self.folder / "got").iterdir()), [])

    def test_what_is_wanted_comes_and_the_rest_does_not(self):
        self.assert_unpacks(self.fetch())
        self.assertLess(Server.sent, len(Server.wheel) - len(FILES["some/lib/large.so"]))

    def test_a_connection_that_breaks_goes_on_where_it_was(self):
        Server.breaks_after = 2_500_000
        self.assert_unpacks(self.fetch())
        self.assertIsNone(Server.breaks_after)
        self.assertLess(Server.sent, len(Server.wheel) - len(FILES["some/lib/large.so"]))

    def test_another_list_of_files_is_refused(self):
        self.assert_refused(self.fetch(record_sha256="0" * 64), "its list of files is not the one")

    def test_a_file_that_is_not_the_one_in_the_list_is_refused(self):
        self.serve(FILES | {"some/lib/second.so": b"evil " * 1000})
        self.assert_refused(self.fetch(), "some/lib/second.so in it is not the file")

    def test_a_server_that_sends_whole_files_alone_is_not_read(self):
        Server.has_parts = False
        self.assert_refused(self.fetch(), "sends no parts of files")

    def test_a_wheel_that_the_index_does_not_have_is_named(self):
        self.assert_refused(self.fetch(wheel="some_thing-2.0-py3-none-any.whl"), "/some-thing/ has no some_thing-2.0")
        self.assert_refused(self.fetch(wheel="something-1.0-py3-none-any.whl"), "404")

    def test_what_is_no_wheel_is_refused(self):
        Server.wheel = b"nonsense" * 1000
        self.assert_refused(self.fetch(), "not a zip file")
        self.serve(FILES)
        compressed = Server.wheel.rindex(b"PK\x01\x02") + 10  # in the last file's entry, RECORD's
        Server.wheel = Server.wheel[:compressed] + b"\x63\x00" + Server.wheel[compressed + 2:]
        self.assert_refused(self.fetch(), "compression")

    def test_a_password_is_not_shown(self):
        self.index = self.index.replace("//", "//me:secret@")
        result = self.fetch()
        self.assert_refused(result, "the index asks for a password")
        self.assertNotIn("secret", result.stderr)


if __name__ == "__main__":
    unittest.main()
