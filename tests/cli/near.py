"""near.py WANTED GOT: are two texts equal but for sizes, offsets and ratios, as another zstd than that of the expectations makes them?

Numbers from SURE on, and those with a decimal point, may differ by SHARE or by one in their last decimal. Columns may be wider.
"""

import re
import sys

SURE = 600  # tokens, layers and records of the tests are fewer
SHARE = 0.03
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)")


def exact(number):
    return "." not in number and int(number) < SURE


def near(wanted, got):
    if wanted == got or exact(wanted) or exact(got):
        return wanted == got
    last = 10.0 ** -min(len(x.partition(".")[2]) for x in (wanted, got))
    return abs(float(wanted) - float(got)) <= max(SHARE * float(wanted), 1.01 * last if last < 1 else 0)


def alike(wanted, got):
    numbers = [NUMBER.findall(text) for text in (wanted, got)]
    around = [[re.sub(" +", " ", part) for part in NUMBER.split(text)] for text in (wanted, got)]
    return around[0] == around[1] and all(map(near, *numbers))


if __name__ == "__main__":
    sys.exit(not alike(*(open(path, encoding="utf-8", errors="surrogateescape").read() for path in sys.argv[1:])))
