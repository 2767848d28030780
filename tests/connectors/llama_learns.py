"""llama_learns.py: kvc-llama-proxy --recipe=small in front of a real llama-server, with no profile and no further command.

Twelve prompts of 2000 tokens are asked; the store learns a profile from them by itself. Prints the sizes of the server's own slot files and
of the store, how many first tokens after a restored prefix are those of the exact cache, and the time to the first token.
`--quick`: fewer questions.
"""

import argparse
import os
import statistics

from learning import APART, TAIL, TEXTS, TOKENS, wait_for_profile
from llama import Answer, Bench, call, figure, model_path, ok, text_tokens


def slot_bytes(bench, prompt):
    """Saves the server's slot of a prompt, and returns its size."""
    call(bench.server.port, "/completion", {"prompt": prompt, "n_predict": 0, "cache_prompt": True, "id_slot": 0})
    call(bench.server.port, "/slots/0?action=save", {"filename": "own.bin"})
    path = os.path.join(bench.files, "own.bin")
    size = os.path.getsize(path)
    os.unlink(path)
    return size


def questions(prompt, prefix, number):
    """Prompts that begin with the stored prefix: with its own next tokens, and with others of the text."""
    return [prompt[:prefix] + prompt[at:at + TAIL] for at in range(prefix, prefix - number * APART, -APART)]


def first_tokens(port, prompts):
    """The greedy first token after each prompt. The server keeps what they have in common."""
    return [Answer(port, prompt, 1, id_slot=0).text for prompt in prompts]


def compare(bench, prompts, number):
    same, all_of_them, times = 0, 0, []
    for prompt in prompts:
        bench.erase()
        warm = bench.ask(prompt, 1)
        assert warm.prefix, vars(warm)
        times.append(warm.first)
        bench.proxy_idle()
        asked = questions(prompt, warm.prefix, number)
        bench.erase()
        restored = []
        for question in asked:
            answer = bench.ask(question, 1)
            assert answer.cached >= warm.prefix, vars(answer)
            restored.append(answer.text)
            bench.proxy_idle()
        bench.erase()
        exact = first_tokens(bench.server.port, asked)
        same += sum(a == b for a, b in zip(restored, exact))
        all_of_them += len(exact)
    return same, all_of_them, statistics.median(times)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--tools")
    p.add_argument("--quick", action="store_true")
    o = p.parse_args()
    number = 3 if o.quick else 9
    with Bench() as bench:
        bench.start("--recipe=small", f"--model={model_path()}")
        prompts = [text_tokens(bench, path.read_text())[:TOKENS] for path in TEXTS]
        own = 0
        cold = []
        for prompt in prompts:
            own += slot_bytes(bench, prompt)
            bench.erase()
            cold.append(bench.ask(prompt, 1).first)
            bench.proxy_idle()
        packed, profile = wait_for_profile(lambda: bench.stats()["store"], bench.store, own)
        figure(f"slots of the server {own / 1e6:.1f} MB, the store {packed / 1e6:.1f} MB, {own / packed:.1f} times smaller, and its profile "
               f"{profile / 1e6:.1f} MB")
        same, all_of_them, first = compare(bench, prompts, number)
        figure(f"greedy first tokens after a restored prefix: {same} of {all_of_them} are those of the exact cache")
        figure(f"time to the first token at {TOKENS} tokens: cold {statistics.median(cold):.2f} s, stored {first:.2f} s")
        assert same >= 0.9 * all_of_them
        ok("prefixes packed with the learnt profile continue as the exact cache does")


if __name__ == "__main__":
    main()
