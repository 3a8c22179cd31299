#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Random acquisitions through one daemon, each held against h5py.

layouts_check.py [--count N] [--seed FIRST] [--one SEED] [--keep FOLDER]

by hand, with FRAMESTOW_BIN as for the tests: 200,000 files in some hours. --one SEED says all there is to say about one file
(and leaves it in the folder of --keep).
"""
import argparse
import collections
import errno
import faulthandler
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import h5py
import layouts
import numpy as np
from conftest import Daemon, Raw, field, fields

# Refusals of undamaged files that are right: what the sentence says, of which files.
ALLOWED = [
    (r"lies in raw files of which one ends within a row of pixels", "a raw file ends within a row"),
    (r"has no frames|of the shape \(0, |has the shape \(0, ", "no frames"),
]


# ---- h5py's word, from a process of its own: a damaged file may crash the library or hang it ------------

def read_frames(d):
    """[frame or None] of a dataset, None where it cannot be read, and its frame's shape and type."""
    lead, (y, x) = d.shape[:-2], d.shape[-2:]
    n = int(np.prod(lead, dtype=object))
    if n * y * x > 1 << 22:
        raise ValueError("too large to look at")
    dtype = d.dtype.newbyteorder("=")
    try:
        whole = d[...].reshape((n, y, x)).astype(dtype)
        return [f.tobytes() for f in whole], (y, x), dtype.str[1:]
    except OSError:
        pass
    out = []
    for at in np.ndindex(*lead):
        try:
            out.append(d[at].astype(dtype).tobytes())
        except OSError:
            out.append(None)
    return out, (y, x), dtype.str[1:]


def read_dataset(path, name):
    try:
        with h5py.File(path, "r") as f:
            d = f[name]
            if not isinstance(d, h5py.Dataset) or d.dtype.kind not in "uif" or d.ndim < 2:
                return "not frames"
            return read_frames(d)
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def read_case(folder, master, dataset, sources):
    """What h5py says: a list for each shard; and the sources of a virtual dataset that cannot be opened."""
    os.chdir(folder)
    parts, gone = [], []
    if dataset:
        parts = [read_dataset(master, dataset)]
    else:
        try:
            with h5py.File(master, "r") as f:
                names = sorted(n for n in f["/entry/data"] if isinstance(n, str) and re.fullmatch(r"data_\d+", n))
                links = [f["/entry/data"].get(n, getlink=True) for n in names]
                links = [(link.filename, link.path) for link in links]
            parts = [read_dataset(file, path) for file, path in links]
        except Exception as e:
            parts = [f"{type(e).__name__}: {e}"]
    for i, (file, name) in enumerate(sources):
        got = read_dataset(master if file == "." else file, name)
        if isinstance(got, str):
            gone.append(i)
    os.chdir("/")
    return parts, gone


def oracle_main(pipe):
    faulthandler.disable()  # a crash is looked for here
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # filters print what they find
    while True:
        ask = pipe.recv()
        pipe.send(read_case(*ask))


class Oracle:
    """read_case in a child that may die of it."""

    def __init__(self):
        self.process = None

    def start(self):
        self.pipe, end = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=oracle_main, args=(end,), daemon=True)
        self.process.start()
        end.close()

    def read(self, case, folder):
        """None: h5py crashed or hung."""
        if not self.process:
            self.start()
        try:
            self.pipe.send((str(folder), case.master.name, case.dataset, [s[:2] for s in case.sources]))
            if self.pipe.poll(20):
                return self.pipe.recv()
        except (EOFError, OSError):
            pass
        self.stop()
        return None

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None


# ---- the daemon's word ----------------------------------------------------------------------------------

class Served:
    def __init__(self, acquisition, status, frames):
        self.dtype = acquisition[5][0].decode()
        self.n = acquisition.get(6, [0])[0]
        self.detector = acquisition[11][0], acquisition[12][0]
        self.warnings = [w.decode(errors="replace") for w in acquisition.get(22, [])]
        self.status, self.frames = status, frames


def varints(data):
    out, n, shift = [], 0, 0
    for byte in data:
        n, shift = n | (byte & 127) << shift, shift + 7
        if byte < 128:
            out.append(n)
            n = shift = 0
    return out


