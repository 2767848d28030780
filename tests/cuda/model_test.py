#!/usr/bin/env python3
"""model_test.py: tests model.py on small stored input: a loop of SASS with a copied line, code that was not executed, and counts.

Prints "N passed, N failed". Run from the top folder. Not for the kernel itself (model.sh)."""
import sys

import model

# A store in a loop, twice (lines 7 of a.h), with a case that was not executed (line 9); line 8 is in another loop.
SASS = '''
.text.kvc_device_kernel:
	//## File "/x/kernels/device/decode.cu", line 23
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
	//## File "/x/./kernels/device/decode_a.h", line 7 inlined at "/x/./kernels/device/decode.h", line 40
	//## File "/x/./kernels/device/decode.h", line 40
        /*0010*/                   IMAD.IADD R2, R3, 0x1, R4 ;
        /*0020*/              @!P3 LOP3.LUT R5, R2, 0xffff, RZ, 0xc0, !PT ;
        /*0030*/                   ST.E.128 [R2.64], R4 ;
	//## File "/x/./kernels/device/decode_a.h", line 9 inlined at "/x/./kernels/device/decode.h", line 40
	//## File "/x/./kernels/device/decode.h", line 40
        /*0040*/                   MUFU.RCP R7, R7 ;
	//## File "/x/./kernels/device/decode_a.h", line 7 inlined at "/x/./kernels/device/decode.h", line 40
	//## File "/x/./kernels/device/decode.h", line 40
        /*0050*/               @P0 ST.E.128 [R6.64], R4 ;
        /*0060*/              @!P2 BRA `(.L_x_1) ;
.L_x_2:
	//## File "/x/./kernels/device/decode_a.h", line 8 inlined at "/x/./kernels/device/decode.h", line 41
	//## File "/x/./kernels/device/decode.h", line 41
        /*0070*/                   LDS R2, [R3] ;
        /*0080*/              @!P2 BRA `(.L_x_2) ;
        /*0090*/                   BRA `(.L_x_3) ;
        /*00a0*/                   NOP;
.L_x_3:
        /*00b0*/                   EXIT ;
'''
COUNTS = """{"files": [{"file": "kernels/device/decode_a.h", "lines": [
 {"line_number": 7, "count": 64, "function_name": "kvc_a"}, {"line_number": 8, "count": 3, "function_name": "kvc_a"},
 {"line_number": 9, "count": 0, "function_name": "kvc_a"}]}]}"""
HEADER = "kernels/device/decode_a.h"

results = []


def check(name, found, wanted):
    results.append(found == wanted)
    if found != wanted:
        print(f"FAIL {name}: {found}, not {wanted}")


def fails(name, function, *args):
    try:
        function(*args)
    except ValueError:
        results.append(True)
    else:
        results.append(False)
        print(f"FAIL {name}: no error")


instructions, loops = model.parse_sass(SASS)
counts, functions = model.parse_counts(COUNTS)
check("padding is left out", [a for a, _, _ in instructions], [0, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xB0])
check("branches forward are no loops", loops, [(0x10, 0x60), (0x70, 0x80)])
check("calls, innermost first", instructions[1][2], ((HEADER, 7), ("kernels/device/decode.h", 40)))
check("counts", counts[HEADER, 7], 64)
check("device function", [model.stage(i[2], functions) for i in instructions[:2]], ["queue and others", "decode_a.h kvc_a"])
check("classes", [model.class_of(i[1]) for i in instructions[:5]], ["constant", "fma", "alu", "generic", "convert"])

live = model.executed(instructions, counts)
check("MUFU was not executed", [i for i in instructions if i not in live], [instructions[4]])
twice = model.loops_of(live, loops, (HEADER, 7), "ST")
check("a loop with two copies", twice, [(0x10, 0x60, 2)])
once = model.loops_of(live, loops, (HEADER, 8), "LD")
check("another loop", once, [(0x70, 0x80, 1)])
cost = model.loop_cost(live, twice, once)
check("copies share five instructions", {c: n for c, n in cost.items() if n}, {"fma": 0.5, "alu": 0.5, "generic": 1.0, "branch": 0.5})
check("loops of others are left out", sum(model.loop_cost(live, [(0x10, 0x90, 1)], once).values()), 6.0)
check("a loop around is not left out", sum(model.loop_cost(live, once, [(0, 0x90, 1)]).values()), 2.0)
check("the costliest case", sum(model.loop_cost(live, once + twice, []).values()), 2.5)
fails("a line that is in no loop", model.loops_of, live, [], (HEADER, 7), "ST")
fails("a line without this instruction", model.loops_of, live, loops, (HEADER, 8), "ST")

check("128 registers: 4 blocks of 4 warps", model.occupancy(128, 32960), 16)
check("shared memory limits", model.occupancy(32, 100 * 1024), 8)
check("no more warps than there are", model.occupancy(16, 0), 64)
check("integers limit", model.busiest(100, 60, 10), (120, "alu"))
check("nothing limits but issue", model.busiest(100, 40, 20), (100, "issue"))
by_unit, dram = model.bounds(2, 4, 2, ("none", 100, 2.0, 3000))
check("bounds: 2 slots of a warp and 4 bytes moved for each value of 2 bytes", (by_unit, dram), (800.0, 1500.0))
for _, header, text, _ in model.LOOPS:
    check(f"{header} has the line '{text}' once", model.line_of(header, text)[0], "kernels/device/" + header)
fails("a text that no line has", model.line_of, "decode_tile.h", "no such text")

print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
sys.exit(not all(results))
