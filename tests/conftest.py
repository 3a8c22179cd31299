# SPDX-License-Identifier: Apache-2.0
"""The real daemon on a temporary socket, on the host device, for every test of this folder.

FRAMESTOW_BIN      the folder with framestowd, framestow, framestow-reader, framestow-simulate (./build)
FRAMESTOW_DEVICE   what framestowd gets as --device (host)
FRAMESTOW_DATA     a folder of real files to be compared with h5py, where there is one (../shared/data)
FRAMESTOW_SLOW     every time limit is multiplied by it (sanitizers)
"""
import hashlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from protocol_client import field, fields  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("FRAMESTOW_BIN", ROOT / "build")).resolve()
DEVICE = os.environ.get("FRAMESTOW_DEVICE", "host")
DATA = Path(os.environ.get("FRAMESTOW_DATA", ROOT.parent / "shared" / "data"))
SLOW = float(os.environ.get("FRAMESTOW_SLOW", "1"))


def tool(name):
    for folder in (BIN, BIN / "bin", BIN.parent / "libexec" / "framestow"):
        if os.access(folder / name, os.X_OK):
            return str(folder / name)
    pytest.fail(f"{name} is not in {BIN}")


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FRAMESTOW_S", "LISTEN_", "NOTIFY_"))}
    env.update({k: str(v) for k, v in more.items()})
    return env


def call(args, timeout=30, **kwargs):
    """Run to the end: a CompletedProcess with text."""
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, errors="replace",
                          timeout=timeout * SLOW, env=kwargs.pop("env", environment()), **kwargs)


def wait_for(condition, seconds=10, what="condition"):
    """Poll until condition() is true; its value."""
    end = time.monotonic() + seconds * SLOW
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.01)


def no_more(now, before):
    """Nothing is left over: each number, of tuples in tuples too, is at most what it was. Not equal: a connection
    that was about to close may have been counted before."""
    if isinstance(before, tuple):
        return all(no_more(n, b) for n, b in zip(now, before))
    return now <= before


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()


class Daemon:
    """framestowd, started and answering, and the command line that speaks to it."""

    def __init__(self, folder, *args, wait=True, socket_path=None, wrapper=(), env=None, pass_fds=()):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket = str(socket_path or self.folder / "s")
        self.log_path = self.folder / "log"
        self.log_file = open(self.log_path, "ab")
        arguments = [tool("framestowd"), "--device", DEVICE, "--socket", self.socket, "--state-dir",
                     str(self.folder / "state"), *map(str, args)]
        self.process = subprocess.Popen([*map(str, wrapper), *arguments], stdin=subprocess.DEVNULL,
                                        stdout=self.log_file, stderr=self.log_file, env=env or environment(),
                                        pass_fds=pass_fds)
        if wait:
            wait_for(self.answers, 20, f"framestowd answers; log: {self.log()}")

    def answers(self):
        assert self.process.poll() is None, f"framestowd ended with {self.process.returncode}: {self.log()}"
        return self.cli("ls").returncode == 0

    def log(self):
        return self.log_path.read_text(errors="replace")

    def obituary(self):
        """How the daemon ended, if it did and should not have."""
        code = self.process.poll()
        return "" if code is None else f"framestowd ended with {code}: ...{self.log()[-3000:]}"

    def cli(self, *args, timeout=60, **kwargs):
        return call([tool("framestow"), "--socket", self.socket, *args], timeout, **kwargs)

    def json(self, *args, timeout=60):
        res = self.cli("--json", *args, timeout=timeout)
        assert res.returncode == 0, f"{args}: exit {res.returncode}: {res.stderr}{self.obituary()}"
        return json.loads(res.stdout)

    def start_cli(self, *args, **kwargs):
        return subprocess.Popen([tool("framestow"), "--socket", self.socket, *map(str, args)], env=environment(),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs)

    def load(self, path, *args, **kwargs):
        """Load it, as a.h5's a or run_master.h5's run unless a name is given: the object of info."""
        if "--name" not in args and not str(path).endswith("_master.h5"):
            args = ("--name", Path(path).stem, *args)
        return self.json("load", path, *args, **kwargs)

    def digest(self, name, *ids):
        """[sha256, frames, bytes] as `frames --digest` has them."""
        res = self.cli("frames", name, *ids, "--digest")
        assert res.returncode == 0, f"frames {name}: exit {res.returncode}: {res.stderr}{self.obituary()}"
        text, frames, size = res.stdout.split()
        return text, int(frames), int(size)

    def stat(self, name):
        value = self.json("stats")[name]
        return value["value"] if isinstance(value, dict) else value

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def children(self):
        found = []
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            text = Path(f"/proc/{self.process.pid}/task/{task}/children").read_text()
            found += [int(pid) for pid in text.split()]
        return found

    def settled(self):
        """(leases, streams, descriptors) once nobody but the asker is connected."""
        wait_for(lambda: self.stat("sessions") == 1, 10, "sessions end")
        return self.stat("leases"), self.stat("streams"), self.fds()

    def stop(self, signum=signal.SIGTERM, timeout=20):
        if self.process.poll() is None:
            self.process.send_signal(signum)
        code = self.process.wait(timeout * SLOW)
        self.log_file.close()
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log_file.close()


