"""HDFS' REST interface (WebHDFS) over a folder, with the answers of Hadoop's documentation of it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """Serve a folder as the root of an HDFS on loopback; give the port, which is name node and data node alike."""

    class Node(_Node):
        root = folder

    with ThreadingHTTPServer(("127.0.0.1", 0), Node) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


class _Node(BaseHTTPRequestHandler):
    root: Path

    def do_GET(self) -> None:
        path, asked = self._read()
        if not path.exists():
            said = {"exception": "FileNotFoundException", "message": f"File does not exist: {path}"}
            self._answer(404, {"RemoteException": said})
        elif asked["op"] == "GETFILESTATUS":
            self._answer(200, {"FileStatus": _status(path, "")})
        elif asked["op"] == "LISTSTATUS":
            found = [_status(one, one.name) for one in sorted(path.iterdir())]
            self._answer(200, {"FileStatuses": {"FileStatus": found}})
        elif "data" in asked:
            first = int(asked["offset"])
            self._send(200, path.read_bytes()[first : first + int(asked["length"])])
        else:
            self._to_data_node()

    def do_PUT(self) -> None:
        path, asked = self._read()
        if asked["op"] == "MKDIRS":
            path.mkdir(parents=True, exist_ok=True)
            self._answer(200, {"boolean": True})
        elif asked["op"] == "RENAME":
            target = self._place(asked["destination"])
            # HDFS renames onto no file, and says so by a word alone.
            if allowed := not target.is_file():
                path.rename(target)
            self._answer(200, {"boolean": allowed})
        elif "data" in asked:
            path.write_bytes(b"")
            self._send(201)
        else:
            self._to_data_node()

    def do_POST(self) -> None:
        path, asked = self._read()
        if "data" in asked:
            with path.open("ab") as file:
                file.write(self._body)
            self._send(200)
        else:
            self._to_data_node()

    def do_DELETE(self) -> None:
        path, _ = self._read()
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        self._answer(200, {"boolean": True})

    def log_message(self, *_: Any) -> None:
        pass

    def _read(self) -> tuple[Path, dict[str, str]]:
        self._body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        return self._place(unquote(parts.path).removeprefix("/webhdfs/v1")), {
            name: values[0] for name, values in parse_qs(parts.query).items()
        }

    def _place(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _to_data_node(self) -> None:
        self.send_response(307)
        self.send_header("Location", f"http://{self.headers['Host']}{self.path}&data=here")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, code: int, document: dict[str, Any]) -> None:
        self._send(code, json.dumps(document).encode())

    def _send(self, code: int, content: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _status(path: Path, suffix: str) -> dict[str, Any]:
    kind = "DIRECTORY" if path.is_dir() else "FILE"
    return {"pathSuffix": suffix, "type": kind, "length": 0 if path.is_dir() else path.stat().st_size}
