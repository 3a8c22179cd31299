# SPDX-License-Identifier: Apache-2.0
"""The pixel mask that framestow-reader finds, against what h5py wrote and reads.

FRAMESTOW_BIN, SOURCE_TEST, FRAMESTOW_DATA, FRAMESTOW_SLOW: see test_source.py
"""
import numpy as np
import pytest

from test_source import BSLZ4, DATA, PROGRAM, REAL, SPECIFIC, Index, counts, h5py, run, write

DETECTOR = "/entry/instrument/detector"
FIRST, SECOND = f"{SPECIFIC}/pixel_mask", f"{DETECTOR}/pixel_mask"
Y, X = 37, 53
GZIP = ((1, (4,)),)

pytestmark = pytest.mark.skipif(not PROGRAM, reason="source_test is not built")


def mask(dtype="<u4", values=(1, 2, 8, 16), n=40, seed=3):
    """Zeros, and some pixels with one of the values, the first and the last pixel among them."""
    rng = np.random.RandomState(seed)
    flat = np.zeros(Y * X, dtype)
    at = np.unique(np.concatenate([rng.choice(Y * X, n, replace=False), [0, Y * X - 1]]))
    flat[at] = np.resize(np.array(values, dtype), len(at))
    return flat.reshape(Y, X)


def flagged(m):
    return np.flatnonzero(np.asarray(m)).tolist()


def frames(path):
    return write(path, counts(3, Y, X))


def masked(path, m, where=FIRST, **how):
    frames(path)
    how.setdefault("filters", ())
    how.setdefault("chunks", None)
    return write(path, m, dset=where, **how)


def no_warning(index):
    assert index.status == 0, index.text
    assert not [w for w in index.warnings if "mask" in w], index.warnings


def warned(index, *words):
    """The load goes on without a mask, and one warning says why."""
    assert index.status == 0, index.text
    assert index.head["flagged"] is None and index.n == 3
    said = [w for w in index.warnings if "mask" in w]
    assert len(said) == 1, index.warnings
    for word in words:
        assert word in said[0], said[0]


@pytest.mark.parametrize("where", [FIRST, SECOND])
def test_where(tmp_path, where):
    index = Index(masked(tmp_path / "f.h5", mask(), where))
    no_warning(index)
    assert index.head["flagged"] == flagged(mask())


def test_none(tmp_path):
    index = Index(frames(tmp_path / "f.h5"))
    no_warning(index)
    assert index.head["flagged"] is None


def test_all_zero(tmp_path):
    index = Index(masked(tmp_path / "f.h5", np.zeros((Y, X), "<u4")))
    no_warning(index)
    assert index.head["flagged"] is None


def test_all_flagged(tmp_path):
    index = Index(masked(tmp_path / "f.h5", np.full((Y, X), 8, "<u4")))
    assert index.head["flagged"] == list(range(Y * X))


@pytest.mark.parametrize("dtype,values", [
    ("<u1", (1, 128, 255)), ("<i1", (1, -1, -128)), ("<u2", (1, 256, 65535)), (">u2", (1, 256, 65280)),
    ("<i2", (-1, 256, -32768)), ("<u4", (1, 256, 1 << 16, 1 << 31)), (">u4", (1, 1 << 24)),
    ("<i4", (-(1 << 31), 1 << 30, 256)), ("<u8", (1 << 63, 1 << 32, 256)), (">i8", (-(1 << 63), 1 << 32)),
])
@pytest.mark.parametrize("how", ["contiguous", "gzip"])
def test_dtypes(tmp_path, dtype, values, how):
    m = mask(dtype, values)
    options = {} if how == "contiguous" else {"filters": GZIP, "chunks": (10, 20)}
    index = Index(masked(tmp_path / "f.h5", m, **options))
    no_warning(index)
    assert index.head["flagged"] == flagged(m)


def test_booleans(tmp_path):
    path = frames(tmp_path / "f.h5")
    m = mask() != 0
    with h5py.File(path, "a") as h:
        h[FIRST] = m
    index = Index(path)
    no_warning(index)
    assert index.head["flagged"] == flagged(m)


@pytest.mark.parametrize("dtype,values", [("<u1", (1, 255)), ("<u2", (256, 65535)), ("<u4", (1, 1 << 16, 1 << 31))])
@pytest.mark.parametrize("block", [0, 128])
def test_bslz4(tmp_path, dtype, values, block):
    m = mask(dtype, values)
    index = Index(masked(tmp_path / "f.h5", m, filters=((32008, (block, 2)),), chunks=(Y, X)))
    no_warning(index)
    assert index.head["flagged"] == flagged(m)


def test_bslz4_chunk_that_skipped_its_filter(tmp_path):
    path = masked(tmp_path / "f.h5", mask(), filters=BSLZ4, chunks=(Y, X), fill_in=False)
    with h5py.File(path, "a") as h:
        h[FIRST].id.write_direct_chunk((0, 0), mask().tobytes(), filter_mask=1)
    index = Index(path)
    no_warning(index)
    assert index.head["flagged"] == flagged(mask())


def test_bslz4_damaged(tmp_path):
    path = masked(tmp_path / "f.h5", mask(), filters=BSLZ4, chunks=(Y, X))
    with h5py.File(path, "a") as h:
        _, chunk = h[FIRST].id.read_direct_chunk((0, 0))
        h[FIRST].id.write_direct_chunk((0, 0), chunk[:4] + b"\0\1\0\0" + chunk[8:])
    warned(Index(path), FIRST, "left out")


