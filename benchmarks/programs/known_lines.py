"""A loop in which each line takes a known time, told at the end as JSON: line, seconds.

Some lines hold Python's lock, some give it up, some wait: who looks by taking turns at the lock
sees these differently. Each is shorter than the 5 ms after which Python passes the lock on.
"""

import hashlib
import json
import os
import sys
import time

SECONDS = float(sys.argv[1])
BLOCK, NUMBERS = bytes(400_000), list(range(12_000, 0, -1))
clock, spent, code = time.perf_counter, {}, sys._getframe().f_code


def think(seconds):
    end, number = clock() + seconds, 0
    while clock() < end:
        number += 1
    return number


def note(name, since):
    line = sys._getframe(1).f_lineno
    spent[name] = (line - 1, spent.get(name, (0, 0.0))[1] + clock() - since)
    return clock()


def one_batch():
    at = clock()
    _ = [value * value for value in NUMBERS]
    at = note("a comprehension", at)
    sorted(str(value) for value in NUMBERS[:2_000])
    at = note("sorting words", at)
    os.stat("/")  # noqa: PTH116  its line is what is timed
    at = note("a look at a file", at)
    hashlib.sha256(BLOCK).digest()
    at = note("a hash, without the lock", at)
    time.sleep(0.001)
    at = note("a sleep", at)
    think(0.0005)
    note("a function of the program's own", at)


if __name__ == "__main__":
    end = clock() + SECONDS
    while clock() < end:
        one_batch()
    print(json.dumps(spent))
