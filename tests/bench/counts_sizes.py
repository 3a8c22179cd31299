#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Bits a pixel of the counts form beside other ways to keep the same frames, as a Markdown table.

    tests/bench/counts_sizes.py COUNTS_SIZES [--frames N] [FILE.h5 ...]

COUNTS_SIZES is the bench that was built. Without files: simulated thin and thick samples at many doses (mean counts a
pixel), their first frames (so that one segment is not whole). bslz4 and zstd (level 3) are chunks of one frame, as in
a file. "One table" is the order-0 entropy of all pixels together. For simulated frames "known" is the entropy when
every pixel's mean is known in each frame, "pixel" when one distribution serves each pixel in all frames; for files
"pixel" is from the frames' own histograms, and too low where frames are few."""
import argparse
import ctypes
import json
import subprocess
import tempfile
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np

SAMPLES = ("thin", "thick")
DOSES = (.1, .5, 1.1, 1.5, 5, 24, 40, 100, 1000, 5000)
ZSTD_LEVEL = 3


def entropy(counts):
    counts = counts[counts > 0].astype(float)
    return float(np.log2(counts.sum()) - (counts * np.log2(counts)).sum() / counts.sum())


def histogram(values):
    return np.unique(values, return_counts=True)[1]


def bslz4_bits(frames):
    with tempfile.TemporaryDirectory() as folder, h5py.File(f"{folder}/a.h5", "w") as file:
        data = file.create_dataset("a", data=frames, chunks=(1, *frames.shape[1:]), **hdf5plugin.Bitshuffle())
        return 8 * data.id.get_storage_size() / frames.size


def zstd_bits(frames):
    zstd = ctypes.CDLL("libzstd.so.1")
    zstd.ZSTD_compress.restype = ctypes.c_size_t
    zstd.ZSTD_compress.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
    room = ctypes.create_string_buffer(2 * frames[0].nbytes + 1024)
    total = 0
    for frame in frames:
        pixels = frame.tobytes()
        total += zstd.ZSTD_compress(room, len(room), pixels, len(pixels), ZSTD_LEVEL)
    return 8 * total / frames.size


def row(name, bench, path, frames, bounds):
    made = json.loads(subprocess.run([bench, path, str(frames.dtype.itemsize), str(frames[0].size)], check=True,
                                     stdout=subprocess.PIPE).stdout)
    others = [bslz4_bits(frames[:128]), zstd_bits(frames[:128])]
    bits, known, pixel = made["bits"], bounds.get("known"), bounds["pixel"]
    over = f"{100 * (bits / pixel - 1):.1f} %" if pixel else ""
    cells = [name, f"{bits:.4f}", f"{made['packed_bits']:.4f}", *(f"{b:.3f}" for b in others),
             f"{entropy(histogram(frames)):.3f}", f"{known:.4f}" if known else "", f"{pixel:.4f}", over,
             f"{100 * (bits / known - 1):.1f} %" if known else "", f"{made['pixels_a_symbol']:.2f}",
             f"{made['patches_a_pixel']:.5f}", str(made["raw_frames"])]
    print("| " + " | ".join(cells) + " |", flush=True)


def simulated(bench, folder, n_frames):
    for sample in SAMPLES:
        for dose in DOSES:
            path = f"{folder}/frames.bin"
            bounds = json.loads(subprocess.run([bench, "--make", path, sample, str(dose), str(n_frames)], check=True,
                                               stdout=subprocess.PIPE).stdout)
            frames = np.fromfile(path, "<u2").reshape(-1, 192, 192)
            row(f"{sample} {dose}", bench, path, frames, bounds)


def datasets(path):
    found = []

    def look(name, item):
        if isinstance(item, h5py.Dataset) and item.ndim >= 3 and item.dtype.kind == "u" and item.dtype.itemsize <= 4:
            found.append(name)
    with h5py.File(path) as file:
        file.visititems(look)
    return found


def of_file(bench, folder, path):
    for name in datasets(path):
        with h5py.File(path) as file:
            frames = file[name][()]
        frames = frames.reshape(-1, *frames.shape[-2:])
        frames.tofile(f"{folder}/frames.bin")
        pixels = frames.reshape(len(frames), -1)[:, ::max(1, frames[0].size // 2000)]
        pixel = float(np.mean([entropy(histogram(pixels[:, i])) for i in range(pixels.shape[1])]))
        row(f"{Path(path).name}:{name} {frames.dtype.str[1:]} {frames.shape}", bench, f"{folder}/frames.bin", frames,
            {"pixel": pixel})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench")
    parser.add_argument("--frames", type=int, default=1024)
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    heads = ["frames", "counts", "packed models", "bslz4", "zstd", "one table", "known", "pixel", "over pixel", "over known",
             "pixels a symbol", "patches a pixel", "frames not smaller"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    with tempfile.TemporaryDirectory() as folder:
        if not args.files:
            simulated(args.bench, folder, args.frames)
        for path in args.files:
            of_file(args.bench, folder, path)


if __name__ == "__main__":
    main()
