# SPDX-License-Identifier: Apache-2.0
"""The index of acquisitions that have to be put together: chunks that are no frames, other filters, the other byte order.

A naive assembler does what assembly.h says, from the files' bytes; h5py says what must come out."""
import ctypes
import zlib

import numpy as np
import pytest

import test_source
from test_source import BAD_BYTES, DATA, NO_FILE, PAST_END, REAL, counts, good, noise, refused, run, write

h5py = pytest.importorskip("h5py")
pytestmark = test_source.pytestmark
GZIP, SHUFFLE, FLETCHER = (1, (4,)), (2, ()), (3, ())


def undo(chunk, filters, mask, elem_bytes):
    for i in reversed(range(len(filters))):
        number = filters[i][0]
        if mask >> i & 1:
            continue
        if number == 1:
            chunk = zlib.decompress(chunk)
        elif number == 2:
            n = len(chunk) // elem_bytes * elem_bytes
            chunk = np.frombuffer(chunk[:n], "u1").reshape(elem_bytes, -1).T.tobytes() + chunk[n:]
        elif number == 3:
            chunk = chunk[:-4]
        else:
            raise ValueError(f"filter {number} is not undone here")
    return chunk


class Assembler:
    """Frames as assembly.h describes them."""

    def __init__(self, index):
        self.index, head = index, index.head
        self.kind = np.dtype("<" + index.dtype)
        self.det, self.parts = tuple(head["det"]), head["assembly"]
        self.fill = np.frombuffer(head["fill"].to_bytes(8, "little")[:self.kind.itemsize], self.kind)[0]
        self.sets = [self.decode(s) for s in self.parts["datasets"]]

    def decode(self, s):
        """All frames of a dataset; those of bad chunks as they may be."""
        kind = self.kind.newbyteorder(">") if s["big"] & 1 else self.kind
        grid = [-(-d // c) for d, c in zip(s["dims"], s["chunk"])]
        fill = np.frombuffer(s["fill"].to_bytes(8, "little")[:kind.itemsize], self.kind)[0]
        whole = np.full([g * c for g, c in zip(grid, s["chunk"])], fill, self.kind)
        assert len(s["chunks"]) == np.prod(grid)
        for i, (offset, n, file, mask, fault) in enumerate(s["chunks"]):
            if n == 0 or fault:
                continue
            with open(self.index.files[file][0], "rb") as f:
                f.seek(offset)
                stored = f.read(n)
            pixels = np.frombuffer(undo(stored, s["filters"], mask, kind.itemsize), kind).reshape(s["chunk"])
            at = np.unravel_index(i, grid)
            whole[tuple(slice(a * c, a * c + c) for a, c in zip(at, s["chunk"]))] = pixels
        whole = whole[tuple(slice(d) for d in s["dims"])]
        return whole.reshape((-1,) + whole.shape[-2:])

    def frames(self):
        all_frames = np.full((self.index.n,) + self.det, self.fill, self.kind)
        for frame, step, n, from_frame, from_step, y, x, from_y, from_x, n_y, n_x, number in self.parts["boxes"]:
            rows, columns = slice(from_y, from_y + n_y), slice(from_x, from_x + n_x)
            part = self.sets[number][from_frame:from_frame + (n - 1) * from_step + 1:from_step, rows, columns]
            all_frames[frame:frame + (n - 1) * step + 1:step, y:y + n_y, x:x + n_x] = part
        for i, (_, n, _, raw, fault) in enumerate(self.index.chunks):
            if n == 0 and not fault:
                assert (all_frames[i] == self.fill).all()
            else:
                assert fault or (n == all_frames[i].nbytes and raw == 1)
        return all_frames


def check_chunks(index, path, dset=DATA, number=0):
    """Each chunk is where h5py finds it."""
    s = index.head["assembly"]["datasets"][number]
    with h5py.File(path, "r") as h:
        ds = h[dset]
        assert s["dims"] == list(ds.shape) and s["chunk"] == list(ds.chunks) and s["path"] == dset
        grid = [-(-d // c) for d, c in zip(ds.shape, ds.chunks)]
        n = 0
        for i, (offset, size, file, mask, fault) in enumerate(s["chunks"]):
            at = tuple(int(a) * c for a, c in zip(np.unravel_index(i, grid), ds.chunks))
            if size == 0:
                assert ds.id.get_chunk_info_by_coord(at).byte_offset is None
                continue
            n += 1
            assert fault == 0
            theirs = ds.id.read_direct_chunk(at)
            with open(index.files[file][0], "rb") as f:
                f.seek(offset)
                assert (mask, f.read(size)) == theirs
        assert n == ds.id.get_num_chunks()


def same(a, b):
    return a.dtype.newbyteorder("<") == b.dtype.newbyteorder("<") and a.shape == b.shape and \
        a.tobytes() == b.astype(b.dtype.newbyteorder("<")).tobytes()


def check(path, dset=DATA, decodes=True, args=()):
    index = good(path, *args)
    assert index.head["assembly"] is not None
    with h5py.File(path, "r") as h:
        if h[dset].chunks:
            check_chunks(index, path, dset)
        want = h[dset][...]
    if decodes:
        assert same(Assembler(index).frames(), want.reshape((-1,) + want.shape[-2:]))
    return index


SHAPES = [((7, 8, 8), c) for c in [(3, 8, 8), (1, 4, 8), (1, 5, 5), (2, 3, 8), (7, 8, 8), (2, 8, 3), (7, 1, 1)]]
SHAPES += [((3, 5, 8, 8), c) for c in [(2, 2, 8, 8), (1, 5, 4, 4), (3, 1, 8, 8), (1, 2, 8, 8), (2, 3, 5, 3)]]
SHAPES += [((2, 3, 2, 4, 6), c) for c in [(1, 1, 1, 4, 6), (2, 2, 1, 3, 6), (1, 3, 2, 4, 4)]]
SHAPES += [((9, 7), c) for c in [(4, 7), (9, 2), (5, 3)]]


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("filters", [(SHUFFLE, GZIP), ()])
@pytest.mark.parametrize("shape, chunks", SHAPES)
def test_chunk_shapes(tmp_path, shape, chunks, filters, libver):
    rng = np.random.RandomState(len(shape))
    a = rng.poisson(3, shape).astype("<u2")
    if shape[-2:] == chunks[-2:] and set(chunks[:-2]) <= {1} and not filters:
        pytest.skip("a frame a chunk")
    limits = [None, shape, tuple(n + 3 for n in shape)]
    limits += [tuple(None if i == k else n + 2 for i, n in enumerate(shape)) for k in range(len(shape))]
    for i, maxshape in enumerate(limits):
        check(write(tmp_path / f"{i}.h5", a, chunks=chunks, filters=filters, libver=libver, maxshape=maxshape))


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_chunks_larger_than_the_dataset(tmp_path, libver):
    for i, chunks in enumerate([(16, 8, 8), (16, 11, 9), (1, 9, 8)]):
        check(write(tmp_path / f"{i}.h5", counts(7), chunks=chunks, filters=(GZIP,), libver=libver, maxshape=(None,) * 3))


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<u4", "<u8", "i1", "<i2", "<i4", "<i8", "<f4", "<f8",
                                   ">u2", ">u4", ">u8", ">i2", ">i4", ">i8", ">f4", ">f8"])
def test_dtypes(tmp_path, dtype):
    a = noise(5, 6, 7, dtype)
    check(write(tmp_path / "g.h5", a, filters=(SHUFFLE, GZIP)))
    check(write(tmp_path / "s.h5", a, chunks=(2, 5, 4), filters=(GZIP,), libver="latest"))
    if dtype[0] == ">":
        check(write(tmp_path / "c.h5", a, chunks=None))
        check(write(tmp_path / "b.h5", a), decodes=False)
        check(write(tmp_path / "n.h5", a, filters=()))
    else:
        index = good(write(tmp_path / "c.h5", a, chunks=None))
        assert index.head["assembly"] is None and b"".join(map(index.bytes_of, range(5))) == a.tobytes()


@pytest.mark.parametrize("filters", [(GZIP,), (SHUFFLE, GZIP, FLETCHER), (FLETCHER,), (FLETCHER, GZIP), (SHUFFLE,)])
def test_filters(tmp_path, filters):
    index = check(write(tmp_path / "p.h5", counts(), filters=filters))
    assert [f[0] for f in index.head["assembly"]["datasets"][0]["filters"]] == [f[0] for f in filters]


@pytest.mark.parametrize("filters", [((32008, (0, 2)), FLETCHER), ((32004, ()),), ((32004, (512,)),), ((32008, (0, 0)),),
                                     ((32008, (0, 3)),), ((32015, (3,)),), (SHUFFLE, (32015, ()))])
def test_plugin_filters(tmp_path, filters):
    if any(not h5py.h5z.filter_avail(f[0]) for f in filters):
        pytest.skip("h5py lacks a filter")
    index = check(write(tmp_path / "p.h5", counts(4, 32, 32), filters=filters), decodes=False)
    with h5py.File(tmp_path / "p.h5", "r") as h:
        plist = h[DATA].id.get_create_plist()
        stored = [[plist.get_filter(i)[0], *plist.get_filter(i)[2]] for i in range(plist.get_nfilters())]
    assert index.head["assembly"]["datasets"][0]["filters"] == stored


def test_filter_masks(tmp_path):
    a = counts()
    path = write(tmp_path / "p.h5", a, filters=(SHUFFLE, GZIP, FLETCHER))
    shuffled = a[2].reshape(-1).view("u1").reshape(-1, 2).T.tobytes()
    with h5py.File(path, "a") as h:
        h[DATA].id.write_direct_chunk((1, 0, 0), a[1].tobytes(), 7)
        h[DATA].id.write_direct_chunk((2, 0, 0), shuffled, 6)
        h[DATA].id.write_direct_chunk((3, 0, 0), zlib.compress(a[3].tobytes()), 5)
    index = check(path)
    assert [c[3] for c in index.head["assembly"]["datasets"][0]["chunks"]] == [0, 7, 6, 5]
    with h5py.File(path, "a") as h:
        h[DATA].id.write_direct_chunk((1, 0, 0), b"short", 7)
    index = good(path)
    assert [c[4] for c in index.chunks] == [0, BAD_BYTES, 0, 0] and "1 of 4 frames are bad" in index.warnings[0]


def test_edges_without_filter(tmp_path):
    """HDF5 1.10 can leave those chunks alone that reach past the end."""
    path = write(tmp_path / "p.h5", counts(7), chunks=(3, 5, 8), filters=(GZIP,), libver="latest",
                 tweak=lambda p: ctypes.CDLL(h5py.h5p.__file__).H5Pset_chunk_opts(ctypes.c_int64(p.id), 2))
    index = good(path)
    assert {c[3] for c in index.head["assembly"]["datasets"][0]["chunks"]} == {0, 1}
    with h5py.File(path, "r") as h:
        assert same(Assembler(index).frames(), h[DATA][...])


@pytest.mark.parametrize("dtype, fill", [("<u2", 7), (">u2", 258), ("<i4", -2), (">f4", 1.5), ("<f8", -0.0), ("u1", 255)])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_unwritten(tmp_path, dtype, fill, libver):
    a = counts(9, dtype=dtype)
    path = write(tmp_path / "p.h5", a, fill=fill, chunks=(2, 4, 8), filters=(GZIP,), libver=libver, fill_in=False)
    with h5py.File(path, "a") as h:
        h[DATA][0:2] = a[0:2]
        h[DATA][5, 4:] = a[5, 4:]
    index = check(path)
    assert [c[1] > 0 for c in index.chunks] == [True, True, False, False, True, True, False, False, False]
    assert "5 of 9 frames were never written" in index.warnings[0]
    assert "2 of 9 frames have parts" in index.warnings[1]


def test_compact(tmp_path):
    for i, (a, libver) in enumerate([(counts(4), None), (counts(4), "latest"), (counts(6).reshape(2, 3, 8, 8), None),
                                     (counts(1)[0], "latest"), (counts(4, dtype=">i4"), None)]):
        path = write(tmp_path / f"{i}.h5", a, chunks=None, libver=libver, tweak=lambda p: p.set_layout(h5py.h5d.COMPACT),
                     attrs={"image_nr_low": 1})
        if a.dtype.byteorder == ">":
            check(path)
            continue
        index = good(path)
        assert index.head["assembly"] is None
        assert b"".join(index.bytes_of(k) for k in range(index.n)) == a.tobytes()


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
def test_contiguous(tmp_path, rank):
    shape = (2, 1, 3, 4, 5)[5 - rank:]
    for dtype in ("<u2", ">u2"):
        path = write(tmp_path / f"{dtype[0] == '>'}.h5", noise(1, 1, int(np.prod(shape)), dtype).reshape(shape), chunks=None)
        if dtype[0] == ">":
            check(path)
        else:
            index = good(path)
            with h5py.File(path, "r") as h:
                assert b"".join(index.bytes_of(k) for k in range(index.n)) == h[DATA][...].tobytes()


def test_early_chunks(tmp_path):
    """Unfiltered chunks that were all allocated at once need no index."""
    for i, (chunks, maxshape) in enumerate([((2, 4, 8), None), ((2, 8, 3), (9, 9, 9)), ((1, 8, 8), (12, 8, 8))]):
        a = counts(7)
        path = write(tmp_path / f"{i}.h5", a, chunks=chunks, filters=(), libver="latest", maxshape=maxshape,
                     tweak=lambda p: p.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY))
        if chunks[1:] == (8, 8):
            assert b"".join(map(good(path).bytes_of, range(7))) == a.tobytes()
        else:
            check(path)


def test_chunk_past_the_end(tmp_path):
    path = write(tmp_path / "p.h5", noise(6, 16, 16), chunks=(2, 8, 16), filters=(GZIP,))
    with h5py.File(path, "r") as h:
        at = h[DATA].id.get_chunk_info_by_coord((2, 8, 0)).byte_offset
    raw = path.read_bytes()
    where = at.to_bytes(8, "little")
    assert raw.count(where) == 1
    path.write_bytes(raw.replace(where, (1 << 40).to_bytes(8, "little")))
    index = good(path)
    assert [c[4] for c in index.chunks] == [0, 0, PAST_END, PAST_END, 0, 0] and "2 of 6" in index.warnings[0]


def test_user_block(tmp_path):
    for i, how in enumerate([dict(chunks=(2, 4, 8), filters=(GZIP,)), dict(chunks=None), dict(chunks=(3, 8, 8), filters=()),
                             dict(chunks=None, tweak=lambda p: p.set_layout(h5py.h5d.COMPACT))]):
        path = write(tmp_path / f"{i}.h5", counts(5, dtype=">u2"), userblock=1024, **how)
        index = good(path)
        with h5py.File(path, "r") as h:
            assert same(Assembler(index).frames(), h[DATA][...])


def test_shards_that_differ(tmp_path):
    path = run(tmp_path, [counts(4, seed=1), None, counts(3, seed=3), None], filters=())
    write(tmp_path / "m_data_000002.h5", counts(5, seed=2), chunks=(2, 4, 8), filters=(SHUFFLE, GZIP))
    write(tmp_path / "m_data_000004.h5", counts(4, seed=4), fill=9, filters=(GZIP,), fill_in=False)
    write(tmp_path / "m_data_000005.h5", counts(2, seed=5).astype(">u2"), filters=())
    with h5py.File(path, "a") as h:
        h["entry/data/data_000005"] = h5py.ExternalLink("m_data_000005.h5", DATA)
    index = good(path)
    want = np.concatenate([counts(4, seed=1), counts(5, seed=2), counts(3, seed=3), np.full((4, 8, 8), 9, "<u2"),
                           counts(2, seed=5)])
    assert index.n == 18 and len(index.head["assembly"]["datasets"]) == 5
    assert same(Assembler(index).frames(), want)


def test_fill_values_that_differ(tmp_path):
    """A frame of 0 bytes has the index's fill value; one with another has to be put together."""
    path = run(tmp_path, [None, None])
    for i in (1, 2):
        write(tmp_path / f"m_data_{i:06d}.h5", counts(3), fill=i, fill_in=False)
    index = good(path)
    assert same(Assembler(index).frames(), np.repeat(np.array([1, 2], "<u2"), 3 * 64).reshape(6, 8, 8))


def test_a_hole_between_shards(tmp_path):
    path = run(tmp_path, [counts(4), None, counts(4, seed=3)], filters=(GZIP,))
    index = good(path, "--allow-gaps")
    assert [c[4] for c in index.chunks] == [0] * 4 + [NO_FILE] * 4 + [0] * 4
    frames = Assembler(index).frames()
    assert same(frames[:4], counts(4)) and same(frames[8:], counts(4, seed=3))


def test_many_chunks_in_no_time(tmp_path):
    path = write(tmp_path / "p.h5", counts(60000, 4, 4), chunks=(1, 2, 2), filters=(), libver="latest", maxshape=(None, 4, 4))
    index = good(path)
    assert index.ms < 2000 * test_source.SLOW
    check_chunks_sample = index.head["assembly"]["datasets"][0]["chunks"]
    assert len(check_chunks_sample) == 240000 and len({c[0] for c in check_chunks_sample}) == 240000


def test_too_many_chunks(tmp_path):
    with h5py.File(tmp_path / "p.h5", "w") as h:
        h.create_dataset(DATA, (1 << 14, 128, 128), "u1", chunks=(1, 1, 1))
    refused(tmp_path / "p.h5", test_source.LIMIT, "(1, 1, 1)")


@pytest.mark.skipif(not REAL.is_dir(), reason="no real files here")
def test_real_files(tmp_path):
    path = REAL / "ebsd_kikuchipy/patterns_onechunk.h5"
    check(path, "/Scan 1/EBSD/Data/patterns", args=("--dataset", "/Scan 1/EBSD/Data/patterns"))
    assert good(REAL / "emd_rosettasciio/py4DSTEM_size2x3x4x5.h5").head["scan"] == [2, 3]