def test_bslz4_cut(tmp_path):
    path = masked(tmp_path / "f.h5", mask(), filters=BSLZ4, chunks=(Y, X))
    with h5py.File(path, "a") as h:
        _, chunk = h[FIRST].id.read_direct_chunk((0, 0))
        h[FIRST].id.write_direct_chunk((0, 0), chunk[:-3])
    warned(Index(path), FIRST, "left out")


def test_bslz4_never_written(tmp_path):
    warned(Index(masked(tmp_path / "f.h5", mask(), filters=BSLZ4, chunks=(Y, X), fill_in=False)), "0 bytes")


@pytest.mark.parametrize("dtype", ["<i4", "<u1", "<i2", "<u8"])
def test_bslz4_of_any_integers(tmp_path, dtype):
    index = Index(masked(tmp_path / "f.h5", mask(dtype), filters=BSLZ4, chunks=(Y, X)))
    no_warning(index)
    assert index.head["flagged"] == flagged(mask(dtype))


@pytest.mark.parametrize("filters,dtype,chunks,words", [
    (BSLZ4, "<u4", (10, 20), ("32008", "not available")),  # several chunks
    (((32015, (3,)),), "<u4", (Y, X), ("32015", "not available")),
    (((32004, ()),), "<u4", (Y, X), ("32004", "not available")),
])
def test_filters(tmp_path, filters, dtype, chunks, words):
    warned(Index(masked(tmp_path / "f.h5", mask(dtype), filters=filters, chunks=chunks)), FIRST, *words)


@pytest.mark.parametrize("shape", [(X, Y), (Y, X + 1), (Y - 1, X), (1, Y, X), (Y * X,), (0, 0)])
def test_shapes(tmp_path, shape):
    warned(Index(masked(tmp_path / "f.h5", np.ones(shape, "<u4"))), "shape", f"({Y}, {X})")


@pytest.mark.parametrize("dtype", ["<f4", "S4"])
def test_not_integers(tmp_path, dtype):
    path = frames(tmp_path / "f.h5")
    with h5py.File(path, "a") as h:
        h[FIRST] = np.ones((Y, X)).astype(dtype)
    warned(Index(path), "not of integers")


def test_group(tmp_path):
    path = frames(tmp_path / "f.h5")
    with h5py.File(path, "a") as h:
        h.create_group(FIRST)
    warned(Index(path), "not a dataset")


def test_second_after_a_useless_first(tmp_path):
    path = masked(tmp_path / "f.h5", np.ones((Y, X + 1), "<u4"))
    write(path, mask(), dset=SECOND, filters=(), chunks=None)
    index = Index(path)
    no_warning(index)
    assert index.head["flagged"] == flagged(mask())


def test_first_before_the_second(tmp_path):
    path = masked(tmp_path / "f.h5", mask(seed=5))
    write(path, mask(seed=6), dset=SECOND, filters=(), chunks=None)
    assert Index(path).head["flagged"] == flagged(mask(seed=5))


def test_links(tmp_path):
    path = frames(tmp_path / "f.h5")
    write(tmp_path / "m.h5", mask(), dset="/somewhere/mask", filters=(), chunks=None)
    with h5py.File(path, "a") as h:
        h[FIRST] = h5py.ExternalLink("m.h5", "/somewhere/mask")
        h[SECOND] = h5py.SoftLink(FIRST)
    index = Index(path)
    no_warning(index)
    assert index.head["flagged"] == flagged(mask())


def test_link_to_a_missing_file(tmp_path):
    path = frames(tmp_path / "f.h5")
    with h5py.File(path, "a") as h:
        h[FIRST] = h5py.ExternalLink("gone.h5", "/mask")
    warned(Index(path), "gone.h5", "left out")


@pytest.mark.parametrize("kind", ["virtual", "external"])
def test_values_in_other_files(tmp_path, kind):
    """HDF5 itself would open them."""
    path = frames(tmp_path / "f.h5")
    write(tmp_path / "m.h5", mask(), dset="/m", filters=(), chunks=None)
    (tmp_path / "m.raw").write_bytes(mask().tobytes())
    with h5py.File(path, "a", libver="latest") as h:
        if kind == "virtual":
            layout = h5py.VirtualLayout((Y, X), "<u4")
            layout[:] = h5py.VirtualSource(str(tmp_path / "m.h5"), "/m", (Y, X))
            h.create_virtual_dataset(FIRST, layout)
        else:
            h.create_dataset(FIRST, (Y, X), "<u4", external=[(str(tmp_path / "m.raw"), 0, Y * X * 4)])
    warned(Index(path), "other files")


def test_with_shards(tmp_path):
    """A master whose shards are open and shut by the time the mask is read."""
    path = run(tmp_path, [counts(2, Y, X, seed=s) for s in range(3)])
    with h5py.File(path, "a") as h:
        del h[FIRST]
    write(path, mask(), dset=FIRST, filters=BSLZ4, chunks=(Y, X))
    index = Index(path)
    no_warning(index)
    assert index.n == 6 and index.head["flagged"] == flagged(mask())


def test_dataset_named(tmp_path):
    path = masked(tmp_path / "f.h5", mask())
    assert Index(path, "--dataset", DATA).head["flagged"] == flagged(mask())


@pytest.mark.parametrize("name", [
    "arina_rosettasciio/test_00_master.h5", "quantem_gpu_fixtures/fixture_master.h5"])
def test_real_masters(name):
    if not (REAL / name).exists():
        pytest.skip("no real files here")
    with h5py.File(REAL / name, "r") as h:
        want = flagged(h[FIRST][()])
    index = Index(REAL / name)
    no_warning(index)
    assert index.head["flagged"] == (want or None)
