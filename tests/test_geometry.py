# SPDX-License-Identifier: Apache-2.0
"""The scan: its shape, what lies before it, after each line and behind it, and positions that were not acquired. Frames carry
their number in pixel (0, 0), so that a swapped or drifting scan shows."""
import json
import shutil

import h5py
import make_h5
import numpy as np
import pytest
from conftest import DATA, Raw, field, sha256


def frames(n, seed=0):
    a = make_h5.counts(n, 8, 6, seed=seed)
    a[:, 0, 0] = np.arange(n)
    return a


def grid(y, x, skip=0, offset=0):
    return offset + np.arange(y)[:, None] * (x + skip) + np.arange(x)


def stack(folder, n, name="a"):
    a = frames(n)
    return make_h5.plain(folder / f"{name}.h5", a), a


def centres(a):
    p = a.astype(float)
    y, x = np.mgrid[:p.shape[1], :p.shape[2]]
    return np.stack([(p * y).sum((1, 2)), (p * x).sum((1, 2))], -1) / p.sum((1, 2))[:, None]


def out(daemon, folder, *args, rc=0):
    """(array, what was said as JSON, stderr) of a command with --out."""
    path = folder / "out.npy"
    res = daemon.cli("--json", *args, "--out", path)
    assert res.returncode == rc, res
    array = np.load(path)
    path.unlink()
    return array, json.loads(res.stdout), res.stderr


def numbers(daemon, folder, name, **kwargs):
    """The sum over pixel (0, 0): each frame's number."""
    mask = np.zeros((8, 6), bool)
    mask[0, 0] = True
    np.save(folder / "mask.npy", mask)
    return out(daemon, folder, "sum", name, "--mask", folder / "mask.npy", **kwargs)


def refused(daemon, *args, rc=1):
    res = daemon.cli("load", *args)
    assert res.returncode == rc and not res.stdout, res
    return res.stderr


def at(daemon, folder, name, y, x):
    path = folder / "one.npy"
    res = daemon.cli("frames", name, "--at", f"{y},{x}", "--out", path)
    assert res.returncode == 0, res
    return np.load(path)[0]


# ---- the shape alone ----

@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (1, 15), (15, 1)])
def test_shapes(daemon, folder, shape):
    path, a = stack(folder, 15)
    info = daemon.load(path, "--scan", f"{shape[0]}x{shape[1]}")
    assert info["scan"] == list(shape) and info["frames"] == 15 and info["warnings"] == []
    assert (info["skip_per_line"], info["offset"], info["not_acquired"]) == (0, 0, 0)
    got, said, _ = numbers(daemon, folder, "a")
    assert got.dtype == np.uint64 and got.shape == shape and (got == grid(*shape)).all()
    assert (said["outside_scan"], said["not_acquired"]) == (0, 0)
    com = out(daemon, folder, "com", "a")[0]
    assert np.allclose(com, centres(a).reshape(*shape, 2), rtol=1e-12)
    y, x = shape[0] - 1, shape[1] - 1
    assert (at(daemon, folder, "a", y, 0) == a[y * shape[1]]).all() and (at(daemon, folder, "a", y, x) == a[14]).all()
    daemon.cli("unload", "a")


@pytest.mark.parametrize("n", [13, 16])
def test_no_shape_is_guessed(daemon, folder, n):
    path, _ = stack(folder, n)
    assert daemon.load(path)["scan"] is None
    assert (numbers(daemon, folder, "a")[0] == np.arange(n)).all()
    daemon.cli("unload", "a")


def test_a_shape_that_does_not_fit(daemon, folder):
    path, _ = stack(folder, 15)
    said = refused(daemon, path, "--scan", "4x4")
    assert "4x4 = 16" in said and "15 frames" in said and "3x5, 5x3" in said and "1x15, 15x1" in said
    said = refused(daemon, path, "--scan", "2x7")
    assert "2x7 = 14" in said and "--allow-gaps" not in said
    path, _ = stack(folder, 64, "b")
    said = refused(daemon, path, "--scan", "8x9")
    assert "8x9 = 72" in said and "64 frames" in said and "8x8, 4x16, 16x4" in said
    path, _ = stack(folder, 13, "c")
    assert "1x13, 13x1" in refused(daemon, path, "--scan", "3x4")
    assert daemon.json("ls") == []


