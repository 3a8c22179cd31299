# SPDX-License-Identifier: Apache-2.0
"""Every type of pixel: bits as h5py has them on every way, sums as numpy has them or a refusal. Extreme values, NaN with
payloads, -0.0, infinities and denormals among them."""
import math

import h5py
import hdf5plugin  # noqa: F401
import numpy as np
import pytest

import make_h5
from conftest import sha256

DTYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"]
COUNTS = ("u1", "u2", "u4")
LAYOUTS = ["bslz4", "chunks", "contiguous", "gzip", "large", "big-endian bslz4", "big-endian contiguous"]
N, Y, X = 12, 13, 11
EPS = np.finfo("f8").eps
MASK = "/entry/instrument/detector/detectorSpecific/pixel_mask"


def extremes(dtype):
    """The values on which something breaks."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        bits = {4: ["7fc00001", "ffc00000", "7f800001", "7f800000", "ff800000", "80000000", "00000001", "007fffff", "ff7fffff"],
                8: ["7ff800000000cafe", "fff8000000000000", "7ff0000000000001", "7ff0000000000000", "fff0000000000000",
                    "8000000000000000", "0000000000000001", "000fffffffffffff", "ffefffffffffffff"]}[kind.itemsize]
        return np.array([int(b, 16) for b in bits], f"u{kind.itemsize}").view(dtype)
    info = np.iinfo(dtype)
    values = {info.min, info.max, info.max - 1, 0, 1, -1, 2**63, 2**53 + 1, 65536}
    return np.array(sorted(v for v in values if info.min <= v <= info.max), dtype)


def wild(dtype, seed=0):
    """Frames of any bits, of small numbers, of one value, and of extremes."""
    rng = np.random.default_rng(seed)
    size = np.dtype(dtype).itemsize
    a = rng.integers(0, 256, (N, Y, X * size), "u1").view(dtype)
    a[1] = rng.integers(0, 5, (Y, X))
    a[2] = np.resize(extremes(dtype), (Y, X))
    a[3] = a[4] = extremes(dtype)[0]
    a[5] = 0
    return a


def tame(dtype, seed=0):
    """Frames whose sums fit, signed where they can be."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "f":
        return (rng.normal(size=(N, Y, X)) * 10.0 ** rng.integers(-3, 6, (N, Y, X))).astype(dtype)
    most = min(np.iinfo(dtype).max, 2**40)
    a = rng.integers(0, 9, (N, Y, X)).astype(dtype)
    a[rng.random(a.shape) < 0.05] = most
    if kind == "i":
        a[rng.random(a.shape) < 0.4] *= -1
    return a


def write(path, a, layout="bslz4", mask=None, **more):
    if layout.startswith("big-endian"):
        a, layout = a.astype(a.dtype.newbyteorder(">")), layout[11:]
    if layout == "bslz4":
        more = {"chunks": (1, Y, X), "compression": 32008, "compression_opts": (0, 2)} | more
    elif layout == "chunks":
        more = {"chunks": (1, Y, X)} | more
    elif layout == "gzip":
        more = {"chunks": (1, Y, X), "compression": "gzip", "shuffle": True} | more
    elif layout == "large":
        more = {"chunks": (5, 4, 8), "compression": 32008, "compression_opts": (0, 2)} | more
    with h5py.File(path, "w") as f:
        if mask is not None:
            f[MASK] = mask
        f.create_dataset("/entry/data/data", data=a, **more)
    return path


@pytest.fixture
def named(daemon):
    """Names that are unloaded in the end."""
    names = []
    yield names
    for name in names:
        daemon.cli("unload", name)


def out(daemon, folder, name, command, *args, code=0):
    path = folder / f"{command}.npy"
    path.unlink(missing_ok=True)
    res = daemon.cli(command, name, *args, "--out", path)
    assert res.returncode == code, f"{command} {args}: {res}{daemon.obituary()}"
    return np.load(path) if code in (0, 4) else res.stderr


