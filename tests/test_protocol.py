# SPDX-License-Identifier: Apache-2.0
"""The daemon against a client that speaks the protocol by hand, well or badly."""
import array
import os
import socket
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import make_h5
from conftest import Raw, call, field, fields, no_more, sha256, wait_for

# Codes, and body numbers, of proto/framestow.proto
INVALID, STATE, UNKNOWN, UNSUPPORTED, RANGE, DEVICE, VERSION, STALE, NOROOM = 5, 6, 7, 10, 11, 4, 17, 18, 9
HELLO, LOAD, FILES, CANCEL, LIST, INFO, UNLOAD, STREAM, ATTACHED, FRAMES, RELEASE, CLOSE, DETACHED, ERRORS, STATS = \
    range(2, 17)
SCAN, IDS, SHUFFLED, ON_REQUEST = range(4)


@pytest.fixture(scope="module")
def acquisition(daemon, tmp_path_factory):
    a = make_h5.counts(40, 16, 20, seed=3)
    daemon.load(make_h5.plain(tmp_path_factory.mktemp("protocol") / "acq.h5", a))
    return a


@pytest.fixture
def calm(daemon):
    """Whatever the test does, nothing is left over and the daemon serves on."""
    before = daemon.settled()
    yield
    wait_for(lambda: no_more(daemon.settled(), before), 10, f"leases, streams, descriptors as before {before}")


def test_protocol_client(daemon, acquisition):
    """A client from the documentation alone lists, and reads a frame."""
    client = Path(__file__).parent / "protocol_client.py"
    res = call([sys.executable, client, daemon.socket])
    assert res.returncode == 0 and res.stdout.split()[0] == "acq", res
    res = call([sys.executable, client, daemon.socket, "acq", "7"])
    assert res.returncode == 0 and res.stdout.split() == [sha256(acquisition[7]), str(acquisition[7].nbytes)], res


def test_hello(daemon, acquisition, calm):
    with Raw(daemon) as raw:
        hello = raw.hello[4]
        assert hello[1] == [1] and len(hello[3][0]) == 16 and hello[8] == [65536]
    with Raw(daemon, hello=False) as raw:  # a first message that is no Hello
        assert raw.refused(LIST, b"")[0] == STATE
    with Raw(daemon, hello=False) as raw:
        code, text = raw.refused(HELLO, field(1, 900) + field(2, 901))
        assert code == VERSION and text
        assert raw.closed()


def test_unknown_request_lives(daemon, acquisition, calm):
    with Raw(daemon) as raw:
        assert raw.refused(500, b"")[0] == UNSUPPORTED
        assert 6 in raw.ask(LIST, field(77, 5) + field(78, b"later"))  # unknown fields are ignored


@pytest.mark.parametrize("what", ["too long", "far too long", "garbage", "empty", "fds promised", "fds unannounced",
                                  "half a head", "half a body", "bad protobuf"])
def test_framing(daemon, acquisition, calm, what):
    """A framing error ends that connection and nothing else."""
    with Raw(daemon) as raw, Raw(daemon) as other:
        if what == "too long":
            raw.send_bytes(struct.pack("<II", 65537, 0) + b"x" * 100)
        elif what == "far too long":
            raw.send_bytes(struct.pack("<II", 0xffffffff, 0))
        elif what == "garbage":
            raw.send_bytes(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        elif what == "empty":
            raw.send_bytes(struct.pack("<II", 0, 0))
        elif what == "fds promised":
            raw.send_bytes(struct.pack("<II", 2, 3) + field(1, 9))
        elif what == "fds unannounced":
            raw.send_bytes(struct.pack("<II", 4, 0) + field(1, 9) + field(2, 0), [0, 1])
        elif what == "bad protobuf":
            raw.send_bytes(struct.pack("<II", 6, 0) + b"\xff" * 6)
        else:
            raw.send_bytes((struct.pack("<II", 50, 0) + b"\x08\x01")[:4 if what == "half a head" else 10])
            raw.socket.shutdown(socket.SHUT_WR)
        if what != "empty":  # an empty body is a request without a body: either answer will do
            assert raw.closed()
        assert 6 in other.ask(LIST, b"")


def test_bytes_one_by_one(daemon, acquisition, calm):
    with Raw(daemon) as raw:
        message = field(1, 99) + field(LIST, b"")
        for byte in struct.pack("<II", len(message), 0) + message:
            raw.send_bytes(bytes([byte]))
            time.sleep(0.001)
        assert 6 in raw.answer(99)


def test_many_messages_at_once(daemon, acquisition, calm):
    with Raw(daemon) as raw:
        data = b""
        for i in range(200):
            message = field(1, 1000 + i) + field(INFO, field(1, "acq"))
            data += struct.pack("<II", len(message), 0) + message
        raw.send_bytes(data)
        for i in range(200):
            assert 7 in raw.answer(1000 + i)


def test_a_client_that_never_reads(daemon, acquisition, calm):
    """Its answers pile up to a bound; others are served; it costs itself only."""
    with Raw(daemon) as raw, Raw(daemon) as other:
        raw.socket.setblocking(False)
        message = field(1, 5) + field(STATS, b"")
        data = (struct.pack("<II", len(message), 0) + message) * 500
        for _ in range(100):
            try:
                raw.socket.send(data)
            except BlockingIOError:
                break
        for _ in range(20):
            assert 6 in other.ask(LIST, b"")
        assert int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1]) * 4096 < 2 << 30


