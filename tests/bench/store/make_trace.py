#!/usr/bin/env python3
"""Writes a synthetic trace of requests for trace.c: chats that grow turn by turn below two system prompts, and
documents that are asked about once or a few times. Always the same: requests.jsonl."""
import itertools
import json
import random


def requests(count, seed):
    draw = random.Random(seed)
    new_id = itertools.count().__next__

    def new_blocks(least, most):
        return [new_id() for _ in range(draw.randint(least, most))]

    system = [new_blocks(3, 3), new_blocks(5, 5)]
    chats, documents = [], []
    for _ in range(count):
        kind = draw.random()
        if kind < 0.5 and chats:  # the next turn of a chat, mostly of a recent one
            chat = chats[-1 - min(int(draw.expovariate(0.3)), len(chats) - 1)]
            chat += new_blocks(1, 2)
            yield chat
        elif kind < 0.7:
            chats.append(list(draw.choice(system)) + new_blocks(1, 2))
            yield chats[-1]
        elif kind < 0.8 and documents:  # another question about a document
            yield documents[-1 - min(int(draw.expovariate(0.5)), len(documents) - 1)] + new_blocks(1, 1)
        else:
            documents.append(new_blocks(4, 12))
            yield documents[-1] + new_blocks(1, 1)


for ids in requests(200, 1):
    print(json.dumps({"hash_ids": ids}, separators=(",", ":")))
