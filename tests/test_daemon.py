# SPDX-License-Identifier: Apache-2.0
"""The daemon's manners: how it starts, how it ends, and what it owes to those who are left."""
import errno
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import make_h5
from conftest import BIN, DEVICE, SLOW, Raw, call, environment, field, fields, no_more, sha256, tool, wait_for


def test_start_and_stop(start):
    d = start()
    assert stat.S_ISSOCK(os.stat(d.socket).st_mode) and os.stat(d.socket).st_mode & 0o777 == 0o660
    assert d.stop() == 0, d.log()
    assert not os.path.exists(d.socket)


def test_second_daemon_on_one_socket(start):
    d = start()
    res = call([tool("framestowd"), "--device", DEVICE, "--socket", d.socket, "--state-dir", d.folder / "other"])
    assert res.returncode not in (0, 2) and str(d.process.pid) in res.stderr and "running" in res.stderr, res
    assert d.cli("ls").returncode == 0


def test_a_killed_daemon_can_be_started_again_at_once(start, folder):
    d = start(folder=folder / "d")
    d.kill()
    assert os.path.exists(d.socket)
    begin = time.monotonic()
    start(folder=folder / "d")
    assert time.monotonic() - begin < 5 * SLOW


def test_a_path_that_is_no_socket_is_left_alone(folder):
    (folder / "s").write_text("precious")
    res = call([tool("framestowd"), "--device", DEVICE, "--socket", folder / "s", "--state-dir", folder / "state"])
    assert res.returncode not in (0,) and str(folder / "s") in res.stderr
    assert (folder / "s").read_text() == "precious"
    assert os.listdir(folder) == ["s"], "nor is anything made beside it"
    res = call([tool("framestowd"), "--device", DEVICE, "--socket", "", "--state-dir", folder / "state"], cwd=folder)
    assert res.returncode == 2 and "--socket" in res.stderr and os.listdir(folder) == ["s"], res


def test_folder_of_the_socket_is_missing(folder):
    res = call([tool("framestowd"), "--device", DEVICE, "--socket", folder / "no" / "s", "--state-dir",
                folder / "state"])
    assert res.returncode != 0 and res.stderr


def test_auto_without_a_gpu(start):
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a GPU here")
    for bus in Path("/sys/bus/pci/devices").glob("*/vendor"):
        if bus.read_text().strip() == "0x10de":
            pytest.skip("there is an NVIDIA device without a driver here")
    d = start("--device", "auto")
    d.load(make_h5.plain(d.folder / "a.h5", make_h5.counts(2, 8, 8)))
    assert d.json("info", "a")["device"] == "host" if "device" in d.json("info", "a") else True
    res = call([tool("framestowd"), "--device", "cuda:0", "--socket", d.folder / "t", "--state-dir", d.folder / "u"])
    assert res.returncode not in (0,) and res.stderr and not os.path.exists(d.folder / "t"), res


class Notify:
    """Stands in for systemd's notification socket."""

    def __init__(self, path):
        self.socket, self.path, self.lines = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), str(path), []
        self.socket.bind(self.path)
        self.socket.settimeout(0.02)

    def has(self, line):
        try:
            self.lines += self.socket.recv(4096).decode().splitlines()
        except socket.timeout:
            pass
        return line in self.lines


def test_sd_notify(start, folder):
    notify = Notify(folder / "n")
    d = start(env=environment(NOTIFY_SOCKET=notify.path))
    wait_for(lambda: notify.has("READY=1"), 5, "READY=1")
    assert "STOPPING=1" not in notify.lines
    d.process.send_signal(signal.SIGTERM)
    wait_for(lambda: notify.has("STOPPING=1"), 5, "STOPPING=1")
    assert d.stop() == 0, d.log()


