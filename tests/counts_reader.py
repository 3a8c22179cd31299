# SPDX-License-Identifier: Apache-2.0
"""Reads a .stow file, slowly: Stow(bytes), then frame(i).

Written from docs/formats.md alone, without a look at any other decoder, so that a mistake of those, or of the page,
shows. What is not as the page says raises Damaged."""
import ctypes
import ctypes.util
import struct
from collections import namedtuple
from functools import cache, cached_property

import numpy as np

COUNTS, BSLZ4, RAW, FILL, BAD = range(5)  # forms


class Damaged(ValueError):
    pass


def need(true, what):
    if not true:
        raise Damaged(what)


def up(n, to):
    return -(-n // to) * to


@cache
def xxh3():
    function = ctypes.CDLL(ctypes.util.find_library("xxhash")).XXH3_64bits
    function.argtypes, function.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_uint64
    return function


def checksum(data):
    return xxh3()(data, len(data))


class Model:
    def __init__(self, packed, n_pixels, size):
        self.n_pixels, self.size, self.tiles, self.granules = n_pixels, size, -(-n_pixels // 2048), -(-n_pixels // 256)
        self.streams, *self.until, zeros, n_constants, zero = struct.unpack_from("<I4B2I", packed)
        need(1 <= self.streams <= min(8, self.tiles) and zero == zeros == 0, "model: streams")
        need(self.until == sorted(self.until) and self.until[2] <= 8, "model: until")
        self.wide = np.frombuffer(packed, "<u4", 16, 16).reshape(8, 2).tolist()
        freq = np.frombuffer(packed, "<u2", 8 * 256, 80).reshape(8, 256)
        need((freq.sum(1, dtype=int) == 2048).all(), "model: frequencies")
        self.states = [self.spread(f.tolist()) for f in freq]
        at = 80 + 4096 + up(self.granules, 4)
        need(len(packed) == at + 128 * self.granules + 8 * n_constants, "model: length")
        self.classes = list(packed[80 + 4096:][:self.granules])
        need(all(k < 8 for k in self.classes) and not any(packed[80 + 4096 + self.granules:at]), "model: classes")
        order = np.frombuffer(packed, "<u2", 64 * self.granules, at).astype(int)
        self.order = order.reshape(-1, 64).tolist()
        for tile in range(self.tiles):
            units = np.sort(order[512 * tile:512 * (tile + 1)])
            need((units == np.arange(len(units))).all(), "model: units")
        self.constants = np.frombuffer(packed, "<u4", 2 * n_constants, len(packed) - 8 * n_constants).reshape(-1, 2)
        places = self.constants[:, 0].astype(int)
        need((np.diff(places) > 0).all() and (places < n_pixels).all(), "model: places of constants")
        need((self.constants[:, 1] < 256 ** size).all(), "model: constants")
        for k, (base, shift) in enumerate(self.wide):
            need(shift <= 21 and base + (256 << shift) <= 256 ** size if k >= self.until[2] else base == shift == 0,
                 "model: a wide class")

    def table_bytes(self):
        parts = (128, 4 * 8 * 2048, 128 * self.granules, self.granules, 4 * (self.tiles + 1), 8 * len(self.constants))
        return sum(up(part, 16) for part in parts)

    @cached_property
    def ranks(self):
        """When each pixel is decoded."""
        ranks = np.zeros(2048 * self.tiles, int)
        for g, k in enumerate(self.classes):
            per = 4 >> sum(k >= u for u in self.until[:2])
            row, lane, pixel = np.indices((2, 32, 4)).reshape(3, -1)
            ranks[2048 * (g // 8) + 4 * np.array(self.order[g]).repeat(4) + pixel] = \
                256 * g + (4 * row + pixel) // per * 32 * per + pixel % per * 32 + lane
        return ranks

    @staticmethod
    def spread(freq):
        symbol, place, number, states = [0] * 2048, 0, list(freq), []
        for s, f in enumerate(freq):
            for _ in range(f):
                symbol[place], place = s, (place + 1283) % 2048
        for s in symbol:
            x, number[s] = number[s], number[s] + 1
            n = 11 - (x.bit_length() - 1)
            states.append((s, n, (x << n) - 2048))
        return states


class Lane:
    """A string of bits, as far as its words were asked for."""
    bits = at = asked = 0

    def take(self, n):
        self.at += n
        need(self.at <= 32 * self.asked, "a lane reads on before it asks")
        return self.bits >> 32 * self.asked - self.at & (1 << n) - 1


class Stream:
    def __init__(self, words):
        need(len(words) >= 64, "a stream of fewer than 64 words")
        self.words, self.asked, self.last, self.lanes = words.tolist(), 0, -1, [Lane() for _ in range(32)]
        for lane in 2 * self.lanes:
            self.ask(lane)
        for lane in self.lanes:
            while lane.take(1) == 0:
                need(lane.at < 32, "a lane without its one")
            lane.state = lane.take(11)
        self.look()

    def ask(self, lane):
        lane.bits = lane.bits << 32 | (self.words[self.asked] if self.asked < len(self.words) else 0)
        lane.asked, self.asked = lane.asked + 1, self.asked + 1

    def look(self):
        for lane in self.lanes:
            if lane.asked < 2 + lane.at // 32:
                self.ask(lane)

    def granule(self, model, g, pixels):
        k = model.classes[g]
        per, wide, (base, shift) = 4 >> sum(k >= u for u in model.until[:2]), k >= model.until[2], model.wide[k]
        for step in range(8 // per):
            for i, lane in enumerate(self.lanes):
                symbol, n, start = model.states[k][lane.state]
                lane.state = start + lane.take(n)
                raw = lane.take(shift) if wide else 0
                first = 4 * model.order[g][32 * (step * per // 4) + i] + step * per % 4
                for j in range(per):
                    pixels[first + j] = base + ((symbol >> 8 // per * j & (1 << 8 // per) - 1) << shift | raw)
            if wide or step % 2:
                self.look()

    def close(self):
        need(all(lane.state == 0 and lane.at % 32 == 0 for lane in self.lanes), "a lane's end")
        need(0 <= self.asked - len(self.words) <= 64, "words left over, or missing")


def read_patches(model, words, tile, tiles):
    """[(pixel of the frame, delta)]; words: of one patch each."""
    patches, skip = [], 0
    for high, *low in words.tolist():
        tile += skip
        pixel, delta, skip = 2048 * tile + (high >> 21), (high & 0x1ffff) - (high << 1 & 0x20000), high >> 17 & 15
        need(tile in tiles and pixel < model.n_pixels, "a patch outside")
        patches.append((pixel, delta << 32 | low[0] if low else delta))
    need(skip == 0, "another patch that there is not")
    ranks = [model.ranks[pixel] for pixel, delta in patches if delta]
    need(ranks == sorted(set(ranks)), "patches in another order than that of decoding")
    return patches


def decode_counts(model, data):
    words, at, patches = np.frombuffer(data, "<u4"), 2 * model.streams, []
    each, frame = 2 if model.size == 4 else 1, np.zeros(2048 * model.tiles, "u8")
    for s in range(model.streams):
        first, end = (model.tiles * t // model.streams for t in (s, s + 1))
        n_words, tile = int(words[2 * s]), int(words[2 * s + 1] >> 18)
        n_patches = int(words[2 * s + 1] & 0x3ffff) * each
        need(at + n_patches + n_words <= len(words), "a stream that does not lie in the frame")
        need(n_patches or tile == 0, "a tile of no patch")
        patches += read_patches(model, words[at:at + n_patches].reshape(-1, each), tile, range(first, end))
        stream = Stream(words[at + n_patches:at + n_patches + n_words])
        at += n_patches + n_words
        for g in range(8 * first, min(8 * end, model.granules)):
            stream.granule(model, g, frame[2048 * (g // 8):])
        stream.close()
    need(up(4 * at, 16) == len(data) and not words[at:].any(), "what is behind the last stream")
    frame[model.constants[:, 0]] = model.constants[:, 1]
    for pixel, delta in patches:
        frame[pixel] = (int(frame[pixel]) + delta) % 256 ** model.size
    return frame[:model.n_pixels].astype(f"<u{model.size}")


def decode_lz4(data):
    out, data = bytearray(), iter(data)

    def length(n):
        more = n == 15
        while more:
            byte = next(data)
            n, more = n + byte, byte == 255
        return n
    for token in data:
        out += bytes(next(data) for _ in range(length(token >> 4)))
        offset = next(data, None)
        if offset is None:
            return bytes(out)
        offset |= next(data) << 8
        need(0 < offset <= len(out), "lz4: offset")
        for _ in range(length(token & 15) + 4):
            out.append(out[-offset])


def decode_bslz4(chunk, n_pixels, size, n_blocks):
    (total, block), at, out, left = struct.unpack_from(">QI", chunk), 12, b"", n_pixels // 8 * 8
    need(total == n_pixels * size, "bslz4: header")
    for _ in range(n_blocks):
        m, (n,) = min((block or 8192) // size, left), struct.unpack_from(">I", chunk, at)
        bits = np.unpackbits(np.frombuffer(decode_lz4(chunk[at + 4:at + 4 + n]), "u1"), bitorder="little")
        out += np.packbits(bits.reshape(8 * size, m).T, bitorder="little").tobytes()
        left, at = left - m, at + 4 + n
    need(left == 0, "bslz4: blocks")
    return np.frombuffer(out + chunk[at:], f"<u{size}")


class Texts:
    """Takes the texts table apart, from front to end."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        need(self.at + n <= len(self.data), "texts: they end within one")
        self.at += n
        return self.data[self.at - n:self.at]

    def numbers(self, *formats):
        return [struct.unpack("<" + f, self.take(struct.calcsize("<" + f)))[0] for f in formats]

    def text(self):
        got = self.take(self.numbers("I")[0])
        need(b"\0" not in got, "texts: a NUL")
        return got.decode(errors="surrogateescape")

    def source(self):
        (bits, n_bytes, changed_ns), path = self.numbers("B", "Q", "q"), self.text()
        need(bits < 4, "texts: bits of a source")
        return Source(path, bool(bits & 1), n_bytes, changed_ns, self.take(32) if bits & 2 else None)


Source = namedtuple("Source", "path there n_bytes changed_ns sha256")
Frame = namedtuple("Frame", "form data blocks error")
HEADER = struct.Struct("<8s II QQ QQ QQ QQQQQ QQ II Q I 8s 84s QQQ")


class Stow:
    """A whole file, all of whose fields and checksums are looked at."""

    def __init__(self, data):
        need(len(data) >= 256, "it ends in its header")
        (magic, version, bits, n_bytes, self.n_frames, y, x, scan_y, scan_x, self.fill, expected, self.source_bytes,
         self.n_summed, self.segment, n_texts, n_models, n_sources, n_warnings, n_runs, self.size, dtype, zeros,
         n_blocks, of_tables, of_header) = HEADER.unpack_from(data)
        need(magic == bytes.fromhex("8953544f570d0a1a") and version == 1, "neither magic nor version")
        need(checksum(data[:248]) == of_header, "the header's checksum")
        need(n_bytes == len(data), "another length than it says")
        kind = dtype[:1].decode()
        need(dtype == f"{kind}{self.size}".encode().ljust(8, b"\0"), "dtype")
        need((kind in "ui" and self.size in (1, 2, 4, 8)) or (kind == "f" and self.size in (4, 8)), "dtype")
        self.dtype, self.sums_dtype = np.dtype(f"<{kind}{self.size}"), np.dtype(f"<{kind}8")
        need(bits < 16 and not any(zeros), "bits or zeros")
        need(0 < self.n_frames <= 8388608 and y * x and self.fill < 256 ** self.size, "numbers that cannot be")
        need((bits & 8 or expected == 0) and (bits & 2 or self.n_summed == 0), "a number without its bit")
        self.gaps_allowed, self.expected = bool(bits & 1), expected if bits & 8 else None
        self.det, self.scan, self.n_pixels = (y, x), (scan_y, scan_x) if scan_y or scan_x else None, y * x
        self.data, self.at = data, 256
        flagged, summed, n_pixels = bits & 4 != 0, bits & 2 != 0, self.n_pixels
        n_segments = -(-self.n_frames // self.segment) if self.segment else 0
        moment = [(name, self.sums_dtype) for name in ("total", "y", "x")]
        moment += [("max", "<u8" if self.size == 8 else "<u4")]
        self.moments_dtype = np.dtype([("all", moment)] + flagged * [("kept", moment)])
        self.sizes = [n_texts, flagged * (-(-n_pixels // 8)), 8 * n_segments, n_models, 12 * self.n_frames, 8 * n_blocks,
                      summed * 8 * n_pixels, summed * self.n_frames * self.moments_dtype.itemsize]
        at = up(256 + sum(up(size, 16) for size in self.sizes), 4096)
        need(at <= len(data) and checksum(data[256:at]) == of_tables, "the tables' checksum")
        self.read_texts(self.table(), n_sources, n_warnings, n_runs)
        self.read_tables()
        need(not any(data[self.at:at]), "zeros before the frames")
        self.read_blocks(at)

    def table(self):
        """The next one."""
        n = self.sizes.pop(0)
        end = up(self.at + n, 16)
        got, padding = self.data[self.at:self.at + n], self.data[self.at + n:end]
        need(not any(padding), "padding that is not zero")
        self.at = end
        return got

    def read_texts(self, data, n_sources, n_warnings, n_runs):
        texts = Texts(data)
        asked, = texts.numbers("B")
        need(asked < 2, "texts: whether the dataset was asked for")
        self.dataset = texts.text() if asked else None
        self.sources = [texts.source() for _ in range(n_sources)]
        self.warnings = [texts.text() for _ in range(n_warnings)]
        self.bad = {}
        for _ in range(n_runs):
            first, n = texts.numbers("Q", "Q")
            need(n and first >= max(self.bad, default=-1) + 1 and first + n <= self.n_frames, "texts: a run")
            self.bad.update(dict.fromkeys(range(first, first + n), texts.text()))
        need(texts.at == len(data), "texts: more than these")

    def read_tables(self):
        flags = np.unpackbits(np.frombuffer(self.table(), "u1"), bitorder="little")
        need(not flags[self.n_pixels:].any(), "flags beyond the frame")
        self.flags = flags[:self.n_pixels].astype(bool) if len(flags) else np.zeros(self.n_pixels, bool)
        segments = np.frombuffer(self.table(), "<u4").reshape(-1, 2)
        self.read_models(self.table(), segments.tolist())
        self.index = np.frombuffer(self.table(), "<u4, <u4, u1, u1, <u2").tolist()
        self.checksums = np.frombuffer(self.table(), "<u8").tolist()
        self.pixel_sums = np.frombuffer(self.table(), self.sums_dtype)
        self.moments = np.frombuffer(self.table(), self.moments_dtype)

    def read_models(self, packed, segments):
        ends = np.cumsum([0] + [n for n, _ in segments]).tolist()
        need(ends[-1] == len(packed), "models: their bytes")
        self.models = [Model(packed[a:b], self.n_pixels, self.size) if a < b else None
                       for a, b in zip(ends, ends[1:])]
        for model, (_, table_bytes) in zip(self.models, segments):
            need(table_bytes == (model.table_bytes() if model else 0), "models: bytes of a decoder's table")

    def read_blocks(self, at):
        self.frames, begins = [], []
        for i, (stored, n_blocks, form, error, zero) in enumerate(self.index):
            need(form <= BAD and zero == 0 and (form == BSLZ4 or n_blocks == 0), "frames: numbers that cannot be")
            need((form == BAD) == (error != 0) == (i in self.bad), "frames: bad ones")
            need(form != COUNTS or self.dtype.kind == "u" and self.size < 8, "frames: counts of such pixels")
            need((stored != 0) == (form < FILL), "frames: bytes of a form that has none, or none")
            need(form != COUNTS or stored % 16 == 0 and self.models[i // self.segment], "frames: counts")
            need(form != RAW or stored == self.n_pixels * self.size, "frames: raw")
            self.frames.append(Frame(form, self.data[at:at + stored], n_blocks, error))
            end = at + up(stored, 16)
            need(not any(self.data[at + stored:end]), "padding that is not zero")
            if stored and (not begins or end - begins[-1] > 8 << 20):
                begins.append(at)
            at = end
        need(at == len(self.data) and len(begins) == len(self.checksums), "the end, or blocks")
        for begin, end, wanted in zip(begins, begins[1:] + [at], self.checksums):
            need(checksum(self.data[begin:end]) == wanted, "a block's checksum")

    def frame(self, i):
        """Its pixels; None of a bad frame."""
        form, data, blocks, _ = self.frames[i]
        if form == BAD:
            return None
        pixels = (decode_counts(self.models[i // self.segment], data) if form == COUNTS else
                  decode_bslz4(data, self.n_pixels, self.size, blocks) if form == BSLZ4 else
                  np.frombuffer(data, f"<u{self.size}") if form == RAW else
                  np.full(self.n_pixels, self.fill, f"<u{self.size}"))
        return pixels.view(self.dtype).reshape(self.det)