def test_a_scan_that_ended_early(daemon, folder):
    path, a = stack(folder, 13)
    assert "--allow-gaps" in refused(daemon, path, "--scan", "3x5")
    info = daemon.load(path, "--scan", "3x5", "--allow-gaps")
    assert info["not_acquired"] == 2 and "2 of 15 positions" in info["warnings"][0]
    want = grid(3, 5)
    want[2, 3:] = 0
    got, said, err = numbers(daemon, folder, "a", rc=4)
    assert (got == want).all() and said["not_acquired"] == 2 and "2 positions" in err
    com, _, err = out(daemon, folder, "com", "a", rc=4)
    assert np.isnan(com[2, 3:]).all() and "not a number" in err
    assert np.allclose(com.reshape(15, 2)[:13], centres(a), rtol=1e-12)
    res = daemon.cli("frames", "a", "--at", "2,3")
    assert res.returncode == 1 and "position 2,3 of a was not acquired" in res.stderr and "frame 13" in res.stderr
    assert daemon.digest("a")[1] == 13
    two = out(daemon, folder, "sum", "a", "--annulus", "0,3", "--annulus", "3,9", rc=4)[0]
    assert two.shape == (2, 3, 5) and (two[:, 2, 3:] == 0).all()
    assert (two.sum(0).reshape(15)[:13] == a.reshape(13, -1).sum(1)).all()
    daemon.cli("unload", "a")


# ---- flyback, and frames before and behind the scan ----

@pytest.mark.parametrize("n, y, x, skip, offset", [
    (15, 3, 4, 1, 0), (14, 3, 4, 1, 0), (17, 3, 4, 1, 2), (16, 3, 4, 1, 2), (15, 3, 4, 0, 3), (35, 5, 4, 3, 0),
    (32, 5, 4, 3, 0), (33, 5, 4, 3, 0), (23, 1, 20, 2, 1), (44, 11, 1, 3, 0), (13, 2, 3, 2, 3), (260, 13, 17, 3, 0)])
def test_views(daemon, folder, n, y, x, skip, offset):
    path, a = stack(folder, n)
    options = ["--scan", f"{y}x{x}"] + (["--skip-per-line", skip] if skip else []) + (["--offset", offset] if offset else [])
    info = daemon.load(path, *options)
    assert (info["scan"], info["skip_per_line"], info["offset"]) == ([y, x], skip, offset)
    assert (info["frames"], info["not_acquired"], info["warnings"]) == (n, 0, [])
    want = grid(y, x, skip, offset)
    got, said, _ = numbers(daemon, folder, "a")
    assert got.shape == (y, x) and (got == want % 65536).all()
    assert said["outside_scan"] == n - y * x
    com = out(daemon, folder, "com", "a")[0]
    assert np.allclose(com, centres(a[want.ravel()]).reshape(y, x, 2), rtol=1e-12)
    total = out(daemon, folder, "mean", "a", "--sum")
    assert (total[0] == a[want.ravel()].sum(0, dtype="u8")).all() and total[1]["outside_scan"] == n - y * x
    assert np.allclose(out(daemon, folder, "mean", "a")[0], a[want.ravel()].astype(float).mean(0), rtol=1e-12)
    for p, q in ((0, 0), (y - 1, 0), (0, x - 1), (y - 1, x - 1)):
        assert (at(daemon, folder, "a", p, q) == a[want[p, q]]).all()
    # by number, all of them, whatever the scan leaves out
    assert daemon.digest("a")[:2] == (sha256(a), n)
    outside = sorted(set(range(n)) - set(want.ravel().tolist()))
    assert daemon.digest("a", ",".join(map(str, outside)))[0] == sha256(a[outside])
    some = out(daemon, folder, "com", "a", "--frames", "0-2")[0]
    assert np.allclose(some, centres(a[:3]), rtol=1e-12)
    res = daemon.cli("frames", "a", "--at", f"{y},0")
    assert res.returncode == 1 and "outside the scan" in res.stderr
    daemon.cli("unload", "a")


