"""kvc-llama-proxy in front of a stand-in for llama-server: hits, streams, slots, the program."""

import contextlib
import ctypes
import http.client
import io
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

import numpy as np
from common import ROOT, SAMPLES, Case, needs_store
from llama_case import LONG, OTHER, ProxyCase, fake, needs_h11

import kvc
from kvc.connectors import llama_main, llama_slots
from kvc.connectors.llama_http import Server


class TestHits(ProxyCase):
    def test_miss_hit_and_slot(self):
        first = self.ask()
        self.assertEqual((first.status, first.prefix, first.slot, first.text), (200, 0, 0, self.right()))
        self.stored()
        again = self.ask()
        self.assertEqual((again.prefix, again.slot, again.text), (0, 600, self.right()))  # the slot has it all
        self.stored()
        self.empty_slots()
        hit = self.ask()
        self.assertEqual((hit.prefix, hit.slot, hit.text), (512, 0, self.right()))
        self.assertEqual(hit.json["timings"]["cache_n"], 512)
        longer = self.ask(LONG + hit.text + "more")
        self.assertEqual((longer.prefix, longer.text), (0, self.right(LONG + hit.text + "more")))
        self.assertGreaterEqual(longer.slot, 600)
        self.assertEqual((self.count("hits"), self.count("failures"), self.count("saves")), (1, 0, 1))

    def test_new_proxy_and_new_server(self):
        """A filled store serves the first request, also one that nobody asked for yet."""
        self.ask()
        self.stored()
        self.proxy.prefixes.store.close()
        self.server.stop()
        self.server = self.start_server()
        proxy, front = self.start_proxy()
        prompt = LONG[:550] + "another end"
        hit = self.ask(prompt, front=front)
        self.assertEqual((hit.prefix, hit.text), (512, self.right(prompt)))

    def test_forms(self):
        for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
                           ("/v1/completions", {"prompt": LONG}), ("/completion", {"prompt": [ord(c) for c in LONG]}),
                           ("/completion?x=1", {"prompt": LONG})):
            answer = self.request("POST", path, json.dumps(body))
            self.assertEqual(answer.status, 200)
            self.assertEqual(answer.text, self.right(LONG + "#" if "chat" in path else LONG))
            self.stored()
            self.empty_slots()
            hit = self.request("POST", path, json.dumps(body))
            self.assertEqual((hit.prefix, hit.text), (512, answer.text), path)
            self.stored()

    def test_passed(self):
        """Requests whose prompt is not certain, or that ask for something else, are passed on as they are."""
        image = [{"role": "user", "content": [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {"url": "data:,"}}]}]
        for reason, body in (("media", {"messages": image}), ("prompt", {"prompt": ["a", "b"]}), ("prompt", {"prompt": [1, "b"]}),
                             ("several answers", {"prompt": LONG, "n": 2}), ("lora", {"prompt": LONG, "lora": [{"id": 0, "scale": 1}]}),
                             ("id_slot", {"prompt": LONG, "id_slot": 1}), ("cache_prompt", {"prompt": LONG, "cache_prompt": False})):
            path = "/v1/chat/completions" if "messages" in body else "/completion"
            answer = self.request("POST", path, json.dumps(body))
            self.assertEqual((answer.status, answer.headers["x-kvc-passed"]), (200, reason))
            self.assertEqual(self.server.bodies[-1], body)
        self.assertEqual(self.proxy.reasons["prompt"], 2)
        self.stored()
        self.assertEqual(self.count("saves"), 0)

    def test_everything_else(self):
        answer = self.request("PUT", "/else?a=b", b"\x00\xff", {"X-Mine": "yes"})
        self.assertEqual((answer.status, answer.data, answer.headers["X-Echo"]), (200, b"\x00\xff", "PUT /else?a=b yes"))
        self.assertEqual(self.request("HEAD", "/else").data, b"")
        self.assertNotIn("x-kvc-prefix", answer.headers)
        with socket.create_connection(self.front.server_address) as s:  # a body in chunks, two requests on a connection, HTTP/1.0
            s.sendall(b"POST /one HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
                      b"GET /two HTTP/1.0\r\n\r\n")
            data = b""
            while piece := s.recv(4096):
                data += piece
        self.assertIn(b"\r\n\r\nabcde", data)
        self.assertIn(b"X-Echo: GET /two", data)

    def test_statistics(self):
        self.ask()
        self.stored()
        stats = self.request("GET", "/kvc/stats").json
        self.assertEqual((stats["proxy"]["requests"], stats["proxy"]["saves"], stats["store"]["put_objects"]), (1, 1, 2))
        self.assertEqual(stats["namespace"], self.proxy.prefixes.name)
        metrics = self.request("GET", "/kvc/metrics").data.decode()
        self.assertIn("# TYPE kvc_llama_requests_total counter\nkvc_llama_requests_total 1\n", metrics)
        counters = re.findall(r"^# TYPE (\S+) counter$", metrics, re.M)
        self.assertTrue(all(name.endswith("_total") and metrics.count(f"\n{name}") for name in counters))

    def test_slot_choice(self):
        """The slot with the longest prefix, else the one that was used first; slots of others are not trusted."""
        self.ask(LONG)
        self.stored()
        self.ask(OTHER)
        self.stored()
        used = [body["id_slot"] for body in self.server.bodies[-2:]]
        self.assertEqual(sorted(used), [0, 1])
        for text in (LONG, OTHER):  # one after the other, saved too: which slot was used first depends on both
            self.assertEqual(self.ask(text + "x").slot, 600)
            self.stored()
        self.assertEqual([body["id_slot"] for body in self.server.bodies[-2:]], used)
        self.ask("y" * 300)
        self.stored()
        self.assertEqual(self.server.bodies[-1]["id_slot"], used[0])
        other = self.server.slots[used[1]]  # somebody else used it: what it holds now may be shifted rows
        other.update(task=99)
        answer = self.ask("z" * 100)
        self.assertEqual((self.server.bodies[-1]["id_slot"], self.server.bodies[-1]["cache_prompt"]), (used[1], False))
        self.assertEqual(answer.text, self.right("z" * 100))

    def test_two_at_once(self):
        self.ask(LONG)
        self.ask(OTHER)
        self.stored()
        self.empty_slots()
        answers = {}
        threads = [threading.Thread(target=lambda p=p: answers.update({p: self.ask(p, seconds=0.2)})) for p in (LONG, OTHER)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual({p: (a.prefix, a.text) for p, a in answers.items()}, {p: (512, self.right(p)) for p in (LONG, OTHER)})
        self.assertEqual({body["id_slot"] for body in self.server.bodies[-2:]}, {0, 1})

    def test_more_requests_than_slots(self):
        prompts = [LONG[i:] for i in range(6)]
        answers = {}
        threads = [threading.Thread(target=lambda p=p: answers.update({p: self.ask(p).text})) for p in prompts]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(answers, {p: self.right(p) for p in prompts})


class TestStreams(ProxyCase):
    def open(self, body, path="/completion"):
        connection = http.client.HTTPConnection(*self.front.server_address, timeout=30)
        self.addCleanup(connection.close)
        connection.request("POST", path, json.dumps(body))
        return connection, connection.getresponse()

    def test_order(self):
        """Each event passes at once, before the next is made."""
        self.server.gate.clear()
        connection, answer = self.open({"prompt": LONG, "stream": True})
        text = ""
        for _ in range(4):
            self.server.gate.set()
            text += json.loads(answer.readline()[6:])["content"]
            self.server.gate.clear()
            answer.readline()
        self.server.gate.set()
        self.assertEqual(text, self.right())
        self.assertIn(b"predicted_n", answer.read())
        self.stored()
        self.empty_slots()
        connection, answer = self.open({"prompt": LONG, "stream": True})
        self.assertEqual(answer.headers["x-kvc-prefix"], "512")
        self.assertEqual("".join(json.loads(line[6:])["content"] for line in answer if line.strip()), text)

    def test_client_goes_away(self):
        """The server's connection is closed, also while it is silent, and the slot is not trusted."""
        self.server.gate.clear()
        connection, answer = self.open({"prompt": LONG, "stream": True})
        answer.close()
        connection.close()
        self.assertTrue(self.server.cut.wait(10))
        self.stored()
        self.server.gate.set()
        self.assertEqual((self.count("clients_gone"), self.count("saves"), self.count("failures")), (1, 0, 0))
        self.assertEqual(self.ask().text, self.right())
        connection = http.client.HTTPConnection(*self.front.server_address, timeout=30)  # before the server answered at all
        connection.request("POST", "/completion", json.dumps({"prompt": OTHER, "seconds": 1}))
        time.sleep(0.2)
        connection.close()
        self.stored()
        self.assertEqual(self.count("clients_gone"), 2)

    def test_client_has_all(self):
        """A client that closes its connection as it has the whole answer did not go away."""
        self.addCleanup(setattr, fake.Handler, "finish", fake.Handler.finish)
        finish = fake.Handler.finish
        fake.Handler.finish = lambda handler: (time.sleep(0.3), finish(handler))
        connection, answer = self.open({"prompt": LONG})
        answer.read()
        connection.close()
        self.stored()
        self.assertEqual((self.count("clients_gone"), self.count("saves")), (0, 1))

    def test_server_ends_early(self):
        """A stream that is cut is cut for the client too."""
        end = fake.Handler.event
        self.addCleanup(setattr, fake.Handler, "event", end)
        fake.Handler.event = lambda handler, value: handler.connection.shutdown(socket.SHUT_RDWR)
        connection, answer = self.open({"prompt": LONG, "stream": True})
        self.assertRaises((http.client.IncompleteRead, ConnectionError), answer.read)
        fake.Handler.event = end
        self.stored()
        self.assertEqual((self.count("saves"), self.ask().text), (0, self.right()))


@needs_store
class TestParts(Case):
    def test_streams(self):
        """A slot of a server with several streams is the cache of the one that has cells, and gets streams to be restored."""
        data = (SAMPLES / "slot-q4_1-q5_0.bin").read_bytes()
        model = self.path("m.gguf")
        fake.write_model(model)
        at = 12 + 4 * struct.unpack("<I", data[8:12])[0]
        self.assertEqual(data[at:at + 4], struct.pack("<I", 1))
        for before in range(3):
            with open(self.path("s.bin"), "wb") as f:
                f.write(data[:at] + struct.pack("<I", 3) + bytes(4 * before) + data[at + 4:] + bytes(4 * (2 - before)))
            self.assertEqual(llama_slots.count_streams(self.path("s.bin")), 3)
            part = llama_slots._open_stream(self.path("s.bin"))
            self.assertEqual(bytes(part), data)
        with open(self.path("t.bin"), "wb") as f:
            f.write(data)
        llama_slots.add_streams(self.path("t.bin"), 3)
        self.assertEqual(bytes(llama_slots._open_stream(self.path("t.bin"))), data)
        with kvc.open(self.path("t.bin")) as f:
            self.assertEqual(f.meta["llama.streams"], "3")
        self.fails(kvc.Code.DAMAGED, "no slot", llama_slots.count_streams, model)

    def test_common(self):
        a = np.arange(5, dtype=np.int32)
        self.assertEqual([llama_slots.common(a, np.array(b, np.int32)) for b in ([], [1], [0, 1, 9], range(5), range(9))], [0, 0, 2, 5, 5])

    def test_stale_files(self):
        """Files that a killed proxy left are removed, others stay."""
        old, new, other = llama_slots.SlotFolder.name(), llama_slots.SlotFolder.name(), "kvc-mine.bin"
        for name in (old, new, other):
            Path(self.path(name)).touch()
        for name in (old, other):
            os.utime(self.path(name), (1, 1))
        llama_slots.SlotFolder(self.folder)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted([new, other]))
        self.fails(kvc.Code.USAGE, "--slot-save-path", llama_slots.SlotFolder, self.path("none"))

    @needs_h11
    def test_options(self):
        self.assertEqual([llama_main.size(t) for t in ("7", "2K", "1G")], [7, 2048, 1 << 30])
        for words, options in (("cannot be made", ["--store=dir:/proc/none", f"--slots={self.folder}"]),
                               ("--slot-save-path", [f"--store=dir:{self.path('s')}", "--slots=/none"])):
            with contextlib.redirect_stderr(io.StringIO()) as said:
                self.assertEqual(llama_main.main(options), 2)
            self.assertIn(words, said.getvalue())
        for option in ("--max-connections=0", "--max-connections=x", "--max-memory=-1"):
            with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as e:
                llama_main.main(["--store=dir:/proc/none", "--slots=/none", option])
            name, value = option.split("=")
            self.assertEqual(e.exception.code, 2)
            self.assertIn(f"argument {name}: '{value}' is no ", said.getvalue())
        self.fails(kvc.Code.USAGE, "address", Server, "ftp://x", 1)

    def test_documents(self):
        """Every option is in the manual, with its default."""
        manual = (ROOT / "man/kvc-llama-proxy.1").read_text()
        for action in llama_main.parser()._actions:
            if action.dest in ("help", "version"):
                continue
            name = action.option_strings[-1]
            self.assertIn(f"Fl -{name[2:]}", manual)
            if action.default and action.nargs is None:
                self.assertIn(str(action.default), manual)


