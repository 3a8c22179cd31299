#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks that need no GPU, on a daemon of their own: `make bench`.

    run.py --bin BUILD [--seconds S]

Hand-off and random frames with 1 and 3 consumers, sleeping and spinning; sequential frames a second; load and
stream against h5py. Each line is a JSON object as handoff prints it. Exits 1 if one of them failed.
"""
import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def find(folder, name):
    for path in (folder / name, folder / "tests" / name, folder.parent / "libexec" / "framestow" / "tests" / name,
                 *folder.glob(f"**/{name}")):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    sys.exit(f"{name} is not in {folder}; build it with: ninja -C {folder} benches")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, type=Path)
    parser.add_argument("--seconds", default="3")
    options = parser.parse_args()
    handoff, failed = find(options.bin, "handoff"), False
    with tempfile.TemporaryDirectory(prefix="fs-bench-") as folder:
        env = {**os.environ, "FRAMESTOW_SOCKET": f"{folder}/s"}
        subprocess.run([options.bin / "framestow-simulate", folder, "--shards", "4"], check=True)
        with open(f"{folder}/log", "w") as log:
            daemon = subprocess.Popen([options.bin / "framestowd", "--device", "host", "--socket", f"{folder}/s",
                                       "--state-dir", f"{folder}/state"], stderr=log)
        try:
            while subprocess.run([options.bin / "framestow", "ls"], env=env, capture_output=True).returncode:
                if daemon.poll() is not None:
                    sys.exit(Path(folder, "log").read_text())
                time.sleep(0.05)
            subprocess.run([options.bin / "framestow", "load", f"{folder}/sim_master.h5"], env=env, check=True)
            for mode in ("request", "stream", "sequential"):
                for consumers in ("1", "3"):
                    for spin in ("0", "1000"):
                        failed |= subprocess.run([handoff, "sim", "--mode", mode, "--consumers", consumers, "--spin",
                                                  spin, "--seconds", options.seconds], env=env).returncode != 0
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)
    compare = Path(__file__).parent / "compare_h5py.py"
    failed |= subprocess.run([sys.executable, compare, "--bin", options.bin]).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
