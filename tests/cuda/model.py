#!/usr/bin/env python3
"""model.py SASS PTXAS_LOG PROMPT NAME:FILE:COUNTS...: a model of the GPU decoder's speed. Measures nothing.

SASS: the kernel as nvdisasm -c -g -gi prints it. PTXAS_LOG: what ptxas -v said. PROMPT: the file that was packed. FILE: the same,
packed by recipe NAME; COUNTS: gcov's JSON of the host's lockstep decoder that decoded FILE. Prints three tables: static
instructions of each device function, issue slots of each loop of each recipe, and bounds. Run from the top folder. DEVICE.md says
what the model means. Exit status 2 when the input is not as expected."""
import json
import os
import re
import sys

LANES = 32

# Name, multiprocessors, clock in GHz, DRAM in GB/s. SXM modules. Sources: NVIDIA's data sheets of H100 and H200 (DRAM), its
# H100 architecture white paper (multiprocessors), and the maximum SM clock that nvidia-smi reports; clocks are lower under load.
DEVICES = [("H100 SXM", 132, 1.98, 3350), ("H200 SXM", 132, 1.98, 4800)]
# Of one multiprocessor of compute capability 9.0 (CUDA Programming Guide, "Compute Capabilities"; white paper): instructions
# of a warp issued a clock, warps, registers, bytes of shared memory, bytes of it that each block needs besides its own.
ISSUE, MAX_WARPS, REGISTERS, SHARED, SHARED_BLOCK = 4, 64, 65536, 228 * 1024, 1024
# Slots that an instruction keeps its unit busy: 128 lanes are issued a clock, 64 can be integers, 32 loads or stores (white paper).
ALU_SLOTS, MEMORY_SLOTS = 2, 4

# Loops that do the work of a recipe: name, header, function, text of the line that each trip executes once for each value or
# four, and the memory instruction that this line becomes. The compiler neither copies nor drops these without a trace in
# the SASS: copies in the loop are counted.
LOOPS = [
    ("streams of split", "decode_streams.h", "to[i] = (uint16_t)", "ST"),
    ("streams of code", "decode_streams.h", "to[first + lane] = kvc_times((float)((int32_t)", "ST"),
    ("extra bits of code", "decode_streams.h", "if (lane == from) to[first + lane]", "ST"),
    ("rows: words", "decode_stored.h", "kvc_store_four(KVC_FOUR(t), four[k])", "ST"),
    ("rows: fast", "decode_stored.h", "kvc_store_four(KVC_FOUR(t), four);", "ST"),
    ("rows: quant", "decode_quant.h", "kvc_store_four(KVC_FOUR(t), out)", "ST"),
    ("rows: basis, transposed", "decode_products.h", "across[(j << shift) + r] =", "ST"),
    ("rows: basis, products", "decode_products.h", "x = kvc_load_four(from + four)", "LD"),
    ("rows: steps", "decode_changes.h", "KVC_VALUE(t) = kvc_as_bits(kvc_times(by,", "ST"),
    ("rows: mean", "decode_changes.h", "KVC_VALUE(t) = kvc_as_bits(kvc_add(kvc_tile_float", "ST"),
    ("rows: turn", "decode_changes.h", "*v = kvc_as_bits(", "ST"),
    ("rows: written", "decode_target.h", "if (to) kvc_store_values(", "ST"),
]
# Loops that write to scratch memory, which rows read again: bytes of a value.
SCRATCH = {"streams of split": 2, "streams of code": 4}

# Classes of instructions by their opcode; other instructions are "alu".
CLASSES = [
    ("fma", r"FFMA|FMUL|FADD|IMAD|HADD2|HFMA2|HMUL2|IDP"),
    ("convert", r"I2F|I2FP|F2I|F2F|F2FP|MUFU|DADD|DMUL|DFMA"),
    ("global", r"LDG|STG|RED|REDG|ATOM|ATOMG"),
    ("generic", r"LD|ST"),
    ("shared", r"LDS|STS|ATOMS"),
    ("constant", r"LDC|ULDC"),
    ("local", r"LDL|STL"),
    ("shuffle", r"SHFL|VOTE|VOTEU|MATCH"),
    ("barrier", r"BAR|WARPSYNC|BSYNC|BSSY|ENDCOLLECTIVE|BREAK|NANOSLEEP|MEMBAR"),
    ("branch", r"BRA|BRX|CALL|RET|EXIT|JMP|YIELD"),
]
NAMES = [name for name, _ in CLASSES] + ["alu"]


def class_of(opcode):
    return next((name for name, opcodes in CLASSES if re.fullmatch(opcodes, opcode)), "alu")


def source(path):
    """Returns a path of line information from its folder kernels/ on."""
    return re.sub(r"^.*/(?=kernels/)", "", path)


