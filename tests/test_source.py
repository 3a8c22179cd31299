# SPDX-License-Identifier: Apache-2.0
"""The index that framestow-reader gives, against h5py's own view of the same files.

FRAMESTOW_BIN    the folder with source_test and framestow-reader (./build); SOURCE_TEST: that program elsewhere
FRAMESTOW_DATA   a folder of real files, where there is one (../shared/data)
"""
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

h5py = pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(os.environ.get("FRAMESTOW_BIN", ROOT / "build")).resolve()
PROGRAM = os.environ.get("SOURCE_TEST", next(
    (str(p) for p in (BIN / "source_test", BIN.parent / "libexec/framestow/tests/source_test") if p.exists()), None))
SLOW = float(os.environ.get("FRAMESTOW_SLOW", "1"))
REAL = Path(os.environ.get("FRAMESTOW_DATA", ROOT.parent / "shared" / "data"))
DATA = "/entry/data/data"
BSLZ4 = ((32008, (0, 2)),)
SPECIFIC = "/entry/instrument/detector/detectorSpecific"
SOURCE, MISSING, UNSUPPORTED, UNKNOWN, IO = -12, -13, -10, -7, -14
LIMIT = -23
NO_FILE, PAST_END, BAD_BYTES = 1, 2, 3

pytestmark = pytest.mark.skipif(not PROGRAM, reason="source_test is not built")


class Index:
    def __init__(self, path, *args, cwd=None, env=None, timeout=60):
        command = [PROGRAM, "--index", os.fsencode(path), "--frames", *args]
        out = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=cwd, timeout=timeout * SLOW,
                             env={**os.environ, **(env or {})}).stdout.decode()
        lines = out.splitlines()
        head = json.loads(lines[0])
        self.text = head["text"].encode("latin-1").decode()
        self.status, self.ms = head["status"], head["ms"]
        self.chunks = [json.loads(line) for line in lines[1:]]
        self.head = head
        if self.status == 0:
            self.files = [(f[0].encode("latin-1"), *f[1:]) for f in head["files"]]
            self.warnings = [w.encode("latin-1").decode() for w in head["warnings"]]
            self.n, self.dtype = head["n_frames"], head["dtype"]
            self.expected = head.get("expected")
            assert self.n == len(self.chunks)

    def bytes_of(self, i):
        offset, n, file, _, fault = self.chunks[i]
        assert fault == 0
        with open(self.files[file][0], "rb") as f:
            f.seek(offset)
            return f.read(n)


def counts(n=4, h=8, w=8, dtype="<u2", seed=1):
    return np.random.RandomState(seed).poisson(3, (n, h, w)).astype(dtype)


def noise(n, h, w, dtype="<u2", seed=1):
    rng = np.random.RandomState(seed)
    return np.frombuffer(rng.bytes(n * h * w * np.dtype(dtype).itemsize), dtype).reshape(n, h, w).copy()


def write(path, data, dset=DATA, filters=BSLZ4, chunks="frame", maxshape=None, libver=None, fill=None, tweak=None,
          userblock=0, attrs=None, fill_in=True):
    data = np.asarray(data)
    if chunks == "frame":
        chunks = (1,) * (data.ndim - 2) + data.shape[-2:]
    how = {"userblock_size": userblock} if userblock else {}
    with h5py.File(path, "w" if userblock else "a", libver=libver, **how) as h:
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if chunks:
            dcpl.set_chunk(chunks)
            for number, options in filters:
                dcpl.set_filter(number, 0 if number in (32008, 3) else h5py.h5z.FLAG_OPTIONAL, options)
        if fill is not None:
            dcpl.set_fill_value(np.array(fill, data.dtype))
        if tweak:
            tweak(dcpl)
        lcpl = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        lcpl.set_create_intermediate_group(True)
        limits = maxshape and tuple(h5py.h5s.UNLIMITED if n is None else n for n in maxshape)
        space = h5py.h5s.create_simple(data.shape, limits)
        ds = h5py.Dataset(h5py.h5d.create(h.id, os.fsencode(dset), h5py.h5t.py_create(data.dtype), space, dcpl, lcpl))
        if fill_in and data.size:
            ds[...] = data
        ds.attrs.update(attrs or {})
    return path


def master(path, links, nimages=None, ntrigger=None, mask=(8, 8)):
    with h5py.File(path, "w") as h:
        group = h.create_group("entry/data")
        for name, file, dset in links:
            group[name] = h5py.ExternalLink(file, dset)
        for key, value in (("nimages", nimages), ("ntrigger", ntrigger)):
            if value is not None:
                h[f"{SPECIFIC}/{key}"] = np.uint64(value)
        h[f"{SPECIFIC}/pixel_mask"] = np.zeros(mask, "<u4")
    return path