def same_bits(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
    assert got.tobytes() == want.tobytes()


# ---- frames -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_is_kept(daemon, folder, named, dtype, layout):
    a = wild(dtype)
    path = write(folder / "w.h5", a, layout)
    same_bits(make_h5.read(path).astype(dtype, copy=False), a)
    info = daemon.load(path, "--name", "w")
    named.append("w")
    assert info["dtype"] == dtype and info["forms"]["bad"] == 0 and sum(info["forms"].values()) == N
    assert dtype in COUNTS or info["forms"]["counts"] == 0
    assert daemon.digest("w") == (sha256(a), N, a.nbytes)
    ids = [7, 2, 2, 11, 0]
    assert daemon.digest("w", ",".join(map(str, ids))) == (sha256(a[ids]), 5, a[ids].nbytes)
    same_bits(out(daemon, folder, "w", "frames"), a)
    same_bits(out(daemon, folder, "w", "frames", "3,2"), a[[3, 2]])
    assert daemon.cli("frames", "w", "2", "--out", folder / "w.png").returncode == 0
    assert (folder / "w.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    verified = daemon.cli("verify", "w")
    assert verified.returncode == 0, verified


@pytest.mark.parametrize("layout", ["bslz4", "contiguous"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_kept_and_loaded_again(daemon, folder, named, dtype, layout):
    mask = np.zeros((Y, X), "u4")
    mask[3, 4:6] = 1
    a = tame(dtype)
    a[:, 3, 4] = extremes(dtype)[0]
    path = write(folder / "k.h5", a, layout, mask)
    daemon.load(path, "--name", "k")
    named.extend(["k", "again"])
    sums = {c: out(daemon, folder, "k", *c) for c in (("mean", "--sum"), ("mean",), ("com",))}
    res = daemon.cli("save", "k", folder / "k.stow", "--force")
    assert res.returncode == 0, res
    info = daemon.json("load", folder / "k.stow", "--name", "again")
    assert info["dtype"] == dtype and info["forms"] == daemon.json("info", "k")["forms"]
    assert daemon.digest("again") == (sha256(a), N, a.nbytes)
    for command, want in sums.items():
        same_bits(out(daemon, folder, "again", *command), want)
    verified = daemon.cli("verify", "again")
    assert verified.returncode == 0, verified
    daemon.cli("save", "again", folder / "twice.stow", "--force")
    assert (folder / "twice.stow").read_bytes() == (folder / "k.stow").read_bytes()


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in COUNTS])
def test_a_form_that_cannot_hold_them(daemon, folder, named, dtype):
    path = write(folder / "f.h5", tame(dtype))
    res = daemon.cli("load", path, "--name", "f", "--form", "counts")
    assert res.returncode == 1 and f"these frames are {dtype}" in res.stderr, res
    info = daemon.load(path, "--name", "f", "--form", "raw")
    named.append("f")
    assert info["forms"]["raw"] == N and daemon.digest("f")[0] == sha256(tame(dtype))


# ---- sums -------------------------------------------------------------------------------------------------------


def number(dtype):
    """What sums of such pixels are."""
    return {"u": "u8", "i": "i8", "f": "f8"}[np.dtype(dtype).kind]


def check_sums(got, frames, weights, dtype):
    """Integers exactly; floats within n eps of what their parts add up to in size. A weight of 0 leaves out."""
    assert got.dtype == np.dtype(dtype) and got.shape == (len(frames),), (got.dtype, got.shape)
    inside = weights != 0
    for value, frame in zip(got, frames):
        if np.dtype(dtype).kind != "f":
            assert int(value) == sum(int(p) * int(w) for p, w in zip(frame[inside], weights[inside]))
            continue
        terms = [float(p) * float(w) for p, w in zip(frame[inside], weights[inside])]
        want = math.fsum(terms) if all(map(math.isfinite, terms)) else sum(terms)
        if math.isfinite(want):
            assert abs(value - want) <= (len(terms) + 2) * EPS * math.fsum(map(abs, terms))
        else:
            assert value == want or (math.isnan(value) and math.isnan(want))


def check_mean(daemon, folder, name, frames, dtype, good, *args):
    sums, means = out(daemon, folder, name, "mean", "--sum", *args), out(daemon, folder, name, "mean", *args)
    assert sums.dtype == np.dtype(number(dtype)) and means.dtype == np.float64
    want = frames.astype(number(dtype)).sum(0)  # numpy adds frame after frame
    want[~good] = 0
    np.testing.assert_array_equal(sums, want)
    np.testing.assert_array_equal(means, want / len(frames))


def check_com(daemon, folder, name, frames, good, *args):
    got = out(daemon, folder, name, "com", *args)
    p = np.where(good, frames, 0).astype("f8")
    y, x = np.mgrid[:Y, :X]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        total = p.sum((1, 2))
        want = np.stack([(p * y).sum((1, 2)), (p * x).sum((1, 2))], -1) / total[:, None]
        slack = np.abs(p).sum((1, 2)) / np.abs(total)  # much is lost where parts cancel
    want[total == 0] = np.nan
    assert got.dtype == np.float64 and got.shape == want.shape
    for a, b, s in zip(got, want, slack):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13 * Y * X * s if np.isfinite(s) else 1e-9)


@pytest.mark.parametrize("form", ["auto", "raw"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_equal_numpy(daemon, folder, named, dtype, form):
    flags = np.zeros((Y, X), "u4")
    flags[3, 4:6] = flags[0, 0] = 2
    good = flags == 0
    a = tame(dtype)
    a[:, ~good] = -1e300 if dtype == "f8" else extremes(dtype)[-1]
    if np.dtype(dtype).kind == "f":
        a[3, 3, 4], a[4, 0, 0] = np.nan, np.inf
    if dtype in ("u8", "i8"):
        a[:, ~good] = 2**33  # what is larger is refused, below
    write(folder / "s.h5", a, mask=flags)
    daemon.load(folder / "s.h5", "--name", "s", "--form", form)
    named.append("s")
    rng = np.random.default_rng(3)
    masks = {"u1": rng.integers(0, 2, (Y, X)).astype("u1"), "i4": rng.integers(-1000, 1000, (Y, X)).astype("i4"),
             "f8": rng.normal(size=(Y, X))}
    masks["f8"][5:9] = 0
    for weights, mask in masks.items():
        np.save(folder / "mask.npy", mask)
        result = "f8" if weights == "f8" or number(dtype) == "f8" else "i8" if weights == "i4" else number(dtype)
        got = out(daemon, folder, "s", "sum", "--mask", folder / "mask.npy")
        check_sums(got, a, np.where(good, mask, 0), result)
        got = out(daemon, folder, "s", "sum", "--mask", folder / "mask.npy", "--flagged", "--frames", "3,4,9")
        check_sums(got, a[[3, 4, 9]], mask, result)
    y, x = np.mgrid[:Y, :X]
    ring = (np.hypot(y - 6, x - 5) >= 1.5) & (np.hypot(y - 6, x - 5) < 4)
    check_sums(out(daemon, folder, "s", "sum", "--annulus", "1.5,4"), a, ring & good, number(dtype))
    ids = [9, 2, 3, 11]
    for frames, args in ((a, ()), (a[sorted(ids)], ("--frames", "9,2,3,11"))):
        check_mean(daemon, folder, "s", frames, dtype, good, *args)
        check_mean(daemon, folder, "s", frames, dtype, np.full((Y, X), True), "--flagged", *args)
    check_com(daemon, folder, "s", a, good)
    if number(dtype) != "f8":
        check_com(daemon, folder, "s", a, np.full((Y, X), True), "--flagged")
    centers = out(daemon, folder, "s", "com", "--flagged")
    if number(dtype) == "f8":
        assert np.isnan(centers[3]).all() and np.isnan(centers[4]).all() and np.isfinite(centers[5]).all()


def test_segments_are_added_in_their_order(daemon, folder, named):
    """Whoever is ready first: 8,192 frames are one, and encoders work side by side."""
    rng = np.random.default_rng(8)
    a = (rng.normal(size=(3 * 8192 + 500, 2, 3)) * 10.0 ** rng.integers(-4, 5, (3 * 8192 + 500, 1, 1))).astype("f4")
    with h5py.File(folder / "m.h5", "w") as f:
        f.create_dataset("/entry/data/data", data=a)
    daemon.load(folder / "m.h5", "--name", "m")
    named.append("m")
    want = np.zeros((2, 3))
    for i in range(0, len(a), 8192):
        want = want + a[i:i + 8192].astype("f8").sum(0)
    same_bits(out(daemon, folder, "m", "mean", "--sum"), want)
    last = len(a) - 2  # not all: frame after frame
    same_bits(out(daemon, folder, "m", "mean", "--sum", "--frames", f"0-{last}"), a[:-1].astype("f8").sum(0))


@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_what_could_overflow_is_refused(daemon, folder, named, dtype):
    a = tame(dtype)
    a[5, 6, 7] = a[6, 6, 7] = np.iinfo(dtype).max
    write(folder / "o.h5", a)
    daemon.load(folder / "o.h5", "--name", "o")
    named.append("o")
    assert daemon.digest("o")[0] == sha256(a)
    np.save(folder / "mask.npy", np.ones((Y, X), "u1"))
    assert "63 bits" in out(daemon, folder, "o", "sum", "--mask", folder / "mask.npy", code=1)
    assert "64 bits" in out(daemon, folder, "o", "mean", "--sum", code=1)
    assert "63 bits" in out(daemon, folder, "o", "com", code=1)
    # What fits is exact, and floats are given.
    same_bits(out(daemon, folder, "o", "mean", "--sum", "--frames", "5"), a[5].astype(number(dtype)))
    np.save(folder / "real.npy", np.full((Y, X), 0.5))
    check_sums(out(daemon, folder, "o", "sum", "--mask", folder / "real.npy"), a, np.full((Y, X), 0.5), "f8")


@pytest.mark.parametrize("dtype, value", [("i2", -7), ("i4", -(2**31)), ("i8", -3), ("u8", 2**34), ("f4", np.nan), ("f8", -0.5)])
def test_unwritten_and_damaged_frames(daemon, folder, named, dtype, value):
    a = tame(dtype)
    with h5py.File(folder / "d.h5", "w") as f:
        d = f.create_dataset("/entry/data/data", a.shape, dtype, chunks=(1, Y, X), fillvalue=value, compression=32008,
                             compression_opts=(0, 2))
        for i in range(N):
            if i == 3:
                d.id.write_direct_chunk((i, 0, 0), a[i].tobytes(), filter_mask=1)
            elif i not in (5, 8):
                d[i] = a[i]
        place = d.id.get_chunk_info_by_coord((9, 0, 0)).byte_offset
    make_h5.overwrite(folder / "d.h5", place + 12, b"\x7f\xff\xff\xff")
    a[[5, 8]] = value
    info = daemon.load(folder / "d.h5", "--name", "d")
    named.append("d")
    assert (info["forms"]["fill"], info["forms"]["bad"]) == (2, 1) and info["forms"]["raw"] >= 1
    kept = np.delete(a, 9, 0)
    res = daemon.cli("frames", "d", "--digest", "--skip-bad")
    assert res.returncode == 0 and res.stdout.split()[0] == sha256(kept), res
    same_bits(out(daemon, folder, "d", "frames", "5,8"), a[[5, 8]])
    want = kept.astype(number(dtype)).sum(0)
    got = out(daemon, folder, "d", "mean", "--sum", code=4)
    assert got.dtype == want.dtype
    if number(dtype) == "f8":
        np.testing.assert_allclose(got, want, rtol=0, atol=N * EPS * np.nansum(np.abs(kept.astype("f8")), 0).max())
    else:
        same_bits(got, want)
    mask = np.arange(Y * X, dtype="u1").reshape(Y, X)
    np.save(folder / "mask.npy", mask)
    sums = out(daemon, folder, "d", "sum", "--mask", folder / "mask.npy", code=4)
    check_sums(np.delete(sums, 9), kept, mask, number(dtype))
    assert np.isnan(sums[9]) if number(dtype) == "f8" else sums[9] == 0
    centers = out(daemon, folder, "d", "com", code=4)
    assert np.isnan(centers[9]).all()
    assert np.isnan(centers[5]).all() if np.isnan(value) else np.allclose(centers[5], [(Y - 1) / 2, (X - 1) / 2])


@pytest.mark.parametrize("dtype", ["i4", "f4"])
def test_the_bright_disk_is_found(daemon, folder, named, dtype):
    y, x = np.mgrid[:48, :48]
    a = np.zeros((4, 48, 48), dtype)
    a[:, np.hypot(y - 20, x - 27) < 9] = 40
    a[0, 3, 3] = -40
    make_h5.plain(folder / "c.h5", a)
    daemon.load(folder / "c.h5", "--name", "c")
    named.append("c")
    res = daemon.cli("sum", "c", "--annulus", "0,9", "--center", "auto", "--out", folder / "c.npy")
    assert res.returncode == 0, res
    center = [float(v) for v in res.stdout.split()[1].split(",")]
    assert np.allclose(center, [20, 27], atol=0.3), res.stdout
