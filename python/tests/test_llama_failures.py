"""kvc-llama-proxy when something fails: the request is answered all the same, and right."""

import json
import shutil
import threading
import time
import unittest
from pathlib import Path

from llama_case import LONG, OTHER, ProxyCase, fake


class TestFailures(ProxyCase):
    def fill(self):
        self.ask()
        self.stored()
        self.empty_slots()

    def chunks(self):
        return sorted(path for path in Path(self.path("store")).rglob("*.kv"))

    def test_store_gone(self):
        self.fill()
        shutil.rmtree(self.path("store"))
        self.assertEqual(self.ask().text, self.right())
        self.stored()
        self.assertEqual(self.ask(OTHER).text, self.right(OTHER))

    def test_store_fails(self):
        """Any exception of the store: the request is passed on."""
        self.fill()
        self.proxy.prefixes._served.namespace.find = lambda *_: 1 / 0
        answer = self.ask()
        self.assertEqual((answer.prefix, answer.text, self.count("failures")), (0, self.right(), 1))
        self.stored()
        self.proxy.prefixes.current = lambda *_: 1 / 0
        answer = self.ask()
        self.assertEqual((answer.headers["x-kvc-passed"], answer.text, self.count("failures")), ("failure", self.right(), 2))

    def test_damaged(self):
        self.fill()
        saves = self.count("saves")
        for path in self.chunks():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        answer = self.ask()
        self.assertEqual((answer.prefix, answer.text), (0, self.right()))
        self.assertGreater(self.proxy.stats()["store"]["bad_objects"], 0)
        self.stored()
        self.assertEqual(self.count("saves"), saves + 1)

    def test_restore_refused(self):
        self.fill()
        for n in range(2):
            self.server.answers[f"/slots/{n}?action=restore"] = (400, {"error": {"code": 400, "message": "no"}})
        answer = self.ask()
        self.assertEqual((answer.status, answer.prefix, answer.text), (200, 0, self.right()))
        self.assertEqual((self.count("failures"), self.server.bodies[-1]["cache_prompt"]), (1, False))
        self.stored()

    def test_save_refused(self):
        self.ask("short")
        for n in range(2):
            self.server.answers[f"/slots/{n}?action=save"] = (501, {"error": {"code": 501, "message": "no"}})
        self.assertEqual(self.ask().text, self.right())
        self.stored()
        self.assertEqual((self.count("failures"), self.count("saves")), (1, 0))

    def test_errors_of_the_server(self):
        for path in ("/completion", "/tokenize", "/props"):
            self.server.answers = {path: (503, {"error": {"code": 503, "message": "Loading model"}})}
            answer = self.ask()
            expected = (503, {"error": {"code": 503, "message": "Loading model"}}) if path == "/completion" else (200, None)
            self.assertEqual(answer.status, expected[0])
            if expected[1]:
                self.assertEqual(answer.json, expected[1])
        self.server.answers = {}
        self.stored()
        self.assertEqual((self.count("server_errors"), self.count("failures")), (1, 0))
        self.server.stop()
        self.server.server_close()
        answer = self.ask()
        self.assertEqual((answer.status, answer.json["error"]["code"]), (502, 502))
        self.assertEqual(self.ask("not JSON at all").status, 502)

    def test_bad_requests(self):
        proxy, front = self.start_proxy("--max-body=1K")
        self.assertEqual(self.ask("a" * 2000, front=front).status, 413)
        self.assertEqual(self.request("POST", "/x", b"", {"Content-Length": "many"}, front=front).status, 400)
        self.assertEqual(self.ask("a" * 500, front=front).status, 200)

    def test_queue_full(self):
        """What the store has no room for is dropped and counted."""
        self.proxy.prefixes.current(self.proxy.server.caller({})).namespace.put = lambda *_, **__: False
        self.assertEqual(self.ask().text, self.right())
        self.stored()
        self.assertEqual((self.count("dropped"), self.count("failures")), (1, 0))

    def test_server_started_again(self):
        """Another model beneath the proxy has another namespace, and nothing of the first reaches it."""
        self.fill()
        before = self.proxy.prefixes.name
        port = self.server.server_address[1]
        self.server.stop()
        self.assertEqual(self.ask().status, 502)
        self.server = self.start_server(port=port)
        hit = self.ask()
        self.assertEqual((hit.prefix, hit.text), (512, self.right()))
        self.stored()
        self.server.stop()
        fake.write_model(self.model, "other")
        self.server = self.start_server(port=port)
        answer = self.ask()
        self.assertEqual((answer.prefix, answer.text), (0, self.right()))
        self.assertNotEqual(self.proxy.prefixes.name, before)

    def test_other_model(self):
        """--model names the weights of the server that is there at first, and not those of a model that is loaded after it."""
        proxy, front = self.start_proxy("--model", self.model)
        self.ask(front=front)
        self.stored(proxy)
        before, port = proxy.prefixes.name, self.server.server_address[1]
        self.server.stop()
        other, self.model = self.model, self.path("fine-tune.gguf")
        fake.write_model(self.model, "fine-tune")
        self.server = self.start_server(port=port)
        answer = self.ask(front=front)
        self.assertEqual((answer.prefix, answer.text), (0, self.right()))
        self.assertNotEqual(proxy.prefixes.name, before)
        self.server.model, self.server.boot = self.path("not there"), "again"
        self.assertEqual(self.ask(front=front).headers["x-kvc-passed"], "off")
        self.assertIn(f"--model is that of {other}", proxy.stats()["off"])

    def test_longrope(self):
        """Servers of another context, which take the other list of longrope's divisors, find nothing of each other."""
        fake.write_model(self.model, tensors=("blk.0.attn_k.weight", "rope_factors_long.weight", "rope_factors_short.weight"))
        found = []
        for context in (4096, 32768, 4096):
            self.server.stop()
            self.server = self.start_server(context=context)
            proxy, front = self.start_proxy()
            found.append(self.ask(front=front).prefix)
            self.stored(proxy)
        self.assertEqual(found, [0, 0, 512])

    def test_waiting_for_a_slot(self):
        """A server that is another, while a request has the last slot: whoever looks at it and waits for the slot gets it."""
        self.server.stop()
        self.slots = 1
        self.server = self.start_server()
        proxy, front = self.start_proxy("--wait", "20")
        self.ask(front=front)
        self.stored(proxy)
        first = threading.Thread(target=self.ask, args=(OTHER,), kwargs={"front": front, "seconds": 1})
        first.start()
        time.sleep(0.5)
        self.server.boot = "another"
        began = time.monotonic()
        self.assertIsNone(self.ask(front=front).headers["x-kvc-passed"])
        self.assertLess(time.monotonic() - began, 15)
        first.join()

    def test_used_while_saved(self):
        """A slot that another request used between the look at it and its save is not stored."""
        save = self.server.save

        def late(number, path):
            self.server.compute(number, [ord(c) for c in LONG], True)
            for a in self.server.slots[number]["rows"].values():
                a[520:] = 7  # rows that were shifted, and not computed
            return save(number, path)

        self.server.save = late
        self.ask()
        self.stored()
        self.assertEqual((self.count("failures"), self.proxy.stats()["store"]["put_objects"]), (1, 0))

    def test_started_again_between(self):
        """A server that is another after the restore, or the save."""
        self.fill()
        take = self.proxy.prefixes.fetch

        def fetch(*arguments):
            found = take(*arguments)
            self.server.boot = "another"
            return found

        self.proxy.prefixes.fetch = fetch
        answer = self.ask()
        self.assertEqual((answer.prefix, answer.text, self.server.bodies[-1]["cache_prompt"]), (0, self.right(), False))
        self.stored()
        self.assertGreater(self.count("failures"), 0)

    def test_server_hangs(self):
        """Requests wait for a server that does not answer side by side."""
        self.fill()
        self.proxy.server.call_timeout = 1
        lock, there, most = threading.Lock(), 0, 0
        answer = fake.Handler.answer

        def hang(handler):  # twice as long as a request waits: of requests that take turns two are there
            nonlocal there, most
            with lock:
                there += 1
                most = max(most, there)
            time.sleep(2)
            with lock:
                there -= 1
            answer(handler)

        self.addCleanup(setattr, fake.Handler, "do_GET", fake.Handler.do_GET)
        fake.Handler.do_GET = hang
        threads = [threading.Thread(target=self.ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertGreater(most, 3)
        self.assertEqual(self.proxy.reasons, {"refused": 6})

    def test_no_thread(self):
        """Where no thread can be started, the slot is saved and given back all the same."""
        start = threading.Thread.start
        self.addCleanup(setattr, threading.Thread, "start", start)

        def refuse(thread):
            if getattr(thread, "_target", None) == self.proxy._finish:
                raise RuntimeError("can't start new thread")
            start(thread)

        threading.Thread.start = refuse
        self.ask()
        self.stored()
        self.assertEqual([slot["taken"] for slot in self.proxy.slots.report().values()], [False] * self.slots)
        self.assertGreater(self.proxy.stats()["store"]["put_objects"], 0)

    def test_shifted_context(self):
        """A slot whose context may have been shifted is not stored."""
        self.server.context = 604
        self.ask()
        self.stored()
        self.assertEqual(self.count("saves"), 0)

    def test_other_slot(self):
        """A slot that does not begin with the prompt is not stored."""
        save = self.server.save
        self.server.save = lambda n, path: (self.server.compute(n, [1, 2, 3], False), save(n, path))
        self.assertEqual(self.ask().text, self.right())
        self.proxy.finish(10)
        self.assertEqual((self.count("failures"), self.proxy.stats()["store"]["put_objects"]), (1, 0))

    def test_off(self):
        """Why the store is not used for a server at all."""
        self.server.adapters = [{"id": 0, "path": "a.gguf", "scale": 1}]
        answer = self.ask()
        self.assertEqual((answer.headers["x-kvc-passed"], answer.text), ("off", self.right()))
        self.assertIn("adapters", self.proxy.stats()["off"])
        self.server.adapters, self.server.boot = [], "again"
        self.server.model = self.path("not there")
        self.assertEqual(self.ask().headers["x-kvc-passed"], "off")
        self.assertIn("--model", self.proxy.stats()["off"])
        self.server.model, self.server.folder = self.model, self.folder
        self.ask()
        self.assertIn("--slot-save-path", self.proxy.stats()["off"])

    def test_key(self):
        """The proxy's own calls have the key of the client; one without a key does not keep others from the store."""
        self.server.answers = {"/slots": (401, {"error": {"code": 401, "message": "Invalid API Key"}})}
        self.assertEqual(self.ask().headers["x-kvc-passed"], "refused")
        self.server.answers = {}
        headers = []
        answer = fake.Handler.answer
        self.addCleanup(setattr, fake.Handler, "do_GET", fake.Handler.do_GET)
        fake.Handler.do_GET = lambda handler: (headers.append(handler.headers.get("Authorization")), answer(handler))
        self.request("POST", "/completion", json.dumps({"prompt": LONG}), {"Authorization": "Bearer x"})
        self.stored()
        self.assertEqual(set(headers), {"Bearer x"})


class TestWindow(ProxyCase):
    """Layers with a sliding window: the whole slot, for prompts that go on from its end."""
    window = True

    def test_whole(self):
        for n in range(self.slots):
            self.server.compute(n, range(20), False)  # shorter than the window, a stand-in's slot would look like one without
        first = self.ask()
        self.stored()
        self.empty_slots()
        prompt = LONG + first.text + "and on"
        hit = self.ask(prompt)
        self.assertEqual((hit.prefix, hit.text), (603, self.right(prompt)))
        self.stored()
        self.empty_slots()
        answer = self.ask(LONG)  # it does not go on from the end
        self.assertEqual((answer.prefix, answer.text), (0, self.right()))
        self.assertEqual(self.count("failures"), 0)


if __name__ == "__main__":
    unittest.main()
