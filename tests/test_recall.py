# SPDX-License-Identifier: Apache-2.0
"""Indexes that are kept in the state folder: used where every file is as it was, and never believed otherwise."""
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import h5py
import pytest

import make_h5
from conftest import Daemon, sha256, tool, wait_for


class Counting(Daemon):
    """A daemon whose reader notes each of its starts."""

    def __init__(self, folder, *args, **kwargs):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.starts = folder / "starts"
        script = folder / "reader"
        real = next(p for p in (Path(tool("framestow-reader")), Path(tool("framestowd")).parent / "framestow-reader")
                    if p.exists())
        if not script.exists():
            script.write_text(f"#!/bin/sh\necho >>'{self.starts}'\nexec '{real}'\n")
            script.chmod(0o755)
        super().__init__(folder, "--reader", script, *args, **kwargs)

    def n_starts(self):
        return self.starts.read_text().count("\n") if self.starts.exists() else 0

    def entries(self):
        return sorted((self.folder / "state" / "indexes").glob("*"))

    def again(self, path, frames, *args, reads):
        """Load it, compare, unload; the reader is to be started so many times."""
        before = self.n_starts()
        info = self.load(path, "--name", "again", *args)
        good = info["frames"] - info["forms"]["bad"]
        if frames is not None:
            res = self.cli("frames", "again", "--digest", "--skip-bad")
            assert res.stdout.split()[:2] == [sha256(frames), str(len(frames))] and good == len(frames), res.stderr
        assert self.n_starts() - before == reads
        self.cli("unload", "again")
        return info


@pytest.fixture
def counting(tmp_path):
    daemon = Counting(tmp_path / "d")
    yield daemon
    daemon.stop()


def age(*paths, seconds=60):
    """As if they had been written some time ago."""
    for path in paths:
        when = time.time_ns() - seconds * 10**9
        os.utime(path, ns=(when, when))


def run(folder, a, shards=3):
    folder.mkdir(parents=True, exist_ok=True)
    path = make_h5.master(folder, a, shards=shards)
    age(*folder.iterdir())
    return Path(path)


def test_a_second_load_needs_no_reader(counting, tmp_path):
    a = make_h5.counts(30, 16, 17)
    path = run(tmp_path / "r", a)
    first = counting.again(path, a, reads=1)
    wait_for(lambda: counting.entries(), 5, "an entry")
    second = counting.again(path, a, reads=0)
    for key in ("frames", "expected", "scan", "detector", "dtype", "forms", "bytes", "sources", "warnings"):
        assert first[key] == second[key]


def test_it_outlives_the_daemon(tmp_path):
    a = make_h5.counts(30, 16, 17)
    path = run(tmp_path / "r", a)
    one = Counting(tmp_path / "d")
    one.again(path, a, reads=1)
    one.stop()
    two = Counting(tmp_path / "d")
    two.again(path, a, reads=0)
    two.kill()
    three = Counting(tmp_path / "d")
    three.again(path, a, reads=0)
    three.stop()


def test_what_was_written_just_now_is_not_kept(counting, tmp_path):
    (tmp_path / "r").mkdir()
    a, b = make_h5.counts(6, 9, 10), make_h5.counts(6, 9, 10) + 1
    path = tmp_path / "r" / "p.h5"
    for frames in (a, b, a):
        with h5py.File(path, "w") as f:
            f["entry/data/data"] = frames
        counting.again(path, frames, reads=1)
    assert not counting.entries()


@pytest.mark.parametrize("which", ["master", "shard"])
@pytest.mark.parametrize("how", ["another inode", "in place", "touched", "grown"])
def test_a_changed_file_is_read_anew(counting, tmp_path, which, how):
    a, b = make_h5.counts(12, 8, 9), make_h5.counts(12, 8, 9) + 3
    path, other = run(tmp_path / "r", a), run(tmp_path / "o", b)
    counting.again(path, a, reads=1)
    wait_for(counting.entries, 5, "an entry")
    names = sorted(p.name for p in path.parent.iterdir())
    for name in names if how in ("another inode", "in place") else [names[-1] if which == "master" else names[0]]:
        target = path.parent / name
        if how == "another inode":
            shutil.copy(other.parent / name, target.with_suffix(".new"))
            os.rename(target.with_suffix(".new"), target)
        elif how == "in place":
            data = (other.parent / name).read_bytes()
            with open(target, "r+b") as f:
                f.write(data)
                f.truncate()
        elif how == "grown":
            with open(target, "ab") as f:
                f.write(b"\0" * 8)
        age(target, seconds=30)
    counting.again(path, b if how in ("another inode", "in place") else a, reads=1)


def test_a_missing_shard_that_comes_and_one_that_goes(counting, tmp_path):
    a = make_h5.counts(30, 8, 9)
    path = run(tmp_path / "r", a)
    last = sorted(path.parent.glob("*_data_*"))[-1]
    os.rename(last, tmp_path / "away.h5")
    counting.again(path, a[:20], reads=1)
    wait_for(counting.entries, 5, "an entry")
    info = counting.again(path, a[:20], reads=0)
    assert any(last.name in text for text in info["warnings"])
    os.rename(tmp_path / "away.h5", last)
    counting.again(path, a, reads=1)
    counting.again(path, a, reads=0)
    os.unlink(last)
    counting.again(path, a[:20], reads=1)


