# SPDX-License-Identifier: Apache-2.0
"""Sums over residents: sum, mean, com, against numpy over the frames as h5py reads them."""
import json
import math
import os
import struct
import subprocess
import time
import zlib

import h5py
import numpy as np
import pytest

import make_h5
from conftest import Raw, field, sha256, tool, wait_for

SUM, MEAN, COM = 17, 18, 19


class Loaded:
    """An acquisition, its name, and its frames."""

    def __init__(self, daemon, path, frames, name, *args):
        self.daemon, self.frames, self.name = daemon, frames.reshape((-1,) + frames.shape[-2:]), name
        self.dir = path.parent
        self.info = daemon.json("load", path, "--name", name, *args)

    def out(self, command, *args, code=0, end=".npy"):
        path = self.dir / f"out-{command}{end}"
        path.unlink(missing_ok=True)
        res = self.daemon.cli(command, self.name, *args, "--out", path)
        assert res.returncode == code, f"{command} {args}: {res}"
        self.stdout, self.stderr = res.stdout, res.stderr
        return np.load(path) if end == ".npy" else path

    def mask(self, array, number=0):
        path = self.dir / f"mask{number}.npy"
        np.save(path, array)
        return path


@pytest.fixture
def keep(daemon, folder):
    """keep(frames, *load args, file options): loaded; unloaded at the end of the test."""
    names = []

    def load(frames, *args, path=None, **more):
        name = f"s{len(names)}"
        if path is None:
            path = make_h5.plain(folder / f"{name}.h5", frames, **more)
        names.append(name)
        return Loaded(daemon, path, frames, name, *args)

    yield load
    for name in names:
        daemon.cli("unload", name)