def parse_sass(text):
    """Returns the instructions, without padding, as (address, opcode, frames), and the loops as (first, last address).

    frames: (file, line), the innermost function first. A loop is what lies between a branch back and its target."""
    line_of, frames, fresh, instructions, labels, waiting, branches = {}, (), False, [], {}, [], []
    for line in text.split("\n"):
        at = re.match(r'\s*//## File "([^"]*)", line (\d+)', line)
        if at:
            frames = (frames if fresh else ()) + ((source(at[1]), int(at[2])),)
            fresh = True
            continue
        label = re.match(r"(\.L_\w+):", line)
        if label:
            waiting.append(label[1])
            continue
        code = re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)(.*)", line)
        if not code:
            continue
        fresh, address, opcode = False, int(code[1], 16), code[2]
        for name in waiting:
            labels[name] = address
        waiting = []
        target = re.search(r"\((\.L_\w+)\)", code[3])
        if target and opcode == "BRA":
            branches.append((address, target[1]))
        if opcode != "NOP":
            instructions.append((address, opcode, frames))
    loops = [(labels[to], at) for at, to in branches if labels.get(to, at + 1) <= at]
    return instructions, loops


def parse_counts(text):
    """Returns {(file, line): executions} and {(file, line): function} of gcov's JSON."""
    counts, functions = {}, {}
    for f in json.loads(text)["files"]:
        for line in f["lines"]:
            key = (source(f["file"]), line["line_number"])
            counts[key] = counts.get(key, 0) + line["count"]
            functions.setdefault(key, line.get("function_name", ""))
    return counts, functions


def stage(frames, functions):
    """Returns the device function that an instruction belongs to: the outermost that is not of the queue."""
    queue = {"decode.cu", "decode.h", "decode_rows.h"}
    for key in reversed(frames):
        name = os.path.basename(key[0])
        if name.startswith("decode_") and name not in queue and functions.get(key):
            return name + " " + functions[key]
    return "queue and others"


def executed(instructions, counts):
    """Returns the instructions whose source lines the counted run executed, so that code for other cases is left out."""
    return [i for i in instructions if all(counts.get(f, 1) for f in i[2])]


def loops_of(live, loops, key, opcode):
    """Returns (first address, last address, copies) of the innermost loop around a line, for each case of its callers.

    key: the line; opcode: how the memory instruction begins that the line becomes."""
    cases = {}  # by the calls that led to the line, as functions are copied into each call
    for at, op, frames in live:
        if key in frames and op.startswith(opcode):
            around = min(((b - a, a, b) for a, b in loops if a <= at <= b), default=None)
            cases.setdefault(frames[frames.index(key) :], []).append(around)
    if not cases or any(None in around for around in cases.values()):
        raise ValueError(f"no loop of the SASS has line {key[1]} of {key[0]}, which was executed: LOOPS needs a change")
    found = []
    for around in cases.values():
        # the compiler may have put trips before or after a loop: the loop with most copies stands for all
        most = max(around, key=lambda r: (around.count(r), -r[0]))
        found.append((most[1], most[2], around.count(most)))
    return found


def loop_cost(live, cases, others):
    """Returns the instructions, by class, that a warp issues each time it executes the line of loops_of().

    The loop's copies of the line share its instructions. Loops of others that lie within it are left out: they have costs of
    their own. Of several cases that were executed, for example dtypes, the costliest stands for all."""
    costs = []
    for a, b, copies in cases:
        inner = [(c, d) for c, d, _ in others if a <= c and d <= b and (c, d) != (a, b)]
        cost = dict.fromkeys(NAMES, 0.0)
        for at, op, _ in live:
            if a <= at <= b and not any(c <= at <= d for c, d in inner):
                cost[class_of(op)] += 1 / copies
        costs.append(cost)
    return max(costs, key=lambda c: sum(c.values()))


def line_of(header, text):
    """Returns the (file, line) of a header's only line with this text."""
    path = "kernels/device/" + header
    with open(path, encoding="utf-8") as f:
        found = [i for i, line in enumerate(f, 1) if text in line]
    if len(found) != 1:
        raise ValueError(f"{path}: {len(found)} lines have '{text}', not one: LOOPS needs a change")
    return path, found[0]


def busiest(slots, alu, memory):
    """Returns the slots of the unit that takes longest, and its name."""
    return max((slots, "issue"), (ALU_SLOTS * alu, "alu"), (MEMORY_SLOTS * memory, "memory"))


def bounds(slots, bytes_moved, bytes_of_value, device):
    """Returns the bounds in GB/s of decoded values by slots and by DRAM. slots: of a warp, a value; bytes_moved: a value."""
    _, processors, clock, dram = device
    return processors * ISSUE * clock / slots * bytes_of_value, dram / bytes_moved * bytes_of_value


