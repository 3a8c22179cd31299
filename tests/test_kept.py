# SPDX-License-Identifier: Apache-2.0
"""Kept files: `save`, `load FILE.stow`, `verify`. What comes back is what h5py reads, or a refusal; never a wrong count."""
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401
import numpy as np
import pytest

import make_h5
from conftest import DEVICE, Raw, call, sha256, tool, wait_for
from protocol_client import field

N, Y, X = 600, 48, 64
UNWRITTEN, RAW, DARK, BROKEN = (3, 77), (5, 90), (11, 12, 60), (40, 41, 100)


def mixed(path, dtype="u2", seed=1):
    """Frames of every form, with a mask: (path, counts, ids of the bad ones)."""
    a = np.random.default_rng(seed).poisson(1.2, (N, Y, X)).astype(dtype)
    for i in RAW:
        a[i] = np.random.default_rng(i).integers(0, np.iinfo(dtype).max, (Y, X), endpoint=True)
    a[list(DARK)] = 0  # smaller as a chunk than as counts
    mask = np.zeros((Y, X), "u4")
    mask[7, 9], mask[20, 3:6] = 1, 2
    a[:, mask != 0] = np.iinfo(dtype).max
    with h5py.File(path, "w") as f:
        f["/entry/instrument/detector/detectorSpecific/pixel_mask"] = mask
        d = f.create_dataset("/entry/data/data", a.shape, dtype, chunks=(1, Y, X), fillvalue=2, compression=32008,
                             compression_opts=(0, 2))
        for i in range(N):
            if i in RAW:
                d.id.write_direct_chunk((i, 0, 0), a[i].tobytes(), filter_mask=1)
            elif i not in UNWRITTEN:
                d[i] = a[i]
        places = [d.id.get_chunk_info_by_coord((i, 0, 0)).byte_offset for i in BROKEN]
    a[list(UNWRITTEN)] = 2
    for offset in places:
        make_h5.overwrite(path, offset + 16, bytes([0xff]) * 8)
    return path, a, BROKEN


@pytest.fixture(scope="module")
def kept(daemon, tmp_path_factory):
    """An acquisition of every form: (file, counts, bad ids, its .stow file, its digest)."""
    folder = tmp_path_factory.mktemp("kept")
    path, a, bad = mixed(folder / "mixed.h5")
    info = daemon.load(path, "--name", "mixed")
    assert all(info["forms"][form] for form in ("counts", "bslz4", "raw", "fill", "bad")), info["forms"]
    save(daemon, "mixed", folder / "mixed.stow", "--force")
    digest = sha256(np.delete(a, bad, 0))
    return path, a, bad, folder / "mixed.stow", digest


def save(daemon, name, path, *args):
    res = daemon.cli("save", name, path, *args)
    assert res.returncode == 0, res.stderr + daemon.obituary()
    return path


def good_digest(daemon, name):
    res = daemon.cli("frames", name, "--digest", "--skip-bad")
    assert res.returncode == 0, res.stderr
    return res.stdout.split()[0]


def facts(info):
    return {k: info[k] for k in ("frames", "expected", "scan", "detector", "dtype", "forms", "warnings")} | {
        "logical": info["bytes"]["logical"], "source": info["bytes"]["source"]}


# ---- there and back ---------------------------------------------------------------------------------------------


def test_round_trip(daemon, kept, folder):
    path, _, bad, stow, digest = kept
    info = daemon.load(stow, "--name", "back")
    assert facts(info) == facts(daemon.json("info", "mixed"))
    assert info["sources"] == [str(stow.resolve())]
    assert good_digest(daemon, "back") == good_digest(daemon, "mixed") == digest
    for i in bad:
        texts = [daemon.cli("frames", name, str(i), "--digest").stderr for name in ("mixed", "back")]
        assert texts[0] == texts[1] and f"frame {i}: corrupt" in texts[0]
    daemon.cli("unload", "back")


def test_saving_again_gives_the_same_bytes(daemon, kept, folder):
    _, _, _, stow, _ = kept
    again = save(daemon, "mixed", folder / "again.stow", "--force")
    assert again.read_bytes() == stow.read_bytes()
    daemon.load(stow, "--name", "second")
    save(daemon, "second", folder / "second.stow", "--force")
    assert (folder / "second.stow").read_bytes() == stow.read_bytes()
    daemon.cli("unload", "second")


