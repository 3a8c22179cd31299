# SPDX-License-Identifier: Apache-2.0
"""HDF5 files for the tests, as h5py with hdf5plugin writes them, and as it reads them back."""
import re
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401  (registers the filters)
import numpy as np

BSLZ4 = 32008


def counts(n, y, x, dtype="u2", seed=0, mean=1.5):
    """Poisson counts with extremes strewn in."""
    rng = np.random.default_rng(seed)
    a = rng.poisson(mean, (n, y, x)).astype(dtype)
    flat = a.reshape(-1)
    where = rng.integers(0, flat.size, max(1, flat.size // 200))
    flat[where] = np.iinfo(dtype).max
    flat[where[: where.size // 2]] = 0
    return a


def put(group, name, a, block=0, chunk=None, **more):
    """A dataset of bslz4 chunks, a frame each unless said."""
    chunk = chunk or (1,) * (a.ndim - 2) + a.shape[-2:]
    return group.create_dataset(name, data=a, chunks=chunk, compression=BSLZ4, compression_opts=(block, 2), **more)


def plain(path, a, name="/entry/data/data", **more):
    """One file, one dataset."""
    with h5py.File(path, "w") as f:
        put(f, name, a, **more)
    return Path(path)


def master(folder, a, shards=2, name="scan", ntrigger=None, leave_out=(), **more):
    """A DECTRIS-style master with its shards beside it. leave_out: numbers of shards that are not written."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    edges = np.linspace(0, len(a), shards + 1).astype(int)
    path = folder / f"{name}_master.h5"
    with h5py.File(path, "w") as f:
        data = f.create_group("/entry/data")
        specific = f.create_group("/entry/instrument/detector/detectorSpecific")
        specific["nimages"] = np.uint64(1)
        specific["ntrigger"] = np.uint64(ntrigger or len(a))
        for i in range(shards):
            shard = f"{name}_data_{i + 1:06d}.h5"
            data[f"data_{i + 1:06d}"] = h5py.ExternalLink(shard, "/entry/data/data")
            if i + 1 in leave_out:
                continue
            with h5py.File(folder / shard, "w") as s:
                d = put(s, "/entry/data/data", a[edges[i]:edges[i + 1]], **more)
                d.attrs["image_nr_low"], d.attrs["image_nr_high"] = np.uint32(edges[i] + 1), np.uint32(edges[i + 1])
    return path


def read(path):
    """All frames of a master or of the one 3-D or 4-D dataset of a file, as h5py reads them."""
    with h5py.File(path, "r") as f:
        group = f.get("/entry/data")
        links = sorted(n for n in group if re.fullmatch(r"data_\d+", n)) if group is not None else []
        if links:
            return np.concatenate([group[n][...] for n in links])
        found = []
        f.visititems(lambda _, d: found.append(d) if isinstance(d, h5py.Dataset) and d.ndim in (3, 4) else None)
        assert len(found) == 1, found
        a = found[0][...]
        return a.reshape((-1,) + a.shape[-2:])


def chunk_place(path, index, name="/entry/data/data"):
    """(offset, bytes) of a frame's chunk in the file."""
    with h5py.File(path, "r") as f:
        info = f[name].id.get_chunk_info(index)
        return info.byte_offset, info.size


def overwrite(path, offset, data):
    with open(path, "r+b") as f:
        f.seek(offset)
        f.write(data)
