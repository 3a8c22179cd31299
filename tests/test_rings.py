# SPDX-License-Identifier: Apache-2.0
"""Tables of ring sums: annuli of whole radii answered from them, against numpy over the frames as h5py reads them."""
import json
import math
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest

import make_h5
from conftest import Raw, field, wait_for
from test_sums import FORMS, annulus, exactly, flagged_file, keep, weighted, with_bad  # noqa: F401  (keep: a fixture)

SUM = 17


def ask(s, *args, code=0):
    """The array, and what is said of it."""
    out = s.dir / "rings.npy"
    out.unlink(missing_ok=True)
    res = s.daemon.cli("--json", "sum", s.name, *map(str, args), "--out", out)
    assert res.returncode == code, (args, res)
    return np.load(out), json.loads(res.stdout)


def tables(s):
    return s.daemon.json("info", s.name)["rings"]


def about(center):
    return ["--center", f"{center[0]!r},{center[1]!r}"] if center else []


# Whole ones, and beyond all pixels, where it does not matter.
RADII = [(0, 1), (0, 5), (3, 9), (1, 2), (7, 8), (0, 1000), (12, 33), (40, 41), (60, 61), (0, math.inf), (0.0, 1e300)]
CENTERS = [None, (20.0, 15.0), (20.5, 14.5), (3.5, 28.25), (0.0, 0.0), (-4.0, 10.0), (40.0, 29.0), (300.5, -17.125),
           (20.1, 15.7), (1e6, 3.0)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
def test_annuli_equal_numpy(keep, dtype, form):
    frames = make_h5.counts(12, 41, 30, dtype, seed=8)
    s = keep(frames, "--form", form)
    for i, center in enumerate(CENTERS):
        for inner, outer in RADII:
            want = weighted(frames, annulus((41, 30), inner, outer, center), "u8")
            args = ["--annulus", f"{inner!r},{outer!r}".replace("inf", "1e400"), *about(center)]
            if outer == math.inf:
                args[1] = f"{inner!r},1e18"
            got, said = ask(s, *args, "--rings")
            exactly(got, want)
            assert said["rings"] is True and "rings_note" not in said
            assert len(tables(s)) == i + 1
    if center:
        assert tables(s)[0]["center"] == list(center)


def test_later_sums_use_the_table(keep):
    """The same numbers by either way; nothing else is answered from it."""
    frames = make_h5.counts(300, 25, 31, "u2", seed=1)
    s = keep(frames, "--scan", "15x20")
    plain, said = ask(s, "--annulus", "2,9")
    assert said["rings"] is False and tables(s) == []
    before = s.daemon.stat("ring_answers_total")
    made, said = ask(s, "--annulus", "4,5", "--rings")
    assert said["rings"] is True and made.shape == (15, 20)
    assert [(t["center"], t["flagged"]) for t in tables(s)] == [([12.0, 15.0], False)]
    assert s.daemon.stat("ring_bytes") >= tables(s)[0]["bytes"] == 300 * (4 * 20 + 2 * 9)
    got, said = ask(s, "--annulus", "2,9")
    exactly(got, plain)
    assert said["rings"] is True and s.daemon.stat("ring_answers_total") == before + 2
    assert "answered from ring sums" in s.daemon.cli("sum", s.name, "--annulus", "2,9", "--out", s.dir / "o.npy").stdout
    for args in (["--annulus", "2.5,9"], ["--annulus", "2,9", "--center", "12,15.5"], ["--annulus", "2,9", "--flagged"],
                 ["--annulus", "2,9", "--mask", s.mask(np.ones((25, 31)))]):
        _, said = ask(s, *args)
        assert said["rings"] is False, args
    assert "rings" in s.daemon.cli("info", s.name).stdout


def test_several_centers_and_annuli(keep):
    """One table for each centre, made when it is missing; several in one request by the protocol."""
    frames = make_h5.counts(40, 22, 27, "u2", seed=2)
    s = keep(frames)
    args, want = [], []
    for inner, outer in ((0, 4), (4, 8), (8, 20), (3, 5)):
        args += ["--annulus", f"{inner},{outer}"]
        want.append(weighted(frames, annulus((22, 27), inner, outer), "u8"))
    got, said = ask(s, *args, "--rings")
    exactly(got, np.stack(want))
    assert said["rings"] is True and len(tables(s)) == 1

    def one(inner, outer, y, x):
        return field(2, b"".join(bytes([8 * (i + 1) + 1]) + struct.pack("<d", v) for i, v in enumerate((inner, outer, y, x))))

    rows = [(0, 5, 3.0, 4.0), (2, 6, 10.0, 20.5), (1, 7, 3.0, 4.0), (0, 30, 10.5, 13.0)]
    with Raw(s.daemon) as raw:
        reply = raw.ask(SUM, field(1, s.name) + b"".join(one(*r) for r in rows) + field(7, 1))
        assert reply[11][6] == [1]
        with open(raw.fds.pop(), "rb") as f:
            values = np.frombuffer(f.read(), "<u8", 4 * 40).reshape(4, 40)
    exactly(values, np.stack([weighted(frames, annulus((22, 27), i, o, (y, x)), "u8") for i, o, y, x in rows]))
    assert len(tables(s)) == 3


@pytest.mark.parametrize("form", FORMS)
def test_selections(keep, form):
    frames = make_h5.counts(50, 12, 11, "u2", seed=7)
    s = keep(frames, "--form", form, "--scan", "5x10")
    want = weighted(frames, annulus((12, 11), 2, 5), "u8")
    for text, ids in (("7", [7]), ("3-9", list(range(3, 10))), ("9,2,2,40-44,0", [9, 2, 2, 40, 41, 42, 43, 44, 0]),
                      ("0-49", list(range(50))), ("49,48,47", [49, 48, 47])):
        got, said = ask(s, "--annulus", "2,5", "--frames", text, "--rings")
        exactly(got, want[ids])
        assert said["rings"] is True
    many = [i * 7 % 50 for i in range(10000)]
    got, said = ask(s, "--annulus", "2,5", "--frames", ",".join(map(str, many)))
    exactly(got, want[many])
    assert said["rings"] is True
    res = s.daemon.cli("sum", s.name, "--annulus", "2,5", "--frames", "50", "--out", s.dir / "o.npy")
    assert res.returncode == 1 and "past the end" in res.stderr


def test_long_acquisition(keep):
    """Several batches, several threads."""
    frames = make_h5.counts(150000, 6, 7, "u1", seed=3)
    s = keep(frames)
    for inner, outer in ((0, 2), (1, 4), (3, 9)):
        got, said = ask(s, "--annulus", f"{inner},{outer}", "--rings")
        exactly(got, weighted(frames, annulus((6, 7), inner, outer), "u8"))
        assert said["rings"] is True


@pytest.mark.parametrize("form", FORMS)
def test_flagged_pixels(keep, folder, form):
    frames = make_h5.counts(30, 16, 18, "u2", seed=9)
    flags = np.zeros((16, 18), "u4")
    flags[7, 8], flags[0, 0], flags[15, 17] = 1, 2, 16
    frames[:, 7, 8] = 65535
    s = keep(frames, "--form", form, path=flagged_file(folder, frames, flags))
    for inner, outer in ((0, 1), (0, 3), (0, 100), (5, 12)):
        ring = annulus((16, 18), inner, outer)
        for args, mask in (([], ring & (flags == 0)), (["--flagged"], ring)):
            got, said = ask(s, "--annulus", f"{inner},{outer}", *args, "--rings")
            exactly(got, weighted(frames, mask, "u8"))
            assert said["rings"] is True and said["flagged"] == (0 if args else 3)
    assert sorted(t["flagged"] for t in tables(s)) == [False, True]


@pytest.mark.parametrize("form", ["auto", "bslz4"])
def test_frames_without_counts(keep, folder, form):
    frames = make_h5.counts(20, 24, 24, "u2", seed=3)
    bad = [4, 5, 11]
    s = keep(frames, "--form", form, path=with_bad(folder, frames, bad))
    want = weighted(frames, annulus((24, 24), 2, 8), "u8")
    want[bad] = 0
    for args in (["--rings"], []):
        got, said = ask(s, "--annulus", "2,8", *args, code=4)
        exactly(got, want)
        assert said["bad"] == bad and said["rings"] is True
    got, said = ask(s, "--annulus", "2,8", "--frames", "11,3,4", code=4)
    exactly(got, want[[11, 3, 4]])
    assert said["bad"] == [4, 11] and said["rings"] is True


def test_never_written_frames(keep, folder):
    frames = make_h5.counts(8, 12, 12, "u2", seed=2)
    path = folder / "fill.h5"
    with h5py.File(path, "w") as f:
        d = f.create_dataset("/entry/data/data", (8, 12, 12), "u2", chunks=(1, 12, 12), fillvalue=3)
        for i in (0, 2, 5):
            d[i] = frames[i]
        frames = d[...]
    s = keep(frames, path=path)
    got, said = ask(s, "--annulus", "1,5", "--rings")
    exactly(got, weighted(frames, annulus((12, 12), 1, 5), "u8"))
    assert said["rings"] is True


def test_large_counts(keep):
    """More than 32 bits hold, together; and as much as they just hold."""
    frames = np.full((3, 40, 40), 2 ** 32 - 1, "u4")
    frames[1] = 5
    s = keep(frames)
    exactly(ask(s, "--annulus", "3,30", "--rings")[0], weighted(frames, annulus((40, 40), 3, 30), "u8"))
    assert tables(s)[0]["bytes"] == 3 * (8 * 28 + 2 * 9)
    frames = np.zeros((2, 40, 40), "u4")
    frames[0, 3, 3], frames[1, 3, 3], frames[1, 30, 30] = 2 ** 32 - 1, 2 ** 31, 2 ** 31 - 1
    narrow = keep(frames)
    exactly(ask(narrow, "--annulus", "0,30", "--rings")[0], weighted(frames, annulus((40, 40), 0, 30), "u8"))
    assert tables(narrow)[0]["bytes"] == 2 * (4 * 28 + 2 * 9)


def test_what_rings_do_not_answer(keep):
    """It is answered as ever, and said why."""
    frames = make_h5.counts(10, 20, 20, "u2", seed=4)
    s = keep(frames)
    mask = np.random.default_rng(4).integers(0, 9, (20, 20))
    got, said = ask(s, "--annulus", "2.5,8", "--rings")
    exactly(got, weighted(frames, annulus((20, 20), 2.5, 8), "u8"))
    assert said["rings"] is False and "whole radii" in said["rings_note"]
    got, said = ask(s, "--annulus", "2,8", "--mask", s.mask(mask), "--rings")
    exactly(got[0], weighted(frames, mask, "u8"))
    assert said["rings"] is False and "masks" in said["rings_note"]
    got, said = ask(s, "--annulus", "2,8", "--center", "1e12,3", "--rings")
    exactly(got, np.zeros(10, "u8"))
    assert said["rings"] is False and said["rings_note"]
    assert tables(s) == []
    res = s.daemon.cli("sum", s.name, "--mask", s.mask(mask), "--rings", "--out", s.dir / "o.npy")
    assert res.returncode == 2 and "--annulus" in res.stderr


@pytest.mark.parametrize("name", ["chunks_i8", "chunks_f4"])
def test_other_pixels(daemon, folder, name):
    daemon.load(Path(__file__).parent / "golden" / f"{name}.stow", "--name", name)
    said = []
    for args in ([], ["--rings"]):
        res = daemon.cli("--json", "sum", name, "--annulus", "2,8", *args, "--out", folder / f"{len(said)}.npy")
        assert res.returncode == 4, res  # two of its frames are bad
        said.append(json.loads(res.stdout))
    assert (folder / "0.npy").read_bytes() == (folder / "1.npy").read_bytes()
    assert said[1]["rings"] is False and "unsigned pixels" in said[1]["rings_note"] and "rings_note" not in said[0]
    daemon.cli("unload", name)


def test_bounded(start, folder):
    """The table that was not used for longest goes; one that is too large is not made."""
    frames = make_h5.counts(1000, 20, 20, "u2", seed=5)
    one = 1000 * (4 * 14 + 2 * 9)  # about the middle, 9.5, 9.5
    d = start("--ring-bytes", str(3 * one))
    d.load(make_h5.plain(folder / "a.h5", frames))
    d.load(make_h5.plain(folder / "b.h5", frames[::-1].copy()))

    def rings(name, center):
        out = folder / "o.npy"
        said = d.json("sum", name, "--annulus", "2,6", "--center", f"{center},{center}", "--rings", "--out", out)
        exactly(np.load(out), weighted(frames if name == "a" else frames[::-1], annulus((20, 20), 2, 6, (center, center)), "u8"))
        assert d.stat("ring_bytes") <= 3 * one
        return said

    def centers(name):
        return [t["center"][0] for t in d.json("info", name)["rings"]][::-1]

    for center in (9.5, 9.25, 9.75):
        assert rings("a", center)["rings"] is True
    assert centers("a") == [9.5, 9.25, 9.75]
    assert rings("a", 9.5)["rings"] is True
    assert rings("b", 9.5)["rings"] is True
    assert centers("a") == [9.5, 9.75] and centers("b") == [9.5]
    said = rings("a", 500.0)  # as many rings about a far centre as there are across
    assert said["rings"] is True
    far = d.json("info", "a")["rings"]
    assert [t["center"] for t in far][0] == [500.0, 500.0]
    assert d.cli("unload", "a").returncode == 0
    assert d.stat("ring_bytes") == sum(t["bytes"] for t in d.json("info", "b")["rings"])
    assert d.cli("unload", "b").returncode == 0
    assert d.stat("ring_bytes") == 0
    assert d.stop() == 0, d.log()
    d = start("--ring-bytes", "10K")
    d.load(folder / "a.h5")
    said = rings("a", 9.5)
    assert said["rings"] is False and "--ring-bytes" in said["rings_note"]
    assert d.stat("ring_bytes") == 0


def test_eviction_takes_the_tables_along(start, folder):
    frames = make_h5.counts(400, 32, 32, "u2", seed=6)
    a, b = (make_h5.plain(folder / f"{n}.h5", frames + i) for i, n in enumerate("ab"))
    d = start()
    d.load(a, "--form", "raw")
    size = d.stat("used_bytes")
    d.stop()
    d = start("--max-bytes", str(int(size * 2.6)))
    d.load(a, "--form", "raw")
    d.json("sum", "a", "--annulus", "0,5", "--rings", "--out", folder / "o.npy")
    assert d.stat("ring_bytes") > 0
    wait_for(lambda: d.stat("used_bytes") <= size, 20, "work memory comes back")
    for i in range(3):
        d.load(make_h5.plain(folder / f"c{i}.h5", frames + 2 + i), "--form", "raw")
    assert d.json("info", "a")["state"] == "evicted" and d.json("info", "a")["rings"] == []
    assert d.stat("ring_bytes") == 0


def test_same_table_asked_for_at_once(daemon, keep):
    frames = make_h5.counts(3000, 24, 24, seed=11)
    s = keep(frames)
    jobs = []
    for i in range(6):
        out = s.dir / f"at-once{i}.npy"
        jobs.append((daemon.start_cli("sum", s.name, "--annulus", f"{i},{i + 4}", "--rings", "--out", out), out, i))
    for process, out, i in jobs:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        exactly(np.load(out), weighted(frames, annulus((24, 24), i, i + 4), "u8"))
    assert len(tables(s)) == 1 and tables(s)[0]["bytes"] == daemon.stat("ring_bytes")


def test_client_goes_away(start, folder):
    frames = make_h5.counts(4000, 32, 32, seed=12)
    d = start()
    d.load(make_h5.plain(folder / "a.h5", frames))
    d.settled()
    before = d.fds()
    for i in range(8):
        raw = Raw(d)
        center = b"\x19" + struct.pack("<d", i) + b"\x21" + struct.pack("<d", i)
        raw.send(SUM, field(1, "a") + field(2, b"\x09" + struct.pack("<d", 0) + b"\x11" + struct.pack("<d", 30) + center) +
                 field(7, 1))
        raw.close()
    assert d.cli("unload", "a").returncode == 0
    wait_for(lambda: d.stat("used_bytes") == 0 and d.stat("ring_bytes") == 0, 20, "all memory comes back")
    d.settled()
    wait_for(lambda: d.fds() <= before, 10, "descriptors come back")
    assert d.stop() == 0, d.log()
