#!/usr/bin/env python3
"""tables.py: makes codecs/tables.c, the fixed frequency tables of the stage `code` (codecs/stages/code/code.md, "Tables").

    python3 codecs/tables.py > codecs/tables.c

The tables are part of the format: this program says where they come from, and is not run when kvc is built.
"""

from math import erfc, exp, sqrt
from textwrap import fill

TABLES, LOWEST, WHOLE = 32, -3.4, 2048


def tail(x):
    """P(value > x) of the mixture at scale 1: 0.7 of a Gaussian of 0.75 and 0.3 of a Laplace distribution of 1.4."""
    return 0.7 * 0.5 * erfc(x / 0.75 / sqrt(2)) + 0.3 * 0.5 * exp(-sqrt(2) * x / 1.4)


def probabilities(scale):
    """Of rounded values 0, 1, 2 ...: each of 1 and more stands for one sign."""
    return [1 - 2 * tail(0.5 / scale)] + [tail((k - 0.5) / scale) - tail((k + 0.5) / scale) for k in range(1, 63)]


def table(scale):
    """Frequencies of 0, 1, 2 ... up to the last value with a symbol, each at least 1. Both signs and the escape sum to 2048."""
    p = probabilities(scale)
    most = max(k for k in range(1, 63) if k == 1 or p[k] * WHOLE >= 0.35)
    f = [0] + [max(1, round(p[k] * WHOLE)) for k in range(1, most + 1)]
    escape = max(1, round(2 * tail((most + 0.5) / scale) * WHOLE))
    f[0] = WHOLE - escape - 2 * sum(f)
    while f[0] < f[1]:  # wide tables: what rounding up took is taken back from the most frequent
        k = max(range(1, most + 1), key=lambda k: f[k])
        f[k] -= 1
        f[0] += 2
    assert f[0] + 2 * sum(f[1:]) < WHOLE
    return f


def main():
    print("/* tables.c: the frequency tables of the stage `code`; made by tables.py, which describes them. */")
    print('#include "codecs/tables.h"\n')
    print("/* clang-format off */")
    print("const uint16_t kvc_code_half[KVC_CODE_TABLES][KVC_CODE_MIDDLE] = {")
    for i in range(TABLES):
        scale = LOWEST + 0.2 * i
        numbers = ", ".join(str(x) for x in table(2 ** scale))
        print(fill(f"{{ /* scale 2^{scale:.1f} */ {numbers}}},", 96, initial_indent="    ", subsequent_indent="     "))
    print("};")
    print("/* clang-format on */")


if __name__ == "__main__":
    main()
