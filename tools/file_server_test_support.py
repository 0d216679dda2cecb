"""A server on this machine for tests of files behind URLs. It may cut off answers, stop inside them, or hide sizes and
versions.
"""

import hashlib
import http.server
import re
import threading
import time


class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        server = self.server
        content = server.files.get(self.path.split("?")[0])
        if content is None:
            self.send_error(404)
            return
        whole = content
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if server.sends_ranges else None
        if wanted:
            begin, end = int(wanted[1]), min(int(wanted[2]) + 1, len(content))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
            content = content[begin:end]
        else:
            self.send_response(200)
        for name, value in server.headers.items():
            self.send_header(name, value)
        if server.sends_sizes:
            self.send_header("Content-Length", str(len(content)))
        if server.sends_versions:
            self.send_header("ETag", hashlib.sha256(whole).hexdigest())
        self.end_headers()
        if with_body:
            server.sent.append(self.path)
            if server.gate:
                server.gate.wait()
            self.write(content[:server.ends_after])
            if server.stalls:
                self.wfile.flush()
                server.released.wait()

    def write(self, content):
        step = 1 if self.server.pause else len(content)
        for begin in range(0, len(content), step or 1):
            self.wfile.write(content[begin:begin + step])
            self.wfile.flush()
            time.sleep(self.server.pause)

    def log_message(self, *arguments):
        pass


class FileServer(http.server.ThreadingHTTPServer):
    """Sends `files`, by their paths; of each answer only the first `ends_after` bytes, where that is set. Waits `pause`
    seconds after each byte, if that is above 0, and at `gate`, a barrier, before each body."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.headers, self.sent = {}, {}, []
        self.sends_ranges, self.sends_sizes, self.sends_versions = False, True, True
        self.ends_after, self.stalls = None, False
        self.pause, self.gate = 0, None
        self.released = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, path):
        return f"http://127.0.0.1:{self.server_address[1]}{path}"

    def handle_error(self, request, client_address):
        pass  # clients leave early

    def stop(self):
        self.released.set()
        self.shutdown()
        self.server_close()