def test_the_same_bytes_in_another_daemon(daemon, kept, start, folder):
    path, _, _, stow, _ = kept
    other = start("--max-bytes", "64M")
    other.load(path, "--name", "mixed")
    assert save(other, "mixed", folder / "other.stow", "--force").read_bytes() == stow.read_bytes()


@pytest.mark.skipif(DEVICE == "host", reason="the device is the host")
def test_the_same_bytes_on_the_host(daemon, kept, start, folder):
    path, _, _, stow, _ = kept
    other = start("--device", "host", "--max-bytes", "256M")
    other.load(path, "--name", "mixed")
    assert save(other, "mixed", folder / "other.stow", "--force").read_bytes() == stow.read_bytes()
    other.load(stow, "--name", "back")
    assert good_digest(other, "back") == kept[4]


def test_same_file_is_the_same_resident(daemon, kept):
    stow = kept[3]
    ids = [daemon.load(stow, "--name", name)["id"] for name in ("one", "two")]
    assert ids[0] == ids[1]
    for name in ("one", "two"):
        daemon.cli("unload", name)


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
@pytest.mark.parametrize("form", ["auto", "bslz4", "raw"])
def test_forms_and_types(daemon, folder, dtype, form):
    a = make_h5.counts(40, 33, 65, dtype, mean=3)
    master = make_h5.master(folder / "m", a, shards=3)
    first = daemon.load(master, "--name", "first", "--form", form, "--scan", "5x8")
    save(daemon, "first", folder / "a.stow", "--force")
    info = daemon.load(folder / "a.stow", "--name", "second")
    assert info["scan"] == [5, 8] and info["forms"] == first["forms"]
    assert daemon.digest("second")[0] == sha256(a)
    for name in ("first", "second"):
        daemon.cli("unload", name)


def test_many_frames_and_several_blocks(daemon, folder, simulated):
    master, truth = simulated("--scan", "64x64", "--detector", "96x96", "--dose", "4", "--shards", "3")
    daemon.load(master, "--name", "many")
    path = save(daemon, "many", folder / "many.stow")
    assert path.stat().st_size > 8 << 20
    info = daemon.load(path, "--name", "back")
    assert daemon.digest("back") == truth and info["expected"] == 4096
    for name in ("many", "back"):
        daemon.cli("unload", name)


