#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of tests/corpus/filters: small chunks as HDF5 and its plugins write them, and damaged ones.

    tests/make_filters.py FOLDER

What stands before a chunk is told in fuzz_filters.c."""
import struct
import sys
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401: registers the filters
import numpy as np
import zstandard

GZIP, SHUFFLE, FLETCHER32, LZ4, BITSHUFFLE, ZSTD = 1, 2, 3, 32004, 32008, 32015
NUMBER = {GZIP: 0, SHUFFLE: 1, FLETCHER32: 2, LZ4: 3, BITSHUFFLE: 4, ZSTD: 5}
PIPELINES = {
    "gzip": [(GZIP, (4,))],
    "shuffle_gzip": [(SHUFFLE, (2,)), (GZIP, (4,))],
    "fletcher32": [(FLETCHER32, ())],
    "shuffle_gzip_fletcher32": [(SHUFFLE, (2,)), (GZIP, (4,)), (FLETCHER32, ())],
    "fletcher32_gzip": [(FLETCHER32, ()), (GZIP, (4,))],
    "lz4": [(LZ4, (0,))],
    "lz4_64": [(LZ4, (64,))],
    "bits": [(BITSHUFFLE, (0, 0))],
    "bits_lz4": [(BITSHUFFLE, (0, 2))],
    "bits_lz4_16": [(BITSHUFFLE, (16, 2))],
    "bits_lz4_fletcher32": [(BITSHUFFLE, (0, 2)), (FLETCHER32, ())],
}


def chunk_of(pixels, filters):
    """The chunk, and its filters with the parameters that they have then."""
    with h5py.File("seed", "w", driver="core", backing_store=False) as f:
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_chunk(pixels.shape)
        for number, values in filters:
            if number == SHUFFLE:
                dcpl.set_shuffle()
            elif number == FLETCHER32:
                dcpl.set_fletcher32()
            elif number == GZIP:
                dcpl.set_deflate(*values)
            else:
                dcpl.set_filter(number, h5py.h5z.FLAG_MANDATORY, values)
        dtype = h5py.h5t.py_create(pixels.dtype, logical=True)
        dataset = h5py.h5d.create(f.id, b"d", dtype, h5py.h5s.create_simple(pixels.shape), dcpl)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, pixels)
        dcpl = dataset.get_create_plist()
        return dataset.read_direct_chunk((0,) * pixels.ndim)[1], [dcpl.get_filter(i) for i in range(dcpl.get_nfilters())]


def seed(n_bytes, filters, chunk, mask=0):
    head = bytes([len(filters) - 1 | mask << 4]) + struct.pack("<H", n_bytes)
    for number, _, values, *_ in filters:
        values = tuple(values) + (0,) * (5 - len(values))
        if number == BITSHUFFLE:
            head += bytes([NUMBER[number] | 5 << 4, values[2], values[3], values[4]])
        else:
            head += bytes([NUMBER[number] | (number == SHUFFLE) << 4, values[0] % 256, 0, 0])
    return head + chunk


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.RandomState(1).poisson(1, (13, 11)).astype("<u2")
    for name, filters in PIPELINES.items():
        chunk, known = chunk_of(pixels, filters)
        whole = seed(pixels.nbytes, known, chunk)
        (folder / name).write_bytes(whole)
        (folder / f"{name}_cut").write_bytes(whole[:-len(chunk) // 3])
    zstd = zstandard.ZstdCompressor().compress(pixels.tobytes())
    (folder / "zstd").write_bytes(seed(pixels.nbytes, [(ZSTD, 0, ())], zstd))
    (folder / "zstd_skipped").write_bytes(seed(pixels.nbytes, [(ZSTD, 0, ())], pixels.tobytes(), mask=1))
    (folder / "zstd_gzip").write_bytes(seed(pixels.nbytes, [(GZIP, 0, (4,)), (ZSTD, 0, ())], zstd))


if __name__ == "__main__":
    main()
