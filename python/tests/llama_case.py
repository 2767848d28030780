"""A test with a stand-in for llama-server, whose slots are real slot files, and kvc-llama-proxy in front of it."""

import http.client
import json
import os
import sys
import threading
import unittest
from pathlib import Path

from common import Case, needs_store

sys.path.append(str(Path(__file__).parent / "fakes/llama"))
import server as fake  # noqa: E402

from kvc.connectors import llama_main  # noqa: E402

try:
    from kvc.connectors.llama_front import Front
except ImportError:
    Front = None

needs_h11 = unittest.skipIf(Front is None, "kvc-llama-proxy is not tested: there is no h11")
LONG = "".join(chr(97 + i * i % 26) for i in range(600))  # 600 tokens: two chunks of 256
OTHER = LONG[::-1]


class Answer:
    def __init__(self, answer, data):
        self.status, self.headers, self.data = answer.status, answer.headers, data
        self.prefix, self.slot = int(answer.headers.get("x-kvc-prefix", -1)), int(answer.headers.get("x-kvc-slot", -1))

    @property
    def json(self):
        return json.loads(self.data)

    @property
    def text(self):
        return self.json["content"]


@needs_store
@needs_h11
class ProxyCase(Case):
    window, slots, options = False, 2, ()

    def setUp(self):
        super().setUp()
        self.model, self.folder_of_slots = self.path("m.gguf"), self.path("slots")
        fake.write_model(self.model)
        os.mkdir(self.folder_of_slots)
        self.server = self.start_server()
        self.addCleanup(lambda: self.server.stop())
        self.proxy, self.front = self.start_proxy()

    def start_server(self, **options):
        return fake.FakeServer(self.folder_of_slots, self.model, **{"window": self.window, "slots": self.slots, **options})

    def start_proxy(self, *options):
        o = llama_main.parser().parse_args(["--store", f"dir:{self.path('store')}", "--slots", self.folder_of_slots, "--chunk=256",
                                            "--deadline=10", "--server", self.server.url, *self.options, *options])
        proxy = llama_main.open_proxy(o)
        proxy.say = lambda text: self.said.append(text)
        self.said = []
        front = Front(("127.0.0.1", 0), proxy, o.max_connections)
        threading.Thread(target=front.serve_forever, args=(0.02,), daemon=True).start()
        self.addCleanup(lambda: (front.shutdown(), front.server_close(), proxy.finish(10), proxy.prefixes.store.close()))
        return proxy, front

    def ask(self, prompt=LONG, path="/completion", front=None, **body):
        return self.request("POST", path, json.dumps({"prompt": prompt, **body}), front=front)

    def request(self, method, path, body=None, headers={}, front=None):
        connection = http.client.HTTPConnection("127.0.0.1", (front or self.front).server_address[1], timeout=30)
        self.addCleanup(connection.close)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return Answer(answer, answer.read())

    def stored(self, proxy=None):
        """Waits until what was asked for is in the store."""
        self.assertTrue((proxy or self.proxy).finish(20))
        self.assertTrue((proxy or self.proxy).prefixes.store.flush(20))
        self.assertEqual(os.listdir(self.folder_of_slots), [])

    def right(self, prompt=LONG):
        """The text of the server alone."""
        other = fake.FakeServer(self.folder_of_slots, self.model)
        other.compute(0, [ord(c) for c in prompt], False)
        text = "".join(map(chr, other.generate(0, 4)))
        other.stop()
        return text

    def empty_slots(self):
        """As another client of the server, or a new server."""
        for i in range(self.slots):
            self.server.slots[i].update(tokens=[], rows=None)

    def count(self, name):
        return self.proxy.counters.read()[name]
