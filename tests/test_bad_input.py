# SPDX-License-Identifier: Apache-2.0
"""Bad input: each refused in a sentence that names the thing; nothing leaks, others are served."""
import os
import signal

import h5py
import numpy as np
import pytest

import make_h5
from conftest import SLOW, no_more, sha256, tool, wait_for


@pytest.fixture(scope="module")
def other(daemon, tmp_path_factory):
    """An acquisition of somebody else's, which must be served whatever happens."""
    a = make_h5.counts(9, 16, 20, seed=8)
    daemon.load(make_h5.plain(tmp_path_factory.mktemp("other") / "other.h5", a))
    return sha256(a)


@pytest.fixture
def calm(daemon, other):
    before = daemon.settled(), daemon.stat("used_bytes")
    yield
    wait_for(lambda: no_more((daemon.settled(), daemon.stat("used_bytes")), before), 10, f"all as before {before}")
    wait_for(lambda: not daemon.children(), 10, "no reader is left")
    assert daemon.digest("other")[0] == other


def refused(daemon, path, *words, args=()):
    res = daemon.cli("load", path, "--name", "bad", *args, timeout=30)
    daemon.cli("unload", "bad")
    assert res.returncode == 1, f"{path}: exit {res.returncode}: {res.stdout} {res.stderr}"
    assert res.stderr.strip() and len(res.stderr.strip().splitlines()) <= 3, res.stderr
    for word in words:
        assert str(word).lower() in res.stderr.lower(), f"no '{word}' in: {res.stderr}"
    return res.stderr


def test_not_hdf5(daemon, calm, folder):
    for name, data in (("empty.h5", b""), ("text.h5", b"hello" * 1000), ("magic.h5", b"\x89HDF\r\n\x1a\n"),
                       ("zeros.h5", bytes(5000))):
        (folder / name).write_bytes(data)
        refused(daemon, folder / name, name)


def test_not_there_or_not_a_file(daemon, calm, folder):
    refused(daemon, folder / "none.h5", "none.h5")
    refused(daemon, folder, folder.name)
    os.mkfifo(folder / "fifo.h5")
    refused(daemon, folder / "fifo.h5", "fifo.h5")


def test_no_dataset(daemon, calm, folder):
    with h5py.File(folder / "a.h5", "w") as f:
        f.create_group("entry/data")
        f["note"] = "nothing here"
    refused(daemon, folder / "a.h5", "a.h5")
    make_h5.plain(folder / "b.h5", make_h5.counts(2, 8, 8))
    refused(daemon, folder / "b.h5", "b.h5", args=("--dataset", "/no/such"))


A = make_h5.counts(4, 8, 8)
LAYOUTS = {
    "float": dict(data=A.astype("f4")),
    "i2": dict(data=A.astype("i2")),
    "u8": dict(data=A.astype("u8")),
    "big-endian": dict(data=A.astype(">u2")),
    "gzip": dict(data=A, compression="gzip", compression_opts=4),
    "chunks": dict(data=A, chunks=(2, 8, 8)),
    "parts": dict(data=A, chunks=(1, 4, 8)),
    "contiguous": dict(data=A, chunks=None, compression=None, compression_opts=None),
    "shuffle": dict(data=A, shuffle=True),
    "bitshuffle-alone": dict(data=A, compression_opts=(0, 0)),
    "one-dimension": dict(data=A.reshape(-1), chunks=(64,)),
    "two-dimensions": dict(data=A[0], chunks=(8, 8)),
    "five": dict(data=A.reshape(1, 2, 2, 8, 8), chunks=(1, 1, 1, 8, 8)),
    "no-frames": dict(shape=(0, 8, 8), maxshape=(None, 8, 8), dtype="u2"),
}


REFUSED = ("one-dimension", "no-frames")


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_is_refused_or_right(daemon, calm, folder, name):
    """Whatever is not one-frame bslz4 chunks of counts: the very counts, or a sentence; never other ones."""
    how = {"chunks": (1, 8, 8), "compression": 32008, "compression_opts": (0, 2), **LAYOUTS[name]}
    try:
        with h5py.File(folder / f"{name}.h5", "w") as f:
            f.create_dataset("/entry/data/data", **how)
    except (ValueError, OSError) as e:
        pytest.skip(f"h5py cannot write it here: {e}")
    res = daemon.cli("load", folder / f"{name}.h5", "--name", "x")
    assert res.returncode == 0 or name in REFUSED, res
    if res.returncode == 0:
        data = LAYOUTS[name]["data"]
        assert daemon.digest("x")[0] == sha256(data.astype(data.dtype.newbyteorder("<")))
        daemon.cli("unload", "x")
    else:
        refused(daemon, folder / f"{name}.h5", f"{name}.h5")


