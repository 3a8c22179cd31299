# SPDX-License-Identifier: Apache-2.0
"""Who asks for what is resident already must hold every file of it, open for reading."""
import os
import struct

import pytest

import make_h5
from conftest import Raw, field, fields
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