ACTIVATE = "import os, sys; os.dup2(int(sys.argv[1]), 3, inheritable=True); os.environ['LISTEN_PID'] = " \
           "str(os.getpid()); os.environ['LISTEN_FDS'] = '1'; os.execv(sys.argv[2], sys.argv[2:])"


def test_socket_activation(start, folder):
    """A socket from systemd is adopted, answers what was queued before, and is left in place at the end."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "given"))
    listener.listen(8)
    d = start(wrapper=[sys.executable, "-c", ACTIVATE, listener.fileno()], pass_fds=[listener.fileno()],
              socket_path=folder / "given")
    assert d.cli("ls").returncode == 0
    assert d.stop() == 0, d.log()
    assert os.path.exists(folder / "given")


def test_sigterm_drains(start, folder):
    """No new batch after GOODBYE; what is held stays readable until the connection ends; exit 0."""
    a = make_h5.counts(20, 16, 20)
    d = start()
    d.load(make_h5.plain(folder / "a.h5", a))
    with Raw(d) as raw:
        stream = raw.stream("a", batch=1, slots=2)
        held = [stream.ready(), stream.ready()]
        d.process.send_signal(signal.SIGTERM)
        raw.event(6)  # Goodbye
        for slot, generation, position, _ in held:
            at = slot * stream.stride
            assert stream.memory[at:at + stream.frame_bytes] == a[position].tobytes()
            stream.release(slot, generation)
        d.process.wait(20 * SLOW)
        assert not [e for e in raw.events if 4 in e]
        assert stream.memory[at:at + stream.frame_bytes] == a[position].tobytes()
    assert d.process.returncode == 0, d.log()


def test_sigterm_while_loading(start, simulated):
    path, _ = simulated("--scan", "40x40", "--shards", "2")
    d = start()
    loading = d.start_cli("load", path)
    time.sleep(0.05)
    assert d.stop() == 0, d.log()
    out, err = loading.communicate(timeout=20 * SLOW)
    assert loading.returncode == 0 or err, (loading.returncode, out, err)
    assert loading.returncode in (0, 3), (loading.returncode, err)


def test_sigterm_says_so_to_who_loads(start, folder):
    path = make_h5.master(folder, make_h5.counts(6, 8, 8))
    d = start()
    with Raw(d) as raw:
        fd = os.open(path, os.O_RDONLY)
        raw.ask(3, field(1, "a") + field(2, str(path)), [fd])
        os.close(fd)
        raw.event(1)  # it waits for the shards
        d.process.send_signal(signal.SIGTERM)
        assert fields(raw.event(3)[2][0])[1] == [25]  # SHUTDOWN
        raw.event(6)
    assert d.stop() == 0, d.log()


def test_killed_consumer(start, simulated):
    """SIGKILL in the middle of a stream: slots, rings and descriptors come back; others notice nothing."""
    path, truth = simulated("--scan", "30x30", "--shards", "2")
    d = start()
    d.load(path, "--name", "a")
    assert d.digest("a") == truth
    before = d.settled(), d.stat("used_bytes")
    other = d.start_cli("frames", "a", "--digest")
    for _ in range(5):
        victim = subprocess.Popen([sys.executable, "-c", VICTIM, str(Path(__file__).parent), d.socket],
                                  stdout=subprocess.PIPE)
        assert victim.stdout.read(2) == b"ok"
        assert d.stat("leases") >= 2
        victim.kill()
        victim.wait()
    out, err = other.communicate(timeout=60 * SLOW)
    assert other.returncode == 0 and out.split()[0] == truth[0], err
    wait_for(lambda: no_more((d.settled(), d.stat("used_bytes")), before), 10, f"all as before {before}")
    assert before[0][0] == 0
    assert d.digest("a") == truth


VICTIM = """
import sys, time
sys.path.insert(0, sys.argv[1])
from conftest import Raw
raw = Raw(sys.argv[2])
stream = raw.stream("a", batch=4, slots=2)
stream.ready(), stream.ready()
sys.stdout.write("ok")
sys.stdout.flush()
time.sleep(60)
"""


def test_stopped_consumer_pauses_only_itself(start, simulated):
    path, truth = simulated("--scan", "30x30", "--shards", "2")
    d = start()
    d.load(path, "--name", "a")
    sleeper = subprocess.Popen([sys.executable, "-c", VICTIM, str(Path(__file__).parent), d.socket],
                               stdout=subprocess.PIPE)
    assert sleeper.stdout.read(2) == b"ok"
    sleeper.send_signal(signal.SIGSTOP)
    try:
        for _ in range(3):
            assert d.digest("a") == truth
        assert d.stat("leases") == 2
    finally:
        sleeper.kill()
        sleeper.wait()


def test_killed_daemon_is_exit_3(start, simulated):
    path, _ = simulated("--scan", "40x40", "--shards", "2")
    d = start()
    d.load(path, "--name", "a")
    consumer = d.start_cli("frames", "a", ",".join(["0-1599"] * 40))
    wait_for(lambda: d.stat("frames_total") > 0, 10, "frames flow")
    d.kill()
    out, err = consumer.communicate(timeout=20 * SLOW)
    assert consumer.returncode == 3 and err, (consumer.returncode, out, err)


def test_two_clients_share_one_load(start, simulated):
    path, truth = simulated("--scan", "40x40", "--shards", "2")
    d = start()
    loads = [d.start_cli("load", path, "--name", "a") for _ in range(3)]
    for p in loads:
        _, err = p.communicate(timeout=60 * SLOW)
        assert p.returncode == 0, err
    assert d.stat("residents") == 1
    info = d.json("info", "a")
    assert d.stat("loaded_bytes_total") <= 1.5 * info["bytes"]["source"]
    assert d.digest("a") == truth


def test_load_anew_what_another_gives_up(start, folder):
    """While a load is being cancelled its name is free for the next one of the same source."""
    a = make_h5.counts(6000, 64, 64)
    path = make_h5.plain(folder / "again.h5", a)
    d = start()
    for _ in range(10):
        with Raw(d) as first, Raw(d) as second, open(path, "rb") as f:
            body = field(1, "again") + field(2, str(path))
            load = first.ask(3, body, [f.fileno()])[5][1][0]
            wait_for(lambda: 7 in first.ask(7, field(1, "again")), 10, "the name is there")
            first.send(5, field(1, load))
            reply = second.ask(3, body, [f.fileno()])
            assert 5 in reply, reply
            loaded = second.event(3)
            assert 3 in loaded, fields(loaded[2][0])
        assert d.digest("again")[0] == sha256(a)
        assert d.cli("unload", "again").returncode == 0


def test_streams_while_loading(start, simulated):
    """Frames are served while the rest is still on its way; all of them are right."""
    path, truth = simulated("--scan", "40x40", "--shards", "2")
    d = start()
    loading = d.start_cli("load", path, "--name", "a")
    wait_for(lambda: d.cli("info", "a").returncode == 0 or loading.poll() is not None, 20, "the name appears")
    digests = [d.cli("frames", "a", "0", "--digest") for _ in range(3)]
    assert loading.wait(60 * SLOW) == 0
    first = d.digest("a", "0")
    for res in digests:
        assert res.returncode != 0 or res.stdout.split()[0] == first[0]
    assert d.digest("a") == truth


def test_interrupted_load_leaves_nothing(start, simulated):
    path, truth = simulated("--scan", "40x40", "--shards", "2")
    d = start()
    before = d.settled(), d.stat("used_bytes")
    for signum in (signal.SIGINT, signal.SIGKILL):
        for pause in (0.01, 0.05, 0.1):
            loading = d.start_cli("load", path, "--name", "a")
            time.sleep(pause)
            loading.send_signal(signum)
            loading.communicate(timeout=20 * SLOW)
            d.cli("unload", "a")  # it may have been done by then
            wait_for(lambda: not d.children(), 10, "the reader ends")
    wait_for(lambda: no_more((d.settled(), d.stat("used_bytes")), before), 10,
             f"all as before {before}, not {d.settled(), d.stat('used_bytes')}")
    d.load(path, "--name", "a")
    assert d.digest("a") == truth


def test_unload_with_a_live_stream(start, folder):
    """The name goes at once, the memory with the last stream."""
    a = make_h5.counts(10, 32, 32)
    d = start()
    d.load(make_h5.plain(folder / "a.h5", a))
    with Raw(d) as raw:
        stream = raw.stream("a", batch=1, slots=2)
        assert d.cli("unload", "a").returncode == 0
        assert d.cli("info", "a").returncode == 1
        for i in range(10):
            slot, generation, position, pixels = stream.ready()
            assert pixels == a[position].tobytes()
            stream.release(slot, generation)
    d.settled()
    wait_for(lambda: d.stat("residents") == 0 and d.stat("used_bytes") == 0, 10, "the memory goes")


def test_full_budget(start, simulated, folder):
    """What does not fit is refused with figures; nothing leaks; what fits goes on."""
    big, _ = simulated("--scan", "40x40", "--shards", "2")
    d = start("--max-bytes", "8M")
    a = make_h5.counts(200, 64, 64)
    d.load(make_h5.plain(folder / "small.h5", a))
    res = d.cli("load", big, "--name", "big")
    assert res.returncode == 1 and re.search(r"\d", res.stderr), res
    assert d.cli("info", "big").returncode == 1
    assert d.digest("small")[0] == sha256(a)
    with Raw(d) as raw:
        code, text = raw.refused(9, field(1, "small") + field(11, 200) + field(12, 8) + field(13, 1))
        assert code == 9 and re.search(r"\d", text)
    d.settled()


def test_eviction(start, simulated):
    """The least recently used acquisition that nobody streams makes room, stays listed, and can come back."""
    options = [("--scan", "32x32", "--seed", str(i)) for i in (1, 2, 3)]
    made = [simulated(*o) for o in options]
    size = sum(p.stat().st_size for p in made[0][0].parent.iterdir())
    d = start("--max-bytes", str(int(size * 2.6)))
    for i, (path, truth) in enumerate(made):
        d.load(path, "--name", f"n{i}", "--form", "bslz4")  # as large as its files
        if i == 1:
            assert d.digest("n0", "0")[1] == 1  # so n1 is the one used longest ago
    states = {a["name"]: a["state"] for a in d.json("ls")}
    assert states == {"n0": "complete", "n1": "evicted", "n2": "complete"}
    info = d.json("info", "n1")
    assert sum(info["forms"].values()) == info["frames"] == 1024 and info["bytes"]["resident"] == 0
    res = d.cli("frames", "n1", "--digest")
    assert res.returncode == 1 and "load" in res.stderr, res
    assert d.stat("evictions_total") == 1
    d.load(made[1][0], "--name", "n1")
    assert d.digest("n1") == made[1][1]


def test_evicted_while_its_files_are_compared(start, folder):
    """Who attaches to what is resident gets it, though it had to make room before the last file was shown."""
    a, b = make_h5.counts(40, 64, 64, seed=1), make_h5.counts(40, 64, 64, seed=2)
    path, other = make_h5.master(folder, a, shards=1, name="a"), make_h5.plain(folder / "b.h5", b)
    d = start("--max-bytes", "3M")
    d.load(path)
    with Raw(d) as raw:
        fds = [os.open(p, os.O_RDONLY) for p in (path, folder / "a_data_000001.h5")]
        load = raw.ask(3, field(1, "a") + field(2, str(path)), fds[:1])[5][1][0]
        need = fields(raw.event(1)[2][0])
        d.load(other)
        assert d.json("info", "a")["state"] == "evicted"
        raw.ask(4, field(1, load) + field(2, field(1, need[1][0]) + field(3, need[2][0])), fds[1:])
        need = fields(raw.event(1)[2][0])  # now for a load
        raw.ask(4, field(1, load) + field(2, field(1, need[1][0]) + field(3, need[2][0])), fds[1:])
        need = fields(raw.event(1)[2][0])  # a companion that there is not
        raw.ask(4, field(1, load) + field(2, field(1, need[1][0]) + field(2, errno.ENOENT)))
        assert 3 in raw.event(3)
        for fd in fds:
            os.close(fd)
    assert d.digest("a")[0] == sha256(a)


def test_more_shards_than_descriptors(start, folder):
    """The limit of open files is named; the daemon goes on serving."""
    path = make_h5.master(folder, make_h5.counts(200, 8, 8), shards=200)
    d = start(wrapper=["prlimit", "--nofile=64:64"])
    res = d.cli("load", path, "--name", "a")
    assert res.returncode == 0 or (res.returncode == 1 and "limit of open files" in res.stderr), res
    assert d.cli("ls").returncode == 0


def test_a_streamed_acquisition_is_not_evicted(start, simulated):
    one, two = (simulated("--scan", "32x32", "--seed", str(i)) for i in (1, 2))
    size = sum(p.stat().st_size for p in one[0].parent.iterdir())
    d = start("--max-bytes", str(int(size * 1.6)))
    d.load(one[0], "--name", "one")
    with Raw(d) as raw:
        stream = raw.stream("one", batch=1, slots=2)
        stream.ready()
        res = d.cli("load", two[0], "--name", "two")
        assert res.returncode == 1 and res.stderr, res
        assert d.json("info", "one")["state"] == "complete"
    d.settled()
    d.load(two[0], "--name", "two")
    assert d.digest("two") == two[1]


def test_many_consumers_at_once(start, simulated):
    path, truth = simulated("--scan", "30x30", "--shards", "2")
    d = start()
    d.load(path, "--name", "a")
    consumers = [d.start_cli("frames", "a", "--digest") for _ in range(6)]
    for p in consumers:
        out, err = p.communicate(timeout=60 * SLOW)
        assert p.returncode == 0 and out.split()[0] == truth[0], err
    assert d.settled()[:2] == (0, 0)


def test_log_has_a_line_an_event_and_none_a_frame(start, folder):
    a = make_h5.counts(300, 8, 8)
    d = start()
    d.load(make_h5.plain(folder / "new\nline.h5", a), "--name", "a")
    for _ in range(3):
        d.digest("a")
    d.cli("unload", "a")
    d.stop()
    lines = d.log().splitlines()
    assert 1 <= len(lines) < 60, d.log()
    assert not any(line.startswith("line.h5") for line in lines), "a file's name forged a line"


def test_connections_come_and_go(start, folder):
    d = start()
    before = d.settled()
    for _ in range(100):
        Raw(d, hello=False).close()
    threads = [threading.Thread(target=lambda: [Raw(d).close() for _ in range(20)]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    wait_for(lambda: no_more(d.settled(), before), 10, "descriptors as before")


def test_examples(start, folder):
    """The C and C++ examples, where they were built, print the hash of what h5py reads."""
    found = [p for name in ("example_c", "example_cpp") for p in BIN.glob(f"**/{name}")
             if p.is_file() and os.access(p, os.X_OK)]
    if not found:
        pytest.skip(f"no example in {BIN}")
    a = make_h5.counts(30, 16, 20)
    path, value = make_h5.plain(folder / "a.h5", a), 0xcbf29ce484222325
    for byte in a.tobytes():  # FNV-1a
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    d = start()
    for program in found:
        res = call([program, path], env=environment(FRAMESTOW_SOCKET=d.socket))
        assert res.returncode == 0 and res.stdout.startswith(f"{value:016x} 30 frames"), (program, res)