def exactly(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
    assert (got == want).all(), np.argwhere(got != want)[:5]


def weighted(frames, mask, dtype):
    return np.einsum("nyx,yx->n", frames.astype(dtype), mask.astype(dtype))


def centers(frames):
    p = frames.astype(float)
    y, x = np.mgrid[:p.shape[1], :p.shape[2]]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([(p * y).sum((1, 2)), (p * x).sum((1, 2))], -1) / p.sum((1, 2))[:, None]


def annulus(shape, inner, outer, center=None):
    cy, cx = center or ((shape[0] - 1) / 2, (shape[1] - 1) / 2)
    y, x = np.mgrid[:shape[0], :shape[1]]
    r = np.sqrt((y - cy) ** 2 + (x - cx) ** 2)
    return (r >= inner) & (r < outer)


# ---- the sums themselves ----

SHAPES = [("u1", 40, 16, 20), ("u2", 70, 31, 17), ("u4", 33, 24, 24), ("u2", 3, 1, 1), ("u2", 300, 7, 5), ("u1", 5, 64, 96)]
FORMS = ["auto", "bslz4", "raw", "counts"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype, n, y, x", SHAPES)
def test_masks_equal_numpy(keep, dtype, n, y, x, form):
    frames = make_h5.counts(n, y, x, dtype, seed=n)
    s = keep(frames, "--form", form)
    rng = np.random.default_rng(n)
    mask = rng.random((y, x)) < 0.4
    exactly(s.out("sum", "--mask", s.mask(mask)), weighted(frames, mask, "u8"))
    small = rng.integers(0, 256, (y, x)).astype("u1")
    exactly(s.out("sum", "--mask", s.mask(small)), weighted(frames, small, "u8"))
    signed = rng.integers(-1000, 1000, (y, x)).astype("i4")
    signed[0, 0] = -1
    exactly(s.out("sum", "--mask", s.mask(signed)), weighted(frames, signed, "i8"))
    exactly(s.out("mean", "--sum"), frames.sum(0, dtype="u8"))
    exactly(s.out("mean"), frames.sum(0, dtype="u8") / n)
    np.testing.assert_allclose(s.out("com"), centers(frames), rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("form", FORMS)
def test_float_masks(keep, form):
    frames = make_h5.counts(20, 33, 29, "u2", seed=4)
    s = keep(frames, "--form", form)
    mask = np.random.default_rng(1).normal(size=(33, 29))
    got = s.out("sum", "--mask", s.mask(mask))
    assert got.dtype == np.float64
    eps = np.finfo(float).eps
    for value, frame in zip(got, frames):
        terms = (frame * mask).ravel()
        assert abs(value - math.fsum(terms)) <= terms.size * eps * np.abs(terms).sum()
    again = s.out("sum", "--mask", s.mask(mask))
    assert (got == again).all(), "float sums are to come out the same each time"


MASK_TYPES = ["?", "i1", "u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", "<i8", ">i8", "<u8", "<f2", ">f2", "<f4",
              ">f4", "<f8", ">f8"]


@pytest.mark.parametrize("kind", MASK_TYPES)
def test_mask_types(keep, kind):
    """Of whatever type: what counts is the weights' values. Whole ones give integers."""
    frames = make_h5.counts(6, 9, 7)
    s = keep(frames)
    mask = (np.random.default_rng(2).integers(0, 2, (9, 7))).astype(kind)
    exactly(s.out("sum", "--mask", s.mask(mask)), weighted(frames, mask, "u8"))
    if np.dtype(kind).kind in "if":
        mask[2, 3] = -3
        exactly(s.out("sum", "--mask", s.mask(np.asfortranarray(mask))), weighted(frames, mask, "i8"))
    if np.dtype(kind).kind == "f":
        mask[1, 1] = 0.25
        exactly(s.out("sum", "--mask", s.mask(mask)), weighted(frames, mask, "f8"))


def test_npy_versions_and_stacks(keep):
    frames = make_h5.counts(6, 9, 7)
    s = keep(frames)
    stack = np.random.default_rng(3).integers(0, 5, (3, 9, 7))
    want = np.stack([weighted(frames, m, "u8") for m in stack])
    for version in ((1, 0), (2, 0), (3, 0)):
        for array in (stack, np.asfortranarray(stack)):
            with open(s.dir / "v.npy", "wb") as f:
                np.lib.format.write_array(f, array, version=version)
            exactly(s.out("sum", "--mask", s.dir / "v.npy"), want)
    subnormal = np.full((9, 7), np.float16(6e-8))
    exactly(s.out("sum", "--mask", s.mask(subnormal)), weighted(frames, subnormal, "f8"))


def test_bad_masks(keep):
    frames = make_h5.counts(3, 9, 7)
    s = keep(frames)
    wrong = {
        "shape": np.ones((8, 7)), "turned": np.ones((7, 9)), "flat": np.ones(63), "deep": np.ones((1, 1, 9, 7)),
        "nine": np.ones((9, 9, 7)), "none": np.ones((0, 9, 7)), "complex": np.ones((9, 7), complex),
        "big": np.full((9, 7), 2 ** 31), "small": np.full((9, 7), -2 ** 31 - 1), "unsigned": np.full((9, 7), 2 ** 64 - 1, "u8"),
        "nan": np.full((9, 7), np.nan), "inf": np.full((9, 7), np.inf), "text": np.full((9, 7), "x"),
        "record": np.zeros((9, 7), [("a", "i4")]), "long": np.ones((9, 7), np.longdouble),
    }
    for name, array in wrong.items():
        path = s.dir / f"{name}.npy"
        np.save(path, array)
        res = s.daemon.cli("sum", s.name, "--mask", path, "--out", s.dir / "o.npy")
        assert res.returncode == 1 and name in res.stderr, (name, res)
        assert not (s.dir / "o.npy").exists()
    assert "(8, 7)" in s.daemon.cli("sum", s.name, "--mask", s.dir / "shape.npy", "--out", s.dir / "o.npy").stderr
    whole = (s.dir / "inf.npy").read_bytes()
    good = s.mask(np.ones((9, 7))).read_bytes()
    for i, data in enumerate([b"", b"\x93NUMPY", good[:9], good[:60], good[:-1], b"x" + whole, good[:6] + b"\x09" + good[7:],
                              good.replace(b"(9, 7)", b"(9; 7)"), good.replace(b"'shape'", b"'shade'"),
                              good.replace(b"(9, 7)", b"(-1,7)")]):
        (s.dir / "cut.npy").write_bytes(data)
        res = s.daemon.cli("sum", s.name, "--mask", s.dir / "cut.npy", "--out", s.dir / "o.npy")
        assert res.returncode == 1 and "cut.npy" in res.stderr, (i, res)
    res = s.daemon.cli("sum", s.name, "--mask", s.dir / "not-there.npy", "--out", s.dir / "o.npy")
    assert res.returncode == 1 and "not-there.npy" in res.stderr


@pytest.mark.parametrize("form", FORMS)
def test_annuli(keep, form):
    frames = make_h5.counts(12, 41, 30, "u2", seed=8)
    s = keep(frames, "--form", form)
    for inner, outer in ((0, 5), (3, 9), (2.5, 7.25), (0, 100), (5, math.hypot(3, 4) + 1e-9), (1e-3, 0.9)):
        for center in (None, (20, 15), (3.5, 28.25), (-4, 10)):
            args = ["--annulus", f"{inner!r},{outer!r}"]
            if center:
                args += ["--center", f"{center[0]},{center[1]}"]
            exactly(s.out("sum", *args), weighted(frames, annulus((41, 30), inner, outer, center), "u8"))


@pytest.mark.parametrize("form", FORMS)
def test_many_at_once(keep, form):
    """Masks first, then annuli, along a leading axis."""
    frames = make_h5.counts(24, 20, 22, "u2", seed=5)
    s = keep(frames, "--form", form, "--scan", "4x6")
    masks = np.random.default_rng(6).integers(0, 3, (5, 20, 22))
    args, want = [], []
    for i, mask in enumerate(masks):
        args += ["--mask", s.mask(mask, i)]
        want.append(weighted(frames, mask, "u8"))
    for inner, outer in ((0, 4), (4, 8), (8, 20)):
        args += ["--annulus", f"{inner},{outer}"]
        want.append(weighted(frames, annulus((20, 22), inner, outer), "u8"))
    exactly(s.out("sum", *args), np.stack(want).reshape(8, 4, 6))
    exactly(s.out("sum", *args[:2]), want[0].reshape(4, 6))
    res = s.daemon.cli("sum", s.name, *args, "--annulus", "1,2", "--out", s.dir / "o.npy")
    assert res.returncode == 2 and "8" in res.stderr
    float_too = ["--mask", s.mask(np.full((20, 22), 0.5), 9), "--annulus", "0,4"]
    got = s.out("sum", *float_too)
    exactly(got, np.stack([weighted(frames, np.full((20, 22), 0.5), "f8"), want[5].astype("f8")]).reshape(2, 4, 6))


@pytest.mark.parametrize("form", FORMS)
def test_selections(keep, form):
    frames = make_h5.counts(50, 12, 11, "u2", seed=7)
    s = keep(frames, "--form", form, "--scan", "5x10")
    mask = np.random.default_rng(7).integers(0, 9, (12, 11))
    for text, ids in (("7", [7]), ("3-9", list(range(3, 10))), ("9,2,2,40-44,0", [9, 2, 2, 40, 41, 42, 43, 44, 0]),
                      ("0-49", list(range(50))), ("49,48,47", [49, 48, 47])):
        some = frames[ids]
        exactly(s.out("sum", "--mask", s.mask(mask), "--frames", text), weighted(some, mask, "u8"))
        exactly(s.out("mean", "--sum", "--frames", text), some.sum(0, dtype="u8"))
        exactly(s.out("mean", "--frames", text), some.sum(0, dtype="u8") / len(ids))
        np.testing.assert_allclose(s.out("com", "--frames", text), centers(some), rtol=1e-13)
    many = ",".join(str(i * 7 % 50) for i in range(3000))  # ids in a descriptor of their own
    exactly(s.out("sum", "--mask", s.mask(mask), "--frames", many),
            weighted(frames, mask, "u8")[[i * 7 % 50 for i in range(3000)]])
    exactly(s.out("mean", "--sum", "--frames", many), frames[[i * 7 % 50 for i in range(3000)]].sum(0, dtype="u8"))
    for command in (["sum", s.name, "--annulus", "0,5"], ["mean", s.name], ["com", s.name]):
        for ids in ("50", "3,99"):
            res = s.daemon.cli(*command, "--frames", ids, "--out", s.dir / "o.npy")
            assert res.returncode == 1 and "past the end" in res.stderr, res


def test_scan_shapes(keep):
    frames = make_h5.counts(12, 8, 8)
    s = keep(frames, "--scan", "3x4")
    assert s.out("sum", "--annulus", "0,3").shape == (3, 4)
    assert s.out("com").shape == (3, 4, 2)
    assert s.out("mean").shape == (8, 8)
    flat = keep(frames.copy() + 1)
    assert flat.out("sum", "--annulus", "0,3").shape == (12,)
    assert flat.out("com").shape == (12, 2)


# ---- flagged pixels ----

def flagged_file(folder, frames, mask, name="flagged"):
    path = make_h5.master(folder, frames, name=name)
    with h5py.File(path, "r+") as f:
        f["/entry/instrument/detector/detectorSpecific/pixel_mask"] = mask.astype("u4")
    return path


@pytest.mark.parametrize("form", FORMS)
def test_flagged_pixels(keep, folder, form):
    frames = make_h5.counts(30, 16, 18, "u2", seed=9)
    flags = np.zeros((16, 18), "u4")
    flags[3, 4], flags[0, 0], flags[15, 17] = 1, 2, 16
    frames[:, 3, 4] = 65535
    s = keep(frames, "--form", form, path=flagged_file(folder, frames, flags))
    good = flags == 0
    mask = np.random.default_rng(9).integers(0, 9, (16, 18))
    exactly(s.out("sum", "--mask", s.mask(mask)), weighted(frames, mask * good, "u8"))
    assert "3 flagged pixels left out" in s.stdout
    exactly(s.out("sum", "--mask", s.mask(mask), "--flagged"), weighted(frames, mask, "u8"))
    assert "flagged" not in s.stdout
    fractional = mask / 4 - 0.3
    np.testing.assert_allclose(s.out("sum", "--mask", s.mask(fractional)), weighted(frames, fractional * good, "f8"),
                               rtol=1e-9, atol=1e-6)
    for ids in ((), ("--frames", "3,1,20-25,1"), ()):  # the second time from what was answered before
        some = frames[[3, 1, 20, 21, 22, 23, 24, 25, 1]] if ids else frames
        exactly(s.out("mean", "--sum", *ids), (some * good).sum(0, dtype="u8"))
        exactly(s.out("mean", "--sum", "--flagged", *ids), some.sum(0, dtype="u8"))
        np.testing.assert_allclose(s.out("com", *ids), centers(some * good), rtol=1e-13)
        np.testing.assert_allclose(s.out("com", "--flagged", *ids), centers(some), rtol=1e-13)
    got = json.loads(s.daemon.cli("--json", "sum", s.name, "--annulus", "0,4", "--out", s.dir / "o.npy").stdout)
    assert got["flagged"] == 3 and got["shape"] == [30] and got["dtype"] == "u8" and got["bad"] == []
    exactly(np.load(s.dir / "o.npy").sum(), np.uint64(got["sum"]))
    assert got["center"] == [7.5, 8.5] and got["min"] == int(np.load(s.dir / "o.npy").min())


# ---- frames without counts ----

def with_bad(folder, frames, bad):
    """bslz4 chunks of which some are damaged."""
    path = make_h5.plain(folder / "bad.h5", frames)
    for i in bad:
        offset, size = make_h5.chunk_place(path, i)
        make_h5.overwrite(path, offset + 12, b"\xff" * min(40, size - 12))
    return path


@pytest.mark.parametrize("form", ["auto", "bslz4"])
def test_bad_frames(keep, folder, form):
    frames = make_h5.counts(20, 24, 24, "u2", seed=3)
    bad = [4, 5, 11]
    s = keep(frames, "--form", form, path=with_bad(folder, frames, bad))
    assert s.info["forms"]["bad"] == 3
    good = [i for i in range(20) if i not in bad]
    mask = np.random.default_rng(3).integers(0, 9, (24, 24))
    want = weighted(frames, mask, "u8")
    want[bad] = 0
    exactly(s.out("sum", "--mask", s.mask(mask), code=4), want)
    assert all(f"frame {i}: corrupt" in s.stderr for i in bad)
    got = s.out("sum", "--mask", s.mask(mask + 0.5), code=4)
    assert np.isnan(got[bad]).all() and np.isfinite(got[good]).all()
    exactly(s.out("mean", "--sum", code=4), frames[good].sum(0, dtype="u8"))
    assert "frame 11: corrupt" in s.stderr
    exactly(s.out("mean", code=4), frames[good].sum(0, dtype="u8") / len(good))
    exactly(s.out("mean", "--sum", "--frames", "3-6", code=4), frames[[3, 6]].sum(0, dtype="u8"))
    exactly(s.out("mean", "--sum", "--frames", "0-3"), frames[:4].sum(0, dtype="u8"))
    got = s.out("com", code=4)
    assert np.isnan(got[bad]).all() and "frame 11: corrupt" in s.stderr
    np.testing.assert_allclose(got[good], centers(frames[good]), rtol=1e-13)
    got = s.out("com", "--frames", "11,0,11", code=4)
    assert np.isnan(got[[0, 2]]).all()
    res = s.daemon.cli("--json", "com", s.name, "--out", s.dir / "o.npy")
    assert res.returncode == 4 and json.loads(res.stdout)["bad"] == bad
    exactly(s.out("sum", "--annulus", "0,8", "--frames", "4,5,11", code=4), np.zeros(3, "u8"))


def test_never_written_frames(keep, folder):
    """They count as what they are served as."""
    frames = make_h5.counts(8, 12, 12, "u2", seed=2)
    path = folder / "fill.h5"
    with h5py.File(path, "w") as f:
        d = f.create_dataset("/entry/data/data", (8, 12, 12), "u2", chunks=(1, 12, 12), fillvalue=3)
        for i in (0, 2, 5):
            d[i] = frames[i]
        frames = d[...]
    s = keep(frames, path=path)
    assert s.info["forms"]["fill"] == 5
    mask = np.random.default_rng(2).integers(-3, 9, (12, 12))
    exactly(s.out("sum", "--mask", s.mask(mask)), weighted(frames, mask, "i8"))
    exactly(s.out("mean", "--sum"), frames.sum(0, dtype="u8"))
    np.testing.assert_allclose(s.out("com"), centers(frames), rtol=1e-13)


def test_dark_frames_have_no_center(keep):
    frames = make_h5.counts(5, 9, 7)
    frames[2] = 0
    s = keep(frames)
    got = s.out("com")
    assert np.isnan(got[2]).all() and np.isfinite(got[[0, 1, 3, 4]]).all()


def test_answers_are_there_after_a_load(start, folder):
    """Mean and com of all frames are made at the end of a load, from HDF5 and from .stow; asking works nothing out."""
    other = start("--device", "host", "--max-bytes", "256M", "--log-level", "debug")
    frames = make_h5.counts(300, 24, 20, "u2", seed=8)
    path = make_h5.plain(folder / "first.h5", frames)
    other.load(path, "--name", "first")
    assert other.cli("save", "first", folder / "second.stow", "--force").returncode == 0
    other.load(folder / "second.stow", "--name", "second")
    wait_for(lambda: other.log().count("are made") == 2, 20, "answers are made")
    for name in ("first", "second"):
        for flagged in ([], ["--flagged"]):  # no file flags pixels here: the same answers
            s = folder / "out.npy"
            assert other.cli("mean", name, "--sum", *flagged, "--out", s).returncode == 0
            exactly(np.load(s), frames.sum(0, dtype="u8"))
            assert other.cli("com", name, *flagged, "--out", s).returncode == 0
            np.testing.assert_allclose(np.load(s), centers(frames), rtol=1e-13)
    assert "com over" not in other.log() and "mean over" not in other.log()
    assert other.cli("com", "first", "--frames", "0-2", "--out", s).returncode == 0
    assert "com over 3 frames" in other.log()


def test_answers_are_in_nobodys_way(start, folder):
    """Loads that need each other's room right after one another, and names that go at once."""
    frames = make_h5.counts(1500, 32, 32, "u4", seed=9)
    paths = [make_h5.plain(folder / f"{i}.h5", frames + np.uint32(i)) for i in range(2)]
    other = start("--device", "host", "--max-bytes", "9M")
    for turn in range(12):
        for i, path in enumerate(paths):
            res = other.cli("load", path, "--name", f"n{i}", "--form", "raw", "--replace")
            assert res.returncode == 0, res.stderr + other.obituary()
            if turn % 3 == 2:
                other.cli("unload", f"n{i}")
    other.load(paths[0], "--name", "last", "--form", "raw")
    out = folder / "out.npy"
    assert other.cli("com", "last", "--out", out).returncode == 0
    np.testing.assert_allclose(np.load(out), centers(frames), rtol=1e-13)


# ---- what is refused ----

def test_overflow_is_refused(keep):
    frames = np.full((3, 40, 40), 2 ** 32 - 1, "u4")
    s = keep(frames)
    mask = np.full((40, 40), 2 ** 31 - 1)
    res = s.daemon.cli("sum", s.name, "--mask", s.mask(mask), "--out", s.dir / "o.npy")
    assert res.returncode == 1 and "63 bits" in res.stderr and str(1600 * (2 ** 31 - 1)) in res.stderr, res
    got = s.out("sum", "--mask", s.mask(np.full((40, 40), 2.0 ** 31)))
    assert got.dtype == np.float64
    exactly(got, np.full(3, 1600 * (2.0 ** 32 - 1) * 2.0 ** 31))
    exactly(s.out("sum", "--mask", s.mask(np.full((40, 40), 255))), np.full(3, 1600 * 255 * (2 ** 32 - 1), "u8"))
    quiet = keep(np.minimum(frames, 100))  # the type could overflow, these counts cannot
    exactly(quiet.out("sum", "--mask", quiet.mask(mask)), np.full(3, 100 * 1600 * (2 ** 31 - 1), "u8"))


def test_usage(daemon, keep):
    frames = make_h5.counts(4, 8, 8)
    s = keep(frames)
    for wrong in (["sum", s.name, "--out", "x.npy"], ["sum", s.name, "--annulus", "1,3"], ["mean", s.name],
                  ["sum", s.name, "--annulus", "3,1", "--out", "x.npy"], ["sum", s.name, "--annulus", "1", "--out", "x.npy"],
                  ["sum", s.name, "--annulus", "-1,1", "--out", "x.npy"], ["sum", s.name, "--annulus", "nan,1", "--out", "x.npy"],
                  ["sum", s.name, "--annulus", "1,3", "--out", "x.tif"], ["com", s.name, "--out", "x.png"],
                  ["sum", s.name, "--mask", "m.npy", "--center", "1,2", "--out", "x.npy"],
                  ["sum", s.name, "--annulus", "1,3", "--center", "1;2", "--out", "x.npy"],
                  ["mean", s.name, "--frames", "x", "--out", "x.npy"], ["sum"], ["mean"], ["com"]):
        res = daemon.cli(*wrong)
        assert res.returncode == 2 and res.stderr, (wrong, res)
    for command in (["sum", "nobody", "--annulus", "1,3"], ["mean", "nobody"], ["com", "nobody"]):
        res = daemon.cli(*command, "--out", s.dir / "x.npy")
        assert res.returncode == 1 and "nobody" in res.stderr, res
        res = daemon.cli(*command[:1], s.name, *command[2:], "--out", s.dir / "not-there" / "x.npy")
        assert res.returncode == 1 and "not-there" in res.stderr, res
    for command in ("sum", "mean", "com"):
        assert daemon.cli(command, "--help").returncode == 0


def test_messages_that_make_no_sense(daemon, keep):
    s = keep(make_h5.counts(4, 8, 8))
    annulus = field(2, b"\x09" + struct.pack("<d", 0) + b"\x11" + struct.pack("<d", 3))

    def memfd(data, seal=True):
        import fcntl
        fd = os.memfd_create("t", os.MFD_ALLOW_SEALING)
        os.write(fd, data)
        if seal:
            fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
        return fd

    with Raw(daemon) as raw:
        name = field(1, s.name)
        assert raw.refused(SUM, name)[0] == 5
        assert raw.refused(SUM, name + annulus * 9)[0] == 5
        assert raw.refused(SUM, name + field(3, 1) + field(4, "u1"))[0] == 5
        assert raw.refused(SUM, name + field(3, 2 ** 32 - 1) + field(4, "u1"))[0] == 5
        nonsense = field(2, b"\x09" + struct.pack("<d", 3) + b"\x11" + struct.pack("<d", math.nan))
        assert raw.refused(SUM, name + nonsense)[0] == 5
        for data, seal, weights in ((b"x" * 63, True, "u1"), (b"x" * 64, False, "u1"), (b"x" * 64, True, "u3"),
                                    (b"x" * 64, True, "i4")):
            fd = memfd(data, seal)
            code, text = raw.refused(SUM, name + field(3, 1) + field(4, weights), [fd])
            os.close(fd)
            assert code == 5 and text
        for number in (SUM, MEAN, COM):
            body = name + (annulus if number == SUM else b"")
            frames = 6 if number == SUM else 3
            assert raw.refused(number, body + field(frames, field(1, 9)))[0] == 11
            assert raw.refused(number, body + field(frames, field(1, 1) + field(2, 4)))[0] == 11
            assert raw.refused(number, body + field(frames, field(3, 1)))[0] == 5
            assert raw.refused(number, body + field(frames, field(4, 5)))[0] == 5
            fd = memfd(struct.pack("<3Q", 0, 9, 1))
            assert raw.refused(number, body + field(frames, field(4, 3)), [fd])[0] == 11
            assert raw.refused(number, body + field(frames, field(4, 4)), [fd])[0] == 5
            os.close(fd)
            assert raw.refused(number, field(1, "nobody") + body[len(name):])[0] == 7
        reply = raw.ask(SUM, name + annulus)
        assert reply[11][1] == [b"u8"] and reply[11][2] == [1] and reply[11][3] == [4]
        fd = raw.fds.pop()
        with pytest.raises(OSError):
            os.ftruncate(fd, 1)
        with pytest.raises(OSError):
            os.write(fd, b"x")
        whole = np.frombuffer(os.pread(fd, 32, 0), "u8")
        os.close(fd)
        # Annuli are drawn with the weights that are asked for.
        for weights, dtype in (("u1", "u8"), ("i4", "i8"), ("f8", "f8")):
            reply = raw.ask(SUM, name + annulus + field(4, weights))
            fd = raw.fds.pop()
            assert reply[11][1] == [dtype.encode()]
            exactly(np.frombuffer(os.pread(fd, 32, 0), dtype), whole.astype(dtype))
            os.close(fd)
        assert raw.refused(SUM, name + annulus + field(4, "f4"))[0] == 5


def test_still_loading(start, simulated):
    master, _ = simulated("--scan", "96x96", "--detector", "128x128", "--dtype", "u2")
    d = start()
    load = d.start_cli("load", master, "--name", "slow")
    seen = False
    while load.poll() is None:
        if d.cli("info", "slow").returncode == 0:
            res = d.cli("sum", "slow", "--annulus", "0,3", "--out", d.folder / "x.npy")
            if res.returncode:
                assert res.returncode == 1 and "still loading" in res.stderr, res
                seen = True
    load.communicate()
    if not seen:
        pytest.skip("it was loaded before it could be asked")


# ---- several, and clients that go away ----

def test_side_by_side(daemon, keep):
    frames = make_h5.counts(3000, 16, 16, seed=11)
    s = keep(frames)
    jobs = []
    for i in range(6):
        mask = np.random.default_rng(i).integers(0, 99, (16, 16))
        out = s.dir / f"side{i}.npy"
        jobs.append((daemon.start_cli("sum", s.name, "--mask", s.mask(mask, i), "--out", out), out, mask))
    for process, out, mask in jobs:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        exactly(np.load(out), weighted(frames, mask, "u8"))


def test_client_goes_away(start, folder):
    frames = make_h5.counts(4000, 32, 32, seed=12)
    d = start()
    d.load(make_h5.plain(folder / "a.h5", frames))
    d.settled()
    before = d.fds()
    for number in (SUM, MEAN, COM):
        for _ in range(5):
            raw = Raw(d)
            annulus = field(2, b"\x09" + struct.pack("<d", 0) + b"\x11" + struct.pack("<d", 30))
            raw.send(number, field(1, "a") + (annulus if number == SUM else b"") +
                     field(6 if number == SUM else 3, field(1, 1)))
            raw.close()
    assert d.cli("unload", "a").returncode == 0
    wait_for(lambda: d.stat("used_bytes") == 0, 20, "all memory comes back")
    d.settled()
    wait_for(lambda: d.fds() <= before, 10, "descriptors come back")
    assert d.stop() == 0, d.log()


def test_five_at_once_are_too_many(daemon, keep):
    s = keep(make_h5.counts(20000, 16, 16, seed=13))
    annulus = field(2, b"\x09" + struct.pack("<d", 0) + b"\x11" + struct.pack("<d", 30))
    with Raw(daemon) as raw:
        ids = [raw.send(SUM, field(1, s.name) + annulus) for _ in range(12)]
        codes = []
        for i in ids:
            kinds, done = None, None
            while done is None:
                kind, reply = raw.receive()
                done = reply if kind == 1 else None
            codes.append(2 in done)
        assert any(codes) and not all(codes)


# ---- the bright disk ----

def test_center_auto(keep):
    y, x = np.mgrid[:64, :80]
    disk = (y - 25.3) ** 2 + (x - 47.6) ** 2 < 12.5 ** 2
    frames = np.random.default_rng(1).poisson(0.05 + 6 * disk, (60, 64, 80)).astype("u2")
    frames[:, 5, 5] = 60000
    s = keep(frames)
    s.out("sum", "--annulus", "0,12.5", "--center", "auto")
    word, center, word2, radius = s.stdout.split()
    cy, cx = map(float, center.split(","))
    assert abs(cy - 25.3) < 0.3 and abs(cx - 47.6) < 0.3 and abs(float(radius) - 12.5) < 0.5
    got = json.loads(s.daemon.cli("--json", "sum", s.name, "--annulus", "0,12.5", "--center", "auto", "--out",
                                  s.dir / "o.npy").stdout)
    exactly(np.load(s.dir / "o.npy"), weighted(frames, annulus((64, 80), 0, 12.5, tuple(got["center"])), "u8"))
    assert abs(got["radius"] - 12.5) < 0.5
    flat = keep(np.full((4, 20, 20), 7, "u2"))
    res = flat.daemon.cli("sum", flat.name, "--annulus", "0,3", "--center", "auto", "--out", flat.dir / "o.npy")
    assert res.returncode == 1 and "--center Y,X" in res.stderr


# ---- pictures ----

def picture(path):
    """Grey pixels of an 8-bit PNG, by hand."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, body, size = 8, b"", None
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        chunk = data[at + 8:at + 8 + length]
        assert zlib.crc32(kind + chunk) == struct.unpack(">I", data[at + 8 + length:at + 12 + length])[0]
        if kind == b"IHDR":
            size = struct.unpack(">IIBBBBB", chunk)
        elif kind == b"IDAT":
            body += chunk
        at += 12 + length
    width, height, depth, colour = size[:4]
    assert (depth, colour) == (8, 0)
    raw, rows, last = zlib.decompress(body), [], np.zeros(width, int)
    for y in range(height):
        line = np.frombuffer(raw[y * (width + 1) + 1:(y + 1) * (width + 1)], "u1").astype(int)
        kind = raw[y * (width + 1)]
        if kind in (1, 3, 4):
            out = np.zeros(width, int)
            for i in range(width):
                a, b, c = out[i - 1] if i else 0, last[i], last[i - 1] if i else 0
                if kind == 4:
                    p = a + b - c
                    best = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
                else:
                    best = a if kind == 1 else (a + b) // 2
                out[i] = (line[i] + best) % 256
            line = out
        elif kind == 2:
            line = (line + last) % 256
        rows.append(line)
        last = line
    return np.array(rows)


def test_pictures(keep):
    frames = np.arange(130 * 150, dtype="u4").reshape(150, 130, 1, 1).repeat(9, 2).repeat(7, 3)
    s = keep(frames.reshape(-1, 9, 7), "--scan", "150x130")
    grey = picture(s.out("sum", "--annulus", "0,3", end=".png"))
    assert grey.shape[0] == 150 and grey.shape[1] > 130
    want = np.arange(130 * 150).reshape(150, 130) / (130 * 150 - 1) * 255
    assert np.abs(grey[:, :130] - want).max() <= 1
    bar = grey[:, 138:150]
    assert (bar == bar[:, :1]).all() and bar[0, 0] == 255 and bar[-1, 0] == 0 and (np.diff(bar[:, 0]) <= 0).all()
    assert (grey[:7, 154:] == 255).any() and (grey[-7:, 154:] == 255).any() and not grey[20:-20, 154:].any()
    grey = picture(s.out("mean", end=".png"))
    assert grey.shape[0] >= 128, "small pictures are enlarged"
    flat = keep(make_h5.counts(5, 8, 8))
    res = flat.daemon.cli("sum", flat.name, "--annulus", "0,3", "--out", flat.dir / "o.png")
    assert res.returncode == 1 and ".npy" in res.stderr


def test_nothing_is_left_behind(keep):
    s = keep(make_h5.counts(4, 8, 8))
    s.out("sum", "--annulus", "0,3")
    s.out("mean", end=".png")
    assert not [p for p in os.listdir(s.dir) if p.startswith(".")]


def test_what_sums_keep_for_later_makes_room(start, folder):
    """Memory that the next sum would use again is no reason to refuse a load that fits without it."""
    d, noise = start("--max-bytes", "64M"), np.random.default_rng(0).integers(0, 2**16, (100, 512, 512)).astype("u2")
    d.load(make_h5.plain(folder / "small.h5", noise[:60]))
    make_h5.plain(folder / "large.h5", noise)
    assert d.cli("sum", "small", "--annulus", "0,20", "--out", folder / "o.npy").returncode == 0
    d.load(folder / "large.h5")
    assert d.digest("large")[0] == sha256(noise)
    assert d.stat("evictions_total") == 1


def test_results_larger_than_files_may_be(start, folder):
    """A limit for files counts for memfds too: who asks for more is refused, and the daemon lives on."""
    d = start(wrapper=["prlimit", "--fsize=4194304"])
    with h5py.File(folder / "a.h5", "w") as f:
        f.create_dataset("d", (100000, 4, 4), "u2", chunks=(1, 4, 4), fillvalue=1)
    d.load(folder / "a.h5")
    res = d.cli("sum", "a", *["--annulus", "0,3"] * 8, "--out", folder / "o.npy")
    assert res.returncode == 1 and "6500000 bytes of results: File too large" in res.stderr, res.stderr
    assert d.cli("sum", "a", "--annulus", "0,9", "--out", folder / "o.npy").returncode == 0
    assert (np.load(folder / "o.npy") == 16).all()
