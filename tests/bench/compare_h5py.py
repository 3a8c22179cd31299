#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The demo acquisition by framestow on the host device, against h5py with hdf5plugin and numpy reading the same
files on the same cores; in turn, several rounds, the first of them not counted.

    compare_h5py.py --bin BUILD [--rounds N] [--scan YxX] [--json FILE]

read      load --form bslz4 and frames: both sides decode every frame once
digest    the same, and both hash every byte
encode    load and frames as they are by default: framestow also encodes, which pays from the second look on
gzip      the same counts behind shuffle and gzip (level 4), a frame a chunk: load --form raw and frames
contiguous  the same counts in one piece, without a filter: load --form raw and frames
gzip encode, contiguous encode  these by default
again     frames of what is resident already
sum       a virtual image (an annulus) of what is resident already; numpy reads the files and adds up
in memory the same, but numpy has all frames decoded in memory
mean      the sum of each pixel over all frames, which framestow kept when it loaded; numpy reads and adds up
Behind each of framestow's rows: how many cores its daemon had busy during those commands, their starts included.
framestow's time is that of whole commands, process starts included; h5py's begins after its imports and ends with
the result in memory. Results are compared. Exits 1 when framestow's median is not the smaller one in any row but
"in memory", or a result differs.
"""
import argparse
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READ = """
import hashlib, sys, time
import h5py, hdf5plugin
import numpy as np
what = sys.argv[2]
begin = time.monotonic()
with h5py.File(sys.argv[1], "r") as f:
    arrays = [f["/entry/data"][n][...] for n in sorted(f["/entry/data"])]
if what == "in memory":
    begin = time.monotonic()
text = "-"
if what == "digest":
    h = hashlib.sha256()
    for a in arrays:
        h.update(a)
    text = h.hexdigest()
elif what in ("sum", "in memory"):
    y, x = np.ogrid[:192, :192]
    r = np.hypot(y - 95.5, x - 95.5)
    # One pixel at a time of those in the annulus would be slower; so is a product with 64-bit weights.
    mask = ((r >= 20) & (r < 50)).ravel()
    image = np.concatenate([a.reshape(len(a), -1)[:, mask].sum(axis=1, dtype=np.uint64) for a in arrays])
    text = str(int(image.sum())) + ":" + hashlib.sha256(image.tobytes()).hexdigest()
elif what == "mean":
    image = sum(a.sum(axis=0, dtype=np.uint64) for a in arrays)
    text = str(int(image.sum())) + ":" + hashlib.sha256(image.tobytes()).hexdigest()
print(time.monotonic() - begin, text)
"""


# The same counts in one file each, one dataset.
WRITE = """
import sys
import h5py, hdf5plugin
import numpy as np
with h5py.File(sys.argv[1], "r") as f:
    a = np.concatenate([f["/entry/data"][n][...] for n in sorted(f["/entry/data"])])
with h5py.File(sys.argv[2] + "/gzip.h5", "w") as f:
    f.create_dataset("/entry/data/data", data=a, chunks=(1,) + a.shape[1:], compression="gzip", shuffle=True)
with h5py.File(sys.argv[2] + "/contiguous.h5", "w") as f:
    f.create_dataset("/entry/data/data", data=a)
"""


def run(*args):
    res = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    if res.returncode:
        sys.exit(f"{args[0]}: exit {res.returncode}: {res.stderr.strip()}")
    return res.stdout


def by_h5py(master, what):
    seconds, text = run(sys.executable, "-c", READ, master, what).split()
    return float(seconds), text


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def by_framestow(cli, master, what, folder, pid):
    """Seconds of the commands that count, what they said of the result, and the daemon's CPU seconds."""
    image_of = {"sum": ("sum", "demo", "--annulus", "20,50"), "mean": ("mean", "demo", "--sum")}
    image_of["in memory"] = image_of["sum"]
    resident = what == "again" or what in image_of
    form = {"read": ("--form", "bslz4"), "digest": ("--form", "bslz4"), "gzip": ("--form", "raw"),
            "contiguous": ("--form", "raw")}.get(what, ())
    if resident:
        run(*cli, "load", master, "--name", "demo")
    begin, cpu = time.monotonic(), cpu_seconds(pid)
    if not resident:
        run(*cli, "load", master, "--name", "demo", *form)
    if what in image_of:
        image = Path(folder) / "image.npy"
        run(*cli, *image_of[what], "--flagged", "--out", image)
    else:
        out = run(*cli, "frames", "demo", *(["--digest"] if what == "digest" else []))
    seconds, cpu = time.monotonic() - begin, cpu_seconds(pid) - cpu
    run(*cli, "unload", "demo")
    if what in image_of:
        values = image.read_bytes()
        values = values[10 + int.from_bytes(values[8:10], "little"):]
        total = sum(memoryview(values).cast("Q"))
        return seconds, f"{total}:{hashlib.sha256(values).hexdigest()}", cpu
    return seconds, out.split()[0] if what == "digest" else "-", cpu


def spread(values):
    return f"{statistics.median(values):8.3f} {min(values):8.3f} {max(values):8.3f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scan", default="64x64")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result, worse = {"cores": len(os.sched_getaffinity(0)), "scan": options.scan, "rounds": options.rounds}, False
    with tempfile.TemporaryDirectory(prefix="fs-compare-") as folder:
        run(options.bin / "framestow-simulate", folder, "--scan", options.scan, "--shards", 4)
        master, socket = Path(folder) / "sim_master.h5", Path(folder) / "s"
        log = open(Path(folder) / "log", "wb")
        daemon = subprocess.Popen([options.bin / "framestowd", "--device", "host", "--socket", socket, "--state-dir",
                                   Path(folder) / "state"], stderr=log)
        cli = (options.bin / "framestow", "--socket", socket)
        try:
            while subprocess.run([*cli, "ls"], capture_output=True).returncode:
                if daemon.poll() is not None:
                    sys.exit((Path(folder) / "log").read_text())
                time.sleep(0.05)
            print(f"{result['cores']} cores, scan {options.scan} of 192x192 u2, seconds: median, least, most of "
                  f"{options.rounds} rounds")
            run(sys.executable, "-c", WRITE, master, folder)
            for what in ("read", "digest", "encode", "gzip", "gzip encode", "contiguous", "contiguous encode", "again", "sum",
                         "in memory", "mean"):
                ours, theirs, cpu = [], [], 0
                layout = what.split()[0]
                path = Path(folder) / f"{layout}.h5" if layout in ("gzip", "contiguous") else master
                for counted in range(options.rounds + 1):
                    a = by_framestow(cli, path, what, folder, daemon.pid)
                    b = by_h5py(path, what)
                    if a[1] != b[1]:
                        sys.exit(f"{what}: results differ: {a[1]} {b[1]}")
                    if counted:
                        ours.append(a[0]), theirs.append(b[0])
                        cpu += a[2]
                ratio = statistics.median(theirs) / statistics.median(ours)
                worse |= ratio <= 1 and what != "in memory"
                busy = cpu / sum(ours)
                result[what] = {"framestow_s": ours, "h5py_s": theirs, "ratio": ratio, "cores_busy": busy}
                print(f"{what:17} framestow                  {spread(ours)}   {busy:.2f} cores busy")
                print(f"{what:17} h5py + hdf5plugin (+ numpy) {spread(theirs)}   {ratio:.2f} times framestow's",
                      flush=True)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)
    if options.json:
        options.json.write_text(json.dumps(result) + "\n")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
