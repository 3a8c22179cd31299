# SPDX-License-Identifier: Apache-2.0
"""Chunks of any shape, filters, types, byte orders, skipped filters, unwritten chunks: what is served is what was written.

HDF5 and its plugins write the chunks, so that nothing of ours is on both sides; but for Zstandard behind bitshuffle, which
Debian's library does not have (it writes another thing in silence): that is put together here, by numpy and zstandard."""
import itertools
import struct

import h5py
import hdf5plugin  # noqa: F401: registers the filters
import numpy as np
import pytest

from conftest import sha256

GZIP, SHUFFLE, FLETCHER32, LZ4, BITSHUFFLE, ZSTD = 1, 2, 3, 32004, 32008, 32015
FILTERS = {
    "none": (), "gzip": ((GZIP, (4,)),), "shuffle gzip": ((SHUFFLE, ()), (GZIP, (1,))), "fletcher32": ((FLETCHER32, ()),),
    "shuffle gzip fletcher32": ((SHUFFLE, ()), (GZIP, (6,)), (FLETCHER32, ())),
    "fletcher32 gzip": ((FLETCHER32, ()), (GZIP, (1,))), "lz4": ((LZ4, ()),), "lz4 0": ((LZ4, (0,)),),
    "lz4 512": ((LZ4, (512,)),), "lz4 tiny": ((LZ4, (8,)),), "bitshuffle": ((BITSHUFFLE, (0, 0)),),
    "bslz4": ((BITSHUFFLE, (0, 2)),), "bslz4 16": ((BITSHUFFLE, (16, 2)),), "bitshuffle gzip": ((BITSHUFFLE, (0, 0)), (GZIP, (1,))),
    "bslz4 fletcher32": ((BITSHUFFLE, (0, 2)), (FLETCHER32, ())), "fletcher32 bslz4": ((FLETCHER32, ()), (BITSHUFFLE, (0, 2))),
    "false bszstd": ((BITSHUFFLE, (0, 3)),), "shuffle lz4": ((SHUFFLE, ()), (LZ4, (0,))),
}
SHAPES = [
    ((7, 8, 8), (1, 8, 8)), ((7, 8, 8), (3, 8, 8)), ((7, 8, 8), (1, 4, 8)), ((7, 8, 8), (1, 5, 5)), ((7, 8, 8), (2, 3, 8)),
    ((7, 8, 8), (7, 8, 8)), ((7, 8, 8), (16, 8, 8)), ((3, 5, 8, 8), (2, 2, 8, 8)), ((3, 5, 8, 8), (1, 5, 4, 4)),
    ((3, 5, 8, 8), (1, 5, 8, 8)), ((3, 5, 9, 7), (3, 5, 9, 7)), ((5, 37, 41), (2, 37, 20)), ((40, 3, 5), (6, 3, 5)),
]
DTYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"]


