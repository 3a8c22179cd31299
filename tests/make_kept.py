#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/*.stow, which every later version must read, and from them the seeds of fuzz_kept.

    FRAMESTOW_BIN=build tests/make_kept.py FOLDER [NAME ...]

Run once for each version of the format, and for what is added to one (NAME); the files stay. Their digests, printed here as h5py reads the sources, stand in
test_kept.py. FOLDER is made, and its path is in the files."""
import os
import sys
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401
import numpy as np

import make_h5
from conftest import Daemon, sha256

HERE = Path(__file__).resolve().parent
SHAPE = (20, 24, 40)
SOURCES = {  # name: (dtype, form, scan)
    "counts_u2": ("u2", "counts", "4x5"), "counts_u1": ("u1", "counts", None), "counts_u4": ("u4", "counts", None),
    "chunks_u2": ("u2", "bslz4", None), "chunks_i8": ("i8", "bslz4", None), "chunks_f4": ("f4", "bslz4", None),
}


def source(path, dtype):
    """Counts with a mask, unwritten, raw and broken frames: (counts, ids of the broken ones)."""
    a = np.random.default_rng(11).poisson(1.5, SHAPE).astype(dtype)
    kind = np.dtype(dtype).kind
    if kind != "u":
        a = a * np.dtype(dtype).type(0.25) - 1 if kind == "f" else a - 2
    mask = np.zeros(SHAPE[1:], "u4")
    mask[2, 3], mask[20, 30:33] = 1, 4
    a[:, mask != 0] = np.nan if kind == "f" else np.iinfo(dtype).max
    with h5py.File(path, "w") as f:
        f["/entry/instrument/detector/detectorSpecific/pixel_mask"] = mask
        d = f.create_dataset("/entry/data/data", SHAPE, dtype, chunks=(1, *SHAPE[1:]), fillvalue=3, compression=32008,
                             compression_opts=(0, 2))
        for i in range(SHAPE[0]):
            if i == 5:
                d.id.write_direct_chunk((i, 0, 0), a[i].tobytes(), filter_mask=1)
            elif i != 7:
                d[i] = a[i]
        places = [d.id.get_chunk_info_by_coord((i, 0, 0)).byte_offset for i in (11, 12)]
    a[7] = 3
    for offset in places:
        make_h5.overwrite(path, offset + 16, bytes([0xff]) * 8)
    os.utime(path, ns=(10**18, 10**18))
    return a, (11, 12)


def write_seeds(stow, folder):
    """Header and tables, for the fuzz target to put the checksums right; and a whole file."""
    data = stow.read_bytes()
    text, flags, models = (int.from_bytes(data[at:at + 8], "little") for at in (104, 12, 112))
    n, pixels, blocks = SHAPE[0], SHAPE[1] * SHAPE[2], int.from_bytes(data[232:240], "little")
    segments = 1 if int.from_bytes(data[96:104], "little") else 0
    row = 32 if data[136] == 8 else 28
    tables = (text, -(-pixels // 8) if flags & 4 else 0, 8 * segments, models, 12 * n, 8 * blocks, 8 * pixels,
              n * row * (2 if flags & 4 else 1))
    frames = -(-(256 + sum(-(-size // 16) * 16 for size in tables)) // 4096) * 4096
    folder.mkdir(parents=True, exist_ok=True)
    (folder / stow.stem).write_bytes(b"\1" + data[:frames])
    if stow.stem == "chunks_u2":
        (folder / f"{stow.stem}_whole").write_bytes(b"\0" + data)


def main():
    folder, names = Path(sys.argv[1]), sys.argv[2:] or SOURCES
    folder.mkdir(parents=True)
    golden = HERE / "golden"
    daemon = Daemon(folder / "d")
    try:
        for name in names:
            dtype, form, scan = SOURCES[name]
            path = folder / f"{name}.h5"
            a, bad = source(path, dtype)
            daemon.load(path, "--name", name, "--form", form, *(("--scan", scan) if scan else ()))
            stow = golden / f"{name}.stow"
            stow.unlink(missing_ok=True)
            res = daemon.cli("save", name, stow, "--force", *(("--sha256",) if name == "chunks_u2" else ()))
            assert res.returncode == 0, res.stderr
            print(f'    "{name}": "{sha256(np.delete(a, bad, 0))}",')
            write_seeds(stow, HERE / "corpus" / "kept")
    finally:
        daemon.kill()


if __name__ == "__main__":
    main()
