# SPDX-License-Identifier: Apache-2.0
"""docs/formats.md is enough to write a decoder from: counts_reader.py was, and reads what the daemon keeps, field for
field and count for count. The counts are compared with arrays made here, with h5py's reading, and with the digests that
framestow-simulate and the golden files have."""
import hashlib
import os
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401
import numpy as np
import pytest

import make_h5
from conftest import sha256
from counts_reader import BAD, BSLZ4, COUNTS, FILL, RAW, Damaged, Stow, checksum
from test_kept import GOLDEN, mixed

HERE = Path(__file__).parent
CORRUPT = 3  # of enum Code


def golden(name):
    return (HERE / "golden" / f"{name}.stow").read_bytes()


def keep(daemon, path, *args, save=()):
    """As the daemon keeps it."""
    daemon.load(path, "--name", "a", *args)
    stow = path.with_suffix(".stow")
    res = daemon.cli("save", "a", stow, "--force", *save)
    assert res.returncode == 0, res.stderr
    daemon.cli("unload", "a")
    return Stow(stow.read_bytes())


def all_frames(stow):
    return [stow.frame(i) for i in range(stow.n_frames)]


def check_sums(stow, frames):
    """The sums that are kept are those of the frames; None in frames: a bad one, which has none. Floats are few bits
    in these tests, so that any order of adding gives the same."""
    y, x = np.indices(stow.det).reshape(2, -1).astype(stow.sums_dtype)
    good = [f.ravel().astype(stow.sums_dtype) for f in frames if f is not None]
    assert stow.n_summed == len(good)
    np.testing.assert_array_equal(stow.pixel_sums, sum(good))
    for frame, moments in zip(frames, stow.moments):
        counts = np.zeros(stow.n_pixels, stow.sums_dtype) if frame is None else frame.ravel().astype(stow.sums_dtype)
        for name in moments.dtype.names:
            a = np.where(stow.flags, stow.sums_dtype.type(0), counts) if name == "kept" else counts
            largest = 0 if stow.dtype.kind == "f" else max(abs(int(v)) for v in (a.min(), a.max()))
            np.testing.assert_array_equal(list(moments[name]), [a.sum(), (a * y).sum(), (a * x).sum(), largest], name)


# ---- files that must read for ever -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_files(name):
    stow = Stow(golden(name))
    frames = all_frames(stow)
    assert [i for i, f in enumerate(frames) if f is None] == list(stow.bad) == [11, 12]
    assert sha256(np.array([f for f in frames if f is not None])) == GOLDEN[name]
    assert np.flatnonzero(stow.flags).tolist() == [2 * 40 + 3, 20 * 40 + 30, 20 * 40 + 31, 20 * 40 + 32]
    assert stow.scan == ((4, 5) if name == "counts_u2" else None) and stow.expected is None
    source, = stow.sources
    assert source.path.endswith(f"/{name}.h5") and source.there and source.changed_ns == 10**18
    assert (source.sha256 is not None) == (name == "chunks_u2")
    check_sums(stow, frames)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_files_damaged_anywhere(name):
    """All bytes are under a checksum."""
    data, random = golden(name), np.random.default_rng(3)
    for at in (0, 8, 231, 247, 248, 255, 256, len(data) - 1, *random.integers(256, len(data), 60)):
        with pytest.raises(Damaged):
            Stow(data[:at] + bytes([data[at] ^ 1 << int(at) % 8]) + data[at + 1:])
    for cut in (data[:-16], data[:100], data + bytes(16)):
        with pytest.raises(Damaged):
            Stow(cut)


def test_checksum_is_xxh3():
    """A published value of XXH3 with 64 bits and seed 0."""
    assert checksum(b"") == 0x2d06800538d394c2


