#!/usr/bin/env python3
"""answers.py: whether a model answers questions about a long prompt as before when it runs from a decoded cache; README.md, "Answers",
says what each figure is.

    answers.py [--model=smollm2|gemma|qwen] [-n N] [--contexts=N] [--facts=N] [--rows=NAME,...] [--profile=FILE] [--tools=DIR] [--work=DIR]

A context is a text with facts planted into it at five depths, of five classes; its cache is computed once. The model answers greedily
from the exact cache. A recipe is judged by feeding it these answers, all in one pass: where its first choice is the same at each token
its own answer is the same, and from the first token on where it is not, the model goes on alone, and what it says is checked. Without
--profile the presets have one that kvc-profile learns from caches of other texts. Exit status: 0 ok, 2 trouble; it sets no bounds. Not
for KLDs of plain text (table.py).
"""

import argparse
import ast
import json
import math
import os
import random
import re
import sys
import tempfile
import time

import lm  # before what else loads transformers

import torch

from caches import Tools
from estimated import LEARNT, TO_LEARN, cache_of
from judged_texts import TEXTS, profile_texts
from table import BLOCK_PEERS, TOP, cache_arrays, print_table, q4_0, read_cache, save

DEPTHS = .1, .3, .5, .7, .9  # where facts of each class stand, in the text
CHAT = {"qwen"}  # are asked in turns of a chat; others, too small for that, are to go on with a line that the text has
BF16 = {"qwen"}  # multiply in bf16, which takes half the time of a large model
LIMITS = {"number": 12, "identifier": 48, "tool call": 64, "arguments": 40, "function": 72, "free": 128}  # tokens of an answer
PROFILED = "near-lossless", "small", "tiny"
PRESETS = *PROFILED, "kivi4", "kivi2"
BLOCKS = {**BLOCK_PEERS, "q4_0": (16 / 4.5, q4_0, q4_0)}
AGAIN = "exact again"  # the exact cache, judged as a recipe is: what arithmetic alone changes
ROWS = AGAIN, *PRESETS, *BLOCKS
UNSURE = 2  # odds of the first choice to the second below which a token is unsure

NAMES = "Mira Okafor Jonas Lindqvist Tariq Haddad Elena Petrova Yusuf Demir Clara Nyberg Ravi Menon Ines Duarte Pavel Novak Aiko Tanaka".split()
THINGS = "pump valve lens rotor crane kiln loom anvil turbine lathe winch boiler".split()
PLACES = "harbour mill quarry foundry dock depot tannery brewery".split()
WORDS = "stride rows origin depth limit scale offset count width margin phase index".split()
VERBS = "pack trim merge shift fold split".split()
NOUNS = "ledger census buffer roster matrix signal".split()
LABELS = "train dentist rehearsal laundry standup medicine bakery school".split()
TOOLS = {"set_alarm": ("hour", "minute", "label"), "book_room": ("room", "people", "purpose"), "send_parcel": ("weight", "count", "content")}
SCHEMAS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "required": keys, "properties": {
    key: {"type": "string" if key == keys[-1] else "integer"} for key in keys}}}} for name, keys in TOOLS.items()]
# The words by which the template of Qwen2.5 offers tools.
SYSTEM = ("You answer questions about the document below, briefly, with what stands there.\n\n# Tools\n\nYou may call one or more functions "
          "to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
          + "\n".join(map(json.dumps, SCHEMAS)) + "\n</tools>\n\nFor each function call, return a json object with function name and "
          "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
          '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>')
FREE = "Summary", "What a reader should remember", "Questions and answers", "The same in simple words", "A short review"


# --- facts, and what is asked of them ---

class Fact:
    """What stands in the text, how a chat asks for it, how a line of the text begins that the model is to go on with, the answer."""

    def __init__(self, kind, line, ask, cue, want):
        self.kind, self.line, self.ask, self.cue, self.want = kind, line, ask, cue, want


