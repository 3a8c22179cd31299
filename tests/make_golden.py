#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/bslz4_golden.h: chunks as h5py with hdf5plugin makes them, for the decoder's tests.

    tests/make_golden.py > tests/golden/bslz4_golden.h
    tests/make_golden.py FOLDER       the small ones as seeds of fuzz_bslz4 (tests/corpus/bslz4)

The pixels are not kept: golden_pixel in the test computes the same numbers as pixel below."""
import io
import sys
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np

# name, element bytes, elements of a frame (y, x), elements of a block (0: the filter's own choice)
CASES = [
    ("below_a_block", 2, (1, 5), 0),
    ("one_block_and_tail", 2, (3, 5), 0),
    ("single_column", 1, (1, 8), 8),
    ("tail_1", 1, (7, 7), 0),
    ("tail_1_u2", 2, (9, 9), 0),
    ("tail_2", 4, (5, 10), 64),
    ("tail_3", 2, (3, 25), 64),
    ("tail_4", 1, (2, 1030), 64),
    ("tail_5", 2, (7, 11), 8),
    ("tail_6", 4, (2, 11), 8),
    ("tail_7", 2, (23, 29), 64),
    ("eights", 2, (16, 16), 8),
    ("u1_default", 1, (97, 103), 0),
    ("u2_default", 2, (96, 97), 0),
    ("u4_default", 4, (60, 70), 0),
    ("u2_exact", 2, (64, 128), 0),
    ("u1_16384", 1, (131, 130), 16384),
    ("u2_16384", 2, (129, 128), 16384),
    ("u4_16384", 4, (129, 128), 16384),
    ("u2_larger_than_frame", 2, (64, 65), 32768),
    ("u4_1024", 4, (51, 51), 1024),
    ("u8_below_a_block", 8, (1, 7), 0),
    ("u8_tail_5", 8, (3, 7), 8),
    ("u8_default", 8, (41, 53), 0),
    ("u8_16384", 8, (65, 64), 16384),
]


def pixels(n, elem_bytes):
    i = np.arange(n, dtype=np.uint64)
    x = (i * 2654435761 + n) % 2**32
    x ^= x >> 15
    value = (x & 3) * (x >> 2 & 1)
    value[i % 611 == 610] = np.uint64(2 ** (8 * elem_bytes) - 1)
    return value.astype(f"<u{elem_bytes}")


def chunk(elem_bytes, shape, block):
    data = pixels(shape[0] * shape[1], elem_bytes).reshape(1, *shape)
    with h5py.File(io.BytesIO(), "w") as file:
        dataset = file.create_dataset("d", data=data, chunks=data.shape, **hdf5plugin.Bitshuffle(nelems=block))
        mask, stored = dataset.id.read_direct_chunk((0, 0, 0))
        if mask or not np.array_equal(dataset[...], data):
            raise SystemExit("the filter did not keep the pixels")
    return stored


def write_seeds(folder):
    """A seed: element size, elements (u16), the chunk. A few are damaged where it tells."""
    for name, elem_bytes, shape, block in CASES:
        stored = chunk(elem_bytes, shape, block)
        if len(stored) > 700:
            continue
        head = bytes([elem_bytes.bit_length() - 1]) + (shape[0] * shape[1]).to_bytes(2, "little")
        (folder / name).write_bytes(head + stored)
        if name in ("tail_5", "tail_7", "u8_tail_5"):
            (folder / f"{name}_cut").write_bytes(head + stored[:-9])
            (folder / f"{name}_table").write_bytes(bytes([head[0] | 0x80]) + head[1:] + stored)
            (folder / f"{name}_huge_length").write_bytes(head + stored[:12] + b"\x7f\xff\xff\xff" + stored[16:])
            (folder / f"{name}_offset_0").write_bytes(head + stored[:16] + b"\x10\x00\x00\x00" + stored[20:])


def main():
    if len(sys.argv) > 1:
        write_seeds(Path(sys.argv[1]))
        return
    print("/* SPDX-License-Identifier: Apache-2.0")
    print(" *")
    print(" * Made by tests/make_golden.py: chunks of HDF5 filter 32008 as h5py with hdf5plugin wrote them. */")
    print("#ifndef STOW_BSLZ4_GOLDEN_H\n#define STOW_BSLZ4_GOLDEN_H\n\n#include <stdint.h>\n\n/* clang-format off */")
    table = []
    for name, elem_bytes, shape, block in CASES:
        stored = chunk(elem_bytes, shape, block)
        print(f"static const uint8_t golden_{name}[] = {{")
        for at in range(0, len(stored), 32):
            print("    " + ",".join(str(byte) for byte in stored[at:at + 32]) + ",")
        print("};")
        table.append(f'    {{"{name}", {elem_bytes}, {shape[0] * shape[1]}, {len(stored)}, golden_{name}}},')
    print("\nstatic const struct golden {\n    const char *name;\n    uint32_t elem_bytes, n_elems, n_bytes;")
    print("    const uint8_t *bytes;\n} goldens[] = {")
    print("\n".join(table))
    print("};\n\n#endif")


if __name__ == "__main__":
    main()