def test_the_reply_says_how_many_are_left_out(daemon, folder):
    path, _ = stack(folder, 15)
    daemon.load(path, "--scan", "3x4", "--skip-per-line", "1")
    res = daemon.cli("com", "a", "--out", folder / "c.npy")
    assert res.stdout == "3 frames outside the scan left out\n"
    res = daemon.cli("info", "a")
    assert "3x4, 1 skipped after each line" in res.stdout
    daemon.cli("unload", "a")


def test_last_line_not_whole(daemon, folder):
    """Frames end within the last line: what is not there is an error, never a zero without a word."""
    path, a = stack(folder, 12)
    info = daemon.load(path, "--scan", "3x4", "--skip-per-line", "1")
    assert info["not_acquired"] == 2 and "14 frames are wanted" in info["warnings"][0] and "12" in info["warnings"][0]
    want = grid(3, 4, 1)
    got, said, err = numbers(daemon, folder, "a", rc=4)
    assert (got.ravel()[:10] == want.ravel()[:10]).all() and (got[2, 2:] == 0).all() and "not acquired" in err
    assert (said["outside_scan"], said["not_acquired"]) == (2, 2)
    for x, ok in ((1, True), (2, False), (3, False)):
        res = daemon.cli("frames", "a", "--at", f"2,{x}")
        assert (res.returncode == 0) == ok and ("not acquired" in res.stderr) != ok, res
    total = out(daemon, folder, "mean", "a", "--sum")[0]
    assert (total == a[want.ravel()[:10]].sum(0, dtype="u8")).all()
    daemon.cli("unload", "a")
    # a whole line is missing: rather a wrong shape, unless gaps are allowed
    said = refused(daemon, path, "--scan", "4x4", "--skip-per-line", "1")
    assert "19 frames" in said and "12" in said and "--allow-gaps" in said
    assert daemon.load(path, "--scan", "4x4", "--skip-per-line", "1", "--allow-gaps")["not_acquired"] == 6
    daemon.cli("unload", "a")


def test_frames_behind_the_scan(daemon, folder):
    path, _ = stack(folder, 20)
    info = daemon.load(path, "--scan", "3x4", "--offset", "2")
    assert info["not_acquired"] == 0 and "6 of 20 frames come after the scan" in info["warnings"][0]
    assert (numbers(daemon, folder, "a")[0] == grid(3, 4, 0, 2)).all()
    daemon.cli("unload", "a")


def test_refusals(daemon, folder):
    path, _ = stack(folder, 15)
    assert "--scan" in refused(daemon, path, "--skip-per-line", "1", rc=2)
    assert "--scan" in refused(daemon, path, "--offset", "1", rc=2)
    for option in ("--skip-per-line", "--offset"):
        for value in ("-1", "x", "", "1.5", "9223372036854775808", "99999999999999999999"):
            assert option in refused(daemon, path, "--scan", "3x4", option, value, rc=2)
    big = str(2**63 - 1)
    assert "nothing has so many frames" in refused(daemon, path, "--scan", "3x4", "--offset", big)
    assert "nothing has so many frames" in refused(daemon, path, "--scan", "3x4", "--skip-per-line", big)
    assert refused(daemon, path, "--scan", f"{2**33}x{2**33}")
    for offset in ("15", "16", "4000000000"):
        assert "past the end" in refused(daemon, path, "--scan", "3x4", "--offset", offset)
    assert "3x4, 5x2, 15x" not in refused(daemon, path, "--scan", "9x4", "--skip-per-line", "1")
    said = refused(daemon, path, "--scan", "9x4", "--skip-per-line", "1")
    assert "3x4, 5x2" in said, said
    assert daemon.json("ls") == []