class TestProgram(ProxyCase):
    def start(self, looks=True):
        """Starts the program by its module, and waits until it serves and, with `looks`, has looked at the server."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        where = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        program = subprocess.Popen([sys.executable, "-m", "kvc.connectors.llama_proxy", f"--store=dir:{self.path('store')}", "--chunk=256",
                                    f"--slots={self.folder_of_slots}", f"--server={self.server.url}", f"--listen=127.0.0.1:{port}", "-v"],
                                   stderr=subprocess.PIPE, text=True, env=where)
        self.addCleanup(program.kill)
        self.assertIn(f"127.0.0.1:{port} in front of", program.stderr.readline())
        if looks:
            self.assertIn("namespace", program.stderr.readline())
        return program, port

    def test_signal_while_the_server_hangs(self):
        """A server that does not answer at the start keeps no signal waiting."""
        self.addCleanup(setattr, fake.Handler, "do_GET", fake.Handler.do_GET)
        fake.Handler.do_GET = lambda handler: time.sleep(20)
        program, _ = self.start(looks=False)
        time.sleep(1)
        program.send_signal(signal.SIGTERM)
        self.assertEqual((program.wait(10), program.stderr.read()), (0, ""))

    def test_signal_of_a_thread(self):
        """A signal that the system gives to another thread than the main one ends the program too."""
        tgkill = {"x86_64": 234, "aarch64": 131}.get(os.uname().machine)
        if tgkill is None:
            self.skipTest("no number of tgkill")
        program, _ = self.start()
        for thread in os.listdir(f"/proc/{program.pid}/task"):
            status = Path(f"/proc/{program.pid}/task/{thread}/status").read_text()
            blocked = int(status.split("SigBlk:")[1].split()[0], 16) >> (signal.SIGTERM - 1) & 1
            if int(thread) != program.pid and not blocked:
                self.assertEqual(ctypes.CDLL(None).syscall(tgkill, program.pid, int(thread), int(signal.SIGTERM)), 0)
                break
        else:
            self.fail("all threads but one block the signal")
        self.assertEqual((program.wait(30), program.stderr.read()), (0, ""))

    def test_program(self):
        """The program, ended by SIGTERM: what was asked for is stored."""
        program, port = self.start()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/completion", json.dumps({"prompt": LONG}))
        connection.getresponse().read()
        connection.close()
        self.assertIn("/completion 200 slot", program.stderr.readline())
        program.send_signal(signal.SIGTERM)
        self.assertEqual((program.wait(30), program.stderr.read()), (0, ""))
        self.empty_slots()
        self.assertEqual(self.ask().prefix, 512)


if __name__ == "__main__":
    unittest.main()