def test_whole_stream_by_hand(daemon, acquisition, calm):
    with Raw(daemon) as raw:
        stream = raw.stream("acq", batch=8, slots=3)
        got, generations = [], set()
        while sum(len(p) for p in got) < acquisition.nbytes:
            slot, generation, position, pixels = stream.ready()
            assert position == sum(len(p) for p in got) // stream.frame_bytes
            assert generation not in generations
            generations.add(generation)
            got.append(bytes(pixels))
            stream.release(slot, generation)
        assert b"".join(got) == acquisition.tobytes()
        raw.event(5)  # StreamEnd
        assert 3 in raw.ask(CLOSE, field(1, stream.ring))
        stream.memory.close()
        assert 3 in raw.ask(DETACHED, field(1, stream.ring))


def test_free_slots_are_the_credits(daemon, acquisition, calm):
    """A client that never releases gets its slots and no more, and stops nobody else."""
    with Raw(daemon) as raw:
        stream = raw.stream("acq", batch=2, slots=3)
        held = [stream.ready() for _ in range(3)]
        for _ in range(3):
            assert daemon.digest("acq")[0] == sha256(acquisition)
        raw.ask(LIST, b"")
        assert not [e for e in raw.events if 4 in e], "a fourth batch came for three slots"
        for slot, _, position, pixels in held:  # and what is held was not touched
            at = slot * stream.stride
            assert stream.memory[at:at + len(pixels)] == acquisition[position:position + 2].tobytes() == pixels
        assert daemon.stat("leases") == 3
        stream.release(*held[1][:2])
        slot, generation, position, pixels = stream.ready()
        assert slot == held[1][0] and generation not in [h[1] for h in held] and position == 6
        assert pixels == acquisition[6:8].tobytes()


def test_on_request(daemon, acquisition, calm):
    with Raw(daemon) as raw:
        stream = raw.stream("acq", order=ON_REQUEST, batch=4, slots=2)
        for ids in ([5], [39, 0, 7, 7], [1, 2]):
            body = field(1, stream.ring) + b"".join(field(2, i) for i in ids) + field(3, len(ids))
            assert 3 in raw.ask(FRAMES, body)
            slot, generation, _, pixels = stream.ready()
            assert pixels == acquisition[ids].tobytes()
            stream.release(slot, generation)
        for ids, code in (([40], RANGE), ([1, 2**64 - 1], RANGE), ([1, 2, 3, 4, 5], INVALID), ([], INVALID)):
            body = field(1, stream.ring) + b"".join(field(2, i) for i in ids) + field(3, len(ids))
            assert raw.refused(FRAMES, body)[0] == code, ids
        assert raw.refused(FRAMES, field(1, 12345) + field(2, 1) + field(3, 1))[0] in (UNKNOWN, INVALID, STALE)


