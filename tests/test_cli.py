# SPDX-License-Identifier: Apache-2.0
"""The command line as a contract: outputs, exit codes, names."""
import hashlib
import json

import numpy as np
import pytest

import make_h5
from conftest import Daemon, call, sha256, tool


@pytest.fixture
def loaded(daemon, folder):
    a = make_h5.counts(12, 16, 20)
    path = make_h5.master(folder, a, name="run")
    daemon.load(path)
    yield a, path
    daemon.cli("unload", "run")


def test_version_and_usage(daemon):
    assert daemon.cli("version").returncode == 0
    for wrong in ([], ["nonsense"], ["load"], ["info"], ["frames"], ["ls", "--nonsense"],
                  ["frames", "x", "--out"], ["load", "x", "--scan", "3"]):
        res = daemon.cli(*wrong)
        assert res.returncode == 2 and res.stderr, f"{wrong}: {res}"


def test_no_daemon_is_exit_3(folder):
    for command in (["ls"], ["info", "x"], ["frames", "x", "--digest"], ["unload", "x"], ["stats"]):
        res = call([tool("framestow"), "--socket", folder / "none", *command])
        assert res.returncode == 3 and res.stderr, f"{command}: {res}"


def test_socket_that_is_a_file(folder):
    """It is called what it is, not the socket of a dead daemon."""
    (folder / "s").write_text("notes")
    res = call([tool("framestow"), "--socket", folder / "s", "ls"])
    assert res.returncode == 3 and "not a socket" in res.stderr, res


def test_socket_path_too_long_is_usage(folder):
    res = call([tool("framestow"), "--socket", folder / ("x" * 200), "ls"])
    assert res.returncode == 2 and res.stderr
    res = call([tool("framestowd"), "--device", "host", "--socket", folder / ("x" * 200)])
    assert res.returncode == 2 and len(res.stderr.strip().splitlines()) == 1


def test_socket_by_environment(daemon, loaded):
    import os
    res = call([tool("framestow"), "--json", "ls"], env={**os.environ, "FRAMESTOW_SOCKET": daemon.socket})
    assert res.returncode == 0 and [a["name"] for a in json.loads(res.stdout)] == ["run"]


def test_load_prints_one_line(daemon, folder):
    path = make_h5.plain(folder / "one.h5", make_h5.counts(3, 8, 8))
    res = daemon.cli("load", path, "--name", "one")
    assert res.returncode == 0 and len(res.stdout.strip().splitlines()) == 1, res
    assert daemon.cli("unload", "one").returncode == 0
    assert daemon.cli("info", "one").returncode == 1


def test_info_and_ls(daemon, loaded):
    a, path = loaded
    info = daemon.json("info", "run")
    assert {"name", "id", "state", "frames", "expected", "scan", "detector", "dtype", "forms", "bytes", "sources",
            "warnings", "timings_ms"} <= set(info)
    assert (info["name"], info["state"], info["frames"], info["expected"]) == ("run", "complete", 12, 12)
    assert (info["scan"], info["detector"], info["dtype"]) == (None, [16, 20], "u2")
    assert set(info["forms"]) == {"counts", "bslz4", "raw", "fill", "bad"} and sum(info["forms"].values()) == 12
    assert set(info["bytes"]) >= {"logical", "source", "resident"} and info["bytes"]["logical"] == a.nbytes
    assert info["sources"][0] == str(path.resolve()) and len(info["sources"]) == 3
    assert [x["name"] for x in daemon.json("ls")] == ["run"]
    assert "run" in daemon.cli("ls").stdout and "run" in daemon.cli("info", "run").stdout


def test_scan_option(daemon, folder):
    path = make_h5.plain(folder / "shaped.h5", make_h5.counts(12, 8, 8))
    assert daemon.load(path, "--scan", "3x4")["scan"] == [3, 4]
    daemon.cli("unload", "shaped")


def test_lists_in_the_order_asked(daemon, loaded):
    a, _ = loaded
    for text, ids in (("all", range(12)), ("3", [3]), ("0,5,7-9", [0, 5, 7, 8, 9]), ("5,5,2", [5, 5, 2]),
                      ("11,0", [11, 0])):
        part = a[list(ids)]
        assert daemon.digest("run", text) == (sha256(part), len(part), part.nbytes), text


def test_long_list(daemon, loaded):
    """More ids than a message takes go by a memfd."""
    a, _ = loaded
    ids = np.random.default_rng(1).integers(0, 12, 3000)
    assert daemon.digest("run", ",".join(map(str, ids)))[0] == sha256(a[ids])


def test_at_needs_and_uses_the_scan(daemon, folder):
    a = make_h5.counts(12, 8, 8)
    daemon.load(make_h5.plain(folder / "shaped.h5", a), "--scan", "3x4")
    try:
        assert daemon.digest("shaped", "--at", "2,1")[0] == sha256(a[9])
        res = daemon.cli("frames", "shaped", "--at", "3,0", "--digest")
        assert res.returncode == 1 and res.stderr
    finally:
        daemon.cli("unload", "shaped")


