"""on_server.py MODE COMMAND...: runs a command beside a server on loopback that misbehaves in one way; {port} in the command is its port.
What the command prints has PORT in its place. A command that does not end in 30 s is killed, which is said; the status is the command's.

Redis: `echo` repeats what it gets in errors, `line` sends a line without an end, `slots` names the password as the host of all slots.
S3: `later` asks to come back in years, `drip` sends a byte each half second, `repeat` repeats the request in an error of XML."""
import re
import socket
import subprocess
import sys
import threading
import time

MODE = sys.argv[1]


def answer(status, body=b"", headers=b""):
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n%s" % (status, len(body), headers, body)


def redis(s, data):
    if MODE == "echo":
        s.sendall(b"-WRONGPASS no such pair: " + b" ".join(re.findall(rb"\r\n([^$*\r]+)", data)) + b"\r\n")
    elif MODE == "line":
        s.sendall(b"+" + b"a" * (20 << 20))
    elif b"CLUSTER" in data:  # slots
        s.sendall(b"+OK\r\n*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$19\r\nopen-sesame.invalid\r\n:7\r\n")


def s3(s, data):
    if MODE == "later":
        s.sendall(answer(b"503 Slow Down", headers=b"Retry-After: 99999999\r\n"))
    elif MODE == "drip":
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            s.sendall(b"<")
            time.sleep(0.5)
    else:  # repeat: the head of a request has the name of the key and the session's token
        key, token = re.search(rb"Credential=([^/]+)", data)[1], re.search(rb"token: (\S+)", data)[1]
        error = b"<Error><Code>%s %s</Code><Message>%s</Message></Error>" % (key, token, data.replace(b"<", b""))
        head = data.startswith(b"HEAD")
        s.sendall(answer(b"403 Forbidden", b"" if head else error, b"x-amz-bucket-region: x%s\r\n" % token))


def serve(s):
    try:
        while data := s.recv(1 << 16):
            (redis if data[:1] == b"*" else s3)(s, data)
    except OSError:
        pass


def listen(listener):
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
port = str(listener.getsockname()[1])
threading.Thread(target=listen, args=(listener,), daemon=True).start()
try:
    done = subprocess.run([a.replace("{port}", port) for a in sys.argv[2:]], stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
except subprocess.TimeoutExpired:
    sys.exit(f"it does not end in 30 s: {MODE}")
sys.stdout.write(done.stdout.decode().replace(port, "PORT"))
sys.stderr.write(done.stderr.decode().replace(port, "PORT"))
sys.exit(done.returncode)
