# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The other end of a webhook."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer


class Reader(HTTPServer):
    """A webhook's other end; answers with `statuses`, the last one again and again."""

    def __init__(self, *statuses, headers=()):
        self.statuses, self.headers, self.heard = list(statuses), headers, []
        super().__init__(("127.0.0.1", 0), _Answer)
        self.thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/hook"

    def close(self):
        self.shutdown()
        self.server_close()
        self.thread.join()


class _Answer(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server = self.server
        assert isinstance(server, Reader)
        server.heard.append((dict(self.headers), body, self.path))
        status = server.statuses.pop(0) if len(server.statuses) > 1 else server.statuses[0]
        self.send_response(status)
        for name, value in server.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass
