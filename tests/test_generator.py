# SPDX-License-Identifier: Apache-2.0
"""Two thousand random files, a quarter of them damaged, against what was written and what h5py reads: no other value, nothing
refused that could be had, no crash, no hang, nothing left over. layouts_check.py runs more by hand, and says all about one."""
import layouts
import numpy as np
import pytest
from conftest import SLOW
from layouts_check import Run

COUNT, PARTS = 2000, 8


@pytest.fixture(scope="module")
def run(daemon, tmp_path_factory):
    run = Run(daemon, tmp_path_factory.mktemp("layouts"))
    yield run
    run.close()


@pytest.mark.parametrize("part", range(PARTS if SLOW == 1 else 1))
def test_random_files(run, part):
    n, before = COUNT // PARTS, len(run.findings)
    for seed in range(part * n, (part + 1) * n):
        run.one(seed)
    assert not run.findings[before:], "\n".join(map(str, run.findings[before:before + 10]))
    if part == 1:
        run.first = run.usage()


def test_nothing_is_left_over(run, daemon):
    if not run.first:
        pytest.skip("too few files to see growth")
    (before, _, _), (memory, fds, children) = run.first, run.usage()
    assert memory < before + (16 << 10), f"{before} KiB after {COUNT // PARTS * 2} files, {memory} after all"
    assert fds < 40 and children <= 1
    assert daemon.json("ls") == []


def test_what_was_drawn(run):
    """The files were of every kind, and most were served; a quarter was damaged."""
    if not run.first:
        pytest.skip("too few files")
    for tag in ("shards", "virtual", "external", "compact", "contiguous", "big-endian", "user block", "latest", "resized",
                "unwritten chunks", "skipped filters", "never written", "no frames", "hole", "source missing", "2-D", "3-D", "4-D", "5-D",
                *{t.lstrip("<>") for t in layouts.TYPES}, *{"+".join(p) or "no filter" for p in layouts.PIPELINES}):
        assert run.tags[tag] >= 3, f"{tag}: {run.tags[tag]}"
    assert run.tally["equal"] > COUNT * 0.5, run.tally
    for verdict in ("damaged: refused", "damaged: equal", "damaged: bad frames"):
        assert run.tally[verdict] > COUNT * 0.01, run.tally


def test_the_same_seed_is_the_same_file(tmp_path):
    for i in range(2):
        (tmp_path / str(i)).mkdir()
    one, two = (layouts.make(tmp_path / str(i), 7, False) for i in range(2))
    assert one.tags == two.tags and np.array_equal(one.want, two.want, equal_nan=one.want.dtype.kind == "f")
