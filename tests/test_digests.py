# SPDX-License-Identifier: Apache-2.0
"""What framestow serves is what h5py with hdf5plugin reads, byte for byte."""
import numpy as np
import pytest
import h5py

import make_h5
from conftest import DATA, call, sha256, tool

SHAPES = [(3, 1, 1), (5, 7, 13), (4, 33, 65), (2, 129, 257), (7, 64, 64)]
BLOCKS = [0, 8, 64, 1000, 4096, 16384]


def check_form(daemon, path, name, a, *form):
    info = daemon.load(path, "--name", name, *form)
    try:
        assert (info["frames"], info["detector"], info["dtype"]) == (len(a), list(a.shape[-2:]), a.dtype.str[1:])
        assert sum(info["forms"].values()) == info["frames"]
        assert info["bytes"]["logical"] == a.nbytes
        assert daemon.digest(name) == (sha256(a), len(a), a.nbytes), form
    finally:
        daemon.cli("unload", name)
    return info


def check(daemon, path, name, expected=None):
    """The same frames as it is kept by itself, and in each form that it can be made to have."""
    a = make_h5.read(path) if expected is None else expected
    info = check_form(daemon, path, name, a)
    fill = info["forms"]["fill"]
    forced = check_form(daemon, path, name, a, "--form", "raw")["forms"]
    assert forced["raw"] + fill == len(a)
    forced = check_form(daemon, path, name, a, "--form", "counts")["forms"]
    assert forced["counts"] + forced["bslz4"] + forced["raw"] + fill == len(a)
    forced = check_form(daemon, path, name, a, "--form", "bslz4")["forms"]
    assert not forced["counts"]
    return info


@pytest.mark.parametrize("streams", [1, 2, 5, 8])
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
def test_streams(daemon, folder, dtype, streams):
    a = make_h5.counts(9, 190, 201, dtype)
    info = check_form(daemon, make_h5.plain(folder / "a.h5", a), "streams", a, "--form", "counts", "--streams", streams)
    assert info["forms"]["counts"] == 9


def test_counts_are_smaller(daemon, simulated):
    """What shrinks is kept as counts; the payload is never larger than the chunks were."""
    path, truth = simulated("--scan", "40x40", "--detector", "96x96", "--sample", "thin", "--dose", "0.5")
    sizes = {}
    for form in ("auto", "counts", "bslz4", "raw"):
        info = daemon.load(path, "--name", form, "--form", form)
        assert daemon.digest(form) == truth
        sizes[form] = info["bytes"]["resident"]
        assert info["forms"]["bslz4" if form == "bslz4" else "raw" if form == "raw" else "counts"] == 1600
        daemon.cli("unload", form)
    assert sizes["auto"] == sizes["counts"] < 0.8 * sizes["bslz4"] and sizes["bslz4"] < sizes["raw"]


def test_forms_are_different_acquisitions(daemon, folder):
    path = make_h5.plain(folder / "a.h5", make_h5.counts(5, 20, 30))
    raw = daemon.load(path, "--name", "raw", "--form", "raw")
    assert daemon.load(path, "--name", "any")["id"] == raw["id"]
    assert daemon.load(path, "--name", "counts", "--form", "counts")["id"] != raw["id"]
    assert daemon.load(path, "--name", "again", "--form", "raw")["id"] == raw["id"]
    for name in ("raw", "any", "counts", "again"):
        daemon.cli("unload", name)
    for wrong in (("--form", "zip"), ("--streams", "0"), ("--streams", "9"), ("--streams", "x")):
        assert daemon.cli("load", path, *wrong).returncode == 2, wrong


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_and_blocks(daemon, folder, dtype, shape):
    for block in BLOCKS:
        a = make_h5.counts(*shape, dtype, seed=block)
        check(daemon, make_h5.plain(folder / f"b{block}.h5", a, block=block), f"b{block}")


@pytest.mark.parametrize("kind", ["zeros", "ones", "random", "ramp", "single bits"])
def test_contents(daemon, folder, kind):
    rng = np.random.default_rng(4)
    n, y, x = 6, 60, 77
    a = {"zeros": np.zeros((n, y, x), "u4"), "ones": np.full((n, y, x), 2**32 - 1, "u4"),
         "random": rng.integers(0, 2**32, (n, y, x)).astype("u4"),
         "ramp": np.arange(n * y * x, dtype="u4").reshape(n, y, x),
         "single bits": (np.uint32(1) << rng.integers(0, 32, (n, y, x)).astype("u4"))}[kind]
    check(daemon, make_h5.plain(folder / "a.h5", a), "kind")


def test_four_dimensions_are_a_scan(daemon, folder):
    a = make_h5.counts(6, 20, 30)
    path = make_h5.plain(folder / "scan.h5", a.reshape(2, 3, 20, 30), name="/data")
    assert check(daemon, path, "four", a)["scan"] == [2, 3]


def test_layout_versions(daemon, folder):
    """The same frames through each chunk index that HDF5 knows."""
    a = make_h5.counts(40, 16, 24)
    for libver in ("earliest", "latest"):
        for maxshape in (None, (None, 16, 24), (100, 16, 24), (None, None, 24)):
            path = folder / f"{libver}{maxshape}.h5"
            with h5py.File(path, "w", libver=libver) as f:
                make_h5.put(f, "/entry/data/data", a, maxshape=maxshape)
            check(daemon, path, "layout")