def run(d, shards, nimages=None, ntrigger=None, mask=(8, 8), **how):
    d.mkdir(parents=True, exist_ok=True)
    links = []
    first = 1
    for i, shard in enumerate(shards, 1):
        file = f"m_data_{i:06d}.h5"
        links.append((f"data_{i:06d}", file, DATA))
        if shard is not None:
            write(d / file, shard, maxshape=(None,) + shard.shape[1:] if shard.ndim == 3 else None, **how)
        first += 0 if shard is None else len(shard)
    return master(d / "m_master.h5", links, nimages, ntrigger, mask)


def check(index, path, dset=DATA, first=0, file=0):
    """The frames of one dataset, chunk by chunk, are where h5py finds them."""
    with h5py.File(path, "r") as h:
        ds = h[dset]
        n = int(np.prod(ds.shape[:-2]))
        assert index.dtype == ds.dtype.str[1:] and index.head["det"] == list(ds.shape[-2:])
        truth = {}
        if ds.chunks:
            for i in range(ds.id.get_num_chunks()):
                info = ds.id.get_chunk_info(i)
                at = int(np.ravel_multi_index(info.chunk_offset[:-2], ds.shape[:-2])) if ds.ndim > 2 else 0
                truth[at] = (info.byte_offset + h.userblock_size, info.size, info.filter_mask, info.chunk_offset)
        for i in range(n):
            offset, size, which, raw, fault = index.chunks[first + i]
            assert fault == 0 and which == file
            if not ds.chunks:
                frame = ds[np.unravel_index(i, ds.shape[:-2])] if ds.ndim > 2 else ds[...]
                assert raw == 1 and index.bytes_of(first + i) == frame.tobytes()
            elif i not in truth:
                assert size == 0
            else:
                want = truth[i]
                filtered = ds.id.get_create_plist().get_nfilters() > 0
                assert (offset, size) == want[:2]
                assert raw == (0 if filtered and not want[2] & 1 else 1)
                if n <= 64:
                    assert index.bytes_of(first + i) == ds.id.read_direct_chunk(want[3])[1]
    return n


def good(path, *args, **how):
    index = Index(path, *args, **how)
    assert index.status == 0, index.text
    return index


def refused(path, code, *words, args=()):
    index = Index(path, *args)
    assert index.status == code, (index.status, index.text)
    for word in words:
        assert str(word) in index.text, index.text
    return index


# ---- single files ----

@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("filters", [BSLZ4, ()])
@pytest.mark.parametrize("n", [1, 5, 300, 3000])
def test_layouts(tmp_path, libver, grows, filters, n):
    a = counts(n, 4, 5)
    path = write(tmp_path / "p.h5", a, filters=filters, libver=libver, maxshape=(None, 4, 5) if grows else None)
    index = good(path)
    assert index.n == n == check(index, path)
    assert index.head["scan"] == [0, 0] and not index.warnings and index.expected is None


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<u4", "<u8", "i1", "<i2", "<i4", "<i8", "<f4", "<f8"])
def test_dtypes_and_odd_sizes(tmp_path, dtype):
    for i, (h, w) in enumerate([(3, 5), (1, 5), (7, 7), (229, 659)]):
        path = write(tmp_path / f"{i}.h5", noise(3, h, w, dtype))
        assert check(good(path), path) == 3


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("maxshape", [None, (None, 5, 8, 8), (None, 7, 8, 8)])
def test_four_dimensions(tmp_path, libver, maxshape):
    path = write(tmp_path / "p.h5", counts(15).reshape(3, 5, 8, 8), libver=libver, maxshape=maxshape)
    index = good(path)
    assert index.head["scan"] == [3, 5] and check(index, path) == 15