class Raw:
    """A client that says what the test wants said, well or badly formed."""

    def __init__(self, daemon_or_path, hello=True):
        path = getattr(daemon_or_path, "socket", daemon_or_path)
        self.socket, self.id, self.buffer, self.fds, self.events = socket.socket(socket.AF_UNIX), 0, b"", [], []
        self.socket.settimeout(10 * SLOW)
        self.socket.connect(path)
        if hello:
            self.hello = self.ask(2, field(1, 1) + field(2, 1) + field(4, 1))

    def close(self):
        self.socket.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send_bytes(self, data, fds=()):
        socket.send_fds(self.socket, [data], list(fds)) if fds else self.socket.sendall(data)

    def send(self, number, body, fds=()):
        self.id += 1
        message = field(1, self.id) + field(number, body)
        self.send_bytes(struct.pack("<II", len(message), len(fds)) + message, fds)
        return self.id

    def receive(self):
        """(kind, fields of Reply or Event); None at end of file. Descriptors are put by in self.fds."""
        while len(self.buffer) < 8 or len(self.buffer) < 8 + struct.unpack("<I", self.buffer[:4])[0]:
            try:
                data, fds, _, _ = socket.recv_fds(self.socket, 65536, 64)
            except ConnectionResetError:
                return None
            self.fds += fds
            if not data:
                return None
            self.buffer += data
        size = struct.unpack("<I", self.buffer[:4])[0]
        message, self.buffer = self.buffer[8:8 + size], self.buffer[8 + size:]
        (kind, inner), = fields(message).items()
        return kind, fields(inner[0])

    def answer(self, wanted):
        """Fields of the reply to that request: {body's number: fields}; events go to self.events."""
        while True:
            got = self.receive()
            if got is None:
                return None
            if got[0] == 1 and got[1].get(1) == [wanted]:
                return {number: fields(values[0]) for number, values in got[1].items() if number != 1}
            self.events.append(got[1])

    def ask(self, number, body, fds=()):
        return self.answer(self.send(number, body, fds))

    def refused(self, number, body, fds=()):
        """(code, text) of the error that answers."""
        reply = self.ask(number, body, fds)
        assert reply is not None, "the connection was closed"
        assert 2 in reply, f"not refused: {reply}"
        return reply[2][1][0], reply[2].get(2, [b""])[0].decode()

    def event(self, number):
        """Fields of the next event of this kind."""
        while True:
            for i, event in enumerate(self.events):
                if number in event:
                    return fields(self.events.pop(i)[number][0])
            got = self.receive()
            assert got is not None, "the connection was closed"
            self.events.append(got[1])

    def closed(self):
        """The daemon closes this connection."""
        while True:
            got = self.receive()
            if got is None:
                return True

    def stream(self, name, order=0, first=0, count=0, batch=1, slots=2, attach=True):
        reply = self.ask(9, field(1, name) + field(2, order) + field(3, first) + field(4, count) +
                         field(11, batch) + field(12, slots) + field(13, 1))
        assert 8 in reply, f"stream: {reply}"
        return RawStream(self, reply[8], attach)


class RawStream:
    def __init__(self, raw, reply, attach):
        import mmap
        self.raw, self.ring, self.bytes = raw, reply[1][0], reply[3][0]
        self.stride, self.slots, self.frame_bytes = reply[4][0], reply[5][0], reply[7][0]
        fd = raw.fds.pop()
        self.memory = mmap.mmap(fd, self.bytes, mmap.MAP_SHARED)
        os.close(fd)
        self.nonce = self.memory[:16]
        if attach:
            assert 3 in raw.ask(10, field(1, self.ring) + field(2, self.nonce))

    def ready(self):
        """(slot, generation, position, bytes) of the next batch."""
        e = self.raw.event(4)
        slot, at = e.get(2, [0])[0], e.get(2, [0])[0] * self.stride
        return slot, e.get(3, [0])[0], e.get(4, [0])[0], self.memory[at:at + e[9][0]]

    def release(self, slot, generation):
        self.raw.send(12, field(1, self.ring) + field(2, slot) + field(3, generation))


@pytest.fixture
def folder():
    """Short, since a socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="fs-", dir=os.environ.get("FRAMESTOW_TMP", "/tmp")) as path:
        yield Path(path)


@pytest.fixture
def start(folder):
    """start(*args, **kwargs): a daemon of this test's own, killed at its end."""
    started = []

    def start_daemon(*args, **kwargs):
        where = kwargs.pop("folder", folder / f"d{len(started)}")
        started.append(Daemon(where, *args, **kwargs))
        return started[-1]

    yield start_daemon
    for daemon in started:
        daemon.kill()


@pytest.fixture(scope="module")
def daemon():
    """One daemon for all tests of a file that leave it as it was; ends well, with nothing held."""
    with tempfile.TemporaryDirectory(prefix="fs-", dir=os.environ.get("FRAMESTOW_TMP", "/tmp")) as path:
        d = Daemon(path)
        yield d
        try:
            leases, streams, _ = d.settled()
            assert (leases, streams) == (0, 0), "slots or streams are left over"
            assert d.stop() == 0, d.log()
            assert not re.search(r"AddressSanitizer|ThreadSanitizer|runtime error", d.log()), d.log()
        finally:
            d.kill()


@pytest.fixture(scope="session")
def simulated():
    """simulated(*options): (master, truth), made once for the same options. truth: [sha256, frames, bytes]."""
    made = {}
    with tempfile.TemporaryDirectory(prefix="fs-sim-", dir=os.environ.get("FRAMESTOW_TMP", "/tmp")) as path:

        def make(*options):
            if options not in made:
                where = Path(path) / str(len(made))
                res = call([tool("framestow-simulate"), where, "--truth", *options], 120)
                assert res.returncode == 0, res.stderr
                text, frames, size = res.stdout.split()
                made[options] = (next(where.glob("*_master.h5")), (text, int(frames), int(size)))
            return made[options]

        yield make