# ---- what the daemon keeps now -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
def test_every_form_in_one_file(daemon, folder, dtype):
    path, a, bad = mixed(folder / "mixed.h5", dtype)
    stow = keep(daemon, path, "--scan", "20x30")
    forms = [frame.form for frame in stow.frames]
    assert set(forms) == {COUNTS, BSLZ4, RAW, FILL, BAD}
    seldom = [i for i, form in enumerate(forms) if form != COUNTS]
    for i in {*seldom, *range(0, len(a), 7)} - {*bad}:
        np.testing.assert_array_equal(stow.frame(i), a[i], f"frame {i}")
    assert list(stow.bad) == list(bad) and all("block" in text for text in stow.bad.values())
    assert {stow.frames[i].error for i in bad} == {CORRUPT}
    assert stow.scan == (20, 30) and stow.fill == 2 and not stow.gaps_allowed and stow.expected is None
    assert np.flatnonzero(stow.flags).tolist() == [7 * 64 + 9, 20 * 64 + 3, 20 * 64 + 4, 20 * 64 + 5]
    check_sums(stow, [None if i in bad else frame for i, frame in enumerate(a)])


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u8", "f4", "f8"])
def test_pixels_that_are_no_counts(daemon, folder, dtype):
    random = np.random.default_rng(4)
    a = random.integers(-100 if dtype[0] != "u" else 0, 101, (20, 31, 40)).astype(dtype)
    if dtype[0] != "f":
        a[3, 4, 5:7], a[4] = np.iinfo(dtype).min // 2**20, np.iinfo(dtype).max // 2**20
    path = folder / "a.h5"
    with h5py.File(path, "w") as f:
        d = f.create_dataset("d", a.shape, a.dtype, chunks=(1, 31, 40), fillvalue=7, compression=32008,
                             compression_opts=(0, 2))
        d[:12], d[13:] = a[:12], a[13:]
        d.id.write_direct_chunk((13, 0, 0), a[13].tobytes(), filter_mask=1)
    a[12] = 7
    if "not supported" in daemon.cli("load", path, "--name", "a").stderr:
        pytest.skip("no source has such pixels yet")
    daemon.cli("unload", "a")
    for form in ("auto", "raw"):
        stow = keep(daemon, path, "--form", form)
        assert stow.dtype == a.dtype and stow.segment == 0 and stow.frames[12].form == FILL
        frames = all_frames(stow)
        np.testing.assert_array_equal(frames, a)
        check_sums(stow, frames)
        path.with_suffix(".stow").unlink()