def occupancy(registers, shared, threads=128):
    """Returns the warps that a multiprocessor holds. Registers are given out to warps by 256."""
    warps = threads // LANES
    by_registers = REGISTERS // (-(-registers * LANES // 256) * 256) // warps
    return min(by_registers, SHARED // (shared + SHARED_BLOCK), MAX_WARPS // warps) * warps


def tensor_bytes(path):
    """Returns the bytes of a safetensors file's tensors and of one value: bf16 and f16 only."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    tensors = [t for name, t in header.items() if name != "__metadata__" and t["dtype"] in ("BF16", "F16")]
    return sum(t["data_offsets"][1] - t["data_offsets"][0] for t in tensors), 2


def main(sass, log, prompt, *runs):
    with open(sass, encoding="utf-8") as f:
        instructions, loops = parse_sass(f.read())
    with open(log, encoding="utf-8") as f:
        used = re.search(r"Used (\d+) registers.*?(\d+) bytes smem", f.read())
    recipes = []
    for run in runs:
        name, packed, counts = run.split(":")
        with open(counts, encoding="utf-8") as f:
            recipes.append((name, os.path.getsize(packed), *parse_counts(f.read())))
    if not instructions or not used or not recipes:
        raise ValueError("no instructions, no registers or no recipes in the input")
    registers, shared = int(used[1]), int(used[2])
    warps = occupancy(registers, shared)
    print("A MODEL: nothing here was measured on a GPU.\n")
    print(f"kvc_device_kernel, sm_90: {registers} registers, {shared} bytes of shared memory a block of 4 warps;")
    print(f"{warps} of {MAX_WARPS} warps a multiprocessor ({100 * warps // MAX_WARPS} %)\n")

    print("Static instructions (generic: loads and stores whose address space is not known when compiling)")
    table = {}
    for _, opcode, frames in instructions:
        row = table.setdefault(stage(frames, recipes[0][3]), dict.fromkeys(NAMES, 0))
        row[class_of(opcode)] += 1
    print(f"{'device function':40}{'all':>6}" + "".join(f"{n:>9}" for n in NAMES))
    for name in sorted(table):
        print(f"{name:40}{sum(table[name].values()):6}" + "".join(f"{table[name][n]:9}" for n in NAMES))

    size, each = tensor_bytes(prompt)
    values = size // each
    totals = []
    print("\nIssue slots of a warp for 32 values (memory: global, generic, shared), by the trips of a real decode on the host")
    print(f"{'recipe, loop':36}{'trips/32':>9}{'slots':>8}{'fma':>8}{'alu':>8}{'memory':>8}{'other':>8}")
    for name, stored, counts, _ in recipes:
        total, scratch = [0.0] * 5, 0.0
        live, found = executed(instructions, counts), []
        for loop, header, text, opcode in LOOPS:
            key = line_of(header, text)
            if counts.get(key, 0):
                found.append((loop, counts[key], loops_of(live, loops, key, opcode)))
        for loop, count, cases in found:
            cost = loop_cost(live, cases, [o for _, _, others in found for o in others])
            trips = count / values  # of warps, for 32 values: on the host each lane counts
            memory = sum(cost[c] for c in ("global", "generic", "shared"))
            parts = [sum(cost.values()), cost["fma"], cost["alu"], memory]
            parts = [trips * p for p in (*parts, parts[0] - sum(parts[1:]))]
            print(f"{name + ', ' + loop:36}{trips:9.3f}" + "".join(f"{p:8.1f}" for p in parts))
            total = [a + b for a, b in zip(total, parts)]
            scratch += 2 * SCRATCH.get(loop, 0) * trips
        if not total[0]:
            raise ValueError(f"{name}: none of the loops was executed")
        totals.append((name, [t / LANES for t in total], stored / values, scratch))

    print("\nBounds: GB/s of decoded values (unit: the busiest of the multiprocessors; DRAM: file read once, values written once)")
    print(f"{'recipe':8}{'slots/value':>12}{'B read':>8}{'B written':>10}{'B scratch':>10}  {'device':10}{'unit':>12}{'DRAM':>8}"
          f"{'bound':>8}")
    for name, (slots, _, alu, memory, _), read, scratch in totals:
        most, unit = busiest(slots, alu, memory)
        for device in DEVICES:
            by_unit, dram = bounds(most, read + each, each, device)
            print(f"{name:8}{slots:12.2f}{read:8.2f}{each:10.2f}{scratch:10.2f}  {device[0]:10}{unit:>7}{by_unit:5.0f}{dram:8.0f}"
                  f"{min(by_unit, dram):8.0f}")
    print("\nNot modelled: latency, divergence of lanes, bank conflicts, caches (scratch memory is taken to stay in them), work outside")
    print("of these loops, items that wait, the bus. Lines that run seldom count in full, inner loops count one trip: the bounds are")
    print("estimates, and a GPU will mostly be slower, as few warps are resident to hide latency.")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (ValueError, KeyError, TypeError, OSError) as error:
        print(f"model.py: {error}", file=sys.stderr)
        sys.exit(2)