def test_options_have_entries_of_their_own(counting, tmp_path):
    a, b = make_h5.counts(5, 8, 9), make_h5.counts(7, 8, 9)
    path = tmp_path / "two.h5"
    with h5py.File(path, "w") as f:
        f["a"], f["b"] = a, b
    age(path)
    for _ in range(2):
        reads = 1 - _
        counting.again(path, a, "--dataset", "/a", reads=reads)
        counting.again(path, b, "--dataset", "/b", reads=reads)
        time.sleep(0.2)
    res = counting.cli("load", path, "--name", "again")
    assert res.returncode == 1 and "--dataset" in res.stderr


def spoil_bits(data):
    return bytes(x ^ 255 for x in data)


@pytest.mark.parametrize("spoil", [spoil_bits, lambda d: d[:len(d) // 2], lambda d: b"", lambda d: d + b"x",
                                   lambda d: d[:300] + b"\xff" * 8 + d[308:]],
                         ids=["inverted", "halved", "emptied", "grown", "a number"])
def test_a_damaged_entry_is_none(counting, tmp_path, spoil):
    a = make_h5.counts(30, 16, 17)
    path = run(tmp_path / "r", a)
    counting.again(path, a, reads=1)
    entry, = wait_for(counting.entries, 5, "an entry")
    good = entry.read_bytes()
    entry.write_bytes(spoil(good))
    counting.again(path, a, reads=1)
    wait_for(lambda: entry.read_bytes() == good, 5, "a good entry again")
    counting.again(path, a, reads=0)


def test_an_entry_that_lies_is_refused(counting, tmp_path):
    """Whoever can write to the state folder can put a checksum right; bounds are checked all the same."""
    xxhash = pytest.importorskip("xxhash")
    a = make_h5.counts(30, 16, 17)
    path = run(tmp_path / "r", a, shards=1)
    counting.again(path, a, reads=1)
    entry, = wait_for(counting.entries, 5, "an entry")
    data = bytearray(entry.read_bytes())
    for at in range(len(data) - 30 * 24, len(data), 24):
        data[at:at + 8] = (2**62).to_bytes(8, "little")
    data[8:16] = xxhash.xxh3_64_intdigest(bytes(data[16:])).to_bytes(8, "little")
    entry.write_bytes(data)
    counting.again(path, a, reads=1)


@pytest.mark.parametrize("state", ["file", "indexes is a file", "absent"])
def test_a_folder_that_cannot_be_used_costs_a_warning(tmp_path, state):
    folder = tmp_path / "d"
    folder.mkdir()
    if state == "file":
        (folder / "state").write_text("")
    elif state == "indexes is a file":
        (folder / "state").mkdir()
        (folder / "state" / "indexes").write_text("")
    daemon = Counting(folder, *(["--state-dir", "/proc/nowhere"] if state == "absent" else []))
    a = make_h5.counts(10, 16, 17)
    path = run(tmp_path / "r", a)
    for _ in range(3):
        daemon.again(path, a, reads=1)
    assert daemon.log().count("indexes of sources are not") == 1
    assert daemon.stop() == 0


def test_another_path_or_folder_is_another_entry(counting, tmp_path):
    a = make_h5.counts(10, 16, 17)
    path = run(tmp_path / "r", a)
    counting.again(path, a, reads=1)
    (tmp_path / "l").symlink_to(path.parent)
    counting.again(tmp_path / "l" / path.name, a, reads=0)  # the real master is the same
    os.rename(path.parent, tmp_path / "moved")
    counting.again(tmp_path / "moved" / path.name, a, reads=1)


def test_a_client_that_leaves_while_its_files_are_asked_for(counting, tmp_path):
    a = make_h5.counts(40, 8, 9)
    path = run(tmp_path / "r", a, shards=40)
    counting.again(path, a, reads=1)
    wait_for(counting.entries, 5, "an entry")
    before = counting.settled()
    for _ in range(20):
        client = subprocess.Popen([tool("framestow"), "--socket", counting.socket, "load", path, "--name", "gone"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.003 * _)
        client.send_signal(signal.SIGKILL)
        client.wait()

    def given_back():
        counting.cli("unload", "gone")
        return counting.settled()[2] <= before[2]

    wait_for(given_back, 10, "descriptors are given back")
    counting.again(path, a, reads=0)


def test_who_may_not_read_a_shard_gets_nothing_of_it(counting, tmp_path):
    """A client that gives another file for a shard is not served what is known of the first."""
    a = make_h5.counts(10, 8, 9)
    path = run(tmp_path / "r", a, shards=2)
    counting.again(path, a, reads=1)
    wait_for(counting.entries, 5, "an entry")
    shard = sorted(path.parent.glob("*_data_*"))[0]
    shard.write_bytes(shard.read_bytes()[:100])
    age(shard)
    before = counting.n_starts()
    res = counting.cli("load", path, "--name", "again")
    assert counting.n_starts() == before + 1
    assert res.returncode == 1 and shard.name in res.stderr
