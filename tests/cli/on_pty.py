#!/usr/bin/env python3
"""on_pty.py: runs a command whose standard error is a terminal, and prints what the terminal got; status 77 without terminals.

    on_pty.py [--slow | --stop=PATTERN | --stdout] COMMAND...

--stdout: standard output is the terminal, too. --slow: standard output is a pipe that nobody reads for 1.3 seconds from its first byte on, so that a
command which fills it works for longer than a second on any machine. --stop: the command is stopped for 1.3 seconds when a file of this
pattern exists, with the same effect. Otherwise standard output is /dev/null."""
import glob
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time


def main():
    how = sys.argv.pop(1) if sys.argv[1].startswith("--") else ""
    try:
        master, slave = pty.openpty()
    except OSError as e:
        sys.exit(print("no pseudo-terminals: %s" % e, file=sys.stderr) or 77)
    out = slave if how == "--stdout" else subprocess.PIPE if how == "--slow" else subprocess.DEVNULL
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=out, stderr=slave)
    os.close(slave)
    if how == "--slow":
        def drain():
            select.select([process.stdout], [], [])
            time.sleep(1.3)
            while process.stdout.read(1 << 16):
                pass
        threading.Thread(target=drain).start()
    if how.startswith("--stop="):
        def stop():
            while not glob.glob(how[len("--stop="):], recursive=True) and process.poll() is None:
                time.sleep(0.001)
            process.send_signal(signal.SIGSTOP)
            time.sleep(1.3)
            process.send_signal(signal.SIGCONT)
        threading.Thread(target=stop).start()
    got = b""
    while True:
        try:
            some = os.read(master, 65536)
        except OSError: # the command has ended
            break
        if not some:
            break
        got += some
    status = process.wait()
    sys.stdout.buffer.write(got)
    sys.exit(status)


main()
