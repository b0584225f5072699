"""The part of the hub's HTTP API that `huggingface_hub` needs to create, fill and read a repo."""

import base64
import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        headers.setdefault("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def parts(self):
        return [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.tokens.add(self.headers.get("Authorization"))
        parts = self.parts()
        if parts == ["api", "validate-yaml"]:
            return self.reply(200, {"errors": [], "warnings": []})
        if parts == ["api", "repos", "create"]:
            request = json.loads(body)
            name = f"{request.get('organization') or 'me'}/{request['name']}"
            self.server.repos.setdefault(name, {"files": {}, "asked": request})
            return self.reply(200, {"url": f"{self.server.address}/{name}", "name": name})
        repo = self.server.repos.get("/".join(parts[2:4]))
        if repo is None:
            return self.reply(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        if parts[4] == "preupload":
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            return self.reply(200, {"files": files})
        if parts[4] == "commit":
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    repo["files"][entry["value"]["path"]] = base64.b64decode(
                        entry["value"]["content"]
                    )
            sha = self.sha(repo)
            url = f"{self.server.address}/{'/'.join(parts[2:4])}/commit/{sha}"
            return self.reply(
                200, {"commitUrl": url, "commitOid": sha, "success": True, "hookOutput": ""}
            )
        return self.reply(404, {"error": self.path})

    def sha(self, repo):
        contents = json.dumps({name: data.hex() for name, data in repo["files"].items()})
        return hashlib.sha1(contents.encode()).hexdigest()

    def do_GET(self):
        parts = self.parts()
        if parts[0] == "api" and parts[1] == "whoami-v2":
            return self.reply(200, {"name": "me", "type": "user", "auth": {}})
        if parts[0] == "api":
            repo = self.server.repos.get("/".join(parts[2:4]))
            if repo is None:
                return self.reply(
                    404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound"
                )
            if "tree" in parts:
                entries = [
                    {
                        "type": "file",
                        "path": name,
                        "size": len(data),
                        "oid": hashlib.sha1(data).hexdigest(),
                    }
                    for name, data in repo["files"].items()
                ]
                return self.reply(200, entries)
            siblings = [
                {"rfilename": name, "size": len(data)} for name, data in repo["files"].items()
            ]
            about = {
                "private": True,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "id": "/".join(parts[2:4]),
            }
            return self.reply(200, {**about, "sha": self.sha(repo), "siblings": siblings})
        parts = parts[1:] if parts[0] == "datasets" else parts
        repo, name = self.server.repos.get("/".join(parts[:2])), "/".join(parts[4:])
        if repo is None or name not in repo["files"]:
            return self.reply(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
        data = repo["files"][name]
        etag = f'"{hashlib.sha1(data).hexdigest()}"'
        return self.reply(
            200, data, ETag=etag, X_Repo_Commit=self.sha(repo), Content_Length=str(len(data))
        )

    do_HEAD = do_GET  # noqa: N815


@contextlib.contextmanager
def fake_hub():
    """A hub on loopback; yields the server with its `address`, `repos` and `tokens`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.repos = {}
    server.tokens = set()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