def varied(shape, dtype, seed):
    """Pixels of means from 0 to far above a symbol's, dead and saturated ones, and outliers far apart."""
    random, (n, y, x) = np.random.default_rng(seed), shape
    largest = np.iinfo(dtype).max
    means = np.geomspace(.004, min(largest / 3, 50000), y * x // 4 + 1)
    means = random.permutation(means).repeat(4)[:y * x].reshape(y, x)
    a = np.minimum(random.poisson(means, shape), largest).astype(dtype)
    a[:, y // 2, x // 3:x // 2] = largest
    a[:, 1, 1:3] = 0
    a[1, 1, 2] = 1
    a[n - 1].reshape(-1)[[0, -1]] = largest
    return a


@pytest.mark.parametrize("dtype, det, streams", [("u1", (64, 96), 1), ("u2", (99, 101), 3), ("u4", (80, 128), 5),
                                                 ("u2", (192, 192), 8), ("u4", (97, 67), 4), ("u4", (33, 67), 2)])
def test_every_kind_of_class(daemon, folder, dtype, det, streams):
    a = varied((12, *det), dtype, streams)
    stow = keep(daemon, make_h5.plain(folder / "a.h5", a), "--form", "counts", "--streams", str(streams))
    model, = stow.models
    assert model.streams == streams
    kinds = {sum(k >= until for until in model.until) for k in model.classes}
    assert {0, 1, 2} <= kinds and (dtype == "u1" or 3 in kinds)
    frames = all_frames(stow)
    np.testing.assert_array_equal(frames, a)
    check_sums(stow, frames)
    assert [frame.form for frame in stow.frames].count(COUNTS) > len(a) // 2


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
@pytest.mark.parametrize("shape", [(300, 1, 1), (1, 16, 16), (150, 1, 7), (40, 31, 37), (3, 1, 2049)])
def test_odd_shapes(daemon, folder, dtype, shape):
    a = make_h5.counts(*shape, dtype, mean=2)
    for form in ("counts", "bslz4", "raw"):
        stow = keep(daemon, make_h5.plain(folder / f"{form}.h5", a), "--form", form)
        frames = all_frames(stow)
        np.testing.assert_array_equal(frames, a, form)
        check_sums(stow, frames)


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
def test_patches_far_apart(daemon, folder, dtype):
    """Over 15 tiles: a patch of delta 0 stands between."""
    a = np.random.default_rng(5).integers(0, 2, (12, 192, 256)).astype(dtype)
    a[7].reshape(-1)[[0, -1]] = np.iinfo(dtype).max - 1
    stow = keep(daemon, make_h5.plain(folder / "a.h5", a), "--form", "counts", "--streams", "1")
    assert stow.frames[7].form == COUNTS and int.from_bytes(stow.frames[7].data[4:8], "little") & 0x3ffff == 3
    np.testing.assert_array_equal(stow.frame(7), a[7])


def test_flagged_pixels_and_those_that_deviate(daemon, folder):
    """Pixels with one count are constants of the model. Its sums over all frames and a sample decide that, so one that
    goes up and down again between (frames 33 and 63 here) is one too, and has patches there."""
    a = np.random.default_rng(6).poisson(.8, (700, 64, 64)).astype("u4")
    flat, hot = a.reshape(700, -1), [5, 6, 700, 4095]
    flat[:, hot], flat[:, 77] = 2**32 - 1, 10**9
    flat[33, 77] += 10**8
    flat[63, 77] -= 10**8
    path = make_h5.plain(folder / "a.h5", a)
    mask = np.zeros((64, 64), "u4")
    mask.reshape(-1)[hot] = 1
    with h5py.File(path, "r+") as f:
        f["/entry/instrument/detector/pixel_mask"] = mask
    stow = keep(daemon, path, "--form", "counts")
    assert np.flatnonzero(stow.flags).tolist() == hot
    constants = dict(stow.models[0].constants.tolist())
    assert constants == {77: 10**9} | dict.fromkeys(hot, 2**32 - 1)
    for i in (0, 33, 34, 63, 699):
        np.testing.assert_array_equal(stow.frame(i), a[i])
    check_sums(stow, a)


def test_several_segments(daemon, folder):
    """The last one has what is left, and each a model of its own; one without counts has none."""
    a = np.random.default_rng(7).poisson(.3, (8192 + 5, 16, 16)).astype("u2")
    a[-5:] = np.random.default_rng(8).integers(0, 2**16, a[-5:].shape)
    stow = keep(daemon, make_h5.plain(folder / "a.h5", a), "--form", "counts")
    assert stow.segment == 8192 and [model is not None for model in stow.models] == [True, False]
    for i in (*range(0, 8192, 101), *range(8190, 8197)):
        np.testing.assert_array_equal(stow.frame(i), a[i], f"frame {i}")


def test_texts_and_files(daemon, folder):
    """What the file says of its source: a master with a shard missing, its mask's warning, hashes."""
    a = make_h5.counts(30, 16, 24)
    master = make_h5.master(folder / "m", a, shards=3, leave_out=(2,), ntrigger=40)
    stow = keep(daemon, master, "--allow-gaps", save=["--sha256"])
    assert stow.gaps_allowed and stow.expected == 40 and stow.dataset is None and stow.scan is None
    there = [True, True, False, True]
    paths = [master, *(folder / "m" / f"scan_data_00000{i}.h5" for i in (1, 2, 3))]
    assert [Path(source.path).name for source in stow.sources] == [path.name for path in paths]
    for path, source in zip(paths, stow.sources):
        assert source.there == path.exists()
        if not source.there:
            assert (source.n_bytes, source.changed_ns) == (0, 0)
        else:
            assert (source.n_bytes, source.changed_ns) == (path.stat().st_size, path.stat().st_mtime_ns)
            assert source.sha256 == hashlib.sha256(path.read_bytes()).digest()
    assert [source.there for source in stow.sources] == there
    assert list(stow.bad) == list(range(10, 20)) and "scan_data_000002.h5" in stow.bad[10]
    chunks = sum(make_h5.chunk_place(paths[i], k)[1] for i in (1, 3) for k in range(10))
    assert stow.source_bytes == chunks
    frames = all_frames(stow)
    np.testing.assert_array_equal([f for f in frames if f is not None], np.delete(a, range(10, 20), 0))
    check_sums(stow, frames)


def test_a_dataset_that_was_asked_for(daemon, folder):
    a = make_h5.counts(20, 16, 24)
    path = make_h5.plain(folder / "a.h5", a, name="/two")
    with h5py.File(path, "r+") as f:
        make_h5.put(f, "/one", a[:3])
    stow = keep(daemon, path, "--dataset", "/two")
    assert stow.dataset == "/two" and stow.n_frames == 20 and len(stow.sources) == 1
    np.testing.assert_array_equal(all_frames(stow), a)


@pytest.mark.parametrize("streams", ["1", "3", "4"])
def test_what_the_simulator_wrote(daemon, simulated, streams):
    master, (digest, n, _) = simulated("--scan", "5x8", "--detector", "96x99", "--dose", "3", "--shards", "2")
    stow = keep(daemon, master, "--form", "counts", "--streams", streams)
    assert stow.n_frames == n
    assert sha256(np.array(all_frames(stow))) == digest
    np.testing.assert_array_equal(all_frames(stow)[:3], make_h5.read(master)[:3])
    os.unlink(master.with_suffix(".stow"))


def test_several_blocks(daemon, folder):
    """8 MiB and what does not fit begins the next; chunks of no whole 16 bytes have padding between."""
    a = np.random.default_rng(9).integers(0, 2**16, (70, 500, 501)).astype("u2")
    path = folder / "a.h5"
    with h5py.File(path, "w") as f:
        d = f.create_dataset("d", a.shape, a.dtype, chunks=(1, 500, 501))
        d[...] = a
    stow = keep(daemon, path)
    assert len(stow.checksums) == 5 and {frame.form for frame in stow.frames} == {RAW}
    for i in (0, 15, 16, 17, 69):
        np.testing.assert_array_equal(stow.frame(i), a[i])