def facts(kind, draw, count, chat):
    """count facts of a class, no two alike."""
    if kind == "number":
        for name in draw.sample([a + " " + b for a in NAMES[::2] for b in NAMES[1::2]], count):
            code, start = str(draw.randrange(10000, 100000)), f"The access code of {name} is"
            yield Fact(kind, f"{start} {code}.", f"What is the access code of {name}? Answer with the number alone.", start, code)
    elif kind == "identifier":
        for thing in draw.sample([f"{a} of the {b}" for a in THINGS for b in PLACES], count):
            digits, start = f"{draw.getrandbits(64):016x}", f"The serial number of the {thing} is"
            serial = "-".join((digits[:8], digits[8:12], digits[12:]))
            yield Fact(kind, f"{start} {serial}", f"What is the serial number of the {thing}? Answer with it alone.", start, serial)
    elif kind == "tool call":
        for number in draw.sample(range(100, 1000), count):
            name, keys = draw.choice(list(TOOLS.items()))
            values = draw.randrange(1, 13), draw.randrange(1, 60), draw.choice(LABELS)
            call = {"name": name, "arguments": dict(zip(keys, values))}
            said = ", ".join(f"{key} {value}" for key, value in call["arguments"].items())
            start = f"Request {number} was answered by"
            yield Fact(kind, f"Request {number}: {name.replace('_', ' ')} with {said}." if chat else f"{start} {json.dumps(call)}",
                       f"Do what request {number} of the document asks for: call the function for it.", start, call)
    else:
        for name in draw.sample([f"{a}_{b}_{c}{d}" for a in VERBS for b in NOUNS for c in "kqxz" for d in range(2, 10)], count):
            words = draw.sample(WORDS, 3)
            head, body = f"def {name}({', '.join(words)}):", f"    return {words[1]} * {words[2]} + {words[0]} - {draw.randrange(10, 100)}"
            if kind == "arguments":
                yield Fact(kind, f"{head}\n{body}", f"Which arguments does the function {name} have, in their order? Answer with the "
                           "names alone, separated by commas.", f"def {name}(", ", ".join(words))
            else:
                yield Fact(kind, f"{head}\n{body}", f"Which two lines of Python define {name} in the document? "
                           "Write them as a block of Python code.",
                           f"{head}\n    return", f"{head}\n{body}" if chat else body.removeprefix("    return "))


def others(of_kind, fact):
    """Two facts beside one: their lines show a small model that lines of the text are to be said again."""
    at = of_kind.index(fact)
    return of_kind[at - 1], of_kind[at - 2]


def right(fact, text):
    """Whether an answer is right; strict: nothing else is said.

    >>> a, b, c, d, e = (next(facts(kind, random.Random(1), 1, True)) for kind in list(LIMITS)[:5])
    >>> right(a, f"It is {a.want}."), right(a, a.want + " or 1"), right(b, b.want), right(b, b.want[1:])
    (True, False, True, False)
    >>> right(c, json.dumps(c.want)), right(c, json.dumps(c.want).replace("arguments", "args")), right(c, "{{")
    (True, False, False)
    >>> right(d, d.want + "."), right(d, d.want.replace(", ", "  ,")), right(d, d.want[1:]), right(e, "```python\\n" + e.want + "\\n```")
    (True, True, False, True)
    >>> right(e, e.want.replace("return", "return(")), right(e, e.want + " + 1")
    (False, False)
    """
    if fact.kind == "number":
        return re.findall(r"\d+", text) == [fact.want]
    if fact.kind == "identifier":
        return re.findall(r"[0-9a-f-]{6,}", text) == [fact.want]
    if fact.kind == "tool call":
        found = re.search(r"\{.*\}", text, re.S)
        try:
            return bool(found) and json.loads(found[0]) == fact.want
        except ValueError:
            return False
    if fact.kind == "arguments":
        return re.findall(r"\w+", text.split(")")[0]) == fact.want.split(", ")
    code = re.sub(r"^```(?:python)?\n|\n```$", "", text.strip())
    try:
        return ast.dump(ast.parse(code)) == ast.dump(ast.parse(fact.want))
    except SyntaxError:
        return False