def test_shuffled_is_a_permutation(daemon, acquisition, calm):
    def order(seed, rank=0, world=0, start=0):
        with Raw(daemon) as raw:
            reply = raw.ask(STREAM, field(1, "acq") + field(2, SHUFFLED) + field(7, seed) + field(8, start) +
                            field(9, rank) + field(10, world) + field(11, 5) + field(12, 2) + field(13, 1))
            from conftest import RawStream
            stream = RawStream(raw, reply[8], True)
            wanted, ids = reply[8][12][0], []
            frames = {f.tobytes(): i for i, f in enumerate(acquisition)}
            while len(ids) < wanted:
                slot, generation, _, pixels = stream.ready()
                n = stream.frame_bytes
                ids += [frames[pixels[k:k + n]] for k in range(0, len(pixels), n)]
                stream.release(slot, generation)
            return ids

    one = order(1)
    assert sorted(one) == list(range(40)) and one != list(range(40))
    assert order(1) == one and order(2) != one
    assert order(1, start=13) == one[13:]
    parts = [order(1, rank, 3) for rank in range(3)]
    assert parts == [one[rank::3] for rank in range(3)]


def test_wrong_nonce(daemon, acquisition, calm):
    with Raw(daemon) as raw:
        stream = raw.stream("acq", attach=False)
        assert raw.refused(ATTACHED, field(1, stream.ring) + field(2, b"\x00" * 16))[0] == DEVICE
        assert 6 in raw.ask(LIST, b"")


def test_nothing_comes_before_attached(daemon, acquisition, calm):
    with Raw(daemon) as raw:
        stream = raw.stream("acq", attach=False)
        raw.ask(STATS, b"")
        time.sleep(0.05)
        raw.ask(LIST, b"")
        assert not raw.events
        assert 3 in raw.ask(ATTACHED, field(1, stream.ring) + field(2, stream.nonce))
        assert stream.ready()[3] == acquisition[0].tobytes()


def test_release_of_what_is_not_held(daemon, acquisition, calm):
    before = daemon.stat("stale_releases_total")
    with Raw(daemon) as raw:
        stream = raw.stream("acq", slots=2)
        slot, generation, _, _ = stream.ready()
        wrong = [(slot, generation + 1000), (slot, 0), (77, generation), (2**32 - 1, generation)]
        for s, g in wrong:
            assert raw.refused(RELEASE, field(1, stream.ring) + field(2, s) + field(3, g))[0] == STALE, (s, g)
        assert raw.refused(RELEASE, field(1, stream.ring + 1) + field(2, slot) + field(3, generation))[0] == STALE
        stream.release(slot, generation)
        assert raw.refused(RELEASE, field(1, stream.ring) + field(2, slot) + field(3, generation))[0] == STALE
        assert raw.refused(RELEASE, field(1, stream.ring) + field(2, slot))[0] in (INVALID, STALE)  # no generation
    assert daemon.stat("stale_releases_total") >= before + 6


def test_stale_releases_end_a_connection(daemon, acquisition, calm):
    with Raw(daemon) as raw:
        stream = raw.stream("acq", slots=2)
        slot, generation, _, _ = stream.ready()
        try:
            for _ in range(5000):
                stream.release(slot, generation + 5)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert raw.closed()


@pytest.mark.parametrize("body, code", [
    (field(1, "nobody"), UNKNOWN),
    (field(1, "acq") + field(3, 40) + field(4, 1), RANGE),
    (field(1, "acq") + field(3, 39) + field(4, 2), RANGE),
    (field(1, "acq") + field(3, 2**64 - 1) + field(4, 2), RANGE),
    (field(1, "acq") + field(3, 1) + field(4, 2**64 - 1), RANGE),
    (field(1, "acq") + field(3, 2**64 - 1) + field(4, 1), RANGE),
    (field(1, "acq") + field(2, IDS) + field(5, 2**64 - 1) + field(6, 1), RANGE),
    (field(1, "acq") + field(11, 100000), INVALID),
    (field(1, "acq") + field(12, 2**31), (INVALID, NOROOM)),
    (field(1, "acq") + field(2, 9), (INVALID, UNSUPPORTED)),
    (field(1, "acq") + field(9, 3) + field(10, 2), INVALID),
    (field(1, "acq") + field(2, IDS) + field(5, 40) + field(6, 1), RANGE),
    (field(1, "acq") + field(2, IDS) + field(5, 1) + field(6, 3), INVALID),
    (field(1, "acq") + field(2, IDS) + field(6, 2**40), INVALID),
    (field(1, "acq") + field(11, 8192) + field(12, 60000), (NOROOM, INVALID)),
], ids=str)
def test_stream_refused(daemon, acquisition, calm, body, code):
    with Raw(daemon) as raw:
        got, text = raw.refused(STREAM, body + field(13, 1))
        assert got in (code if isinstance(code, tuple) else (code,)) and text
        assert 6 in raw.ask(LIST, b"")


