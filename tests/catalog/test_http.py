"""sparse-mla catalog serve, over loopback."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from catalog_support import PROGRAM


class Server:
    def __init__(self, *arguments):
        self.process = subprocess.Popen([PROGRAM, "catalog", "serve", "--port", "0", *arguments], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.host, self.port = re.fullmatch(r"http://(.+):(\d+)/\n", line).groups()
        self.port = int(self.port)

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def ask(self, method, path, headers=None, body=None):
        connection = self.connection()
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response, content

    def raw(self, content, shut=True):
        """What comes back for bytes that no client library would send."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(content)
            if shut:
                connection.shutdown(socket.SHUT_WR)
            received = b""
            while piece := connection.recv(65536):
                received += piece
            return received

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(timeout=20)


@pytest.fixture(scope="module")
def server(program):
    server = Server()
    yield server
    assert server.process.poll() is None, "the server ended during the tests"
    assert server.stop() == 0


def test_every_file_of_the_site_is_served_as_it_is(server, site):
    connection = server.connection()
    for path in sorted(path for path in site.rglob("*") if path.is_file()):
        connection.request("GET", f"/{path.relative_to(site)}")
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, path.read_bytes()), path
    connection.close()


def test_media_types_and_the_two_short_paths(server, site, records):
    for path, kind, file in (
        ("/", "text/html; charset=utf-8", "index.html"),
        ("/api/errors", "application/json", "api/errors/index.json"),
        (f"/api/errors/{records[0]['id']}", "application/json", f"api/errors/{records[0]['id']}"),
        ("/assets/match.js", "text/javascript; charset=utf-8", "assets/match.js"),
        ("/assets/style.css", "text/css; charset=utf-8", "assets/style.css"),
    ):
        response, content = server.ask("GET", path)
        assert (response.status, response.getheader("Content-Type")) == (200, kind)
        assert content == (site / file).read_bytes()
        assert response.getheader("X-Content-Type-Options") == "nosniff"
        assert "default-src 'none'" in response.getheader("Content-Security-Policy")


def test_etag(server):
    response, content = server.ask("GET", "/index.html")
    tag = response.getheader("ETag")
    assert re.fullmatch(r'"[0-9a-f]+"', tag) and content
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        response, content = server.ask("GET", "/index.html", {"If-None-Match": known})
        assert (response.status, content, response.getheader("ETag")) == (304, b"", tag)
    response, content = server.ask("GET", "/index.html", {"If-None-Match": '"other"'})
    assert response.status == 200 and content
    assert server.ask("GET", "/assets/style.css")[0].getheader("ETag") != tag


def test_head_has_the_headers_of_get_and_no_body(server):
    get, content = server.ask("GET", "/index.html")
    head, nothing = server.ask("HEAD", "/index.html")
    assert (head.status, nothing, head.getheader("Content-Length")) == (200, b"", str(len(content)))
    assert head.getheader("ETag") == get.getheader("ETag")


def test_404(server):
    for path in ("/nothing", "/errors/", "/errors", "/api/errors/0123456789abcdef", "/index.html/", "//index.html", "/INDEX.HTML"):
        response, content = server.ask("GET", path)
        assert response.status == 404 and b"No such page" in content, path


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_405_says_what_is_allowed_and_keeps_the_connection(server, method):
    connection = server.connection()
    for _ in range(2):
        # The server does not read the body of an OPTIONS request, so there is none.
        connection.request(method, "/index.html", body=None if method == "OPTIONS" else b"x" * 1000)
        response = connection.getresponse()
        response.read()
        assert (response.status, response.getheader("Allow")) == (405, "GET, HEAD")
    connection.request("GET", "/index.html")
    assert connection.getresponse().status == 200
    connection.close()


def test_405_for_trace(server):
    assert b" 405 " in server.raw(b"TRACE / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", shut=False).split(b"\r\n")[0]


@pytest.mark.parametrize("path", [
    "/../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/%2e%2e/%2e%2e/etc/passwd", "/errors/../../etc/passwd", "/assets/..\\..\\x",
    "//etc/passwd", "/etc/passwd", "/%00index.html", "/errors/%2e%2e/index.html", "/./index.html", "/\\index.html",
])
def test_no_path_leaves_the_site(server, path):
    received = server.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode(), shut=False)
    assert received.split(b"\r\n")[0].split(b" ")[1] in (b"400", b"404"), received[:80]
    assert b"root:" not in received


@pytest.mark.parametrize("content", [
    b"", b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"NONSENSE / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\xff\xfe\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A" * 20000 + b": b\r\n\r\n", b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon here\r\n\r\n", b"GET / HTTP/1.1\r\nRange: bytes=9-1,z\r\nConnection: close\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nx",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\nxx\r\n", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 5000 + b"\r\n",
    b"GET / HTTP/1.1\r\nIf-None-Match: " + b'"' * 5000 + b"\r\nConnection: close\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
])
def test_malformed_requests_do_no_harm(server, content):
    received = server.raw(content)
    assert received == b"" or received.startswith(b"HTTP/1.1 "), received[:80]
    assert server.ask("GET", "/index.html")[0].status == 200


def test_a_large_body_is_refused(server):
    received = server.raw(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200000, shut=False)
    assert received == b"" or received.split(b" ")[1] in (b"413", b"405"), received[:80]
    assert server.ask("GET", "/index.html")[0].status == 200


def test_a_thousand_clients_that_keep_their_connections(server):
    expected = server.ask("GET", "/errors/prefill-q-rank.html")[1]
    connections = [server.connection() for _ in range(1000)]
    wrong = []

    def use(some):
        for connection in some:
            connection.request("GET", "/errors/prefill-q-rank.html")
        wrong.extend(1 for connection in some if connection.getresponse().read() != expected)

    try:
        for _ in range(2):  # the second time round on the same thousand connections
            threads = [threading.Thread(target=use, args=(connections[i::10],)) for i in range(10)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            assert sum(connection.sock is not None for connection in connections) == 1000
        assert not wrong
    finally:
        for connection in connections:
            connection.close()


def test_only_loopback_listens(server):
    assert server.host == "127.0.0.1"
    with open("/proc/net/tcp") as table:
        rows = [line.split()[1] for line in table if line.split()[3] == "0A"]
    assert [row for row in rows if int(row.split(":")[1], 16) == server.port] == [f"0100007F:{server.port:04X}"]


def test_a_port_in_use_is_an_error_with_a_message(server):
    done = subprocess.run([PROGRAM, "catalog", "serve", "--port", str(server.port)], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert done.stderr == f"sparse-mla: cannot listen on 127.0.0.1 port {server.port}\n"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_at_a_signal_also_with_clients_connected(program, how):
    server = Server()
    busy = server.connection()
    busy.request("GET", "/index.html")
    assert busy.getresponse().read()
    idle = socket.create_connection(("127.0.0.1", server.port))
    started = time.monotonic()
    assert server.stop(how) == 0
    assert time.monotonic() - started < 10
    busy.close()
    idle.close()


def test_it_stops_while_it_starts(program):
    for _ in range(5):
        process = subprocess.Popen([PROGRAM, "catalog", "serve", "--port", "0"], stdout=subprocess.PIPE)
        process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=20) == 0


def test_the_json_is_json(server, records):
    _, content = server.ask("GET", "/api/errors")
    assert len(json.loads(content)["records"]) == len(records)
