#!/usr/bin/env python3
"""A server of files for tests, on the loopback address: byte ranges, uploads, signatures of S3, and faults on demand.

usage: far_server.py FOLDER LOG [--tls CERTIFICATE KEY]

Prints its port, then serves FOLDER until it is killed, or who started it is gone. LOG gets a line for each request: method, path,
range, status, bytes of the body. The first part of a path says how the rest, a file below FOLDER, is served:

  /files/      as a server should
  /busy2/      status 503, the first two times
  /busy/       status 503
  /denied/     status 403
  /whole/      without ranges: always all of it
  /changes/    another ETag from the second request on, and no heed to If-Match
  /replaced/   another ETag from the second request on, and 412 where If-Match does not hold
  /shrinks/    another size from the second request on, without ETag
  /cut/        every second answer ends in the middle
  /short/      every answer ends in the middle
  /wrong/      a Content-Range of other bytes from the second request on
  /silent/     no Content-Range
  /hangs/      no answer
  /moved/      status 302, to /files/
  /no-if/      as a server that does not know If-None-Match: 501
  anything else is a bucket of S3: requests are refused unless their signature is right; /public/ needs none

Keys, region and token are those of the environment: AWS_ACCESS_KEY_ID and so on.
"""
import hashlib
import hmac
import os
import re
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

KNOWN = {"files", "busy2", "busy", "denied", "whole", "changes", "replaced", "shrinks", "cut", "short", "wrong", "silent",
         "hangs", "moved", "no-if", "public"}


def digest(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def signature_fault(handler, body_digest):
    """Why the signature of a request does not hold, by the steps of AWS's document on Signature Version 4; None if it does."""
    header = handler.headers.get("Authorization", "")
    match = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, "
                         r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})", header)
    if not match:
        return "AccessDenied"
    key_id, day, region, service, names, signature = match.groups()
    if key_id != os.environ["AWS_ACCESS_KEY_ID"]:
        return "InvalidAccessKeyId"
    if region != os.environ["AWS_REGION"] or service != "s3":
        return "AuthorizationHeaderMalformed"
    names = names.split(";")
    if names != sorted(names) or "host" not in names:
        return "SignatureDoesNotMatch"
    for name in handler.headers.keys():
        if name.lower().startswith("x-amz-") and name.lower() not in names:
            return "SignatureDoesNotMatch"
    if handler.headers.get("x-amz-security-token") != (os.environ.get("AWS_SESSION_TOKEN") or None):
        return "InvalidToken"
    if handler.headers.get("x-amz-content-sha256") not in ("UNSIGNED-PAYLOAD", body_digest):
        return "XAmzContentSHA256Mismatch"
    stamp = handler.headers["x-amz-date"]
    when = time.mktime(time.strptime(stamp, "%Y%m%dT%H%M%SZ")) - time.timezone
    if not stamp.startswith(day) or abs(when - time.time()) > 900:
        return "RequestTimeTooSkewed"
    path, _, query = handler.path.partition("?")
    lines = [handler.command, path, query]
    lines += ["%s:%s" % (name, " ".join(handler.headers[name].split())) for name in names]
    canonical = "\n".join(lines + ["", ";".join(names), handler.headers["x-amz-content-sha256"]])
    scope = "/".join([day, region, service, "aws4_request"])
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"]).encode()
    for part in (day, region, service, "aws4_request"):
        key = digest(key, part)
    return None if hmac.compare_digest(digest(key, text).hex(), signature) else "SignatureDoesNotMatch"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen = {}
    lock = threading.Lock()

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=(), cut=False):
        with self.lock:
            with open(log, "a") as file:
                print(self.command, self.path, self.headers.get("Range", "-"), status, len(body), file=file)
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if cut:
            self.wfile.write(body[:len(body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(body)

    def refuse(self, status, code):
        self.answer(status, ("<Error><Code>%s</Code></Error>" % code).encode())

    def place(self):
        """How, which file, and how often that was asked for before."""
        path = self.path.partition("?")[0]
        how, _, name = path.lstrip("/").partition("/")
        name = unquote(name)
        with self.lock:
            times = self.seen.get(path, 0)
            self.seen[path] = times + 1
        file = os.path.join(folder, name if how in KNOWN else how + "/" + name)
        if ".." in file.split("/"):
            raise ValueError("the path leads out of the folder")
        return how, file, times

    def do_GET(self):
        how, file, times = self.place()
        if how not in KNOWN:
            fault = signature_fault(self, hashlib.sha256(b"").hexdigest())
            if fault:
                return self.refuse(403, fault)
        if how == "hangs":
            time.sleep(30)
            return
        if how == "busy" or (how == "busy2" and times < 2):
            return self.answer(503, b"later")
        if how == "denied":
            return self.refuse(403, "AccessDenied")
        if how == "moved":
            return self.answer(302, headers=[("Location", self.path.replace("/moved/", "/files/", 1))])
        if not os.path.isfile(file):
            return self.refuse(404, "NoSuchKey")
        with open(file, "rb") as opened:
            content = opened.read()
        later = times > 0
        if how == "shrinks" and later:
            content = content[:-1]
        tag = '"%s"' % hashlib.md5(content).hexdigest()
        if how in ("changes", "replaced") and later:
            tag = '"another"'
        if how != "changes" and self.headers.get("If-Match", tag) != tag:
            return self.answer(412)
        headers = [("Accept-Ranges", "bytes")]
        if how != "shrinks":
            headers.append(("ETag", tag))
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if how == "whole" or not match:
            return self.answer(200, content, headers)
        first, last = int(match[1]), min(int(match[2]), len(content) - 1)
        if first > last:
            return self.answer(416, headers=[("Content-Range", "bytes */%d" % len(content))])
        moved = 1 if how == "wrong" and later else 0
        if how != "silent":
            headers.append(("Content-Range", "bytes %d-%d/%d" % (first - moved, last - moved, len(content))))
        self.answer(206, content[first:last + 1], headers, cut=how == "short" or (how == "cut" and times % 2 == 0))

    def do_PUT(self):
        how, file, times = self.place()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if how not in KNOWN:
            fault = signature_fault(self, hashlib.sha256(body).hexdigest())
            if fault:
                return self.refuse(403, fault)
        if how == "denied":
            return self.refuse(403, "AccessDenied")
        if how == "busy2" and times < 2:
            return self.answer(503, b"later")
        if "If-None-Match" in self.headers:
            if how == "no-if":
                return self.refuse(501, "NotImplemented")
            if os.path.exists(file):
                return self.answer(412)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "wb") as opened:
            opened.write(body)
        self.answer(200)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):  # clients break off where they have heard enough
        pass


def end_with(parent):
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


folder, log = sys.argv[1:3]
threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
server = Server(("127.0.0.1", 0), Handler)
if sys.argv[3:4] == ["--tls"]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[4], sys.argv[5])
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