def ids_file(ids, seals=True):
    import fcntl
    fd = os.memfd_create("ids", os.MFD_ALLOW_SEALING)
    os.write(fd, array.array("Q", ids).tobytes())
    if seals:
        fcntl.fcntl(fd, 1033, 0x0001 | 0x0002 | 0x0004 | 0x0008)  # F_ADD_SEALS: seal, shrink, grow, write
    return fd


def test_list_by_memfd(daemon, acquisition, calm):
    from conftest import RawStream
    ids = list(np.random.default_rng(0).integers(0, 40, 2500))
    body = field(1, "acq") + field(2, IDS) + field(6, len(ids)) + field(11, 100) + field(12, 2) + field(13, 1)
    with Raw(daemon) as raw:
        fd = ids_file([int(i) for i in ids])
        reply = raw.ask(STREAM, body, [fd])
        os.close(fd)
        stream, got = RawStream(raw, reply[8], True), b""
        while len(got) < len(ids) * stream.frame_bytes:
            slot, generation, _, pixels = stream.ready()
            got += pixels
            stream.release(slot, generation)
        assert got == acquisition[ids].tobytes()
        for bad in (ids_file([1] * 2499), ids_file([1] * 2499 + [40]), ids_file([1] * 2500, seals=False),
                    os.open("/dev/zero", os.O_RDONLY)):
            assert raw.refused(STREAM, body, [bad])[0] in (INVALID, RANGE)
            os.close(bad)


def test_load_without_a_file(daemon, acquisition, calm):
    with Raw(daemon) as raw:
        reply = raw.ask(LOAD, field(1, "x") + field(2, "/x.h5"))
        assert reply is None or 2 in reply  # a wrong number of descriptors may end the connection
    with Raw(daemon) as raw:
        for path in ("/dev/null", "/dev/zero", "/"):
            fd = os.open(path, os.O_RDONLY)
            reply = raw.ask(LOAD, field(1, "x") + field(2, path), [fd])
            os.close(fd)
            assert 2 in reply or raw.event(3).get(2), path
        read_end, write_end = os.pipe()
        reply = raw.ask(LOAD, field(1, "x") + field(2, "/pipe"), [read_end])
        assert 2 in reply or raw.event(3).get(2)
        os.close(read_end), os.close(write_end)


def test_load_by_hand_and_cancel(daemon, acquisition, calm, folder):
    """The daemon asks for the shards; a client that never sends them waits alone, cancels, and is told so."""
    path = make_h5.master(folder, make_h5.counts(6, 8, 8), name="byhand")
    with Raw(daemon) as raw:
        fd = os.open(path, os.O_RDONLY)
        reply = raw.ask(LOAD, field(1, "byhand") + field(2, str(path)), [fd])
        os.close(fd)
        load = reply[5][1][0]
        need = raw.event(1)
        names = [fields(f)[2][0].decode() for f in need[2]]
        assert need[1] == [load] and "byhand_data_000001.h5" in names
        assert daemon.digest("acq")[0] == sha256(acquisition)
        raw.ask(CANCEL, field(1, load + 999))  # no such load: nothing happens
        raw.ask(CANCEL, field(1, load))
        assert fields(raw.event(3)[2][0])[1] == [19]  # CANCELLED
    assert daemon.cli("info", "byhand").returncode == 1


def test_frame_errors_and_stats(daemon, acquisition, calm):
    with Raw(daemon) as raw:
        assert 9 in raw.ask(ERRORS, field(1, "acq") + field(2, 1) + field(2, 5))
        names = [fields(s)[1][0].decode() for s in raw.ask(STATS, b"")[10][1]]
        assert "leases" in names


def test_random_messages(daemon, acquisition, calm):
    """Well framed nonsense: an error each, or the end of that connection, and nothing worse."""
    rng = np.random.default_rng(5)
    for _ in range(60):
        with Raw(daemon) as raw:
            try:
                for _ in range(20):
                    body = rng.integers(0, 256, int(rng.integers(0, 60))).astype("u1").tobytes()
                    if rng.random() < 0.7:
                        body = field(1, int(rng.integers(1, 9))) + field(int(rng.integers(2, 18)), body)
                    raw.send_bytes(struct.pack("<II", len(body), 0) + body)
            except (BrokenPipeError, ConnectionResetError):
                pass
    assert daemon.digest("acq")[0] == sha256(acquisition)
