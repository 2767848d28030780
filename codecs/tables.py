#!/usr/bin/env python3
"""tables.py: makes codecs/tables.c, the fixed frequency tables of the stage `code` (codecs/stages/code/code.md, "Tables").

    python3 codecs/tables.py > codecs/tables.c

The tables are part of the format: this program says where they come from, and is not run when kvc is built.
"""

from math import erfc, exp, sqrt

TABLES, LOWEST, WHOLE, MIDDLE, ESCAPE = 32, -3.4, 2048, 63, 127


def tail(x):
    """P(value > x) of the mixture at scale 1: 0.7 of a Gaussian of 0.75 and 0.3 of a Laplace distribution of 1.4."""
    return 0.7 * 0.5 * erfc(x / 0.75 / sqrt(2)) + 0.3 * 0.5 * exp(-sqrt(2) * x / 1.4)


def probabilities(scale):
    """Of rounded values 0, 1, 2 ...: each of 1 and more stands for one sign."""
    return [1 - 2 * tail(0.5 / scale)] + [tail((k - 0.5) / scale) - tail((k + 0.5) / scale) for k in range(1, 63)]


def table(scale):
    """Frequencies of symbols: value + 63, and 127 for what has none; symmetric, each at least 1, the sum 2048."""
    p = probabilities(scale)
    most = max(k for k in range(1, 63) if k == 1 or p[k] * WHOLE >= 0.35)
    f = [0] + [max(1, round(p[k] * WHOLE)) for k in range(1, most + 1)]
    escape = max(1, round(2 * tail((most + 0.5) / scale) * WHOLE))
    zero = WHOLE - escape - 2 * sum(f)
    while zero < f[1]:  # wide tables: what rounding up took is taken back from the most frequent
        k = max(range(1, most + 1), key=lambda k: f[k])
        f[k] -= 1
        zero += 2
    row = [0] * 128
    row[MIDDLE], row[ESCAPE] = zero, escape
    for k in range(1, most + 1):
        row[MIDDLE - k] = row[MIDDLE + k] = f[k]
    assert sum(row) == WHOLE and max(row) < WHOLE
    return row


def main():
    print("/* tables.c: the frequency tables of the stage `code`; made by tables.py, which describes them. */")
    print('#include "codecs/tables.h"\n')
    print("/* clang-format off */")
    print("const uint16_t kvc_code_frequency[KVC_CODE_TABLES][KVC_CODE_SYMBOLS] = {")
    for i in range(TABLES):
        row = table(2 ** (LOWEST + 0.2 * i))
        print(f"    {{ /* scale 2^{LOWEST + 0.2 * i:.1f} */")
        for at in range(0, 128, 16):
            print("        " + ", ".join(str(x) for x in row[at:at + 16]) + ",")
        print("    },")
    print("};")
    print("/* clang-format on */")


if __name__ == "__main__":
    main()
