# SPDX-License-Identifier: Apache-2.0
"""Who asks for what is resident already must hold every file of it, open for reading."""
import errno
import os
import struct
from pathlib import Path

import pytest

import make_h5
from conftest import Raw, field, fields, sha256, wait_for
from test_protocol import FILES, LOAD

NEED_FILES, LOADED = 1, 3


@pytest.fixture(scope="module")
def master(daemon, tmp_path_factory):
    path = make_h5.master(tmp_path_factory.mktemp("rights"), make_h5.counts(12, 16, 20, seed=5), name="rights")
    daemon.load(path)
    return str(path)


@pytest.fixture
def raw(daemon):
    with Raw(daemon) as raw:
        yield raw


def load(raw, master, name):
    fd = os.open(master, os.O_RDONLY)
    try:
        return raw.ask(LOAD, field(1, name) + field(2, master), [fd])[5][1][0]
    finally:
        os.close(fd)


def first_event(raw):
    while not raw.events:
        kind, message = raw.receive()
        if kind == 2:
            raw.events.append(message)
    return raw.events[0]


def answer(raw, master, flags):
    """Every file that is asked for, opened with these flags, until the load is over."""
    while LOADED not in first_event(raw):
        need = raw.event(NEED_FILES)
        for file in map(fields, need[2]):
            path = os.path.join(os.path.dirname(master), file[2][0].decode())
            fd = os.open(path, flags)
            raw.send(FILES, field(1, need[1][0]) + field(2, field(1, file[1][0]) + field(3, path)), [fd])
            os.close(fd)
    return raw.event(LOADED)


def test_all_files(raw, master):
    load(raw, master, "again")
    assert 3 in answer(raw, master, os.O_RDONLY)


def test_file_not_asked_for(raw, master):
    """Sent right behind LOAD, before the daemon has asked for any: it still asks for all."""
    number = load(raw, master, "number")
    answer(raw, master, os.O_RDONLY)
    fd = os.open(master, os.O_RDONLY)
    data = b""
    for body in (field(LOAD, field(1, "unasked") + field(2, master)),
                 field(FILES, field(1, number + 1) + field(2, field(1, 999) + field(2, 2)))):
        message = field(1, 900) + body
        data += struct.pack("<II", len(message), 1 if not data else 0) + message
    raw.send_bytes(data, [fd])
    os.close(fd)
    assert NEED_FILES in first_event(raw)


@pytest.mark.parametrize("flags", [os.O_PATH, os.O_WRONLY])
def test_not_for_reading(raw, master, flags):
    load(raw, master, "unreadable")
    assert 2 in answer(raw, master, flags)


def test_master_not_for_reading(raw, master):
    fd = os.open(master, os.O_PATH)
    assert raw.refused(LOAD, field(1, "unreadable") + field(2, master), [fd])[0] == 15  # DENIED
    os.close(fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_a_strangers_load_is_not_in_the_way(start, folder):
    """While a stranger holds up a load of the same master: an admin loads for himself and gets the true counts,
    a second client joins the first, and the name stays that source's."""
    a = make_h5.counts(6, 8, 8)
    path = make_h5.master(folder, a)
    d = start()
    for p in (folder, d.folder, *folder.rglob("*")):
        p.chmod(0o777)
    os.chmod(d.socket, 0o666)
    with open(path, "rb") as f:
        pid = os.fork()
        if pid == 0:
            os.setgroups([]), os.setgid(65534), os.setuid(65534)
            with Raw(d) as raw:
                load = raw.ask(3, field(1, "evil") + field(2, str(path)), [f.fileno()])[5][1][0]
                for i in range(2):
                    need = fields(raw.event(1)[2][0])
                    (folder / f"asked{i}").touch()
                    wait_for((folder / "go").exists)
                    with open(folder / Path(need[2][0].decode()).name, "rb") as shard:
                        raw.ask(4, field(1, load) + field(2, field(1, need[1][0])), [shard.fileno()])
                need = fields(raw.event(1)[2][0])  # a companion that there is not
                raw.ask(4, field(1, load) + field(2, field(1, need[1][0]) + field(2, errno.ENOENT)))
                raw.event(3)
                (folder / "done").touch()
            os._exit(0)
        try:
            wait_for((folder / "asked0").exists)
            assert d.cli("load", path, "--name", "mine", timeout=10).returncode == 0
            assert d.digest("mine")[0] == sha256(a)
            (folder / "go").touch()
            wait_for((folder / "done").exists)
            res = d.cli("load", path, "--name", "mine")
            assert res.returncode == 0, res.stderr
        finally:
            (folder / "go").touch()
            os.waitpid(pid, 0)
