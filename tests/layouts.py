# SPDX-License-Identifier: Apache-2.0
"""Random HDF5 files, as h5py and hdf5plugin write them: everything that an acquisition may look like, and damage to it.

make(folder, seed) writes one acquisition and says what is in it: a Case. The same seed makes the same bytes, but for times that
HDF5 writes into object headers. What each frame holds is known from what was drawn, not only from reading it back.
"""
import ctypes
import os
import random
import struct
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401  (registers the filters)
import numpy as np

DATA = "/entry/data/data"
SIDE = 40       # pixels at most, each way
FRAMES = 6      # of a dataset, about
TYPES = [order + kind for kind in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8") for order in "<>"]
BSLZ4, BITSHUFFLE, LZ4, ZSTD, GZIP, SHUFFLE, FLETCHER = "bslz4", "bitshuffle", "lz4", "zstd", "gzip", "shuffle", "fletcher32"
BSZSTD = "bszstd"  # written here: hdf5plugin 4 with the system's bitshuffle writes something else under that name
PIPELINES = [
    [], [], [BSLZ4], [BSLZ4], [BSLZ4], [BITSHUFFLE], [LZ4], [GZIP], [SHUFFLE], [FLETCHER], [ZSTD], [SHUFFLE, GZIP],
    [SHUFFLE, LZ4], [SHUFFLE, ZSTD], [SHUFFLE, GZIP, FLETCHER], [BSLZ4, FLETCHER], [FLETCHER, BSLZ4], [SHUFFLE, FLETCHER],
    [BITSHUFFLE, GZIP], [BITSHUFFLE, ZSTD], [BITSHUFFLE, LZ4, FLETCHER], [SHUFFLE, BSLZ4], [GZIP, FLETCHER], [LZ4, GZIP],
    [ZSTD, FLETCHER], [BSLZ4, GZIP], [GZIP, GZIP], [BSZSTD]]
libzstd = ctypes.CDLL("libzstd.so.1")


class Case:
    """master: the file to load. dataset: its path, or "" to have it found. want: [n, y, x] native, or None: no frames can be
    had. lost: frames that cannot be given, whatever the library says. damage: what was done to it, or None."""

    def __init__(self, seed, master, dataset, want, tags):
        self.seed, self.master, self.dataset, self.want, self.tags = seed, Path(master), dataset, want, set(tags)
        self.lost, self.damage, self.allow_gaps, self.kind = set(), None, False, ""
        self.sizes = [0 if want is None else len(want)]  # frames of each shard
        self.none_there = False  # no source of a virtual dataset
        self.sources = []  # of a virtual dataset: (file, dataset, its frames there)

    def __repr__(self):
        shape = None if self.want is None else self.want.shape
        return f"seed {self.seed}: {self.kind} {shape} {' '.join(sorted(self.tags))} damage: {self.damage}"


# ---- what is drawn -------------------------------------------------------------------------------------

def draw_side(rng):
    return rng.choice((1, 2, 3, 7, 8, 16, 31, 32, 33, SIDE)) if rng.random() < 0.5 else rng.randint(1, SIDE)


def draw_shape(rng, rank=None):
    rank = rank or rng.choice((2, 3, 3, 3, 3, 4, 4, 5))
    lead = []
    for _ in range(rank - 2):
        left = max(1, FRAMES // int(np.prod(lead, initial=1)))
        lead.append(rng.randint(1, left))
    rng.shuffle(lead)
    return (*lead, draw_side(rng), draw_side(rng))


def draw_counts(rng, shape, dtype):
    r = np.random.default_rng(rng.getrandbits(64))
    dtype = np.dtype(dtype)
    n = int(np.prod(shape))
    how = rng.choice(("thin", "thin", "thick", "noise", "constant", "zeros", "extremes"))
    if how == "noise" or (how == "thick" and dtype.kind == "f"):
        return np.frombuffer(r.bytes(n * dtype.itemsize), dtype).reshape(shape).copy()
    if how == "extremes":
        least, most = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return r.choice(np.array([0, 1, least, most], dtype), shape).astype(dtype)
    if how == "constant":
        return np.full(shape, rng.randint(0, 100), dtype)
    a = np.zeros(shape) if how == "zeros" else r.poisson(0.7 if how == "thin" else 40, shape)
    if dtype.kind in "if" and rng.random() < 0.5:
        a = a * r.choice((-1, 1), shape)
    return np.minimum(a, 127).astype(dtype)


def draw_chunk(rng, shape, maxshape):
    if rng.random() < 0.3:
        return (1,) * (len(shape) - 2) + shape[-2:]
    chunk = []
    for n, most in zip(shape, maxshape or shape):
        room = n if most is not None and most <= n else (n * 2 + 3 if most is None else most)
        chunk.append(rng.choice((n, max(1, n // 2), rng.randint(1, room), rng.randint(1, n))))
    while np.prod([-(-n // c) for n, c in zip(shape, chunk)]) > 300:  # files stay small, and quick to write
        i = rng.randrange(len(chunk))
        chunk[i] = min(shape[i], chunk[i] * 2)
    return tuple(chunk)


def draw_maxshape(rng, shape):
    how = rng.random()
    if how < 0.5:
        return None
    if how < 0.75:
        return (None, *shape[1:])
    return tuple(rng.choice((n, n, n + rng.randint(1, 9), None)) for n in shape)


def add_filters(dcpl, pipeline, rng):
    for name in pipeline:
        if name == BSLZ4:
            dcpl.set_filter(32008, h5py.h5z.FLAG_OPTIONAL, (rng.choice((0, 0, 8, 64, 1024)), 2))
        elif name == BSZSTD:
            dcpl.set_filter(32008, h5py.h5z.FLAG_OPTIONAL, (0, 3))
        elif name == BITSHUFFLE:
            dcpl.set_filter(32008, h5py.h5z.FLAG_OPTIONAL, (rng.choice((0, 0, 8, 64)), 0))
        elif name == LZ4:
            dcpl.set_filter(32004, h5py.h5z.FLAG_OPTIONAL, rng.choice(((), (0,), (256,), (4096,))))
        elif name == ZSTD:
            dcpl.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (rng.randint(1, 5),))
        elif name == GZIP:
            dcpl.set_deflate(rng.randint(1, 9))
        elif name == SHUFFLE:
            dcpl.set_shuffle()
        else:
            dcpl.set_fletcher32()


# ---- datasets ------------------------------------------------------------------------------------------

def open_new(path, rng, tags):
    libver = rng.choice((None, None, "earliest", "latest", ("earliest", "v110")))
    block = rng.choice((0, 0, 0, 0, 512, 1024, 4096))
    if libver == "latest":
        tags.add("latest")
    if block:
        tags.add("user block")
        return h5py.File(path, "w", libver=libver, userblock_size=block)
    return h5py.File(path, "w", libver=libver)


def create(f, name, shape, dtype, dcpl, maxshape=None):
    lcpl = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    lcpl.set_create_intermediate_group(True)
    most = maxshape and tuple(h5py.h5s.UNLIMITED if n is None else n for n in maxshape)
    space = h5py.h5s.create_simple(shape, most)
    return h5py.Dataset(h5py.h5d.create(f.id, name.encode(), h5py.h5t.py_create(np.dtype(dtype)), space, dcpl, lcpl))


def encoded(pipeline_dcpl, chunk, mask):
    """The bytes of a chunk that went through the filters of a dataset but for those that mask skips."""
    with h5py.File("chunk", "w", driver="core", backing_store=False) as f:
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_chunk(chunk.shape)
        for i in range(pipeline_dcpl.get_nfilters()):
            number, flags, values, _ = pipeline_dcpl.get_filter(i)
            if mask >> i & 1:
                continue
            if number == 2:
                dcpl.set_shuffle()
            elif number == 3:
                dcpl.set_fletcher32()
            else:
                dcpl.set_filter(number, h5py.h5z.FLAG_OPTIONAL, values[:2] if number == 32008 and len(values) < 5
                                else (values[3], values[4]) if number == 32008 else values)
        d = create(f, "d", chunk.shape, chunk.dtype, dcpl)
        d[...] = chunk
        skipped, data = d.id.read_direct_chunk((0,) * chunk.ndim)
        kept = [i for i in range(pipeline_dcpl.get_nfilters()) if not mask >> i & 1]
        for k, i in enumerate(kept):
            if skipped >> k & 1:
                mask |= 1 << i
        return mask, data


def zstd(data):
    libzstd.ZSTD_compressBound.restype = libzstd.ZSTD_compress.restype = ctypes.c_size_t
    room = libzstd.ZSTD_compressBound(ctypes.c_size_t(len(data)))
    out = ctypes.create_string_buffer(room)
    n = libzstd.ZSTD_compress(out, ctypes.c_size_t(room), data, ctypes.c_size_t(len(data)), 3)
    return out.raw[:n]


def bszstd(chunk, block):
    """Bitshuffle with Zstandard as docs/formats.md has it; block: elements, a multiple of 8."""
    flat, size = chunk.reshape(-1), chunk.dtype.itemsize
    out, whole = struct.pack(">QI", chunk.nbytes, block * size), flat.size // 8 * 8
    for at in range(0, whole, block):
        part = flat[at:min(at + block, whole)]
        bits = np.unpackbits(part.view("u1").reshape(len(part), size), axis=1, bitorder="little")
        data = zstd(np.packbits(bits.T, axis=1, bitorder="little").tobytes())
        out += struct.pack(">I", len(data)) + data
    return out + flat[whole:].tobytes()


def write_bszstd(d, a, rng, fill):
    block = rng.choice((8, 64, 256, 1024))
    for at in np.ndindex(*[-(-n // c) for n, c in zip(a.shape, d.chunks)]):
        first = tuple(i * c for i, c in zip(at, d.chunks))
        part = a[tuple(slice(o, o + c) for o, c in zip(first, d.chunks))]
        whole = np.full(d.chunks, fill, a.dtype)
        whole[tuple(slice(0, n) for n in part.shape)] = part
        d.id.write_direct_chunk(first, bszstd(whole, block))
    return a


def write_chunks(d, a, rng, fill, tags):
    """Chunk by chunk: some are never written, some go past filters."""
    chunk, want = d.chunks, np.full(a.shape, fill, a.dtype)
    n_filters = d.id.get_create_plist().get_nfilters()
    holes, direct = rng.random() < 0.6, rng.random() < 0.6
    for at in np.ndindex(*[-(-n // c) for n, c in zip(a.shape, chunk)]):
        first = tuple(i * c for i, c in zip(at, chunk))
        here = tuple(slice(o, min(o + c, n)) for o, c, n in zip(first, chunk, a.shape))
        if holes and rng.random() < 0.3:
            tags.add("unwritten chunks")
            continue
        want[here] = a[here]
        if direct and rng.random() < 0.5:
            whole = np.full(chunk, fill, a.dtype)  # what an extension may bring to light
            part = a[here]
            whole[tuple(slice(0, n) for n in part.shape)] = part
            mask = rng.getrandbits(n_filters) if n_filters else 0
            if n_filters and rng.random() < 0.4:
                mask = (1 << n_filters) - 1
            mask, data = (mask, whole.tobytes()) if mask == (1 << n_filters) - 1 else encoded(
                d.id.get_create_plist(), whole, mask)
            d.id.write_direct_chunk(first, data, mask)
            if mask:
                tags.add("skipped filters")
        else:
            d[here] = a[here]
    return want


def resize(d, a, rng, tags):
    """Another extent afterwards: what is cut off, and what is new."""
    most = d.maxshape
    new = tuple(n if m is not None and m <= n else rng.randint(max(1, n - 2), (n + 3) if m is None else m)
                for n, m in zip(a.shape, most))
    new = tuple(min(n, 2 * SIDE) for n in new)
    if new == a.shape:
        return a
    tags.add("resized")
    d.resize(new)
    out = np.full(new, d.fillvalue, a.dtype)
    both = tuple(slice(0, min(p, q)) for p, q in zip(a.shape, new))
    out[both] = a[both]
    return out


def put(f, name, a, rng, tags, layout=None, folder=None):
    """A dataset of these counts, in a layout that is drawn; what it then holds."""
    layout = layout or rng.choice(("chunked",) * 7 + ("contiguous", "compact", "external"))
    if layout == "compact" and a.nbytes > 60000 or layout == "external" and (folder is None or not a.size):
        layout = "contiguous"
    tags.update((layout, a.dtype.str[1:], f"{a.ndim}-D"))
    if a.dtype.byteorder == ">":
        tags.add("big-endian")
    dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    fill = np.zeros(1, a.dtype)[0]
    if rng.random() < 0.5:
        fill = draw_counts(rng, (1,), a.dtype)[0]
        dcpl.set_fill_value(np.array(fill, a.dtype))
    if layout == "compact":
        dcpl.set_layout(h5py.h5d.COMPACT)
    elif layout == "external":
        write_external(dcpl, a, rng, folder, f"raw{rng.getrandbits(32):08x}")
        create(f, name, a.shape, a.dtype, dcpl)
        return a
    elif layout == "chunked":
        maxshape = draw_maxshape(rng, a.shape)
        dcpl.set_chunk(draw_chunk(rng, a.shape, maxshape))
        pipeline = rng.choice(PIPELINES)
        add_filters(dcpl, pipeline, rng)
        tags.add("+".join(pipeline) or "no filter")
        d = create(f, name, a.shape, a.dtype, dcpl, maxshape)
        if pipeline == [BSZSTD]:
            return write_bszstd(d, a, rng, fill)
        want = a
        if rng.random() < 0.4:
            want = write_chunks(d, a, rng, fill, tags)
        else:
            d[...] = a
        if maxshape and rng.random() < 0.2 and "skipped filters" not in tags:  # HDF5 1.10 trips over those itself
            want = resize(d, want, rng, tags)
        return want
    d = create(f, name, a.shape, a.dtype, dcpl)
    if rng.random() < 0.1:
        tags.add("never written")
        return np.full(a.shape, fill, a.dtype)
    d[...] = a
    return a


def write_external(dcpl, a, rng, folder, name):
    """Raw bytes in one to three files, each from an offset; mostly of whole rows or frames."""
    data, n = a.tobytes(), rng.randint(1, 3)
    unit = 1 if rng.random() < 0.1 else a.shape[-1] * a.itemsize if rng.random() < 0.6 else a[(0,) * (a.ndim - 2)].nbytes
    edges = [0, *sorted(rng.randint(0, len(data) // unit) * unit for _ in range(n - 1)), len(data)]
    for i in range(n):
        part = data[edges[i]:edges[i + 1]]
        if not part:
            continue
        before = rng.choice((0, 0, 7, 512))
        (folder / f"{name}_{i}.raw").write_bytes(b"\xa5" * before + part)
        dcpl.set_external(f"{name}_{i}.raw".encode(), before, len(part))


def native(a):
    """As it is served: [n, y, x] of native byte order."""
    return np.ascontiguousarray(a.reshape((-1, *a.shape[-2:])).astype(a.dtype.newbyteorder("=")))


# ---- acquisitions --------------------------------------------------------------------------------------

def make_plain(folder, seed, rng):
    tags, path = set(), folder / "p.h5"
    a = draw_counts(rng, draw_shape(rng), rng.choice(TYPES))
    if rng.random() < 0.01 and a.ndim > 2:
        tags.add("no frames")
        with open_new(path, rng, tags) as f:
            f.create_dataset(DATA, (0, *a.shape[1:]), a.dtype, maxshape=(None, *a.shape[1:]))
        return Case(seed, path, DATA, native(a[:0]), tags)
    with open_new(path, rng, tags) as f:
        want = put(f, DATA, a, rng, tags, folder=folder)
    return Case(seed, path, DATA, native(want), tags)


def make_shards(folder, seed, rng):
    tags, path, n = {"shards"}, folder / "m_master.h5", rng.randint(1, 4)
    frame, dtype = draw_shape(rng, 3)[1:], rng.choice(TYPES)
    same = rng.randint(1, 3) if rng.random() < 0.5 else None
    parts, gap = [], set()
    with h5py.File(path, "w") as f:
        for i in range(n):
            own = set()
            f.require_group("/entry/data")[f"data_{i + 1:06d}"] = h5py.ExternalLink(f"m_data_{i + 1:06d}.h5", DATA)
            a = draw_counts(rng, (same or rng.randint(1, 3), *frame), dtype)
            with open_new(folder / f"m_data_{i + 1:06d}.h5", rng, own) as s:
                got = put(s, DATA, a, rng, own, rng.choice(("chunked", "chunked", "contiguous")))
            if got.shape[1:] != frame:  # resized: not the others' frame any more
                with h5py.File(folder / f"m_data_{i + 1:06d}.h5", "w") as s:
                    s[DATA] = got = a
            parts.append(got)
            tags |= own
    if same and n >= 3 and len({len(p) for p in parts}) == 1 and rng.random() < 0.3:
        hole = rng.randint(1, n - 2)
        os.unlink(folder / f"m_data_{hole + 1:06d}.h5")
        gap = set(range(hole * same, (hole + 1) * same)) if len(parts[0]) == same else set(
            range(hole * len(parts[0]), (hole + 1) * len(parts[0])))
        tags.add("hole")
    case = Case(seed, path, "", native(np.concatenate(parts)), tags)
    case.lost, case.allow_gaps, case.sizes = gap, bool(gap), [len(p) for p in parts]
    return case


def make_virtual(folder, seed, rng):
    """Whole frames from several files, tiles of frames, or every other frame; a source may be missing."""
    tags, path = {"virtual"}, folder / "v.h5"
    how = rng.choice(("frames", "tiles", "strided", "part"))
    n_sources, dtype = rng.randint(1, 3), rng.choice(TYPES)
    n, y, x = draw_shape(rng, 3)
    tags.add(how)
    sources, places, shape = [], [], None
    if how == "frames":
        sizes = [rng.randint(1, 3) for _ in range(n_sources)]
        shape = (sum(sizes), y, x)
        for i, size in enumerate(sizes):
            places.append((slice(sum(sizes[:i]), sum(sizes[:i + 1])), slice(0, y), slice(0, x)))
    elif how == "tiles":
        gap = rng.choice((0, 0, 2))
        shape = (n, y, n_sources * x + (n_sources - 1) * gap)
        for i in range(n_sources):
            places.append((slice(0, n), slice(0, y), slice(i * (x + gap), i * (x + gap) + x)))
    elif how == "strided":
        shape = (n * n_sources, y, x)
        for i in range(n_sources):
            places.append((slice(i, n * n_sources, n_sources), slice(0, y), slice(0, x)))
    else:
        shape = (n + rng.randint(0, 2), y + rng.randint(0, 4), x + rng.randint(0, 4))
        at = tuple(rng.randint(0, s - m) for s, m in zip(shape, (n, y, x)))
        places.append(tuple(slice(o, o + m) for o, m in zip(at, (n, y, x))))
    fill = draw_counts(rng, (1,), dtype)[0]
    want = np.full(shape, fill, dtype)
    layout = h5py.VirtualLayout(shape, dtype)
    inside, lost = rng.random() < 0.15, set()
    inner = []
    for i, place in enumerate(places):
        size = tuple(len(range(*s.indices(m))) for s, m in zip(place, shape))
        a, own = draw_counts(rng, size, dtype), set()
        if inside:
            inner.append((f"/s{i}", a))
            got, file = a, "."
        else:
            file = f"s{i}.h5"
            with open_new(folder / file, rng, own) as s:
                got = put(s, DATA, a, rng, own, rng.choice(("chunked", "chunked", "contiguous")))
            if got.shape != size:
                with h5py.File(folder / file, "w") as s:
                    s[DATA] = got = a
        tags |= own - {"3-D"}
        source = h5py.VirtualSource(file, f"/s{i}" if inside else DATA, size, dtype)
        layout[place] = source
        want[place] = got
        sources.append(file)
    with h5py.File(path, "w", libver="latest") as f:
        for name, a in inner:
            f[name] = a
        f.create_virtual_dataset(DATA, layout, fillvalue=fill)
    if not inside and rng.random() < 0.15:
        gone = rng.randrange(len(sources))
        os.unlink(folder / sources[gone])
        lost = set(range(*places[gone][0].indices(shape[0])))
        tags.add("source missing")
    case = Case(seed, path, DATA, native(want), tags)
    case.lost, case.allow_gaps = lost, bool(lost) and rng.random() < 0.5
    case.none_there = bool(lost) and len(sources) == 1
    case.sources = [(file, f"/s{i}" if inside else DATA, set(range(*place[0].indices(shape[0]))))
                    for i, (file, place) in enumerate(zip(sources, places))]
    return case


# ---- damage --------------------------------------------------------------------------------------------

def chunks_of(path):
    """(offset, bytes) of the written chunks of a file's datasets."""
    found = []
    with h5py.File(path, "r") as f:
        def visit(_, d):
            if isinstance(d, h5py.Dataset) and not d.is_virtual and d.chunks:
                for i in range(d.id.get_num_chunks()):
                    info = d.id.get_chunk_info(i)
                    if info.byte_offset is not None and info.size:
                        found.append((info.byte_offset, info.size))
            elif isinstance(d, h5py.Dataset) and not d.is_virtual and d.id.get_offset():
                found.append((d.id.get_offset(), d.nbytes))
        f.visititems(visit)
    return found


def damage(case, folder, rng):
    """Flip bytes, cut, or change lengths in one of its files; says what was done, or None where there is nothing to do."""
    files = sorted(p for p in folder.iterdir() if p.stat().st_size)
    path = rng.choice(files)
    size = path.stat().st_size
    chunks = chunks_of(path) if path.suffix == ".h5" else [(0, size)]
    how = rng.choice(("chunk", "chunk", "anywhere", "cut", "length"))
    with open(path, "r+b") as f:
        if how == "cut":
            at = rng.randrange(size)
            f.truncate(at)
            return f"{path.name} cut to {at} of {size} bytes"
        if how == "anywhere" or not chunks:
            places = [rng.randrange(size) for _ in range(rng.choice((1, 1, 2, 8)))]
        else:
            at, n = rng.choice(chunks)
            most = min(n, 24) if how == "length" else n
            places = [at + rng.randrange(most) for _ in range(rng.choice((1, 1, 3)))]
        for at in places:
            f.seek(at)
            old = f.read(1)
            if old:
                f.seek(at)
                f.write(bytes([old[0] ^ (1 << rng.randrange(8)) if rng.random() < 0.7 else rng.randrange(256)]))
    return f"{path.name}: {how}, bytes {places}"


def make(folder, seed, damaged=None):
    """One acquisition in this empty folder. damaged: None: one in four is."""
    rng = random.Random(seed)
    kind = rng.choices((make_plain, make_shards, make_virtual), (0.65, 0.17, 0.18))[0]
    case = kind(Path(folder), seed, rng)
    case.kind = kind.__name__[5:]
    if BSZSTD not in case.tags and (rng.random() < 0.25 if damaged is None else damaged):  # h5py could not say what it became
        case.damage = damage(case, Path(folder), rng)
    return case
