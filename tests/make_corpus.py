#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of tests/corpus/wire: one message of each kind, and what a broken peer sends.

    tests/make_corpus.py FOLDER

The messages are put together by hand from field numbers, so that a change of framestow.proto that renumbers a
field shows as a seed that no longer parses to the same thing. The first byte of a seed tells fuzz_wire how the
bytes are cut (low six bits) and how many descriptors come with the first piece (high two)."""
import struct
import sys
from pathlib import Path


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field, value):
    return varint(field << 3) + varint(value)


def data(field, value):
    return varint(field << 3 | 2) + varint(len(value)) + value


def frame(body, n_fds=0, length=None):
    return struct.pack("<II", len(body) if length is None else length, n_fds) + body


def request(field, body, id=1):
    return number(1, id) + data(field, body)


def reply(field, body, id=1):
    return data(1, number(1, id) + data(field, body))


def event(field, body):
    return data(2, data(field, body))


ACQUISITION = (number(1, 7) + data(2, b"scan") + number(3, 2) + data(4, b"cuda:0") + data(5, b"u2") + number(6, 4096)
               + data(14, varint(0) + varint(4096)) + data(20, b"/data/scan_master.h5")
               + data(23, data(1, b"index") + varint(2 << 3 | 1) + struct.pack("<d", 1.5)))
HELLO = number(1, 1) + number(2, 1) + data(3, b"0.1.0") + number(4, 7) + data(5, bytes(16)) + number(6, 4026531836)
LOAD = data(1, b"scan") + data(2, b"/data/scan_master.h5") + number(6, 1) + number(9, 64) + number(10, 64)
STREAM = (data(1, b"scan") + number(2, 1) + data(5, b"".join(varint(i) for i in (0, 5, 300, 1 << 40)))
          + number(11, 64) + number(13, 1))
RELEASE = number(1, 3) + data(2, bytes([0, 1])) + data(3, varint(17) + varint(18))
READY = number(1, 3) + number(3, 17) + number(5, 2) + data(7, bytes([4, 9])) + data(8, bytes([0, 3])) + number(9, 1 << 20)

# name: (number of descriptors, bytes)
SEEDS = {
    "hello": (0, frame(request(2, HELLO))),
    "load": (1, frame(request(3, LOAD), 1)),
    "files": (2, frame(request(4, number(1, 1) + data(2, number(1, 0) + data(3, b"/data/a.h5"))
                               + data(2, number(1, 1) + data(3, b"/data/b.h5"))), 2)),
    "session": (0, frame(request(2, HELLO)) + frame(request(6, b"")) + frame(request(9, STREAM, 2))
                + frame(request(10, number(1, 3) + data(2, bytes(16)), 3)) + frame(request(12, RELEASE, 4))
                + frame(request(13, number(1, 3), 5)) + frame(request(14, number(1, 3), 6))),
    "frames": (0, frame(request(11, number(1, 3) + data(2, bytes([1, 2, 3]))))),
    "errors": (0, frame(request(15, data(1, b"scan") + data(2, bytes([5]))))),
    "info_unload_stats": (0, frame(request(7, data(1, b"scan"))) + frame(request(8, data(1, b"scan")))
                          + frame(request(16, b"")) + frame(request(5, number(1, 1)))),
    "replies": (0, frame(reply(2, number(1, 9) + data(2, b"no room") + number(3, 10)))
                + frame(reply(4, number(1, 1) + data(3, bytes(16)) + data(4, data(1, b"host"))))
                + frame(reply(6, data(1, ACQUISITION))) + frame(reply(7, ACQUISITION))
                + frame(reply(8, number(1, 3) + number(2, 1) + number(3, 1 << 20) + number(5, 2)))),
    "events": (0, frame(event(1, number(1, 1) + data(2, data(2, b"scan_data_000001.h5"))))
               + frame(event(3, number(1, 1) + data(3, ACQUISITION))) + frame(event(4, READY))
               + frame(event(5, number(1, 3))) + frame(event(6, number(1, 5000)))),
    "empty_body": (0, frame(b"")),
    "unknown_request": (0, frame(number(1, 1) + data(99, b"later"))),
    "too_long": (0, frame(b"", length=65537)),
    "length_lies": (0, frame(request(6, b""), length=64)),
    "half_header": (0, b"\x05\x00\x00"),
    "fewer_descriptors": (1, frame(request(3, LOAD), 2)),
    "more_descriptors": (2, frame(request(3, LOAD), 0)),
    "too_many_descriptors": (0, frame(b"", 65)),
    "nested_length_lies": (0, frame(number(1, 1) + varint(2 << 3 | 2) + varint(1 << 34) + b"x")),
    "endless_varint": (0, frame(b"\x08" + b"\xff" * 32)),
    "wrong_wire_type": (0, frame(varint(2 << 3) + varint(5))),
    "longest_body": (0, frame(request(7, data(1, b"n" * 60000)))),
}


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (n_fds, stream) in SEEDS.items():
        # The longest piece for all, and one that cuts every header for the sessions.
        (folder / name).write_bytes(bytes([n_fds << 6 | 0x3F]) + stream)
        if len(stream) > 100 and not n_fds:
            (folder / f"{name}_cut").write_bytes(bytes([0]) + stream[:2000])


if __name__ == "__main__":
    main()
