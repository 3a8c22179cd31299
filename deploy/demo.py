#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Framestow in half a minute: a made-up acquisition, loaded once, streamed by several processes at a time.

    demo.py --bin DIR [--device auto|host|cuda:N] [--scan YxX]

Simulates a DECTRIS-style acquisition, starts a daemon of its own on a temporary socket, loads it, lets two
consumers in processes of their own stream every frame at once while a third is killed half-way, and compares
each digest with the simulator's truth. Prints a short table. Exits 1 if anything differs or is left over.
Needs nothing but Python itself. DIR: where framestowd, framestow and framestow-simulate are.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


class Failed(Exception):
    pass


class Demo:
    def __init__(self, folder, bin_folder, device):
        self.folder, self.bin, self.device, self.daemon, self.faults = folder, bin_folder, device, None, []
        self.socket, self.log = folder / "s", folder / "framestowd.log"
        self.env = {**os.environ, "FRAMESTOW_SOCKET": str(self.socket)}

    def start(self, program, *args, **kwargs):
        return subprocess.Popen([str(self.bin / program), *map(str, args)], env=self.env, text=True, **kwargs)

    def run(self, program, *args, timeout=300, quiet=True):
        """stdout of a program that ends well; its stderr goes to ours unless quiet."""
        process = self.start(program, *args, stdout=subprocess.PIPE, stderr=subprocess.PIPE if quiet else None)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failed(f"{program} {args[0]}: not done in {timeout} s")
        if process.returncode:
            raise Failed(f"{program} {' '.join(map(str, args))}: exit {process.returncode}: {(err or '').strip()}")
        return out

    def json(self, *args, **kwargs):
        return json.loads(self.run("framestow", "--json", *args, **kwargs))

    def check(self, good, what):
        if not good:
            self.faults.append(what)
            print(f"demo: {what}", file=sys.stderr)

    # -- the daemon --------------------------------------------------------------------------------------

    def start_daemon(self):
        with open(self.log, "w") as log:
            self.daemon = self.start("framestowd", "--device", self.device, "--socket", self.socket, "--state-dir",
                                     self.folder / "state", stderr=log)
        end = time.monotonic() + 60
        while True:
            if self.daemon.poll() is not None:
                raise Failed(f"framestowd ended with {self.daemon.returncode}: {self.log.read_text().strip()}")
            if subprocess.run([str(self.bin / "framestow"), "ls"], env=self.env, capture_output=True).returncode == 0:
                return
            if time.monotonic() > end:
                raise Failed("framestowd does not answer after 60 s")
            time.sleep(0.05)

    def stop_daemon(self):
        self.daemon.send_signal(signal.SIGTERM)
        try:
            code = self.daemon.wait(30)
        except subprocess.TimeoutExpired:
            raise Failed("framestowd does not end after SIGTERM")
        self.check(code == 0, f"framestowd ended with {code}: {self.log.read_text().strip()}")

    # -- the acts ----------------------------------------------------------------------------------------

    def kill_half_way(self, name, frames):
        """A consumer that would read on for long, killed while it holds slots."""
        before = self.json("stats")["frames_total"]
        victim = self.start("framestow", "frames", name, ",".join([f"0-{frames - 1}"] * 20), "--digest",
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            now = self.json("stats")
            if now["frames_total"] - before >= frames // 2 and now["leases"] > 0:
                break
            time.sleep(0.01)
        self.check(victim.poll() is None, "the third consumer ended before it could be killed")
        victim.kill()
        victim.wait()

    def consume(self, name, frames):
        """Two whole streams at once, a third one dying between them: what the two say of themselves."""
        consumers = [self.start("framestow", "--json", "frames", name, "--digest", stdout=subprocess.PIPE)
                     for _ in range(2)]
        self.kill_half_way(name, frames)
        results = []
        for process in consumers:
            out, _ = process.communicate(timeout=300)
            if process.returncode:
                raise Failed(f"a consumer ended with {process.returncode}")
            results.append(json.loads(out))
        return results

    def leases_left(self):
        """Slots still held once the dead are noticed: at once, but for a moment."""
        end = time.monotonic() + 5
        while True:
            leases = self.json("stats")["leases"]
            if leases == 0 or time.monotonic() > end:
                return leases
            time.sleep(0.02)

    def examples(self):
        """The C and C++ examples where they were built: their hash of a small acquisition is ours."""
        found = [p for name in ("example_c", "example_cpp") for p in
                 (*self.bin.glob(name), *self.bin.glob(f"*/{name}"), *self.bin.glob(f"*/*/{name}"))
                 if p.is_file() and os.access(p, os.X_OK)]
        if not found:
            return "not built"
        self.run("framestow-simulate", self.folder / "small", "--scan", "4x4", "--detector", "48x40")
        master = self.folder / "small" / "sim_master.h5"
        self.run("framestow", "load", master, "--name", "small")
        self.run("framestow", "frames", "small", "--out", self.folder / "small.npy")
        value, data = 0xcbf29ce484222325, (self.folder / "small.npy").read_bytes()[-4 * 4 * 48 * 40 * 2:]
        for byte in data:
            value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
        for program in found:
            said = self.run(program, master)
            self.check(said.startswith(f"{value:016x} 16 frames"), f"{program.name} prints {said.strip()}, expected "
                                                                   f"{value:016x} 16 frames")
        return ", ".join(p.name for p in found)

    def play(self, scan):
        print(f"simulating a scan of {scan} frames of 192x192 uint16, four shards ...", file=sys.stderr)
        text = self.run("framestow-simulate", self.folder / "data", "--name", "demo", "--scan", scan, "--shards", 4,
                        "--truth").split()
        truth, frames, file_bytes = text[0], int(text[1]), sum(p.stat().st_size for p in
                                                               (self.folder / "data").iterdir())
        self.start_daemon()
        begin = time.monotonic()
        info = self.json("load", self.folder / "data" / "demo_master.h5", quiet=False)
        seconds = time.monotonic() - begin
        results = self.consume("demo", frames)
        for i, result in enumerate(results):
            self.check(result["sha256"] == truth and result["frames"] == frames,
                       f"consumer {i + 1} got {result['sha256']}, {result['frames']} frames; truth: {truth}, {frames}")
        single = self.json("frames", "demo", f"0-{min(frames, 2000) - 1}", "--batch", 1, "--slots", 2)
        leases = self.leases_left()
        self.check(leases == 0, f"{leases} leases are left over")
        built = self.examples()
        self.stop_daemon()
        sizes = info["bytes"]
        self.table([
            ("device", info.get("device", self.device)),
            ("acquisition", f"{frames:,} frames, {sizes['logical'] / 1e6:,.1f} MB decoded"),
            ("in the files", f"{file_bytes / 1e6:,.1f} MB"),
            ("resident", f"{sizes['resident'] / 1e6:,.1f} MB"),
            ("load", f"{seconds:.2f} s"),
            *((f"consumer {i + 1}", f"{r['frames_per_s']:,.0f} frames/s with SHA-256, "
               f"{'right' if r['sha256'] == truth else 'WRONG'}, by {r['memory']}") for i, r in enumerate(results)),
            ("hand-off", f"p50 {single['handoff_us']['p50']:.0f} us, p99 {single['handoff_us']['p99']:.0f} us "
                         f"(single frames, {single['frames_per_s']:,.0f} a second)"),
            ("consumer 3", "killed half-way"),
            ("leases left over", str(leases)),
            ("C examples", built)])

    @staticmethod
    def table(rows):
        print()
        for name, value in rows:
            print(f"  {name:17} {value}")

    def close(self):
        if self.daemon and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=Path, metavar="DIR")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--scan", default="64x64")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="framestow-demo-") as folder:
        demo = Demo(Path(folder), options.bin.resolve(), options.device)
        try:
            demo.play(options.scan)
        except Failed as e:
            demo.faults.append(str(e))
            print(f"demo: {e}", file=sys.stderr)
        finally:
            demo.close()
        print("\ndemo: FAILED" if demo.faults else "\ndemo: all as it should be")
        return 1 if demo.faults else 0


if __name__ == "__main__":
    sys.exit(main())
