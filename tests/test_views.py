# SPDX-License-Identifier: Apache-2.0
"""Views: what `frames` shows against numpy on the frames that h5py reads."""
import random

import h5py
import numpy as np
import pytest

from conftest import Raw, RawStream, no_more, sha256, wait_for
from make_h5 import counts, plain, put, read
from protocol_client import field

MASK = "/entry/instrument/detector/detectorSpecific/pixel_mask"
N, Y, X = 12, 17, 23
INVALID, NOFIT = 5, 28


def flags(y=Y, x=X, n=25, seed=5):
    """Single ones, a corner, and a block whose middle has no good neighbour."""
    rng = np.random.default_rng(seed)
    m = np.zeros((y, x), "u4")
    m.reshape(-1)[rng.choice(y * x, n, replace=False)] = rng.choice([1, 2, 8, 1 << 16], n)
    m[0, 0] = 1
    if y > 9 and x > 9:
        m[5:8, 6:9] = 8
    return m


def source(path, a, mask=None):
    plain(path, a)
    if mask is not None:
        with h5py.File(path, "a") as f:
            f[MASK] = mask
    return path


# ---- numpy's view of it ----------------------------------------------------------------------------------------


def corrected(a, mask, how):
    """(frames, pixels that changed their meaning, flagged pixels that stay as they are)"""
    bad = np.zeros(a.shape[1:], bool) if mask is None else np.asarray(mask) != 0
    out, kept = a.copy(), np.zeros_like(bad)
    if how == "none":
        return out, bad & False, kept
    for y, x in zip(*np.nonzero(bad)):
        if how == "zero":
            out[:, y, x] = 0
            continue
        rows, columns = slice(max(y - 1, 0), y + 2), slice(max(x - 1, 0), x + 2)
        good = a[:, rows, columns][:, ~bad[rows, columns]]
        if good.shape[1]:
            out[:, y, x] = np.sort(good, axis=1)[:, (good.shape[1] - 1) // 2]
        else:
            kept[y, x] = True
    return out, bad & ~kept, kept


def binned(a, n):
    starts = [np.arange(max(size // n, 1)) * n for size in a.shape[1:]]
    return np.add.reduceat(np.add.reduceat(a, starts[0], axis=1), starts[1], axis=2)


def view(a, mask=None, correction="none", crop=None, bin=1, sqrt=False, dtype=None, pad=None, fftshift=False):
    """(frames, which of them fit)"""
    kind = a.dtype
    a, _, _ = corrected(a, mask, correction)
    if crop:
        y, x, h, w = crop
        a = a[:, y:y + h, x:x + w]
    a = binned(a.astype("i8"), bin)
    to = np.dtype(dtype or ("f4" if sqrt else kind))
    fits = np.ones(len(a), bool)
    if sqrt:
        a = np.sqrt(a.astype("f4"))
    elif to.kind == "f":
        with np.errstate(over="ignore"):
            a = a.astype(to)
        fits = np.isfinite(a).all(axis=(1, 2))
    else:
        fits = ((a >= np.iinfo(to).min) & (a <= np.iinfo(to).max)).all(axis=(1, 2))
    a = a.astype(to)
    if pad:
        before = [(p - s) // 2 for p, s in zip(pad, a.shape[1:])]
        a = np.pad(a, [(0, 0)] + [(b, p - s - b) for b, p, s in zip(before, pad, a.shape[1:])])
    if fftshift:
        a = np.fft.fftshift(a, axes=(1, 2))
    return a, fits


def options(correction=None, crop=None, bin=None, sqrt=False, dtype=None, pad=None, fftshift=False):
    args = []
    args += ["--mask-correction", correction] if correction else []
    args += ["--crop", "{},{},{}x{}".format(*crop)] if crop else []
    args += ["--bin", bin] if bin else []
    args += ["--sqrt"] if sqrt else []
    args += ["--dtype", dtype] if dtype else []
    args += ["--pad", "{}x{}".format(*pad)] if pad else []
    args += ["--fftshift"] if fftshift else []
    return args


def shown(daemon, name, path, *args):
    """(the .npy that --skip-bad wrote, what --json says)"""
    path.unlink(missing_ok=True)
    said = daemon.json("frames", name, *args, "--skip-bad", "--out", path)
    return np.load(path), said


def check(daemon, tmp_path, name, a, mask, ids=None, more=(), **how):
    got, said = shown(daemon, name, tmp_path / "v.npy", *([ids] if ids else []), *options(**how), *more)
    want, fits = view(a, mask, **{**how, "correction": how.get("correction") or "none", "bin": how.get("bin") or 1})
    want = want[fits]
    assert got.dtype == want.dtype and got.shape == want.shape, (how, got.dtype, got.shape, want.shape)
    assert got.tobytes() == want.tobytes(), how
    assert said["unfit"] == np.flatnonzero(~fits).tolist() and said["bad"] == []
    assert said["dtype"] == want.dtype.str[1:] and said["shape"] == list(want.shape[1:])
    return said


@pytest.fixture(scope="module")
def loaded(daemon, tmp_path_factory):
    """{dtype: (frames, mask)}, loaded under the name of the dtype."""
    folder, found = tmp_path_factory.mktemp("views"), {}
    for dtype, mean in (("u1", 3), ("u2", 5), ("u4", 40)):
        a = np.random.default_rng(8).poisson(mean, (N, Y, X)).astype(dtype)
        a[1, 2, 3] = np.iinfo(dtype).max
        a[2] = np.iinfo(dtype).max
        a[3, 4, 4] = min(70000, np.iinfo(dtype).max - 1)
        a[4] = 0
        a[5, 16, 22] = 65519 if dtype != "u1" else 7
        a[6, 0, 0] = 65520 if dtype != "u1" else 7
        path = source(folder / f"{dtype}.h5", a, flags())
        assert np.array_equal(read(path), a)
        daemon.load(path)
        found[dtype] = (a, flags())
    return found


# ---- options -------------------------------------------------------------------------------------------------------


ALONE = [dict(dtype=t) for t in ("u1", "u2", "u4", "i1", "i2", "i4", "f4", "f2")] + [
    dict(sqrt=True), dict(sqrt=True, dtype="f4"), dict(fftshift=True), dict(correction="none"), dict(correction="zero"),
    dict(correction="median"), dict(crop=(0, 0, Y, X)), dict(crop=(3, 5, 1, 1)), dict(crop=(16, 22, 1, 1)),
    dict(crop=(2, 0, 5, X)), dict(bin=1), dict(bin=2, dtype="u4"), dict(bin=2), dict(bin=5, dtype="u4"),
    dict(bin=17, dtype="f4"), dict(bin=23, dtype="f4"), dict(bin=1000, dtype="f4"), dict(bin=4294967295, dtype="f4"),
    dict(pad=(Y, X)), dict(pad=(18, 24)), dict(pad=(64, 32)), dict(pad=(20, 23)),
    dict(pad=(32, 33), fftshift=True), dict(sqrt=True, pad=(64, 64), fftshift=True)]


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
@pytest.mark.parametrize("how", ALONE, ids=str)
def test_alone(daemon, loaded, tmp_path, dtype, how):
    a, mask = loaded[dtype]
    said = check(daemon, tmp_path, dtype, a, mask, **how)
    assert said["view"] is None if how in (dict(bin=1), dict(correction="none")) else said["view"]


@pytest.mark.parametrize("seed", range(60))
def test_together(daemon, loaded, tmp_path, seed):
    rng = random.Random(seed)
    dtype = rng.choice(["u1", "u2", "u4"])
    a, mask = loaded[dtype]
    how = dict(correction=rng.choice([None, "zero", "median"]), fftshift=rng.random() < 0.5)
    h, w = Y, X
    if rng.random() < 0.6:
        y, x = rng.randrange(Y), rng.randrange(X)
        h, w = rng.randint(1, Y - y), rng.randint(1, X - x)
        how["crop"] = (y, x, h, w)
    if rng.random() < 0.6:
        how["bin"] = rng.choice([2, 3, 4, 7, 16, 40])
        h, w = (max(1, s // how["bin"]) for s in (h, w))
    if rng.random() < 0.4:
        how["sqrt"] = True
    else:
        how["dtype"] = rng.choice([None, "u1", "u2", "u4", "i1", "i2", "i4", "f4", "f2"])
    if rng.random() < 0.6:
        how["pad"] = (h + rng.randrange(9), w + rng.randrange(9))
    ids = rng.choice([None, None, "3,0,1,1,7-11"])
    n = [3, 0, 1, 1, 7, 8, 9, 10, 11] if ids else range(N)
    got, said = shown(daemon, dtype, tmp_path / "v.npy", *([ids] if ids else []), *options(**how), "--batch",
                      rng.choice([1, 3, 100]))
    want, fits = view(a[list(n)], mask, **{**how, "correction": how.get("correction") or "none",
                                           "bin": how.get("bin") or 1})
    assert got.tobytes() == want[fits].tobytes() and got.dtype == want.dtype, how
    assert said["unfit"] == sorted(np.array(n)[~fits].tolist())


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 3)])
def test_small_detectors(daemon, tmp_path, shape):
    a = np.random.default_rng(1).integers(0, 300, (5, *shape)).astype("u2")
    mask = np.zeros(shape, "u4")
    mask[-1, -1] = 4
    name = f"s{shape[0]}x{shape[1]}"
    daemon.load(source(tmp_path / f"{name}.h5", a, mask))
    for how in (dict(fftshift=True), dict(correction="median"), dict(correction="zero"), dict(bin=3), dict(dtype="u1"),
                dict(pad=(10, 12), fftshift=True), dict(sqrt=True, bin=2, pad=(9, 9), correction="median")):
        check(daemon, tmp_path, name, a, mask, **how)
    daemon.cli("unload", name)


def test_long_frames(daemon, tmp_path):
    """Larger than what is decoded at a time, and rows longer than what is summed at a time."""
    a = counts(3, 900, 1500, "u4", 3)
    mask = flags(900, 1500, 4000)
    daemon.load(source(tmp_path / "long.h5", a, mask))
    check(daemon, tmp_path, "long", a, mask, correction="median", dtype="f4", fftshift=True)
    check(daemon, tmp_path, "long", a, mask, bin=3, crop=(7, 8, 800, 1401), dtype="f4", pad=(500, 700))
    check(daemon, tmp_path, "long", a, mask, crop=(100, 200, 300, 400))
    daemon.cli("unload", "long")


@pytest.mark.parametrize("dtype", ["u8", "i8", "f4", "f8"])
def test_moved(daemon, tmp_path, dtype):
    """Pixels of 8 bytes and floats, NaN among them, are moved bit by bit, and nothing else is done to them."""
    bits = np.random.default_rng(3).integers(0, 2**63, (5, 9, 10)).astype("u8")
    a = bits.view("u4")[:, :, ::2].copy().view("f4") if dtype == "f4" else bits.view(dtype)
    mask = flags(9, 10, 12)
    daemon.load(source(tmp_path / f"m{dtype}.h5", a, mask))

    def shows(want, *args):
        got, said = shown(daemon, f"m{dtype}", tmp_path / "v.npy", *args)
        assert got.dtype == a.dtype and got.tobytes() == want.tobytes(), args
        assert said["dtype"] == dtype and said["unfit"] == []

    shows(a[:, 2:9, 3:8], "--crop", "2,3,7x5")
    shows(np.fft.fftshift(a, axes=(1, 2)), "--fftshift")
    shows(np.pad(a, [(0, 0), (0, 1), (2, 3)]), "--pad", "10x15", *(["--dtype", "f4"] if dtype == "f4" else []))
    shows(np.where(mask != 0, 0, a).astype(dtype), "--mask-correction", "zero")
    for args in (["--bin", "2"], ["--sqrt"], ["--mask-correction", "median"], ["--dtype", "u2"]):
        res = daemon.cli("frames", f"m{dtype}", *args)
        assert res.returncode == 1 and dtype in res.stderr and "as they are" in res.stderr
    daemon.cli("unload", f"m{dtype}")


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4"])
def test_signed(daemon, tmp_path, dtype):
    a = np.random.default_rng(4).integers(-90, 100, (6, 9, 10)).astype(dtype)
    a[0, 1, 1], a[1, 1, 1] = np.iinfo(dtype).min, np.iinfo(dtype).max
    a[2] = abs(a[2])
    mask = flags(9, 10, 12)
    name = f"s{dtype}"
    daemon.load(source(tmp_path / f"{name}.h5", a, mask))
    for how in (dict(fftshift=True), dict(correction="median"), dict(bin=3), dict(bin=2, dtype="i4"), dict(dtype="u2"),
                dict(dtype="f2"), dict(dtype="f4", correction="zero", pad=(12, 12)), dict(dtype="i1")):
        check(daemon, tmp_path, name, a, mask, **how)
    got, said = shown(daemon, name, tmp_path / "v.npy", "--sqrt")  # a negative count has no root
    assert said["unfit"] == [0, 1, 3, 4, 5] and np.array_equal(got, np.sqrt(a[[2]].astype("f4")))
    daemon.cli("unload", name)


# ---- what is said of it --------------------------------------------------------------------------------------------


def test_named(daemon, loaded, tmp_path):
    a, mask = loaded["u2"]
    said = check(daemon, tmp_path, "u2", a, mask, correction="median", crop=(4, 4, 9, 10), bin=4, dtype="u4",
                 pad=(7, 8), fftshift=True)
    _, changed, kept = corrected(a, mask, "median")
    inside = np.s_[4:13, 4:14]
    assert said["view"] == {"mask_correction": "median", "corrected": int(changed[inside].sum()),
                            "kept": int(kept[inside].sum()), "crop": [4, 4, 9, 10], "bin": 4, "last_bin": [5, 6],
                            "sqrt": False, "dtype": "u4", "size": [7, 8], "pad_at": [2, 3], "fftshift": True}
    assert kept[inside].sum() == 1
    said = daemon.cli("frames", "u2", "--mask-correction", "median", "--bin", 5, "--dtype", "u4")
    assert said.returncode == 0 and "no neighbour" in said.stderr
    assert "last row of bins has 7 rows, the last column 8 columns" in said.stderr
    assert daemon.json("frames", "u2")["view"] is None


def test_nothing_flagged(daemon, tmp_path):
    a = counts(3, 8, 8)
    daemon.load(plain(tmp_path / "bare.h5", a))
    said = daemon.cli("frames", "bare", "--mask-correction", "median", "--out", tmp_path / "v.npy")
    assert said.returncode == 0 and "nothing was corrected" in said.stderr
    assert np.array_equal(np.load(tmp_path / "v.npy"), a)
    daemon.cli("unload", "bare")


def test_marks(daemon, loaded, tmp_path):
    """A frame that does not fit is named, is in no file and no digest; raw counts are as they were."""
    out = tmp_path / "v.npy"
    res = daemon.cli("frames", "u4", "--dtype", "u2", "--out", out)
    assert res.returncode == 4 and not out.exists()
    assert "frames 1-3: nofit: a count does not fit u2" in res.stderr
    res = daemon.cli("frames", "u4", "--dtype", "u2", "--digest")
    assert res.returncode == 4 and res.stdout == ""
    a = loaded["u4"][0]
    assert daemon.digest("u4") == (sha256(a), N, a.nbytes)
    res = daemon.cli("frames", "u4", "0,4", "--dtype", "u2", "--digest")
    assert res.returncode == 0
    res = daemon.cli("frames", "u2", "--dtype", "f2", "--digest")
    assert res.returncode == 4 and "frame 6: nofit" in res.stderr and "frame 5:" not in res.stderr


def test_flagged_sentinels(daemon, tmp_path):
    """2^32-1 in flagged pixels fits nothing narrower, until it is corrected."""
    a = counts(4, 12, 12, "u2").astype("u4") % 1000
    mask = flags(12, 12, 8)
    mask[5:8, 6:9] = 0
    a[:, mask != 0] = 2**32 - 1
    daemon.load(source(tmp_path / "sent.h5", a, mask))
    assert daemon.cli("frames", "sent", "--dtype", "i4", "--digest").returncode == 4
    for how in (dict(correction="zero", dtype="u2"), dict(correction="median", dtype="u2"), dict(dtype="f4"),
                dict(correction="median", dtype="i2", bin=2), dict(sqrt=True), dict()):
        check(daemon, tmp_path, "sent", a, mask, **how)
    daemon.cli("unload", "sent")


def test_damaged(daemon, tmp_path):
    """A frame that cannot be decoded stays what it is, whatever is asked of it."""
    a = counts(9, 40, 40)
    with h5py.File(tmp_path / "hurt.h5", "w") as f:
        d = put(f, "/entry/data/data", a)
        chunk = bytearray(d.id.read_direct_chunk((4, 0, 0))[1])
        chunk[12:16] = b"\xff\xff\xff\xff"
        d.id.write_direct_chunk((4, 0, 0), bytes(chunk), 0)
    daemon.load(tmp_path / "hurt.h5")
    got, said = shown(daemon, "hurt", tmp_path / "v.npy", "--bin", "2", "--dtype", "f4")
    good = [i for i in range(9) if i != 4]
    assert said["bad"] == [4] and said["unfit"] == []
    assert np.array_equal(got, view(a[good], bin=2, dtype="f4")[0])
    res = daemon.cli("frames", "hurt", "--bin", "2", "--dtype", "u1")
    assert res.returncode == 4 and "frame 4: corrupt" in res.stderr and "nofit" in res.stderr
    daemon.cli("unload", "hurt")


def test_pictures(daemon, loaded, tmp_path):
    ok = daemon.cli("frames", "u2", "4", "--bin", "2", "--out", tmp_path / "p.png")
    assert ok.returncode == 0 and (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    ok = daemon.cli("frames", "u2", "4", "--sqrt", "--out", tmp_path / "q.png")
    assert ok.returncode == 0 and (tmp_path / "q.png").read_bytes()[:4] == b"\x89PNG"
    res = daemon.cli("frames", "u2", "4", "--dtype", "f2", "--out", tmp_path / "r.png")
    assert res.returncode == 1 and "f4" in res.stderr and not (tmp_path / "r.png").exists()


# ---- regions ---------------------------------------------------------------------------------------------------------


def test_region(daemon, tmp_path):
    a = counts(30, 6, 7)
    daemon.load(plain(tmp_path / "reg.h5", a), "--scan", "5x6")
    scan = a.reshape(5, 6, 6, 7)
    for y0, y1, x0, x1 in ((0, 5, 0, 6), (1, 3, 2, 5), (4, 5, 5, 6), (0, 1, 0, 1), (2, 5, 0, 3)):
        got, said = shown(daemon, "reg", tmp_path / "v.npy", "--region", f"{y0}:{y1},{x0}:{x1}")
        assert np.array_equal(got, scan[y0:y1, x0:x1].reshape(-1, 6, 7)) and said["view"] is None
    got, _ = shown(daemon, "reg", tmp_path / "v.npy", "--region", "1:3,2:5", "--bin", "2", "--dtype", "u4")
    assert np.array_equal(got, view(scan[1:3, 2:5].reshape(-1, 6, 7), bin=2, dtype="u4")[0])
    for region, word in (("0:6,0:6", "5x6"), ("0:5,0:7", "5x6"), ("5:6,0:1", "outside")):
        res = daemon.cli("frames", "reg", "--region", region)
        assert res.returncode == 1 and word in res.stderr, res.stderr
    assert daemon.cli("frames", "reg", "--region", "0:2,0:2", "--order", "shuffled").returncode == 1
    assert daemon.cli("frames", "reg", "0,1", "--region", "0:2,0:2").returncode == 2
    assert daemon.cli("frames", "reg", "--region", "2:2,0:2").returncode == 2
    daemon.cli("unload", "reg")


def test_region_with_flyback(daemon, tmp_path):
    """frame(y, x) = offset + y * (width + skip) + x; the last line was not acquired to its end."""
    a = counts(30, 3, 4)
    daemon.load(plain(tmp_path / "fly.h5", a), "--scan", "4x6", "--skip-per-line", "2", "--offset", "1", "--allow-gaps")
    for y0, y1, x0, x1 in ((0, 3, 0, 6), (1, 3, 2, 5), (3, 4, 0, 5)):
        got, _ = shown(daemon, "fly", tmp_path / "v.npy", "--region", f"{y0}:{y1},{x0}:{x1}")
        want = [a[1 + y * 8 + x] for y in range(y0, y1) for x in range(x0, x1)]
        assert np.array_equal(got, np.array(want))
    res = daemon.cli("frames", "fly", "--region", "2:4,0:6")
    assert res.returncode == 1 and "position 3,5 of fly was not acquired" in res.stderr
    daemon.cli("unload", "fly")


def test_region_of_a_flat_list(daemon, loaded):
    res = daemon.cli("frames", "u2", "--region", "0:1,0:1")
    assert res.returncode == 1 and "--scan" in res.stderr


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args,word", [
    (["--crop", "0,0,18x23"], "17x23"), (["--crop", "17,0,1x1"], "outside"), (["--crop", "0,22,1x2"], "outside"),
    (["--crop", "18446744073709551615,0,2x1"], "outside"), (["--crop", "0,0,18446744073709551615x1"], "outside"),
    (["--pad", "16x23"], "too small"), (["--pad", "17x22"], "too small"), (["--pad", "65537x65537"], "65536"),
    (["--crop", "0,0,4x4", "--bin", "2", "--pad", "1x2"], "2x2"), (["--sqrt", "--dtype", "f2"], "f4"),
    (["--sqrt", "--dtype", "u4"], "f4"),
])
def test_impossible(daemon, loaded, args, word):
    res = daemon.cli("frames", "u2", *args)
    assert res.returncode == 1 and word in res.stderr, res.stderr


@pytest.mark.parametrize("args", [
    ["--dtype", "f8"], ["--dtype", ""], ["--bin", "0"], ["--bin", "-1"], ["--crop", "1,2,3"], ["--crop", "0,0,0x0"],
    ["--crop", "0,0,4x"], ["--pad", "0x0"], ["--pad", "64"], ["--mask-correction", "mean"], ["--region", "0:1"],
    ["--region", "1,2"],
])
def test_usage(daemon, loaded, args):
    res = daemon.cli("frames", "u2", *args)
    assert res.returncode == 2 and "usage" in res.stderr


def stream(raw, name, view_fields=b"", more=b""):
    return raw.send(9, field(1, name) + field(11, 4) + field(12, 2) + field(13, 1) + field(15, view_fields) + more)


@pytest.mark.parametrize("view_fields,code", [
    (field(1, 3), INVALID), (field(1, 77), INVALID), (field(8, b"f8"), INVALID), (field(8, b"u2u2u2u2u2"), INVALID),
    (field(8, b"\x7f"), INVALID), (field(4, 5), INVALID), (field(5, 5), INVALID), (field(2, 3), INVALID),
    (field(9, 64), INVALID), (field(10, 64), INVALID), (field(9, 2**63) + field(10, 2**63), INVALID),
    (field(4, 2**64 - 1) + field(5, 1) + field(2, 2), INVALID), (field(7, 1) + field(8, b"i4"), INVALID),
])
def test_protocol_refusals(daemon, loaded, view_fields, code):
    with Raw(daemon) as raw:
        request = stream(raw, b"u2", view_fields)
        reply = raw.answer(request)
        assert 2 in reply and reply[2][1][0] == code and reply[2][2][0], reply
        assert 8 in raw.answer(stream(raw, b"u2"))  # the session lives


def test_protocol_regions(daemon, loaded):
    with Raw(daemon) as raw:
        for region, order, code in ((field(2, 1) + field(4, 1), 0, INVALID), (b"", 0, INVALID),
                                    (field(2, 1) + field(4, 1), 1, INVALID)):
            request = raw.send(9, field(1, b"u2") + field(2, order) + field(13, 1) + field(16, region))
            assert raw.answer(request)[2][1][0] == code


def test_protocol_marks(daemon, loaded):
    """READY names the frames that do not fit by a code of their own, and the reply names the view."""
    with Raw(daemon) as raw:
        reply = raw.answer(stream(raw, b"u4", field(8, b"u2") + field(6, 1)))[8]
        assert reply[13] == [b"u2"] and reply[7] == [Y * X * 2] and reply[14] == [Y] and reply[15] == [X]
        ring = RawStream(raw, reply, True)
        ready = raw.event(4)
        status = ready[8][0]
        assert list(status) == [0, NOFIT, NOFIT, NOFIT]
        assert ring.memory[:Y * X * 2] == loaded["u4"][0][0].astype("u2").tobytes()


def test_on_request_with_a_view(daemon, loaded):
    a, mask = loaded["u2"]
    with Raw(daemon) as raw:
        reply = raw.ask(9, field(1, b"u2") + field(2, 3) + field(11, 4) + field(12, 2) + field(13, 1) +
                        field(15, field(1, 2) + field(7, 1) + field(11, 1)))
        ring = RawStream(raw, reply[8], True)
        assert 3 in raw.ask(11, field(1, ring.ring) + field(2, 9) + field(2, 0) + field(3, 2))
        _, _, _, data = ring.ready()
        want, _ = view(a[[9, 0]], mask, correction="median", sqrt=True, fftshift=True)
        assert bytes(data) == want.tobytes()


def test_closed_in_the_middle(daemon, loaded):
    """Connections that end while a view's memory is made, or frames are shown, leave nothing behind."""
    before, used = daemon.settled(), daemon.stat("used_bytes")
    for i in range(20):
        with Raw(daemon) as raw:
            request = stream(raw, b"u4", field(1, 2) + field(7, 1) + field(9, 64) + field(10, 64))
            if i % 2:
                RawStream(raw, raw.answer(request)[8], True)
    assert no_more(daemon.settled(), before)
    wait_for(lambda: daemon.stat("used_bytes") == used, 10, "memory comes back")


# ---- the mask --------------------------------------------------------------------------------------------------------


def test_mask(daemon, loaded, tmp_path):
    for dtype, (_, mask) in loaded.items():
        res = daemon.cli("mask", dtype, "--out", tmp_path / "m.npy")
        assert res.returncode == 0 and f"{(mask != 0).sum()} of {Y}x{X}" in res.stdout
        got = np.load(tmp_path / "m.npy")
        assert got.dtype == np.uint8 and np.array_equal(got, mask != 0)
    said = daemon.json("mask", "u2")
    assert said == {"detector": [Y, X], "flagged": int((flags() != 0).sum())}
    assert daemon.cli("mask", "none").returncode == 1
    assert daemon.cli("mask", "u2", "--out", tmp_path / "m.png").returncode == 2


def test_no_mask(daemon, tmp_path):
    daemon.load(plain(tmp_path / "plain.h5", counts(2, 4, 5)))
    res = daemon.cli("mask", "plain", "--out", tmp_path / "m.npy")
    assert res.returncode == 0 and res.stdout.startswith("0 of 4x5")
    assert not np.load(tmp_path / "m.npy").any()
    daemon.cli("unload", "plain")


def test_kept_files_keep_the_mask(daemon, loaded, tmp_path):
    a, mask = loaded["u2"]
    assert daemon.cli("save", "u2", tmp_path / "k.stow", "--force").returncode == 0
    daemon.load(tmp_path / "k.stow", "--name", "k")
    check(daemon, tmp_path, "k", a, mask, correction="median", bin=2, dtype="u4")
    daemon.cli("unload", "k")