def test_several_datasets(daemon, calm, folder):
    a, b = make_h5.counts(3, 8, 8, seed=1), make_h5.counts(5, 6, 7, seed=2)
    with h5py.File(folder / "two.h5", "w") as f:
        make_h5.put(f, "/one", a)
        make_h5.put(f, "/two", b)
    text = refused(daemon, folder / "two.h5", "--dataset")
    assert "/one" in text and "/two" in text
    assert daemon.load(folder / "two.h5", "--name", "x", "--dataset", "/two")["frames"] == 5
    assert daemon.digest("x")[0] == sha256(b)
    daemon.cli("unload", "x")


def test_missing_shards(daemon, calm, folder):
    a = make_h5.counts(12, 8, 8)
    every = make_h5.master(folder / "every", a, shards=3, leave_out=(1, 2, 3))
    refused(daemon, every, "scan_data_00000")
    middle = make_h5.master(folder / "middle", a, shards=3, leave_out=(2,))
    refused(daemon, middle, "scan_data_000002.h5", "--allow-gaps")
    res = daemon.cli("load", middle, "--name", "gap", "--allow-gaps")
    assert res.returncode == 0 and "scan_data_000002.h5" in res.stderr, res
    info = daemon.json("info", "gap")
    assert info["frames"] == 12 and info["forms"]["bad"] == 4 and info["warnings"]
    assert daemon.digest("gap", "0-3,8-11")[0] == sha256(a[[0, 1, 2, 3, 8, 9, 10, 11]])
    res = daemon.cli("frames", "gap", "--digest")
    assert res.returncode == 4 and "4" in res.stderr and not res.stdout, res
    daemon.cli("unload", "gap")


def test_shards_stand_beside_the_real_master(daemon, calm, folder):
    a = make_h5.counts(6, 8, 8)
    path = make_h5.master(folder / "real", a)
    (folder / "links").mkdir()
    (folder / "links" / "l_master.h5").symlink_to(path)
    assert daemon.load(folder / "links" / "l_master.h5", "--name", "l")["frames"] == 6
    assert daemon.digest("l")[0] == sha256(a)
    daemon.cli("unload", "l")
    res = daemon.cli("load", "real/scan_master.h5", cwd=folder)
    assert res.returncode == 0, res.stderr
    daemon.cli("unload", "scan")


def test_parts_in_one_file(daemon, calm, folder):
    """A master may name several datasets of one file; one whose parts are mixed with others' is refused."""
    a = make_h5.counts(12, 8, 8)
    for i in range(2):
        with h5py.File(folder / f"{i}.h5", "w") as f:
            make_h5.put(f, "/x", a[6 * i:6 * i + 3])
            make_h5.put(f, "/y", a[6 * i + 3:6 * i + 6])
    for name, order in (("rows", [(0, "x"), (0, "y"), (1, "x"), (1, "y")]),
                        ("mixed", [(0, "x"), (1, "x"), (0, "y"), (1, "y")])):
        with h5py.File(folder / f"{name}_master.h5", "w") as f:
            group = f.create_group("/entry/data")
            for k, (i, dataset) in enumerate(order):
                group[f"data_{k + 1:06d}"] = h5py.ExternalLink(f"{i}.h5", dataset)
        res = daemon.cli("load", folder / f"{name}_master.h5")
        if name == "mixed":
            assert res.returncode == 1 and "0.h5" in res.stderr and "not supported" in res.stderr, res
        else:
            assert res.returncode == 0, res.stderr
            assert daemon.digest(name)[0] == sha256(a)
            daemon.cli("unload", name)


def test_fewer_frames_than_planned(daemon, calm, folder):
    a = make_h5.counts(10, 8, 8)
    info = daemon.load(make_h5.master(folder, a, ntrigger=16), "--name", "short")
    assert (info["frames"], info["expected"]) == (10, 16) and info["warnings"]
    daemon.cli("unload", "short")