def pixels(shape, dtype, seed=0):
    """Small counts, and any bits here and there: NaN with payload, -0.0, sentinels."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    a = rng.poisson(2, shape).astype(dtype)
    bits = a.reshape(-1).view(f"u{dtype.itemsize}")
    where = rng.integers(0, bits.size, bits.size // 40 + 1)
    bits[where] = rng.integers(0, 2**64 - 1, where.size, dtype="u8").astype(bits.dtype)
    return a


def plist(chunks, filters, fill=None, dtype=None):
    dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    dcpl.set_chunk(chunks)
    for number, values in filters:
        if number == SHUFFLE:
            dcpl.set_shuffle()
        elif number == FLETCHER32:
            dcpl.set_fletcher32()
        elif number == GZIP:
            dcpl.set_deflate(*values)
        else:
            dcpl.set_filter(number, h5py.h5z.FLAG_OPTIONAL, values)
    if fill is not None:
        dcpl.set_fill_value(np.array(fill, dtype))
    return dcpl


def dataset(f, name, a, chunks, filters, fill=None):
    lcpl = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    lcpl.set_create_intermediate_group(True)
    space = h5py.h5s.create_simple(a.shape, tuple(max(x) for x in zip(a.shape, chunks)))
    return h5py.Dataset(h5py.h5d.create(f.id, name.encode(), h5py.h5t.py_create(a.dtype, logical=True), space,
                                        plist(chunks, filters, fill, a.dtype), lcpl))


def chunk_bytes(block, filters):
    """A whole chunk as HDF5 writes it with these filters."""
    if not filters:
        return block.tobytes()
    with h5py.File("chunk", "w", driver="core", backing_store=False) as f:
        d = dataset(f, "d", block, block.shape, filters)
        d[...] = block
        mask, data = d.id.read_direct_chunk((0,) * block.ndim)
        assert mask == 0
        return data


def write(path, a, chunks, filters=(), fill=None, left_out=(), masks=None):
    """One dataset, chunk by chunk. left_out: numbers of chunks that are not written; masks: of those that skip filters.
    What has to be read."""
    want = a.copy()
    with h5py.File(path, "w") as f:
        d = dataset(f, "/entry/data/data", a, chunks, filters, fill)
        corners = itertools.product(*(range(0, n, c) for n, c in zip(a.shape, chunks)))
        for number, corner in enumerate(corners):
            where = tuple(slice(at, at + c) for at, c in zip(corner, chunks))
            if number in left_out:
                want[where] = 0 if fill is None else fill
                continue
            block = np.full(chunks, 77, a.dtype)
            inside = a[where]
            block[tuple(slice(0, n) for n in inside.shape)] = inside
            mask = (masks or {}).get(number, 0)
            data = chunk_bytes(block, [x for i, x in enumerate(filters) if not mask >> i & 1])
            d.id.write_direct_chunk(corner, data, filter_mask=mask)
    return want


def same(daemon, path, want, *options):
    """Served as it was written; and verify, which reads the file again, finds no difference."""
    name = path.stem
    info = daemon.load(path, "--name", name, *options)
    try:
        n = int(np.prod(want.shape[:-2]))
        assert (info["frames"], info["dtype"]) == (n, want.dtype.str[1:]), info
        assert sum(info["forms"].values()) == n and not info["forms"]["bad"]
        assert daemon.digest(name) == (sha256(want), n, want.nbytes)
        if n > 3:
            some = [n - 1, 0, n // 2]
            assert daemon.digest(name, ",".join(map(str, some)))[0] == sha256(want.reshape(n, *want.shape[-2:])[some])
        res = daemon.cli("verify", name)
        assert res.returncode == 0, res.stderr
    finally:
        daemon.cli("unload", name)
    return info


@pytest.mark.parametrize("shape, chunks", SHAPES, ids=str)
def test_shapes(daemon, folder, shape, chunks):
    for k, name in enumerate(("none", "shuffle gzip", "bslz4", "lz4", "bslz4 fletcher32")):
        a = pixels(shape, "u2", k)
        same(daemon, folder / f"s{k}.h5", write(folder / f"s{k}.h5", a, chunks, FILTERS[name]))


@pytest.mark.parametrize("name", FILTERS)
def test_filters(daemon, folder, name):
    """Behind each pipeline: frames of one chunk, of many, many of one; both byte orders; filters that are skipped."""
    for k, (shape, chunks) in enumerate([((4, 33, 21), (1, 33, 21)), ((4, 33, 21), (1, 8, 16)), ((9, 16, 12), (4, 16, 12))]):
        for dtype in (">u2", "<u4"):
            filters = FILTERS[name]
            a = pixels(shape, dtype, k)
            masks = {i: i for i in range(1, 1 << len(filters))}
            path = folder / f"f{k}{dtype[1:]}.h5"
            want = write(path, a, chunks, filters, fill=3, left_out=(2,) if k else (), masks=masks)
            same(daemon, path, want.astype(want.dtype.newbyteorder("<")))


@pytest.mark.parametrize("dtype", [order + kind for kind in DTYPES for order in "<>"])
def test_types(daemon, folder, dtype):
    for k, name in enumerate(("none", "shuffle gzip", "bslz4", "lz4")):
        for chunks in ((1, 9, 11), (2, 4, 11)):
            a = pixels((5, 9, 11), dtype, k)
            path = folder / f"t{k}{chunks[0]}.h5"
            want = write(path, a, chunks, FILTERS[name], fill=5, left_out=(1,))
            same(daemon, path, want.astype(want.dtype.newbyteorder("<")))


def bitshuffle(a):
    """By bits, of a multiple of 8 elements, as bitshuffle does."""
    rows = np.ascontiguousarray(a.view("u1").reshape(a.size, a.itemsize).T)
    bits = np.unpackbits(rows, axis=1, bitorder="little").reshape(a.itemsize, a.size, 8)
    return np.packbits(bits.transpose(0, 2, 1).reshape(-1, a.size), axis=1, bitorder="little").tobytes()


def bszstd(a, block):
    zstandard = pytest.importorskip("zstandard")
    flat, out = a.reshape(-1), struct.pack(">QI", a.nbytes, block * a.itemsize)
    whole = flat.size // 8 * 8
    for at in range(0, whole, block):
        packed = zstandard.ZstdCompressor().compress(bitshuffle(flat[at:min(at + block, whole)]))
        out += struct.pack(">I", len(packed)) + packed
    return out + flat[whole:].tobytes()


@pytest.mark.parametrize("dtype", ["<u1", "<u2", ">u2", "<u4", "<u8", "<f8"])
def test_bitshuffle_with_zstandard(daemon, folder, dtype):
    for chunks in ((1, 33, 21), (2, 16, 21)):
        a = pixels((4, 33, 21), dtype)
        path = folder / f"z{chunks[0]}.h5"
        with h5py.File(path, "w") as f:
            d = dataset(f, "/entry/data/data", a, chunks, [(BITSHUFFLE, (0, 3))])
            for corner in itertools.product(*(range(0, n, c) for n, c in zip(a.shape, chunks))):
                block = np.zeros(chunks, dtype)
                inside = a[tuple(slice(at, at + c) for at, c in zip(corner, chunks))]
                block[tuple(slice(0, n) for n in inside.shape)] = inside
                d.id.write_direct_chunk(corner, bszstd(block, 128))
        same(daemon, path, a.astype(a.dtype.newbyteorder("<")))


def test_zstandard(daemon, folder):
    zstandard = pytest.importorskip("zstandard")
    a = pixels((6, 20, 30), "u2")
    with h5py.File(folder / "z.h5", "w") as f:
        d = dataset(f, "/entry/data/data", a, (2, 20, 30), [(ZSTD, (3,))])
        for i in range(0, 6, 2):
            d.id.write_direct_chunk((i, 0, 0), zstandard.ZstdCompressor().compress(a[i:i + 2].tobytes()))
    same(daemon, folder / "z.h5", a)


def test_one_chunk_of_all_frames(daemon, folder):
    """Decoded once, not once a frame or a span: 157 MB in one chunk, of which a span has 8 MiB at most."""
    a = np.random.default_rng(1).poisson(0.1, (600, 512, 256)).astype("u2")
    with h5py.File(folder / "one.h5", "w") as f:
        f.create_dataset("/entry/data/data", data=a, chunks=a.shape, compression="gzip", compression_opts=1)
    info = same(daemon, folder / "one.h5", a)
    assert info["bytes"]["source"] < a.nbytes / 4


@pytest.mark.parametrize("name, says", [("shuffle gzip", "gzip"), ("bslz4 fletcher32", "checksum"), ("lz4", "LZ4")])
def test_damage(daemon, folder, name, says):
    """A damaged chunk is the fault of its frames, in words; the others are served."""
    a = pixels((8, 16, 16), "u2")
    path = folder / "damage.h5"
    write(path, a, (2, 16, 16), FILTERS[name])
    with h5py.File(path, "r") as f:
        info = f["/entry/data/data"].id.get_chunk_info(1)
    with open(path, "r+b") as f:
        f.seek(info.byte_offset + (12 if name == "lz4" else 20))
        data = f.read(4)
        f.seek(-4, 1)
        f.write(bytes(b ^ 0x7f for b in data))
    info = daemon.load(path, "--name", "damage")
    assert info["forms"]["bad"] == 2
    res = daemon.cli("frames", "damage", "--digest")
    assert res.returncode == 4
    assert "frames 2-3: corrupt" in res.stderr and says in res.stderr and "(2,0,0)" in res.stderr and "/entry/data/data" in res.stderr and "damage.h5" in res.stderr
    good = daemon.cli("frames", "damage", "--digest", "--skip-bad").stdout.split()
    assert good[0] == sha256(a[[0, 1, 4, 5, 6, 7]])
    daemon.cli("unload", "damage")