def test_out_npy_and_png(daemon, loaded, folder):
    a, _ = loaded
    assert daemon.cli("frames", "run", "--out", folder / "all.npy").returncode == 0
    got = np.load(folder / "all.npy")
    assert got.dtype == a.dtype and np.array_equal(got, a)
    assert daemon.cli("frames", "run", "2,1", "--out", folder / "two.npy").returncode == 0
    assert np.array_equal(np.load(folder / "two.npy"), a[[2, 1]])
    assert daemon.cli("frames", "run", "2", "--out", folder / "one.png").returncode == 0
    assert (folder / "one.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    res = daemon.cli("frames", "run", "--out", folder / "many.png")
    assert res.returncode in (1, 2) and res.stderr and not (folder / "many.png").exists()
    res = daemon.cli("frames", "run", "--out", folder / "no" / "such.npy")
    assert res.returncode == 1 and "such.npy" in res.stderr


def test_stream_without_a_goal_prints_figures(daemon, loaded):
    res = daemon.cli("frames", "run")
    assert res.returncode == 0 and "12" in res.stdout


def test_range(daemon, loaded):
    for ids in ("12", "0-12", "5,99999999999"):
        res = daemon.cli("frames", "run", ids, "--digest")
        assert res.returncode == 1 and "11" in res.stderr + "12" and not res.stdout, res
    res = daemon.cli("frames", "run", "3-1", "--digest")
    assert res.returncode in (1, 2) and res.stderr


def test_names(daemon, loaded, folder):
    a, path = loaded
    for command in (["info", "nobody"], ["unload", "nobody"], ["frames", "nobody", "--digest"]):
        res = daemon.cli(*command)
        assert res.returncode == 1 and "nobody" in res.stderr, res
    # the same unchanged source again, and under a second name: one resident
    first = daemon.json("info", "run")
    assert daemon.load(path)["id"] == first["id"]
    assert daemon.load(path, "--name", "second")["id"] == first["id"]
    assert daemon.json("ls") and daemon.stat("residents") == 1
    assert daemon.cli("unload", "second").returncode == 0
    assert daemon.digest("run")[0] == sha256(a)
    # another source under a name in use is refused, but for --replace
    b = make_h5.counts(5, 8, 8, seed=9)
    other = make_h5.plain(folder / "other.h5", b)
    res = daemon.cli("load", other, "--name", "run")
    assert res.returncode == 1 and "run" in res.stderr and "--replace" in res.stderr, res
    assert daemon.digest("run")[0] == sha256(a)
    assert daemon.load(other, "--name", "run", "--replace")["frames"] == 5
    assert daemon.digest("run")[0] == sha256(b)
    assert daemon.stat("residents") == 1


def test_a_changed_source_is_another_one(daemon, folder):
    a, b = make_h5.counts(4, 8, 8, seed=1), make_h5.counts(4, 8, 8, seed=2)
    path = make_h5.plain(folder / "changing.h5", a)
    daemon.load(path)
    path.unlink()
    make_h5.plain(path, b)
    assert daemon.cli("load", path, "--name", "changing").returncode == 1
    daemon.load(path, "--replace")
    assert daemon.digest("changing")[0] == sha256(b)
    daemon.cli("unload", "changing")


def test_form(daemon, folder):
    path = make_h5.plain(folder / "form.h5", make_h5.counts(4, 8, 8))
    assert daemon.load(path, "--form", "bslz4")["forms"]["bslz4"] == 4
    daemon.cli("unload", "form")
    assert daemon.cli("load", path, "--form", "nonsense").returncode in (1, 2)
    assert daemon.json("ls") == []


def test_stats_and_doctor(daemon):
    stats = daemon.json("stats")
    assert isinstance(stats, dict) and {"leases", "streams", "residents", "used_bytes", "max_bytes"} <= set(stats)
    assert "leases" in daemon.cli("stats").stdout
    res = daemon.cli("doctor")
    assert res.returncode == 0 and "host" in res.stdout


def test_names_with_odd_characters(daemon, folder):
    a = make_h5.counts(3, 8, 8)
    path = make_h5.plain(folder / "a b\tc\u00e9.h5", a)
    info = daemon.load(path, "--name", "odd \u00e9")
    assert info["name"] == "odd \u00e9" and daemon.digest("odd \u00e9")[0] == sha256(a)
    assert "\t" not in daemon.cli("ls").stdout
    daemon.cli("unload", "odd \u00e9")


def test_exit_status_of_a_failed_start(folder):
    for wrong in (["--device", "nonsense"], ["--max-bytes", "12Q"], ["--nonsense"], ["--log-level", "loud"]):
        res = call([tool("framestowd"), "--socket", folder / "s", *wrong])
        assert res.returncode == 2 and res.stderr, f"{wrong}: {res}"


def test_damaged_frame_is_exit_4(daemon, folder):
    a = make_h5.counts(8, 16, 20)
    path = make_h5.plain(folder / "hurt.h5", a)
    offset, size = make_h5.chunk_place(path, 5)
    make_h5.overwrite(path, offset + 12, b"\xff\xff\xff\xff")
    res = daemon.cli("load", path, "--name", "hurt")
    assert res.returncode == 0 and res.stderr, res
    try:
        info = daemon.json("info", "hurt")
        assert info["state"] == "damaged" and info["forms"]["bad"] == 1
        res = daemon.cli("frames", "hurt", "--digest")
        assert res.returncode == 4 and "frame 5" in res.stderr and "corrupt" in res.stderr and not res.stdout, res
        good = np.delete(a, 5, axis=0)
        res = daemon.cli("frames", "hurt", "--digest", "--skip-bad")
        assert res.returncode == 0 and res.stdout.split() == [sha256(good), "7", str(good.nbytes)], res
        assert daemon.digest("hurt", "0-4,6-7")[0] == sha256(good)
    finally:
        daemon.cli("unload", "hurt")