def test_long_tables(daemon, folder, simulated):
    """Tables of many MB, which are read side by side: all of it comes back, and damage in any part of them is seen."""
    master, truth = simulated("--scan", "256x320", "--detector", "16x16")
    daemon.load(master, "--name", "long")
    path = save(daemon, "long", folder / "long.stow", "--force")
    info = daemon.load(path, "--name", "back")
    assert daemon.digest("back") == truth and facts(info) == facts(daemon.json("info", "long"))
    for what in ("mean", "com"):
        for name in ("long", "back"):
            res = daemon.cli(what, name, "--out", folder / f"{what}-{name}.npy")
            assert res.returncode == 0, res.stderr
        assert np.array_equal(*(np.load(folder / f"{what}-{name}.npy") for name in ("long", "back")), equal_nan=True)
    assert save(daemon, "back", folder / "again.stow", "--force").read_bytes() == path.read_bytes()
    for name in ("long", "back"):
        daemon.cli("unload", name)
    data = bytearray(path.read_bytes())
    data[256] ^= 1
    path.write_bytes(data)
    tables = int(re.search(r"bytes 256 to (\d+)", refused(daemon, path, "its tables (bytes 256 to "))[1])
    assert tables > 2 << 20
    data[256] ^= 1
    for at in (*range(1 << 20, tables, (1 << 20) - 1), tables // 2 - 1, tables // 2, tables - 4096):
        data[at] ^= 16
        path.write_bytes(data)
        refused(daemon, path, "its tables (bytes 256 to ")
        data[at] ^= 16
    data[-3] ^= 1
    path.write_bytes(data)
    refused(daemon, path, "long.stow: block ")


def test_sums_come_back(daemon, kept, folder):
    stow = kept[3]
    daemon.load(stow, "--name", "back")
    for what, args in (("mean", ("--sum",)), ("mean", ("--sum", "--flagged")), ("com", ()), ("com", ("--flagged",))):
        outs = []
        for name in ("mixed", "back"):
            out = folder / f"{name}.npy"
            res = daemon.cli(what, name, *args, "--out", out)
            assert res.returncode in (0, 4), res.stderr
            outs.append(np.load(out))
        assert np.array_equal(*outs, equal_nan=True), what
    daemon.cli("unload", "back")


def test_gaps_are_remembered(daemon, folder):
    a = make_h5.counts(30, 16, 24)
    master = make_h5.master(folder / "m", a, shards=3, leave_out=(2,))
    daemon.load(master, "--name", "gaps", "--allow-gaps")
    save(daemon, "gaps", folder / "gaps.stow", "--force")
    info = daemon.load(folder / "gaps.stow", "--name", "back")
    assert facts(info) == facts(daemon.json("info", "gaps")) and info["forms"]["bad"] == 10
    assert good_digest(daemon, "back") == sha256(np.delete(a, range(10, 20), 0))
    res = daemon.json("verify", "back")
    assert (res["frames"], res["mismatches"], res["not_compared"]) == (20, 0, 10)
    for name in ("gaps", "back"):
        daemon.cli("unload", name)


def test_options_that_a_kept_file_has_chosen(daemon, kept):
    for args in (("--form", "raw"), ("--dataset", "/x"), ("--streams", "2")):
        res = daemon.cli("load", kept[3], "--name", "other", *args)
        assert res.returncode == 1 and args[0] in res.stderr, res.stderr
    assert daemon.cli("info", "other").returncode == 1


GOLDEN = {
    "counts_u2": "d0cc3088df66ab724173dd04c12d712c6927ab7348d983227910c5c77574a69f",
    "counts_u1": "8e939d61b74f07c07418b247044e70f8669d9cc3226f372064aa3d74844c5186",
    "counts_u4": "c25500452ddad1e3fd39b4f9d83ab0a8fbc07faab38d1836543e7a2374e9b7e5",
    "chunks_u2": "d0cc3088df66ab724173dd04c12d712c6927ab7348d983227910c5c77574a69f",
    "chunks_i8": "ae2b5a7baca765d8b6863d89ed6682960deda7488f47915ff972fb395a077d66",
    "chunks_f4": "7dd99af3a0a69b115111c5d308b9d346bded7efe336ff1a1c7a553d34292230b",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_files_of_earlier_versions(daemon, name):
    """Made by make_kept.py when a version of the format was new: they must read for ever."""
    info = daemon.load(Path(__file__).parent / "golden" / f"{name}.stow", "--name", name)
    assert info["frames"] == 20 and info["detector"] == [24, 40] and info["dtype"] == name[-2:]
    assert info["forms"]["bad"] == 2 and info["forms"]["fill"] == 1 and not info["expected"]
    assert good_digest(daemon, name) == GOLDEN[name]
    daemon.cli("unload", name)


# ---- what is refused ---------------------------------------------------------------------------------------------


def refused(daemon, path, *words):
    res = daemon.cli("load", path, "--name", "damaged")
    assert res.returncode == 1, f"exit {res.returncode}: {res.stdout}{res.stderr}{daemon.obituary()}"
    for word in words:
        assert word in res.stderr, res.stderr
    assert daemon.cli("info", "damaged").returncode == 1
    return res.stderr


def regions(data):
    """{name: (first, end)} of a .stow file's parts."""
    header = data[:256]
    u64 = lambda at: int.from_bytes(header[at:at + 8], "little")  # noqa: E731
    blocks = u64(232)
    assert u64(16) == len(data)
    end = [i for i in range(4096, len(data), 4096)]
    return blocks, end


def test_every_flipped_bit_is_refused(daemon, kept, folder):
    data = bytearray(kept[3].read_bytes())
    path = folder / "flipped.stow"
    rng = np.random.default_rng(5)
    places = sorted({0, 8, 12, 16, 24, 100, 200, 232, 240, 248, 255, 256, 300, 4095, len(data) - 1,
                     *rng.integers(8, len(data), 120).tolist()})
    for at in places:
        bit = 1 << int(rng.integers(8))
        data[at] ^= bit
        path.write_bytes(data)
        data[at] ^= bit
        res = daemon.cli("load", path, "--name", "damaged")
        assert res.returncode == 1, f"byte {at}: exit {res.returncode} {res.stdout}{res.stderr}{daemon.obituary()}"
        assert "flipped.stow" in res.stderr, f"byte {at}: {res.stderr}"
    path.write_bytes(data)
    daemon.load(path, "--name", "whole")
    assert good_digest(daemon, "whole") == kept[4]
    daemon.cli("unload", "whole")


def test_a_flipped_bit_names_its_block(daemon, folder, simulated):
    master, _ = simulated("--scan", "64x64", "--detector", "96x96", "--dose", "4", "--shards", "3")
    daemon.load(master, "--name", "many")
    path = save(daemon, "many", folder / "many.stow")
    data = bytearray(path.read_bytes())
    data[len(data) - 5] ^= 4
    path.write_bytes(data)
    text = refused(daemon, path, "many.stow: block 1 (bytes ", "is damaged", "copy it again")
    first, last = map(int, re.search(r"bytes (\d+) to (\d+)", text).groups())
    assert first < len(data) - 5 <= last == len(data) - 1
    data[len(data) - 5] ^= 4
    data[first - 1] ^= 1
    path.write_bytes(data)
    refused(daemon, path, "many.stow: block 0 (bytes ")
    data[300] ^= 1
    path.write_bytes(data)
    refused(daemon, path, "its tables (bytes 256 to ")
    data[30] ^= 1
    path.write_bytes(data)
    refused(daemon, path, "its header (bytes 0 to 255)")
    daemon.cli("unload", "many")


def test_cut_and_grown_files(daemon, kept, folder):
    data = kept[3].read_bytes()
    path = folder / "cut.stow"
    for size in (8, 9, 100, 255):
        path.write_bytes(data[:size])
        refused(daemon, path, "cut.stow", "it ends in its header")
    for size in (256, 257, 4000, 4096, len(data) // 2, len(data) - 16, len(data) - 1):
        path.write_bytes(data[:size])
        refused(daemon, path, f"cut: {len(data) - size} of its {len(data)} bytes are missing")
    path.write_bytes(data + b"\0")
    refused(daemon, path, "1 bytes more")
    for size in (0, 1, 7):
        path.write_bytes(data[:size])
        assert daemon.cli("load", path, "--name", "damaged").returncode == 1


def test_a_later_version(daemon, kept, folder):
    data = bytearray(kept[3].read_bytes())
    data[8] = 2
    (folder / "later.stow").write_bytes(data)
    refused(daemon, folder / "later.stow", "version 2", "reads version 1")


# ---- saving ------------------------------------------------------------------------------------------------------


def test_an_existing_file_is_left_alone(daemon, kept, folder):
    path = folder / "there.stow"
    path.write_text("mine")
    res = daemon.cli("save", "mixed", path, "--force")
    assert res.returncode == 1 and "exists already" in res.stderr and path.read_text() == "mine"
    os.symlink("nowhere", folder / "link.stow")
    assert daemon.cli("save", "mixed", folder / "link.stow", "--force").returncode == 1
    assert os.listdir(folder).count("nowhere") == 0


def test_larger_than_the_source(daemon, folder):
    a = np.random.default_rng(3).integers(0, 2**16, (4, 100, 100)).astype("u2")
    path = make_h5.plain(folder / "noise.h5", a)
    daemon.load(path, "--name", "noise")
    res = daemon.cli("save", "noise", folder / "noise.stow")
    assert res.returncode == 1 and str(path.stat().st_size) in res.stderr and "--force" in res.stderr, res.stderr
    assert os.listdir(folder) == ["noise.h5"]
    stow = save(daemon, "noise", folder / "noise.stow", "--force")
    assert stow.stat().st_size > path.stat().st_size
    daemon.cli("unload", "noise")


def test_where_it_cannot_be_written(daemon, kept, folder):
    for path, word in ((folder / "no" / "x.stow", "No such file"), (folder, "not the name"), ("/proc/x.stow", "x.stow")):
        res = daemon.cli("save", "mixed", f"{path}/" if path == folder else path, "--force")
        assert res.returncode == 1 and word in res.stderr, res.stderr
    assert daemon.cli("save", "nobody", folder / "x.stow").returncode == 1
    assert os.listdir(folder) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_without_permission(daemon, kept, folder):
    closed = folder / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    os.chmod(daemon.socket, 0o666)
    os.chmod(os.path.dirname(daemon.socket), 0o755)
    daemon.load(kept[0], "--name", "shared", "--share", "all")
    become = ["setpriv", "--reuid", "61234", "--regid", "61234", "--clear-groups"]
    os.chmod(folder, 0o755)
    res = call([*become, tool("framestow"), "--socket", daemon.socket, "save", "shared", closed / "x.stow", "--force"])
    assert res.returncode == 1 and "Permission denied" in res.stderr, res.stderr
    assert os.listdir(closed) == []
    daemon.cli("unload", "shared")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_full_disk(daemon, kept, folder):
    disk = folder / "disk"
    disk.mkdir()
    if call(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk]).returncode:
        pytest.skip("no mount here")
    try:
        res = daemon.cli("save", "mixed", disk / "x.stow", "--force")
        assert res.returncode == 1 and "No space left" in res.stderr and "x.stow" in res.stderr, res.stderr
        assert os.listdir(disk) == []
    finally:
        call(["umount", disk])


def test_saving_what_is_not_there_to_be_saved(daemon, kept):
    with Raw(daemon) as raw:
        with open("/dev/null", "wb") as null:
            code, text = raw.refused(20, field(1, b"mixed") + field(2, 1), [null.fileno()])
            assert code == 5 and "empty regular file" in text
        with open(kept[0], "rb") as source:
            assert raw.refused(20, field(1, b"mixed") + field(2, 1), [source.fileno()])[0] == 5
        assert raw.refused(20, field(1, b"mixed"))[0] == 5
        assert raw.refused(20, field(1, b"nobody"), [0])[0] == 7
        assert raw.refused(21, field(1, b"nobody"))[0] == 7


def big(daemon, simulated):
    master, truth = simulated("--scan", "64x64", "--detector", "128x128", "--dose", "12", "--shards", "2")
    daemon.load(master, "--name", "big")
    return truth


@pytest.mark.parametrize("who", ["client", "daemon"])
def test_killed_half_way(start, simulated, folder, who):
    d = start()
    big(d, simulated)
    for delay in (0, .005, .01, .02, .04, .08, .16):
        path = folder / f"{delay}.stow"
        saving = d.start_cli("save", "big", path)
        time.sleep(delay)
        (saving if who == "client" else d.process).send_signal(signal.SIGKILL)
        saving.communicate(timeout=20)
        if path.exists():  # it was faster
            assert saving.returncode == 0 or who == "daemon"
            fresh = start()
            fresh.load(path, "--name", "whole")
            fresh.kill()
            path.unlink()
        assert [n for n in os.listdir(folder) if n.endswith(".stow") or n.startswith(".framestow")] == []
        if who == "daemon":
            d.kill()
            d = start()
            big(d, simulated)
    if who == "client":
        wait_for(lambda: d.stat("sessions") == 1, 10, "sessions end")
        assert save(d, "big", folder / "after.stow").stat().st_size > 1 << 20


def test_a_save_keeps_its_acquisition(start, simulated, folder):
    """An unload does not take it away under a save."""
    d = start()
    truth = big(d, simulated)
    saving = d.start_cli("save", "big", folder / "big.stow")
    time.sleep(0.01)
    d.cli("unload", "big")
    _, err = saving.communicate(timeout=60)
    if saving.returncode == 0:
        d.load(folder / "big.stow", "--name", "back")
        assert d.digest("back") == truth
    else:  # the name was gone before
        assert "no acquisition" in err, err


def test_sha256_of_the_sources(daemon, folder):
    import hashlib
    a = make_h5.counts(12, 16, 24)
    master = make_h5.master(folder / "m", a, shards=2)
    daemon.load(master, "--name", "hashed")
    save(daemon, "hashed", folder / "plain.stow", "--force")
    path = save(daemon, "hashed", folder / "hashed.stow", "--force", "--sha256")
    for file in (master, *(folder / "m").glob("*data*.h5")):
        digest = hashlib.sha256(file.read_bytes()).digest()
        assert digest in path.read_bytes() and digest not in (folder / "plain.stow").read_bytes()
    daemon.load(path, "--name", "back")
    assert save(daemon, "back", folder / "again.stow", "--force").read_bytes() == path.read_bytes()
    make_h5.overwrite(master, 40, b"xx")
    res = daemon.cli("save", "hashed", folder / "changed.stow", "--force", "--sha256")
    assert res.returncode == 1 and "has changed" in res.stderr and not (folder / "changed.stow").exists()
    for name in ("hashed", "back"):
        daemon.cli("unload", name)


# ---- comparing with the source -----------------------------------------------------------------------------------


def test_verify(daemon, kept):
    _, a, bad, stow, _ = kept
    daemon.load(stow, "--name", "back")
    for name in ("mixed", "back"):
        res = daemon.cli("verify", name)
        good = N - len(bad)
        assert res.returncode == 0, res.stderr
        assert res.stdout == f"{good} frames, {good * Y * X} values compared, 0 mismatches\n"
        assert f"{len(bad)} frames were not compared" in res.stderr
        assert daemon.json("verify", name) == {"frames": good, "values": good * Y * X, "mismatches": 0,
                                               "first_mismatch": None, "not_compared": len(bad)}
    daemon.cli("unload", "back")


def replace(path, other):
    """Put other in path's place, with its size and times."""
    st = os.stat(path)
    assert os.stat(other).st_size == st.st_size
    os.utime(other, ns=(st.st_atime_ns, st.st_mtime_ns))
    os.rename(other, path)


@pytest.mark.parametrize("from_stow", [False, True], ids=["source", "stow"])
def test_one_count_that_differs(daemon, folder, from_stow):
    a = make_h5.counts(20, 16, 24)
    path = make_h5.plain(folder / "a.h5", a, block=8)
    with h5py.File(path) as f:
        stored = f["/entry/data/data"].id.read_direct_chunk((13, 0, 0))[1]
    daemon.load(path, "--name", "one")
    name = "one"
    if from_stow:
        daemon.load(save(daemon, "one", folder / "a.stow", "--force"), "--name", "kept")
        name = "kept"
    for seed in range(50):  # another count that packs to the same length
        b = a[13].copy()
        b[seed % 16, 7] ^= 1
        (folder / "b.h5").write_bytes(path.read_bytes())
        with h5py.File(folder / "probe.h5", "w") as f:
            d = make_h5.put(f, "d", b[None], block=8)
            other = d.id.read_direct_chunk((0, 0, 0))[1]
        if len(other) == len(stored):
            break
    else:
        pytest.fail("no such count")
    offset, size = make_h5.chunk_place(path, 13)
    assert size == len(other) and other != stored
    make_h5.overwrite(folder / "b.h5", offset, other)
    replace(path, folder / "b.h5")
    res = daemon.cli("verify", name)
    assert res.returncode == 1 and res.stdout == (f"20 frames, {a.size} values compared, 1 mismatches, "
                                                  "the first in frame 13\n"), res.stdout + res.stderr
    assert json.loads(daemon.cli("--json", "verify", name).stdout)["mismatches"] == 1
    for n in ("one", "kept"):
        daemon.cli("unload", n)


def test_a_source_that_has_changed(daemon, folder):
    a = make_h5.counts(20, 16, 24)
    master = make_h5.master(folder / "m", a, shards=2)
    daemon.load(master, "--name", "one")
    save(daemon, "one", folder / "a.stow", "--force")
    daemon.load(folder / "a.stow", "--name", "kept")
    shard = folder / "m" / "scan_data_000002.h5"
    before, st = shard.read_bytes(), os.stat(shard)

    def both(*words):
        for name in ("one", "kept"):
            res = daemon.cli("verify", name)
            assert res.returncode == 1, res.stdout
            for word in words:
                assert word in res.stderr, res.stderr

    os.utime(shard, ns=(st.st_atime_ns, st.st_mtime_ns + 10**9))
    both("scan_data_000002.h5", "has changed", "time of change")
    shard.write_bytes(before + b"\0" * 512)
    both("scan_data_000002.h5", f"had {len(before)} bytes and has {len(before) + 512}")
    shard.unlink()
    both("scan_data_000002.h5")
    shard.write_bytes(before)
    os.utime(shard, ns=(st.st_atime_ns, st.st_mtime_ns))
    for name in ("one", "kept"):
        assert daemon.json("verify", name)["mismatches"] == 0
    master.unlink()
    both("scan_master.h5", "No such file")
    for name in ("one", "kept"):
        daemon.cli("unload", name)


def test_clients_that_leave_while_it_compares(start, simulated):
    d = start()
    truth = big(d, simulated)
    before = d.settled()
    for delay in (0, .01, .03, .1):
        comparing = d.start_cli("verify", "big")
        time.sleep(delay)
        comparing.send_signal(signal.SIGKILL)
        comparing.communicate(timeout=20)
    wait_for(lambda: d.fds() <= before[2] and not d.children(), 20, "descriptors and children go")
    assert d.json("verify", "big")["mismatches"] == 0
    assert d.digest("big") == truth
    assert d.stop() == 0, d.log()