class Context:
    """A text with facts in it, as tokens, and the questions: (fact or None, tokens)."""

    def __init__(self, model, chat, number, texts, n, at_depth):
        """texts: those that fill it, the first as far as it goes; at_depth: facts of each class at each depth."""
        draw, kinds = random.Random(f"kvc answers {number}"), list(LIMITS)[:5]
        planted = [list(facts(kind, draw, at_depth * len(DEPTHS), chat)) for kind in kinds]
        blocks = ["\n".join(fact.line for of_kind in planted for fact in of_kind[i::len(DEPTHS)]) for i in range(len(DEPTHS))]
        begin, end, turn = (f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n", "\n\n",
                            "<|im_end|>\n<|im_start|>assistant\n") if chat else ("", "\n", "")
        room = n - len(model.encode(begin + "\n\n".join(blocks)))
        words = model.encode("\n\n".join(texts)[number // len(texts) * 8 * n:][:8 * n])
        if room < n // 2 or len(words) < room:
            raise ValueError(f"-n {n}: too few tokens for the facts" if room < n // 2 else f"-n {n}: the texts have {len(words)} tokens")
        cuts = [0, *(int(room * depth) for depth in DEPTHS), room]
        pieces = [model.tokenizer.decode(words[a:b], skip_special_tokens=True) for a, b in zip(cuts, cuts[1:])]
        text = pieces[0] + "".join(f"\n\n{block}\n\n{piece}" for block, piece in zip(blocks, pieces[1:]))
        self.tokens = model.encode(begin + text)
        asked = [(fact, fact.ask if chat else "\n".join([*(shown.line for shown in others(of_kind, fact)), fact.cue]))
                 for of_kind in planted for fact in of_kind]
        asked += [(None, f"{title} of the document, in about a hundred words:" if chat else f"{title}:") for title in FREE]
        self.questions = [(fact, model.tokenizer(end + words + turn, add_special_tokens=False).input_ids) for fact, words in asked]


# --- rows of tokens after one cache, in one pass ---

class Rows:
    """A cache, and rows of tokens that each follow it and do not see each other."""

    def __init__(self, model, keys, values, n):
        self.model, self.n, self.cache = model, n, lm.filled(keys, values, n)
        self.row, self.place = torch.full((n,), -1), torch.arange(n)

    def mask(self, row, place, window):
        seen = ((self.row == -1) | (self.row == row[:, None])) & (self.place <= place[:, None])
        return (seen & (place[:, None] - self.place < window) if window else seen)[None, None]

    @torch.no_grad()
    def run(self, rows):
        """rows: (number, first place after the cache, ids); the log probabilities that follow each token, by row."""
        row = torch.tensor([number for number, _, ids in rows for _ in ids])
        place = torch.tensor([self.n + first + i for _, first, ids in rows for i in range(len(ids))])
        self.row, self.place = torch.cat([self.row, row]), torch.cat([self.place, place])
        mask = self.mask(row, place, None)
        windows = [w for w in self.model.windows if w]
        if windows:
            mask = {"full_attention": mask, "sliding_attention": self.mask(row, place, windows[0])}
        hidden = self.model.net.base_model(torch.tensor([[i for _, _, ids in rows for i in ids]]), past_key_values=self.cache, use_cache=True,
                                           position_ids=place[None], attention_mask=mask).last_hidden_state[0]
        return hidden.split([len(ids) for _, _, ids in rows])

    def logits(self, hidden):
        return torch.cat(list(self.model.log_probabilities(hidden)))

    def forget(self, number, first):
        """No token sees the row's tokens from a place after the cache on."""
        self.row[(self.row == number) & (self.place >= self.n + first)] = -2


def go_on(rows, live):
    """Lets answers, {number: (place of the next token, ids, limit, stop tokens)}, grow greedily to their ends."""
    live = {number: x for number, x in live.items() if x[1][-1] not in x[3] and len(x[1]) < x[2]}
    while live:
        numbers = list(live)
        hidden = rows.run([(k, live[k][0] + len(live[k][1]) - 1, live[k][1][-1:]) for k in numbers])
        for number, token in zip(numbers, rows.logits(torch.cat(hidden)).argmax(-1).tolist()):
            ids, limit, stop = live[number][1:]
            ids.append(token)
            if token in stop or len(ids) >= limit:
                del live[number]


# --- judging ---

class Answers:
    """What the exact cache of a context answers, and how sure it is."""

    def __init__(self, model, chat, context, path):
        self.model, self.context = model, context
        ends = {i for i in [model.tokenizer.eos_token_id, *model.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])] if i}
        lines = ends if chat else ends | {i for i in range(len(model.tokenizer)) if "\n" in model.tokenizer.decode([i])}
        self.limits = [(LIMITS[fact.kind if fact else "free"], lines if fact else ends) for fact, _ in context.questions]
        self.keys, self.values, _ = read_cache(path, model.n_layers)
        rows = Rows(model, self.keys, self.values, len(context.tokens))
        hidden = rows.run([(number, 0, ids) for number, (_, ids) in enumerate(context.questions)])
        first = rows.logits(torch.stack([h[-1] for h in hidden])).argmax(-1).tolist()
        self.ids = [[token] for token in first]
        go_on(rows, {k: (len(ids), self.ids[k], *self.limits[k]) for k, (_, ids) in enumerate(context.questions)})
        self.base = list(self.fed(Rows(model, self.keys, self.values, len(context.tokens))))
        self.odds = [(top[:, 0] - top[:, 1]).exp() for top in (p.topk(2).values for p in self.base)]

    def fed(self, rows):
        """The log probabilities that a cache gives at each token of the answers, by question."""
        asked = [ids for _, ids in self.context.questions]
        hidden = rows.run([(number, 0, ids + said[:-1]) for number, (ids, said) in enumerate(zip(asked, self.ids))])
        for said, h in zip(self.ids, hidden):
            yield rows.logits(h[-len(said):])

    def text(self, ids):
        return self.model.tokenizer.decode(ids, skip_special_tokens=True)

    def judge(self, keys, values):
        """By question: the answer that this cache gives, tokens before its first other one, KLDs at the exact answer's tokens."""
        rows, mine, live, result = Rows(self.model, keys, values, len(self.context.tokens)), [], {}, []
        for number, q in enumerate(self.fed(rows)):
            said, p, choice = self.ids[number], self.base[number], q.argmax(-1).tolist()
            same = next((i for i, (a, b) in enumerate(zip(choice, said)) if a != b), len(said))
            result.append({"same": same, "kld": (p.exp() * (p - q)).sum(-1).double()})
            mine.append(choice[:same + 1])
        for number, said in enumerate(self.ids):
            if result[number]["same"] < len(said):
                start = len(self.context.questions[number][1])
                rows.forget(number, start + result[number]["same"])
                live[number] = (start, mine[number], *self.limits[number])
        go_on(rows, {k: x for k, x in live.items() if self.context.questions[k][0]})  # free text has no right answer
        for number, (fact, _) in enumerate(self.context.questions):
            result[number] |= {"kind": fact.kind if fact else "free", "of": len(self.ids[number]), "odds": self.odds[number],
                               "equal": result[number]["same"] == len(self.ids[number]),
                               "right": bool(fact) and right(fact, self.text(mine[number])), "text": self.text(mine[number])}
        return result


def wilson(hits, of):
    """The interval of a share at 95 %, in percent.

    >>> [round(x, 1) for x in wilson(58, 60)]
    [88.6, 99.1]
    """
    z, share = 1.96, hits / of
    middle, half = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return [100 * (middle + sign * half) / (1 + z * z / of) for sign in (-1, 1)]


def decoded(model, tools, answers, path, name, profile, scratch):
    """K, V and the ratio of 16 bits a value to the file."""
    if name == AGAIN:
        return answers.keys, answers.values, 1
    if name in BLOCKS:
        ratio, of_k, of_v = BLOCKS[name]
        return [of_k(k) for k in answers.keys], [of_v(v) for v in answers.values], ratio
    packed, back = (os.path.join(scratch, end) for end in ("packed.kvc", "back.safetensors"))
    with_profile = [f"--profile={profile}"] if name in PROFILED else []
    tools.run("kvc-pack", "-q", "-f", "-r", name, *with_profile, "-o", packed, path)
    tools.run("kvc-unpack", "-q", "-f", *with_profile, "--to=safetensors", "-o", back, packed)
    keys, values, _ = read_cache(back, model.n_layers)
    return keys, values, sum(2 * x.numel() for x in keys + values) / os.path.getsize(packed)


def learnt_profile(model, tools, work, title):
    """A profile of the model that kvc-profile learns from caches of texts that judge nothing; made once."""
    work = os.path.join(work, f"estimated-{title}")
    os.makedirs(work, exist_ok=True)
    path = os.path.join(work, "weights.kvcp")
    files = [cache_of(model, text, LEARNT, 0, os.path.join(work, f"learn-{i}.safetensors"))[1] for i, text in enumerate(TO_LEARN)]
    if not os.path.exists(path):
        tools.run("kvc-profile", "learn", "-q", "-f", "-o", path, f"--model={model.path}", *files)
    return path


def unseen_texts(profile):
    """The judging texts that the profile was not made of."""
    seen, texts = profile_texts(profile), []
    for name, (path, _) in TEXTS.items():
        if os.path.basename(path) in seen:
            print(f"{name} is left out: the profile was made of it")
            continue
        with open(path, encoding="utf-8", errors="replace") as f:
            texts.append(f.read())
    if not texts:
        raise ValueError("the profile was made of all texts that could judge it")
    return texts


def multiply_in_bf16(model):
    """Linear layers take and give float32 as before; lm_head, norms and attention stay in float32."""
    def multiply(layer):
        inner = layer.forward
        return lambda x: inner(x.bfloat16()).float()

    for layer in model.net.base_model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.to(torch.bfloat16).forward = multiply(layer)


def made_cache(model, context, path):
    """Writes the context's cache, in bf16."""
    keys, values, _ = model.prefill(context.tokens)
    save(cache_arrays(model, keys, values, context.tokens), path, model.facts())


# --- printing ---

def of_known(results, exact):
    """The answers that the exact cache gives rightly."""
    return [r for r, e in zip(results, exact) if e["right"]]


def print_results(results, ratios):
    exact, kinds = results[AGAIN], [kind for kind in LIMITS if kind != "free"]
    known = of_known(exact, exact)
    if not known:
        raise ValueError("the exact cache has no answer right: nothing can be judged")
    unsure = sum(e["odds"].min() < UNSURE for e in known)
    print(f"{len(known)} of {sum(e['kind'] != 'free' for e in exact)} answers from the exact cache are right; {unsure} of them have a token of "
          f"odds below {UNSURE}: " + ", ".join(f"{kind} {sum(e['right'] for e in exact if e['kind'] == kind)} of "
                                               f"{sum(e['kind'] == kind for e in exact)}" for kind in kinds) + "\n")
    table = [["cache", "ratio", "same", "95 %", *kinds, "right", "unsure", "free", "KLD", "p99.9", "max"]]
    for name, rows in results.items():
        mine, free = of_known(rows, exact), sorted(r["same"] for r in rows if r["kind"] == "free")
        same = sum(r["equal"] for r in mine)
        changed = [r["odds"][r["same"]] < UNSURE for r in mine if not r["equal"]]
        of_kind = [[r["equal"] for r in mine if r["kind"] == kind] for kind in kinds]
        kld = torch.cat([r["kld"] for r in rows])
        table.append([name, f"{sum(ratios[name]) / len(ratios[name]):.2f}", f"{same}/{len(mine)}", "{:.0f}-{:.0f}".format(*wilson(same, len(mine))),
                      *(f"{sum(x)}/{len(x)}" for x in of_kind), str(sum(r["right"] for r in rows)), f"{sum(changed)}/{len(changed)}",
                      str(free[len(free) // 2]), f"{kld.mean():.5f}", f"{kld.quantile(.999):.3f}", f"{kld.max():.3f}"])
    print_table(table)


def print_changed(results, name):
    for r, e in zip(results.get(name, []), results[AGAIN]):
        if e["right"] and not r["equal"]:
            print(f"  {r['kind']}, odds {r['odds'][r['same']]:.1f}: {e['text'].strip()!r} > {r['text'].strip()!r}")


def parse(arguments):
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--model", choices=lm.MODELS, default="smollm2")
    parser.add_argument("-n", type=int, default=2000)
    parser.add_argument("--contexts", type=int, default=5)
    parser.add_argument("--facts", type=int, default=1, help="of each class at each depth")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--profile")
    parser.add_argument("--tools", default=TOP)
    parser.add_argument("--work", default=os.path.join(TOP, "build/quality"))
    options = parser.parse_args(arguments)
    options.rows = [AGAIN, *(row for row in options.rows.split(",") if row != AGAIN)]
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown:
        parser.error(f"--rows: {unknown[0]!r}: give some of {', '.join(ROWS)}")
    return options


def main(arguments=None):
    options, start = parse(arguments), time.time()
    os.environ["KVC_PROFILE_PATH"] = "none"
    os.makedirs(options.work, exist_ok=True)
    tools, model, chat = Tools(os.path.abspath(options.tools)), lm.LanguageModel(options.model, options.work), options.model in CHAT
    profile = options.profile or learnt_profile(model, tools, options.work, options.model)
    texts = unseen_texts(profile)
    if options.model in BF16:
        multiply_in_bf16(model)
    results, ratios = {name: [] for name in options.rows}, {name: [] for name in options.rows}
    for number in range(options.contexts):
        text = number % len(texts)
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, "context.safetensors")
            context = Context(model, chat, number, texts[text:] + texts[:text], options.n, options.facts)
            made_cache(model, context, path)
            answers = Answers(model, chat, context, path)
            for name in options.rows:
                keys, values, ratio = decoded(model, tools, answers, path, name, profile, scratch)
                results[name] += answers.judge(keys, values)
                ratios[name].append(ratio)
            print(f"context {number + 1}: {len(context.tokens)} tokens, {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    print(f"{model.title}, {options.contexts} contexts of {options.n} tokens, profile {os.path.basename(profile)}")
    print_results(results, ratios)
    print("Right answers that small changes, and the exact cache's odds there")
    print_changed(results, "small")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError) as error:
        print(f"answers.py: {error}", file=sys.stderr)
        sys.exit(2)