@pytest.mark.parametrize("maxshape", [(3, None, 8, 8), (4, None, 8, 8), (None, None, 8, 8)])
def test_extensible_in_another_dimension(tmp_path, maxshape):
    """HDF5 1.10.8 itself lists the chunks of the first two in the wrong order."""
    path = write(tmp_path / "p.h5", counts(15).reshape(3, 5, 8, 8), libver="latest", maxshape=maxshape)
    index = good(path)
    with h5py.File(path, "r") as h:
        for i in range(15):
            assert index.bytes_of(i) == h[DATA].id.read_direct_chunk((i // 5, i % 5, 0, 0))[1]


def test_contiguous_and_single_images(tmp_path):
    for i, a in enumerate([counts(4), counts(6).reshape(2, 3, 8, 8), counts(1)[0]]):
        path = write(tmp_path / f"c{i}.h5", a, chunks=None)
        check(good(path), path)
        path = write(tmp_path / f"k{i}.h5", a)
        check(good(path), path)
        path = write(tmp_path / f"l{i}.h5", a, libver="latest")
        check(good(path), path)


@pytest.mark.parametrize("block", [512, 1024, 4096])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("how", ["chunks", "contiguous", "raw", "library"])
def test_user_block(tmp_path, block, libver, how):
    a, options = counts(12), {}
    if how == "contiguous":
        options["chunks"] = None
    if how == "raw":
        options["filters"] = ()
    if how == "library":                    # an index that is not walked by us
        a, options["maxshape"] = a.reshape(3, 4, 8, 8), (None, None, 8, 8)
    path = write(tmp_path / "u.h5", a, userblock=block, libver=libver, **options)
    with open(path, "r+b") as f:
        f.write(b"\x5a" * block)
    assert check(good(path), path) == 12


def test_a_block_put_in_front_later(tmp_path):
    path = write(tmp_path / "p.h5", counts())
    moved = tmp_path / "moved.h5"
    moved.write_bytes(b"\0" * 512 + path.read_bytes())
    index = good(moved)
    with h5py.File(path, "r") as h:
        for i in range(4):
            assert index.bytes_of(i) == h[DATA].id.read_direct_chunk((i, 0, 0))[1]


def test_filter_mask(tmp_path):
    a = counts()
    path = write(tmp_path / "p.h5", a)
    with h5py.File(path, "a") as h:
        h[DATA].id.write_direct_chunk((2, 0, 0), a[2].tobytes(), 1)
    index = good(path)
    check(index, path)
    assert [c[3] for c in index.chunks] == [0, 0, 1, 0] and index.bytes_of(2) == a[2].tobytes()


def test_raw_chunk_of_another_size(tmp_path):
    path = write(tmp_path / "p.h5", counts())
    with h5py.File(path, "a") as h:
        h[DATA].id.write_direct_chunk((2, 0, 0), b"12345", 1)
    index = good(path)
    assert [c[4] for c in index.chunks] == [0, 0, BAD_BYTES, 0] and "1 of 4 frames are bad" in index.warnings[0]


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("grows", [False, True])
def test_unwritten(tmp_path, libver, grows):
    a = counts(200)
    path = write(tmp_path / "p.h5", a, fill=7, libver=libver, fill_in=False, maxshape=(None, 8, 8) if grows else None)
    with h5py.File(path, "a") as h:
        for i in (0, 3, 150):
            h[DATA][i] = a[i]
    index = good(path)
    check(index, path)
    assert index.head["fill"] == 7 and "197 of 200 frames were never written" in index.warnings[0]


def test_nothing_written(tmp_path):
    for i, how in enumerate([{}, {"libver": "latest"}, {"chunks": None}, {"maxshape": (None, 8, 8), "libver": "latest"}]):
        path = write(tmp_path / f"{i}.h5", counts(), fill_in=False, fill=9, **how)
        index = good(path)
        assert index.head["fill"] == 9 and [c[1] for c in index.chunks] == [0] * 4


def test_addresses_past_32_bits(tmp_path):
    path = tmp_path / "big.h5"
    with h5py.File(path, "w") as h:
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        dcpl.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((5 << 30,))
        h5py.h5d.create(h.id, b"first", h5py.h5t.NATIVE_UINT8, space, dcpl)
    write(path, counts())
    index = good(path)
    check(index, path)
    assert index.chunks[0][0] > 5 << 30


def test_sparse_scan(tmp_path):
    path = write(tmp_path / "p.h5", np.zeros((0, 192, 192), "<u2"), maxshape=(None, 192, 192))
    with h5py.File(path, "a") as h:
        h[DATA].resize(70000, 0)
        for i in (0, 65535, 69999):
            h[DATA][i] = 5
    index = good(path)
    assert check(index, path) == 70000


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("n", [300000])
def test_many_chunks_in_no_time(tmp_path, libver, grows, n):
    path = write(tmp_path / "p.h5", counts(n, 2, 2), libver=libver, maxshape=(None, 2, 2) if grows else None)
    index = good(path)
    assert index.n == n and index.ms < 2000 * SLOW
    rng = random.Random(n)
    with h5py.File(path, "r") as h:
        for i in [0, 1, 63, 64, n - 2, n - 1] + [rng.randrange(n) for _ in range(500)]:
            assert index.bytes_of(i) == h[DATA].id.read_direct_chunk((i, 0, 0))[1]
    assert all(c[1] > 0 and c[4] == 0 for c in index.chunks) and len({c[0] for c in index.chunks}) == n


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("filters", [BSLZ4, ()])
def test_few_of_many_written(tmp_path, libver, grows, filters):
    """Pages and blocks of the index that were never made."""
    n, rng = 300000, random.Random(7)
    written = sorted(set([n - 1] + [rng.randrange(n) for _ in range(60)] + list(range(150000, 150030))))
    path = write(tmp_path / "p.h5", np.zeros((n, 2, 2), "<u2"), libver=libver, filters=filters, fill=3, fill_in=False,
                 maxshape=(None, 2, 2) if grows else None)
    with h5py.File(path, "a") as h:
        for i in written:
            h[DATA][i] = i % 65521
    index = good(path)
    assert index.ms < 2000 * SLOW and [i for i, c in enumerate(index.chunks) if c[1]] == written
    with h5py.File(path, "r") as h:
        for i in written:
            assert index.bytes_of(i) == h[DATA].id.read_direct_chunk((i, 0, 0))[1]


# ---- refused in one sentence ----

@pytest.mark.parametrize("dtype, name", [("<f2", "f2"), (">f2", ">f2"), (np.longdouble, "f16")])
def test_other_types(tmp_path, dtype, name):
    refused(write(tmp_path / "p.h5", counts(dtype=dtype)), UNSUPPORTED, "p.h5", DATA, f"type {name},", "not supported")


def test_types_with_unused_bits(tmp_path):
    for i, (kind, change) in enumerate([(h5py.h5t.STD_U16LE, lambda t: t.set_precision(12)),
                                        (h5py.h5t.IEEE_F32LE, lambda t: t.set_ebias(100))]):
        kind = kind.copy()
        change(kind)
        with h5py.File(tmp_path / f"{i}.h5", "w") as h:
            h5py.h5d.create(h.id, b"x", kind, h5py.h5s.create_simple((2, 3, 4)))
        refused(tmp_path / f"{i}.h5", UNSUPPORTED, "unused or rearranged bits")


def test_strange_types(tmp_path):
    with h5py.File(tmp_path / "p.h5", "w") as h:
        h["c"] = np.zeros((2, 3, 4), "c8")
        h["b"] = np.zeros((2, 3, 4), "?")
        h["s"] = np.full((2, 3, 4), b"abc")
    for name, word in (("c", "compound"), ("b", "enum"), ("s", "string")):
        refused(tmp_path / "p.h5", UNSUPPORTED, word, args=("--dataset", name))


@pytest.mark.parametrize("filters, words", [
    (((32000, (4,)),), ["32000 (LZF)", "h5repack"]), (((2, ()), (32000, (4,))), ["2 (shuffle), then 32000 (LZF)"]),
    (((32001, (2, 2, 2, 128, 5, 1, 0)),), ["32001 (Blosc)"]), (((4, (141, 32)),), ["4 (szip)"]),
    (((6, (2, 0)),), ["6 (scaleoffset)"]), (((32008, (0, 7)),), ["32008 (bitshuffle)", "mode"])])
def test_other_filters(tmp_path, filters, words):
    if any(not h5py.h5z.filter_avail(f[0]) for f in filters):
        pytest.skip("h5py lacks a filter")
    path = write(tmp_path / "p.h5", counts(), filters=filters, fill_in=filters[0][0] != 32008)
    refused(path, UNSUPPORTED, "p.h5", DATA, "not supported", *words)


def test_other_ranks(tmp_path):
    with h5py.File(tmp_path / "p.h5", "w") as h:
        h["one"] = np.zeros(8, "<u2")
        h["six"] = np.zeros((1, 1, 1, 1, 8, 8), "<u2")
        h["scalar"] = np.uint16(3)
        h["none"] = np.zeros((4, 0, 8), "<u2")
    for name in ("one", "six", "scalar"):
        refused(tmp_path / "p.h5", UNSUPPORTED, name, "shape (", args=("--dataset", name))
    refused(tmp_path / "p.h5", SOURCE, "no pixels", args=("--dataset", "none"))
    refused(tmp_path / "p.h5", UNKNOWN, "no object 'absent'", args=("--dataset", "/absent"))
    refused(write(tmp_path / "q.h5", np.zeros((0, 8, 8), "<u2"), maxshape=(None, 8, 8)), SOURCE, "no frames")


def test_not_hdf5(tmp_path):
    (tmp_path / "empty.h5").touch()
    refused(tmp_path / "empty.h5", SOURCE, "empty.h5", "empty (0 bytes)")
    (tmp_path / "notes.h5").write_text("exposure 1 ms\n" * 500)
    refused(tmp_path / "notes.h5", SOURCE, "notes.h5", "not an HDF5 file", "no HDF5 signature")


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_truncated(tmp_path, libver):
    path = write(tmp_path / "cut.h5", noise(40, 64, 64), libver=libver)
    size = path.stat().st_size
    for left in (size - 5000, size - 1, 60, 20, 8):
        os.truncate(path, left)
        refused(path, SOURCE, "cut.h5", "cut short", left, "copy it again", *([size] if left >= 48 else []))
        path.unlink()
        write(path, noise(40, 64, 64), libver=libver)


def test_chunk_past_the_end(tmp_path):
    path = write(tmp_path / "p.h5", noise(4, 64, 64))
    with h5py.File(path, "r") as h:
        at = h[DATA].id.get_chunk_info_by_coord((2, 0, 0)).byte_offset
    raw = path.read_bytes()
    where = struct.pack("<Q", at)
    assert raw.count(where) == 1
    for address in (len(raw) - 100, 1 << 40, (1 << 64) - 2):
        path.write_bytes(raw.replace(where, struct.pack("<Q", address)))
        index = good(path)
        assert [c[4] for c in index.chunks] == [0, 0, PAST_END, 0] and "past the end" in index.warnings[0]


WRITER = """
import sys, h5py, numpy as np
f = h5py.File(sys.argv[1], "w", libver="latest")
ds = f.create_dataset("/entry/data/data", data=np.load(sys.argv[2]), chunks=(1, 8, 8), maxshape=(None, 8, 8))
f.flush()
if sys.argv[3] == "swmr":
    f.swmr_mode = True
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("mode", ["plain", "swmr"])
def test_open_writer(tmp_path, mode):
    np.save(tmp_path / "a.npy", counts())
    path, copy = tmp_path / "w.h5", tmp_path / "crashed.h5"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path, tmp_path / "a.npy", mode],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert writer.stdout.readline() == b"ready\n"
        copy.write_bytes(path.read_bytes())
        before = copy.read_bytes()
        for file in (path, copy):
            if mode == "swmr":
                index = good(file)
                assert index.n == 4 and "SWMR" in index.warnings[0] and "snapshot of the 4 frames" in index.warnings[0]
                assert index.bytes_of(3) == counts()[3].tobytes()
            else:
                refused(file, SOURCE, file.name, "another process" if file == path else "h5clear -s")
        assert copy.read_bytes() == before
    finally:
        writer.kill()
        writer.wait()


def test_lock_alone(tmp_path):
    import fcntl
    path = write(tmp_path / "p.h5", counts())
    with open(path, "rb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        index = good(path)
    assert check(index, path) == 4


# ---- which dataset ----

def test_only_stack(tmp_path):
    path = write(tmp_path / "p.h5", counts(5), "/scan/det/frames")
    write(path, np.zeros((8, 8), "<u2"), "/scan/det/mask", chunks=None)
    write(path, np.ones((3, 8, 8), "<f4"), "/scan/det/flatfield", chunks=None)
    with h5py.File(path, "a") as h:
        h["z"] = h["scan"]                          # the same group by two names, and a circle
        h["scan/det/up"] = h["scan"]
        h["soft"] = h5py.SoftLink("/scan/det/frames")
        h["away"] = h5py.ExternalLink("no.h5", "/x")
    index = good(path)
    assert check(index, path, "/scan/det/frames") == 5
    write(path, counts(4, 2, 3), "/other", chunks=None)
    refused(path, SOURCE, "/scan/det/frames (5, 8, 8) u2", "/other (4, 2, 3) u2", "--dataset")
    for name in ("/scan/det/frames", "scan/det/frames", "/soft", "z/det/./frames"):
        assert good(path, "--dataset", name).n == 5


@pytest.mark.parametrize("kind", ["variable", "fixed"])
@pytest.mark.parametrize("signal", ["counts", "/run1/plot/counts"])
def test_nexus_signal(tmp_path, kind, signal):
    text = (lambda s: s) if kind == "variable" else np.bytes_
    path = write(tmp_path / "p.h5", counts(5), "/run1/plot/counts")
    write(path, counts(6, 4, 4), "/run1/plot/preview", chunks=None)
    with h5py.File(path, "a") as h:
        h.attrs["default"], h["run1"].attrs["default"] = text("run1"), text("plot")
        h["run1/plot"].attrs["signal"] = text(signal)
    assert check(good(path), path, "/run1/plot/counts") == 5


def test_masks_are_no_frames(tmp_path):
    with h5py.File(tmp_path / "p.h5", "w") as h:
        h[f"{SPECIFIC}/pixel_mask"], h[f"{SPECIFIC}/flatfield"] = np.zeros((1, 8, 8), "<u4"), np.ones((8, 8), "<f4")
    refused(tmp_path / "p.h5", SOURCE, "no dataset of frames")


def test_damaged_links(tmp_path):
    with h5py.File(tmp_path / "p.h5", "w") as h:
        h["a"], h["b"] = h5py.SoftLink("/b"), h5py.SoftLink("/a")
        h["deep"] = h5py.SoftLink("/x/" * 500)
        h["g"] = 3
    refused(tmp_path / "p.h5", SOURCE, "circle", args=("--dataset", "/a"))
    refused(tmp_path / "p.h5", UNKNOWN, "no object", args=("--dataset", "/deep"))
    refused(tmp_path / "p.h5", UNKNOWN, "no object", args=("--dataset", "/g/x"))
    refused(tmp_path / "p.h5", UNSUPPORTED, "shape ()", args=("--dataset", "/g"))


# ---- masters ----

def shards_of(path, sizes):
    return [path.parent / f"m_data_{i:06d}.h5" for i in range(1, len(sizes) + 1)]


def test_master(tmp_path):
    path = run(tmp_path, [counts(4), counts(4, seed=2), counts(2, seed=3)], 1, 10)
    index = good(path)
    assert index.n == 10 and index.expected == 10 and not index.warnings
    first = 0
    for i, shard in enumerate(shards_of(path, [4, 4, 2]), 1):
        assert index.files[i][0] == os.fsencode(shard)
        first += check(index, shard, first=first, file=i)


def test_master_by_dataset(tmp_path):
    path = run(tmp_path, [counts(4), counts(3, seed=2)])
    index = good(path, "--dataset", "/entry/data/data_000002")
    assert index.n == 3
    assert good(path, "--dataset", "/entry/data").n == 7
    write(tmp_path / "deep.h5", counts(6), "/a/b/c")
    with h5py.File(tmp_path / "link.h5", "w") as h:
        h["x"] = h5py.ExternalLink("deep.h5", "/a")
        h["y"] = h5py.ExternalLink("link.h5", "/x")
    assert good(tmp_path / "link.h5", "--dataset", "/x/b/c").n == 6
    assert good(tmp_path / "link.h5", "--dataset", "/y/b/c").n == 6


def test_order_of_shards(tmp_path):
    """By number, whatever the digits; soft and hard links beside external ones."""
    with h5py.File(tmp_path / "m.h5", "w") as h:
        for i in (2, 10, 1, 1000001):
            h[f"entry/data/data_{i}"] = h5py.ExternalLink(f"s{i}.h5", DATA)
        h["entry/data/data_3"] = h5py.SoftLink("/mine/three")
    for i in (1, 2, 10, 1000001):
        write(tmp_path / f"s{i}.h5", np.full((1, 8, 8), i % 255, "<u2"))
    write(tmp_path / "m.h5", np.full((2, 8, 8), 3, "<u2"), "/mine/three")
    with h5py.File(tmp_path / "m.h5", "a") as h:
        h["entry/data/data_4"] = h["mine/three"]
    index = good(tmp_path / "m.h5")
    names = [Path(os.fsdecode(index.files[c[2]][0])).name for c in index.chunks]
    assert names == ["s1.h5", "s2.h5", "m.h5", "m.h5", "m.h5", "m.h5", "s10.h5", "s1000001.h5"]


@pytest.mark.parametrize("nimages, ntrigger, n, warns", [
    (1, 16, 16, False), (16, 1, 16, False), (4, 4, 16, False), (4, 5, 18, True), (None, 16, 16, False),
    (16, 16, 16, True), (None, None, 16, False), (0, 16, 16, False)])
def test_expected(tmp_path, nimages, ntrigger, n, warns):
    half = 8 if n == 16 else 10
    a = counts(n)
    index = good(run(tmp_path, [a[:half], a[half:]], nimages, ntrigger))
    assert index.n == n and bool(index.warnings) == warns
    assert index.expected == (nimages * ntrigger if nimages and ntrigger else None)
    if warns:
        assert f"expected {nimages * ntrigger} frames" in index.warnings[0] and f"found {n}" in index.warnings[0]


def test_shards_at_the_end_missing(tmp_path):
    index = good(run(tmp_path, [counts(4), counts(2), None], 1, 12))
    assert index.n == 6 and index.expected == 12
    assert "m_data_000003.h5" in index.warnings[0] and "expected 12 frames" in index.warnings[1]
    index = good(run(tmp_path / "many", [counts(4), counts(2)] + [None] * 998, 1, 4000))
    assert index.n == 6 and "998 of 1000 files are missing" in index.warnings[0]
    assert "m_data_000003.h5" in index.warnings[0] and "994 more" in index.warnings[0]
    assert sum(map(len, index.warnings)) < 2000


def test_hole(tmp_path):
    path = run(tmp_path, [counts(4), None, counts(4, seed=3)], 1, 12)
    refused(path, MISSING, "m_data_000002.h5", "--allow-gaps")
    index = good(path, "--allow-gaps")
    assert index.n == 12 and [c[4] for c in index.chunks] == [0] * 4 + [NO_FILE] * 4 + [0] * 4
    for c in index.chunks[4:8]:
        assert c[2] == -1 and c[1] == 0 and index.files[c[0]][0].endswith(b"m_data_000002.h5")
        assert index.files[c[0]][2] is False
    assert "m_data_000002.h5" in index.warnings[0]
    assert check(index, tmp_path / "m_data_000003.h5", first=8, file=3) == 4


def numbered(d, sizes, absent, tell=True):
    links, low = [], 1
    for i, n in enumerate(sizes, 1):
        links.append((f"data_{i:06d}", f"m_data_{i:06d}.h5", DATA))
        if i not in absent:
            attrs = {"image_nr_low": np.uint64(low), "image_nr_high": np.uint64(low + n - 1)} if tell else {}
            write(d / f"m_data_{i:06d}.h5", counts(n, seed=i), attrs=attrs)
        low += n
    return master(d / "m_master.h5", links)


@pytest.mark.parametrize("sizes, absent", [((4, 7, 3), {2}), ((5, 4, 3), {1}), ((4, 4, 4, 1, 4), {2, 4}),
                                           ((4, 4, 4, 4, 2), {2, 3}), ((3, 5, 6, 2), {2, 3})])
def test_holes_by_image_numbers(tmp_path, sizes, absent):
    index = good(numbered(tmp_path, sizes, absent), "--allow-gaps")
    assert index.n == sum(sizes)
    bad = [c[4] == NO_FILE for c in index.chunks]
    want = [i in absent for i, n in enumerate(sizes, 1) for _ in range(n)]
    assert bad == want


def test_hole_of_unknown_size(tmp_path):
    path = numbered(tmp_path, (4, 7, 3, 2), {3}, tell=False)
    refused(path, MISSING, "cannot be told", "m_data_000003.h5", args=("--allow-gaps",))


def test_all_missing(tmp_path):
    refused(run(tmp_path, [None, None], 1, 8), MISSING, "m_data_000001.h5", "missing", "none of the 2")


def test_cut_shards(tmp_path):
    for which in (1, 2, 3):
        d = tmp_path / str(which)
        path = run(d, [noise(4, 64, 64, seed=s) for s in (1, 2, 3)], 1, 12)
        shard = d / f"m_data_{which:06d}.h5"
        os.truncate(shard, shard.stat().st_size - 5000)
        if which < 3:
            refused(path, SOURCE, shard.name, "cut short", "copy it again")
            index = good(path, "--allow-gaps")
            assert index.n == 12 and [c[4] for c in index.chunks].count(NO_FILE) == 4
        else:
            index = good(path)
            assert index.n == 8 and shard.name in index.warnings[0] and "cut short" in index.warnings[0]


def test_empty_shards(tmp_path):
    empty = np.zeros((0, 8, 8), "<u2")
    index = good(run(tmp_path, [counts(4), empty, counts(2)], 1, 6))
    assert index.n == 6 and not index.warnings
    refused(run(tmp_path / "none", [empty, empty]), SOURCE, "no frames")


def test_single_images_as_shards(tmp_path):
    assert good(run(tmp_path, [counts(1)[0], counts(1, seed=2)[0]])).n == 2


def test_unlike_shards(tmp_path):
    path = run(tmp_path, [counts(4), counts(4, dtype="<u4")])
    refused(path, SOURCE, "m_data_000001.h5", "m_data_000002.h5", "8x8 u2", "8x8 u4")
    path = run(tmp_path / "b", [counts(4), counts(4, 8, 9)])
    refused(path, SOURCE, "m_data_000001.h5", "m_data_000002.h5", "8x8 u2", "8x9 u2")
    path = run(tmp_path / "c", [counts(4), counts(4, dtype="<i2")])
    refused(path, SOURCE, "m_data_000001.h5", "m_data_000002.h5", "8x8 u2", "8x8 i2")
    path = run(tmp_path / "d", [counts(4), None])
    write(tmp_path / "d" / "m_data_000002.h5", counts(4), filters=((32000, (4,)),))
    refused(path, UNSUPPORTED, "m_data_000002.h5", "LZF")


def test_shard_without_its_dataset(tmp_path):
    path = run(tmp_path, [counts(4), None, counts(4)])
    write(tmp_path / "m_data_000002.h5", counts(4), "/other")
    refused(path, UNKNOWN, "m_data_000002.h5", "no object 'entry'")


def test_many_shards_few_descriptors(tmp_path):
    path = run(tmp_path, [np.full((1, 4, 4), i + 1, "<u2") for i in range(200)], 1, 200, (4, 4))
    command = f"ulimit -Sn 240; exec '{PROGRAM}' --index '{path}'"
    out = json.loads(subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, check=True).stdout)
    assert out["n_frames"] == 200 and not out["warnings"]


def test_symlink_and_decoy(tmp_path):
    path = run(tmp_path / "d", [counts(4)])
    for name in ("l", "third"):
        (tmp_path / name).mkdir()
    alias = tmp_path / "l" / "alias_master.h5"
    alias.symlink_to("../d/m_master.h5")
    write(tmp_path / "third" / "m_data_000001.h5", np.full((4, 8, 8), 99, "<u2"))
    third = tmp_path / "third"
    how = {"cwd": third, "env": {"HDF5_EXT_PREFIX": str(third), "HDF5_VDS_PREFIX": str(third)}}
    for name in (path, alias, "../l/alias_master.h5"):
        index = good(name, **how)
        assert index.files[1][0] == os.fsencode(tmp_path / "d" / "m_data_000001.h5")
        assert check(index, tmp_path / "d" / "m_data_000001.h5", file=1) == 4
    (tmp_path / "d" / "m_data_000001.h5").unlink()
    assert Index("../l/alias_master.h5", **how).status == MISSING


@pytest.mark.parametrize("name", ["Probe 4 \u00b5m \u2013 \u00c5", "e'x \"1\"", "new\nline", b"inv\xf2alid", "x" * 200])
def test_names(tmp_path, name):
    folder = os.fsencode(tmp_path) + b"/" + os.fsencode(name)
    os.mkdir(folder)
    shard = os.fsencode(name) + b".h5"
    write(os.fsdecode(folder + b"/" + shard), counts())
    plain = folder + b"/m_master.h5"
    with h5py.File(os.fsdecode(plain), "w") as h:
        group = h.create_group("entry/data")
        group.id.links.create_external(b"data_000001", shard, DATA.encode())
    index = good(plain)
    assert index.n == 4 and index.files[1][0] == folder + b"/" + shard
    os.unlink(folder + b"/" + shard)
    index = Index(plain)
    assert index.status == MISSING and "\n" not in index.text
    if isinstance(name, bytes):
        assert "inv?alid" in index.text


def test_what_is_no_file(tmp_path):
    path = run(tmp_path, [counts(4), None])
    (tmp_path / "m_data_000002.h5").mkdir()
    refused(path, IO, "m_data_000002.h5", "Is a directory")
    index = good(path, "--allow-gaps")
    assert index.n == 4 and "Is a directory" in index.warnings[0]
    os.rmdir(tmp_path / "m_data_000002.h5")
    os.mkfifo(tmp_path / "m_data_000002.h5")
    index = good(path)
    assert index.n == 4 and "not a regular file" in index.warnings[0]


# ---- real files ----

@pytest.mark.skipif(not REAL.is_dir(), reason="no real files here")
def test_real_files():
    for name, dset, n in (("arina_rosettasciio/test_00_data_000001.h5", DATA, 16),
                          ("eiger_hdf5plugin/eiger4m_bslz4_uint32.h5", None, 1),
                          ("quantem_gpu_fixtures/fixture_data_000001.h5", DATA, 1),
                          ("quantem_gpu_fixtures/fixture_u8_data_000001.h5", None, 1)):
        index = good(REAL / name)
        if dset is None:
            with h5py.File(REAL / name, "r") as h:
                found = []
                h.visititems(lambda key, thing: found.append(key) if getattr(thing, "ndim", 0) >= 3 else None)
            dset = found[0]
        assert check(index, REAL / name, dset) == n
    index = good(REAL / "arina_rosettasciio/test_00_master.h5")
    assert check(index, REAL / "arina_rosettasciio/test_00_data_000001.h5", file=1) == 16 and index.expected == 16
    refused(REAL / "arina_rosettasciio/MEA_ptycho_15_master.h5", MISSING, "MEA_ptycho_15_data_000001.h5")
    refused(REAL / "jhdf/test_byteshuffle_compressed_datasets_latest.hdf5", SOURCE, "h5clear -s")
    refused(REAL / "ebsd_kikuchipy/patterns_onechunk.h5", SOURCE, "/Scan 1/EBSD/Data/patterns (9, 60, 60) u1")


# ---- damage ----

@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_mutations(tmp_path, libver):
    """Flipped bytes in the structure: any answer, but an answer, and never the wrong pixels' place unseen."""
    a = noise(12, 8, 8)
    path = write(tmp_path / "p.h5", a, libver=libver, maxshape=(None, 8, 8), attrs={"image_nr_low": 1})
    raw = path.read_bytes()
    with h5py.File(path, "r") as h:
        chunks = [h[DATA].id.get_chunk_info(i) for i in range(12)]
    pixels = set()
    for c in chunks:
        pixels.update(range(c.byte_offset, c.byte_offset + c.size))
    places = [i for i in range(len(raw)) if i not in pixels]
    rng = random.Random(libver)
    seen = set()
    for _ in range(int(os.environ.get("SOURCE_MUTATIONS", "150"))):
        bad = bytearray(raw)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.choice(places)
            bad[at] = rng.choice((0, 0xff, bad[at] ^ (1 << rng.randrange(8)), rng.randrange(256)))
        mutant = tmp_path / "mutant.h5"
        mutant.write_bytes(bad)
        index = Index(mutant)
        seen.add(index.status)
        assert index.status <= 0 and (index.status == 0 or "mutant.h5" in index.text), index.text
    assert 0 in seen and SOURCE in seen


def test_speed_of_four_shards(tmp_path):
    shards = [counts(65536, 4, 4, seed=i) for i in range(4)]
    path = run(tmp_path, shards, 1, 262144)
    best = min(good(path, timeout=120).ms for _ in range(3))
    print(f"\nindex of 4 x 65536 chunks: {best:.1f} ms")
    assert best < 1000 * SLOW
