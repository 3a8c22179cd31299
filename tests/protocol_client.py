#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A whole Framestow client from docs/protocol.md alone: no library, no generated code.

protocol_client.py SOCKET               lists what is resident
protocol_client.py SOCKET NAME FRAME    reads one frame and prints its SHA-256 and its bytes
"""
import array, hashlib, mmap, socket, struct, sys

HOST_FD = 1


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, value):
    """A protobuf field: int as varint, bytes or str as they are."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    """{number: [values]} of a protobuf message; a nested message stays bytes."""
    found, at = {}, 0

    def number():
        nonlocal at
        n = shift = 0
        while True:
            byte, at = data[at], at + 1
            n, shift = n | (byte & 127) << shift, shift + 7
            if byte < 128:
                return n

    while at < len(data):
        key = number()
        if key & 7 == 0:
            value = number()
        else:
            size = number() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
            value, at = data[at:at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


class Client:
    def __init__(self, path):
        self.socket, self.id = socket.socket(socket.AF_UNIX), 0
        self.socket.connect(path)
        self.ask(2, field(1, 1) + field(2, 1) + field(4, HOST_FD))  # Hello

    def receive(self):
        """One message: its two levels of oneof, (number, fields), and the descriptors."""
        head, fds, body = b"", array.array("i"), b""
        while len(head) < 8:
            part, extra, _, _ = self.socket.recvmsg(8 - len(head), socket.CMSG_SPACE(256))
            for _, _, data in extra:
                fds.frombytes(data)
            head += part or sys.exit("the daemon closed the connection")
        size = struct.unpack("<II", head)[0]
        while len(body) < size:
            body += self.socket.recv(size - len(body))
        (kind, inner), = fields(body).items()
        return kind, fields(inner[0]), fds

    def ask(self, number, body):
        """Send a request, return the fields of its reply's body and the descriptors."""
        self.id += 1
        message = field(1, self.id) + field(number, body)
        self.socket.sendall(struct.pack("<II", len(message), 0) + message)
        while True:
            kind, reply, fds = self.receive()
            if kind == 1 and reply.get(1) == [self.id]:
                (_, body), = [item for item in reply.items() if item[0] != 1]
                if 2 in reply:
                    sys.exit("error %d: %s" % (fields(body[0])[1][0], fields(body[0])[2][0].decode()))
                return fields(body[0]), fds

    def list(self):
        return [fields(a) for a in self.ask(6, b"")[0].get(1, [])]

    def frame(self, name, frame):
        stream = field(1, name) + field(3, frame) + field(4, 1) + field(11, 1) + field(12, 2) + field(13, HOST_FD)
        ring, fds = self.ask(9, stream)
        memory = mmap.mmap(fds[0], ring[3][0], mmap.MAP_SHARED)
        self.ask(10, field(1, ring[1][0]) + field(2, memory[:16]))  # Attached, with the nonce
        while True:
            kind, event, _ = self.receive()
            if kind == 2 and 4 in event:  # Ready
                ready = fields(event[4][0])
                start = ready.get(2, [0])[0] * ring[4][0]
                return memory[start:start + ready[9][0]]


if __name__ == "__main__":
    client = Client(sys.argv[1])
    if len(sys.argv) == 2:
        for a in client.list():
            print(a[2][0].decode(), a[5][0].decode(), a.get(6, [0])[0], "frames of", a[11][0], "x", a[12][0])
    else:
        pixels = client.frame(sys.argv[2], int(sys.argv[3]))
        print(hashlib.sha256(pixels).hexdigest(), len(pixels))