class Client(Raw):
    def error(self, message):
        e = fields(message)
        return e[1][0], e.get(2, [b""])[0].decode(errors="replace")

    def give(self, load, folder, need):
        for raw in need.get(2, []):
            needed = fields(raw)
            name = os.fsdecode(needed.get(2, [b""])[0])
            path, fds = folder / name, []
            entry = field(1, needed.get(1, [0])[0])
            try:
                fds = [os.open(path, os.O_RDONLY)]
            except OSError as e:
                entry += field(2, e.errno or errno.ENOENT)
            reply = self.ask(4, field(1, load) + field(2, entry + field(3, os.fsencode(path))), fds)
            for fd in fds:
                os.close(fd)
            assert 3 in reply, reply

    def load(self, case, name):
        """Fields of the Acquisition, or (code, text)."""
        with open(case.master, "rb") as f:
            reply = self.ask(3, field(1, name) + field(2, os.fsencode(case.master)) + field(3, case.dataset) +
                             field(8, int(case.allow_gaps)), [f.fileno()])
        if 2 in reply:
            e = reply[2]
            return e[1][0], e.get(2, [b""])[0].decode(errors="replace")
        load = reply[5][1][0]
        while True:
            event = self.events.pop(0) if self.events else None
            if event is None:
                got = self.receive()
                assert got and got[0] == 2, f"the daemon: {got}"
                event = got[1]
            if 1 in event:
                self.give(load, case.master.parent, fields(event[1][0]))
            elif 3 in event:
                loaded = fields(event[3][0])
                return self.error(loaded[2][0]) if 2 in loaded else fields(loaded[3][0])

    def frames(self, name, n):
        """([status], [bytes]) of all frames."""
        stream = self.stream(name, batch=min(n, 4096), slots=2)
        status, out = [], []
        while len(out) < n:
            e = self.event(4)
            count, slot = e[5][0], e.get(2, [0])[0]
            at = slot * stream.stride
            codes = varints(e[8][0]) if 8 in e else [0] * count
            out += [stream.memory[at + i * stream.frame_bytes:at + (i + 1) * stream.frame_bytes] for i in range(count)]
            status += codes
            stream.release(slot, e.get(3, [0])[0])
        self.ask(13, field(1, stream.ring))
        stream.memory.close()
        self.ask(14, field(1, stream.ring))
        self.events.clear()
        return status, out

    def serve(self, case, name="x"):
        got = self.load(case, name)
        if isinstance(got, tuple):
            return got
        n = got.get(6, [0])[0]
        served = Served(got, *self.frames(name, n))
        self.ask(8, field(1, name))
        return served


# ---- judging --------------------------------------------------------------------------------------------

def judge_whole(case, served):
    """An undamaged file: exactly what was drawn, or a refusal that is listed."""
    if isinstance(served, tuple):
        if case.lost and served[0] == 13 and (not case.allow_gaps or case.none_there):
            return "refused, frames missing", ""
        for pattern, why in ALLOWED:
            if re.search(pattern, served[1]):
                return f"refused: {why}", ""
        return "REFUSED", served[1]
    want = case.want
    if (served.n, *served.detector, served.dtype) != (*want.shape, want.dtype.str[1:]):
        return "MISMATCH", f"{served.n} frames of {served.detector} {served.dtype}, expected {want.shape} {want.dtype}"
    for i in range(served.n):
        if i in case.lost:
            if not served.status[i]:
                return "MISMATCH", f"frame {i} is served, and its file is missing"
        elif served.status[i]:
            return "BAD", f"frame {i} is bad ({served.status[i]}): {served.warnings}"
        elif served.frames[i] != want[i].tobytes():
            return "MISMATCH", f"frame {i} differs"
    return "equal", ""


def as_written(frame, read, want):
    """Each pixel is what was written, or what h5py reads."""
    kind = np.dtype(f"V{want.itemsize}")
    if len(frame) != want.nbytes:
        return False
    got, good = np.frombuffer(frame, kind), np.frombuffer(want.tobytes(), kind)
    other = np.frombuffer(read, kind) if read and len(read) == len(frame) else good
    return bool(((got == good) | (got == other)).all())