def test_refused_on_the_wire(daemon, folder):
    """A client that checks nothing gets the same answers."""
    path, _ = stack(folder, 15)
    for more, word in ((field(12, 1), "shape"), (field(13, 1), "shape"), (field(9, 3), "height and a width"),
                       (field(9, 3) + field(10, 4) + field(12, 2**64 - 1), "so many"),
                       (field(9, 3) + field(10, 4) + field(13, 2**64 - 1), "so many"),
                       (field(9, 2**63) + field(10, 2), "so many")):
        with Raw(daemon) as raw, open(path, "rb") as f:
            code, text = raw.refused(3, field(1, "a") + field(2, str(path)) + more, [f.fileno()])
            assert code == 5 and word in text


# ---- names, and keeping ----

def test_two_views_of_one_resident(daemon, folder):
    path, _ = stack(folder, 30)
    one = daemon.load(path, "--name", "one", "--scan", "5x6")
    two = daemon.load(path, "--name", "two", "--scan", "5x4", "--skip-per-line", "2")
    three = daemon.load(path, "--name", "three", "--scan", "2x10", "--offset", "10")
    flat = daemon.load(path, "--name", "flat")
    assert one["id"] == two["id"] == three["id"] == flat["id"]
    for name, want in (("one", grid(5, 6)), ("two", grid(5, 4, 2)), ("three", grid(2, 10, 0, 10)), ("flat", np.arange(30))):
        assert (numbers(daemon, folder, name)[0] == want).all(), name
    assert [daemon.json("info", n)["skip_per_line"] for n in ("one", "two")] == [0, 2]
    # the same name once more, seen otherwise
    assert daemon.load(path, "--name", "one", "--scan", "6x4", "--skip-per-line", "1")["scan"] == [6, 4]
    assert (numbers(daemon, folder, "one")[0] == grid(6, 4, 1)).all()
    for name in ("one", "two", "three", "flat"):
        daemon.cli("unload", name)


def test_views_are_given_again(daemon, folder):
    """A .stow file keeps a scan of all frames; another view is given when it is loaded."""
    path, a = stack(folder, 15)
    for name, options, scan in (("plain", ["--scan", "3x5"], [3, 5]), ("view", ["--scan", "3x4", "--skip-per-line", "1"], None)):
        daemon.load(path, "--name", name, *options)
        assert daemon.cli("save", name, folder / f"{name}.stow", "--force").returncode == 0
        daemon.cli("unload", name)
        assert daemon.load(folder / f"{name}.stow", "--name", "back")["scan"] == scan
        assert daemon.digest("back")[0] == sha256(a)
        daemon.cli("unload", "back")
        daemon.load(folder / f"{name}.stow", "--name", "back", "--scan", "3x4", "--skip-per-line", "1")
        assert (numbers(daemon, folder, "back")[0] == grid(3, 4, 1)).all()
        daemon.cli("unload", "back")


# ---- the companion file of an ARINA master ----

def companion(path, y, x, how="scalar", prescan=0):
    with h5py.File(path, "w") as f:
        attrs = f.create_group("STEM Metadata").attrs
        for key, value in (("NumPixelsY", y), ("NumPixelsX", x), ("NumPixelsPrescan", prescan)):
            attrs[key] = np.int64(value) if how == "scalar" else np.array([value], how)