DAMAGE = {
    "length of a block": (12, b"\x7f\xff\xff\xff"),
    "length of the chunk": (0, b"\x00\x00\x00\x01\x00\x00\x00\x00"),
    "short length of the chunk": (0, b"\x00\x00\x00\x00\x00\x00\x00\x08"),
    "block size that is odd": (8, b"\x00\x00\x00\x07"),
    "block size of another chunk": (8, b"\x00\x00\x00\x10"),
    "sequence": (16, b"\xff" * 24),
    "all of it": (0, b"\x00" * 60),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_chunk(daemon, calm, folder, what):
    """A frame that cannot be decoded is named; its neighbours are right."""
    a = make_h5.counts(6, 40, 50, mean=30)
    path = make_h5.plain(folder / "hurt.h5", a)
    offset, _ = make_h5.chunk_place(path, 2)
    at, data = DAMAGE[what]
    make_h5.overwrite(path, offset + at, data)
    info = daemon.load(path)
    try:
        assert info["state"] == "damaged" and info["forms"]["bad"] == 1, info
        res = daemon.cli("frames", "hurt", "--digest")
        assert res.returncode == 4 and "frame 2: corrupt" in res.stderr and not res.stdout, res
        assert daemon.digest("hurt", "0-1,3-5")[0] == sha256(a[[0, 1, 3, 4, 5]])
    finally:
        daemon.cli("unload", "hurt")


def test_chunk_cut_short(daemon, calm, folder):
    a = make_h5.counts(4, 20, 30)
    path = folder / "cut.h5"
    with h5py.File(path, "w") as f:
        d = make_h5.put(f, "/entry/data/data", a)
        mask, data = d.id.read_direct_chunk((1, 0, 0))
        d.id.write_direct_chunk((1, 0, 0), data[:len(data) // 2], mask)
        d.id.write_direct_chunk((3, 0, 0), data[:5], mask)
    assert daemon.load(path)["forms"]["bad"] == 2
    res = daemon.cli("frames", "cut", "--digest")
    assert res.returncode == 4 and "frame 1" in res.stderr and "frame 3" in res.stderr
    assert daemon.digest("cut", "0,2")[0] == sha256(a[[0, 2]])
    daemon.cli("unload", "cut")


def test_file_cut_short(daemon, calm, folder):
    """Nothing that is left out may come back as counts."""
    a = make_h5.counts(200, 40, 50)
    data = make_h5.plain(folder / "full.h5", a).read_bytes()
    for share in (0.02, 0.3, 0.6, 0.95):
        cut = folder / "cut.h5"
        cut.write_bytes(data[:int(len(data) * share)])
        refused(daemon, cut, "cut.h5")


def test_mutated_files(daemon, calm, folder):
    """Flipped bits in the metadata: refused, or loaded with frames that are given or named; the daemon lives."""
    data = make_h5.plain(folder / "good.h5", make_h5.counts(12, 8, 8)).read_bytes()
    rng = np.random.default_rng(11)
    for i in range(40):
        hurt = bytearray(data)
        for at in rng.integers(0, min(len(hurt), 6000), 12):
            hurt[at] ^= 1 << int(rng.integers(0, 8))
        (folder / "m.h5").write_bytes(hurt)
        res = daemon.cli("load", folder / "m.h5", "--name", f"m{i}", timeout=60)
        assert res.returncode in (0, 1), res
        if res.returncode == 0:
            assert daemon.cli("frames", f"m{i}", "--digest").returncode in (0, 4)
            daemon.cli("unload", f"m{i}")


# ---- the reader: HDF5's child process -------------------------------------------------------------------


def reader(folder, text):
    path = folder / "reader"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("how", ["exit 0", "exit 3", "kill -SEGV $$", "echo nonsense; exit 0",
                                 "head -c 100000 /dev/zero"])
def test_reader_that_fails(start, folder, how):
    """Whatever the child does, the load ends with an error and the daemon lives."""
    path = make_h5.plain(folder / "a.h5", make_h5.counts(3, 8, 8))
    d = start("--reader", reader(folder, how))
    before = d.settled(), d.stat("used_bytes")
    for _ in range(3):
        res = d.cli("load", path, timeout=30)
        assert res.returncode == 1 and "a.h5" in res.stderr, res
    wait_for(lambda: no_more((d.settled(), d.stat("used_bytes")), before), 10, "all as before")
    wait_for(lambda: not d.children(), 10, "no reader is left")


def test_reader_that_hangs_on_one_file_while_another_loads(start, simulated, folder):
    path, truth = simulated("--scan", "20x20", "--shards", "2")
    flag = folder / "hang"
    flag.touch()
    d = start("--reader", reader(folder, f'[ -e {flag} ] && {{ rm {flag}; exec sleep 600; }}\n'
                                         f'exec {tool("framestow-reader")} "$@"'))
    hanging = d.start_cli("load", make_h5.plain(folder / "a.h5", make_h5.counts(3, 8, 8)))
    wait_for(lambda: not flag.exists(), 10, "the reader hangs")
    d.load(path, "--name", "fine")
    assert d.digest("fine") == truth
    assert hanging.poll() is None and len(d.children()) == 1
    hanging.send_signal(signal.SIGINT)
    hanging.communicate(timeout=20 * SLOW)
    assert hanging.returncode != 0
    wait_for(lambda: not d.children(), 10, "the reader is killed")


def test_reader_killed_from_outside(start, folder):
    d = start("--reader", reader(folder, "exec sleep 600"))
    loading = d.start_cli("load", make_h5.plain(folder / "a.h5", make_h5.counts(3, 8, 8)))
    pid = wait_for(lambda: d.children(), 10, "a reader")[0]
    os.kill(pid, signal.SIGKILL)
    _, err = loading.communicate(timeout=20 * SLOW)
    assert loading.returncode == 1 and "a.h5" in err


def test_no_reader(start, folder):
    """It is said at the start or by the first load, and not by a hang."""
    d = start("--reader", folder / "none", wait=False)
    wait_for(lambda: d.process.poll() is not None or d.cli("ls").returncode == 0, 10, "an answer or an end")
    if d.process.poll() is None:
        res = d.cli("load", make_h5.plain(folder / "a.h5", make_h5.counts(3, 8, 8)))
        assert res.returncode == 1 and "none" in res.stderr, res
    else:
        assert d.process.returncode != 0 and "none" in d.log()