def test_one_frame_and_a_user_block(daemon, folder):
    a = make_h5.counts(1, 16, 24)
    path = folder / "user.h5"
    with h5py.File(path, "w", userblock_size=1024) as f:
        make_h5.put(f, "/entry/data/data", a)
    check(daemon, path, "user")


def test_never_written_and_a_user_block(daemon, folder):
    """The library adds the block to the address that there is none."""
    path = folder / "n.h5"
    with h5py.File(path, "w", userblock_size=1024) as f:
        f.create_dataset("/entry/data/data", (3, 8, 8), "<u2", fillvalue=7)
    assert check(daemon, path, "never", np.full((3, 8, 8), 7, "<u2"))["forms"]["fill"] == 3


def test_chunk_filter_mask_and_unwritten_chunks(daemon, folder):
    a = make_h5.counts(6, 20, 30)
    path = folder / "mask.h5"
    with h5py.File(path, "w") as f:
        d = f.create_dataset("/entry/data/data", a.shape, "u2", chunks=(1, 20, 30), fillvalue=7, compression=32008,
                             compression_opts=(0, 2))
        for i in (0, 1, 3):
            d[i] = a[i]
        d.id.write_direct_chunk((4, 0, 0), a[4].tobytes(), filter_mask=1)
    expected = a.copy()
    expected[[2, 5]] = 7
    info = check(daemon, path, "mask", expected)
    assert info["forms"]["raw"] >= 1 and info["forms"]["fill"] == 2


def test_many_shards(daemon, folder):
    a = make_h5.counts(100, 8, 9)
    info = check(daemon, make_h5.master(folder, a, shards=70), "shards")
    assert info["expected"] == 100


def test_more_than_65536_frames(daemon, simulated):
    """Frame numbers need more than 16 bits: by digest, by number, in sums, and kept in a file."""
    path, truth = simulated("--scan", "350x200", "--detector", "24x24", "--shards", "3", "--dose", "1.1")
    a = make_h5.read(path)
    assert truth == (sha256(a), 70000, a.nbytes)
    info = check_form(daemon, path, "many", a, "--form", "counts")
    assert info["forms"]["counts"] == 70000
    daemon.load(path, "--name", "many")
    kept = path.parent / "many.stow"
    try:
        ids = [0, 69999, 65535, 65536, 65537, 32768, 4095, 4096]
        assert daemon.digest("many", ",".join(map(str, ids)))[:2] == (sha256(a[ids]), len(ids))
        daemon.json("sum", "many", "--annulus", "0,5", "--flagged", "--out", path.parent / "sum.npy")
        y, x = np.mgrid[:24, :24] - 11.5
        assert np.array_equal(np.load(path.parent / "sum.npy").ravel(), a[:, y * y + x * x < 25].sum(1, dtype="u8"))
        daemon.json("save", "many", kept)
    finally:
        daemon.cli("unload", "many")
    daemon.load(kept, "--name", "many")
    try:
        assert daemon.digest("many") == truth
    finally:
        daemon.cli("unload", "many")


@pytest.mark.parametrize("options", [
    ("--scan", "8x8"), ("--scan", "9x7", "--dtype", "u1", "--shards", "3", "--sample", "thin", "--dose", "0.1"),
    ("--scan", "5x5", "--dtype", "u4", "--dose", "1000", "--detector", "100x33"),
    ("--scan", "40x40", "--detector", "16x12", "--shards", "7")], ids=" ".join)
def test_simulated(daemon, simulated, options):
    path, truth = simulated(*options)
    a = make_h5.read(path)
    assert truth == (sha256(a), len(a), a.nbytes)
    check(daemon, path, "simulated", a)


def test_simulator_threads_and_seed(folder):
    def run(name, *more):
        res = call([tool("framestow-simulate"), folder / name, "--scan", "9x9", "--detector", "40x32", "--shards", "3",
                    "--truth", *more])
        assert res.returncode == 0, res.stderr
        return res.stdout, [p.read_bytes() for p in sorted((folder / name).iterdir())]

    one = run("a", "--threads", "1")
    assert one == run("b", "--threads", "2") == run("c", "--threads", "7")
    assert one[0] != run("d", "--seed", "2")[0]


def test_simulator_pixels(simulated):
    path, _ = simulated("--scan", "16x16", "--sample", "thin", "--dose", "0.5")
    a = make_h5.read(path)
    with h5py.File(path, "r") as f:
        mask = f["/entry/instrument/detector/detectorSpecific/pixel_mask"][...] != 0
    assert mask.sum() == 24 and (a[:, mask] == 65535).all() and (a[:, ~mask] < 65535).all()
    mean = a[:, ~mask].mean(0)
    assert 0.45 < mean.mean() < 0.55 and (mean > 15).sum() == 6


REAL = ["arina_rosettasciio/test_00_master.h5", "eiger_hdf5plugin/eiger4m_bslz4_uint32.h5",
        "quantem_gpu_fixtures/fixture_master.h5", "quantem_gpu_fixtures/fixture_data_000001.h5",
        "quantem_gpu_fixtures/fixture_u8_data_000001.h5"]


@pytest.mark.parametrize("path", REAL)
def test_real_files(daemon, path):
    if not (DATA / path).exists():
        pytest.skip(f"{DATA / path} is not here")
    check(daemon, DATA / path, "real")