@pytest.mark.parametrize("how", ["scalar", "<u4", "<i8", ">i4", "<u2"])
def test_companion(daemon, folder, how):
    a = frames(16)
    master = make_h5.master(folder, a)
    companion(folder / "scan.h5", 2, 8, how)
    info = daemon.load(master)
    assert info["scan"] == [2, 8] and info["warnings"] == []
    assert [s.rsplit("/", 1)[1] for s in info["sources"]] == ["scan_master.h5", "scan_data_000001.h5", "scan_data_000002.h5", "scan.h5"]
    assert (numbers(daemon, folder, "scan")[0] == grid(2, 8)).all()
    # a user's shape is above it, for that user's name
    assert daemon.load(master, "--name", "other", "--scan", "4x4")["id"] == info["id"]
    assert daemon.json("info", "other")["scan"] == [4, 4] and daemon.json("info", "scan")["scan"] == [2, 8]
    assert daemon.cli("verify", "scan").returncode == 0
    # written anew with another shape, it is another source
    companion(folder / "scan.h5", 8, 2, how)
    assert daemon.load(master, "--name", "third")["scan"] == [8, 2]
    for name in ("scan", "other", "third"):
        daemon.cli("unload", name)


@pytest.mark.parametrize("what", ["none", "does not fit", "zero", "no group", "no attributes", "text", "two values", "overflow", "not HDF5",
                                  "cut", "folder", "a loop"])
def test_a_companion_that_is_no_help(daemon, folder, what):
    master = make_h5.master(folder, frames(16))
    path = folder / "scan.h5"
    said = ""
    if what in ("does not fit", "overflow"):
        companion(path, *((5, 4) if what == "does not fit" else (2**32, 2**32 + 2**28)))
        said = "does not fit"
    elif what == "zero":
        companion(path, 0, 16)
    elif what == "folder":
        path.mkdir()
        said = "not looked up"
    elif what == "a loop":
        path.symlink_to("scan.h5")
        said = "not looked up"
    elif what in ("not HDF5", "cut"):
        companion(path, 4, 4)
        data = path.read_bytes()
        path.write_bytes(b"x" * 4096 if what == "not HDF5" else data[:len(data) // 2])
        said = "not looked up"
    elif what != "none":
        with h5py.File(path, "w") as f:
            if what != "no group":
                attrs = f.create_group("STEM Metadata").attrs
                if what != "no attributes":
                    attrs["NumPixelsX"] = attrs["NumPixelsY"] = "4" if what == "text" else np.array([4, 4])
    info = daemon.load(master)
    assert info["scan"] is None and info["frames"] == 16
    assert len(info["sources"]) == 3
    assert (said in info["warnings"][0] and "scan.h5" in info["warnings"][0]) if said else info["warnings"] == []
    assert daemon.load(master, "--name", "again")["id"] == info["id"]
    daemon.cli("unload", "scan")
    daemon.cli("unload", "again")


def test_no_companion_of_other_files(daemon, folder):
    """Only a master has one; data of four dimensions shape their scan themselves."""
    path, _ = stack(folder, 16, "x")
    companion(folder / "x_data.h5", 4, 4)
    assert daemon.load(path)["scan"] is None
    daemon.cli("unload", "x")
    a = frames(16).reshape(2, 8, 8, 6)
    make_h5.plain(folder / "four_master.h5", a)
    companion(folder / "four.h5", 4, 4)
    info = daemon.load(folder / "four_master.h5")
    assert info["scan"] == [2, 8] and len(info["sources"]) == 1
    daemon.cli("unload", "four")


@pytest.mark.skipif(not (DATA / "arina_rosettasciio").exists(), reason="no real files here")
def test_real_companions(daemon, folder):
    info = daemon.load(DATA / "arina_rosettasciio/test_00_master.h5")
    assert info["scan"] == [4, 4] and info["frames"] == 16
    daemon.cli("unload", "test_00")
    for name in ("MEA_ptycho_15_master.h5", "MEA_ptycho_15.h5"):
        shutil.copy(DATA / "arina_rosettasciio" / name, folder)
    with h5py.File(folder / "MEA_ptycho_15_data_000001.h5", "w") as f:
        d = f.create_dataset("/entry/data/data", (576, 192, 192), "<u4", chunks=(1, 192, 192), compression=32008, compression_opts=(0, 2))
        d[0, 0, 0] = 5
    assert daemon.load(folder / "MEA_ptycho_15_master.h5")["scan"] == [24, 24]
    daemon.cli("unload", "MEA_ptycho_15")