def judge_damaged(case, served, said):
    """Refused, bad, or what h5py reads; and nothing that h5py made up for a source that it could not open. What was written before
    the damage is right too: a library that looks a chunk up through a damaged key gives the fill value, and says nothing."""
    if isinstance(served, tuple):
        return "damaged: refused", ""
    if said is None:
        return "damaged: served, h5py crashed", ""
    parts, gone = said
    lost, at = set(case.lost), 0
    for i in gone:
        lost |= case.sources[i][2]
    frames = {}
    for k, part in enumerate(parts):
        if isinstance(part, str):
            at += case.sizes[k] if k < len(case.sizes) else 0
            continue
        if (part[1], part[2]) != (served.detector, served.dtype):
            return "MISMATCH", f"{served.detector} {served.dtype}, h5py {part[1:]}"
        frames.update(enumerate(part[0], at))
        at += len(part[0])
    n_bad = n_written = 0
    for i in range(served.n):
        if served.status[i]:
            n_bad += 1
        elif i in lost:
            return "MISMATCH", f"frame {i} is served, and a file of it cannot be had"
        elif frames.get(i) == served.frames[i]:
            continue
        elif i < len(case.want) and as_written(served.frames[i], frames.get(i), case.want[i]):
            n_written += 1
        elif frames.get(i) is None:
            return "LENIENT", f"frame {i} is served, and h5py cannot read it: {[p for p in parts if isinstance(p, str)]}"
        else:
            return "MISMATCH", f"frame {i} is not what h5py reads"
    return ("damaged: bad frames" if n_bad else "damaged: as written" if n_written else "damaged: equal"), ""


class Run:
    """One daemon, many files."""

    def __init__(self, daemon, folder):
        self.daemon, self.folder, self.oracle = daemon, Path(folder), Oracle()
        self.client = Client(daemon)
        self.tally, self.findings, self.tags = collections.Counter(), [], collections.Counter()
        self.first = None

    def close(self):
        self.oracle.stop()
        self.client.close()

    def usage(self):
        """(KiB of memory, descriptors, children) of the daemon."""
        text = Path(f"/proc/{self.daemon.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]), self.daemon.fds(), len(self.daemon.children())

    def one(self, seed, damaged=None):
        where = self.folder / str(seed)
        where.mkdir()
        case = None
        try:
            case = layouts.make(where, seed, damaged)
            served = self.client.serve(case)
            if case.damage:
                need = not isinstance(served, tuple)
                verdict, why = judge_damaged(case, served, self.oracle.read(case, where) if need else None)
            else:
                verdict, why = judge_whole(case, served)
        except (TimeoutError, AssertionError, OSError) as e:
            verdict, why = "LOST", repr(e)
            assert self.daemon.process.poll() is None, f"{case}: {self.daemon.obituary()}"
            self.client.close()
            self.client = Client(self.daemon)
        finally:
            shutil.rmtree(where)
        self.tally[verdict] += 1
        self.tags.update(case.tags if case else ())
        if verdict[0].isupper() and verdict.split(":")[0].isupper():
            self.findings.append((verdict, why, repr(case)))
        return verdict, why, case

    def many(self, first, count):
        for seed in range(first, first + count):
            self.one(seed)
            if seed == first + min(count // 4, 500):
                self.first = self.usage()
        return self.findings


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", type=int)
    parser.add_argument("--damaged", choices=("yes", "no"), help="instead of one in four")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    damaged = {"yes": True, "no": False, None: None}[options.damaged]
    if options.keep:
        options.keep.mkdir(parents=True)
        print(layouts.make(options.keep, options.one, damaged))
    with tempfile.TemporaryDirectory(prefix="fs-gen-", dir=os.environ.get("FRAMESTOW_TMP", "/dev/shm")) as path:
        daemon = Daemon(Path(path) / "d", "--log-level", "error")
        run, begun, shown = Run(daemon, path), time.monotonic(), 0
        seeds = [options.one] if options.one is not None else range(options.seed, options.seed + options.count)
        try:
            for done, seed in enumerate(seeds, 1):
                verdict, why, case = run.one(seed, damaged)
                if options.one is not None:
                    print(verdict, why, case, sep="\n")
                for found in run.findings[shown:]:
                    print(*found, sep="\n   ", flush=True)
                shown = len(run.findings)
                if done == min(1000, len(seeds)):
                    run.first = run.usage()
                if done % 1000 == 0 or done == len(seeds):
                    print(f"{done} files, {time.monotonic() - begun:.0f} s, daemon {run.usage()} (after 1000: {run.first})",
                          dict(run.tally), flush=True)
        finally:
            run.close()
            code = daemon.stop()
    if code or run.findings:
        sys.exit(f"daemon ended with {code}, {len(run.findings)} findings")


if __name__ == "__main__":
    main()
