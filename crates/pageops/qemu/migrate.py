#!/usr/bin/env python3
"""Migrates a VM between QEMUs that check for zero pages with an accelerator, and checks everything about it.

    migrate.py QEMU GUEST [--accel model] [--l FOLDER]

1. A device that is not there fails the migration with a sentence; the VM runs on.
2. A VM that writes to its memory is migrated live. On the other side it must find its memory right in 40 passes.
3. That VM is stopped and migrated twice more: by the processor, and by the accelerator. Both must find the same zero pages, and all three
   memories must be the same.

Every migration by the accelerator must have checked exactly the pages that `info migrate` counts.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

MEMORY = 256 << 20
CHANNELS = 4
# One look at everything takes 16 passes.
PASSES = 40
LIMIT = 900


class Wrong(Exception):
    pass


def until(what, done):
    """Waits for a condition, not for a time."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        result = done()
        if result:
            return result
        time.sleep(0.05)
    raise Wrong(f"{what}: not within {LIMIT} s")


class Vm:
    def __init__(self, options, folder, name, incoming=False):
        self.name = name
        self.path = lambda suffix: os.path.join(folder, f"{name}.{suffix}")
        command = [
            options.qemu, "-nodefaults", "-display", "none", "-machine", "pc", "-accel", "tcg", "-m", str(MEMORY >> 20),
            "-bios", options.guest, "-L", options.l, "-serial", f"file:{self.path('serial')}",
            "-qmp", f"unix:{self.path('qmp')},server=on,wait=off",
        ]
        if incoming:
            command += ["-incoming", "defer"]
        self.errors = open(self.path("stderr"), "wb")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors)
        self.socket = until(f"{name}: QMP", self.connect)
        self.answers = self.socket.makefile("r")
        self.answers.readline()
        self.ask("qmp_capabilities")
        for capability in ["multifd"]:
            self.ask("migrate-set-capabilities", capabilities=[{"capability": capability, "state": True}])
        self.ask("migrate-set-parameters", **{"multifd-channels": CHANNELS})

    def connect(self):
        if self.process.poll() is not None:
            raise Wrong(f"{self.name}: QEMU ended: {self.stderr()}")
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self.path("qmp"))
            return connection
        except OSError:
            connection.close()
            return None

    def ask(self, command, **arguments):
        try:
            self.socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
            for line in self.answers:
                answer = json.loads(line)
                if "error" in answer:
                    raise Wrong(f"{self.name}: {command}: {answer['error']['desc']}")
                if "return" in answer:
                    return answer["return"]
        except OSError:
            pass
        raise Wrong(f"{self.name}: QEMU ended ({self.process.wait()}): {self.stderr()}")

    def human(self, line):
        return self.ask("human-monitor-command", **{"command-line": line})

    def stderr(self):
        with open(self.path("stderr")) as file:
            return file.read()

    def serial(self):
        with open(self.path("serial")) as file:
            return file.read()

    def passes(self, count, why):
        """Waits for so many passes of the guest that found its memory right."""
        def done():
            text = self.serial()
            if "X" in text:
                raise Wrong(f"{self.name}: the guest found wrong memory {why}: {text}")
            return text.count(".") >= count
        until(f"{self.name}: {count} passes of the guest", done)

    def memory(self):
        """Checksum of all memory of a VM that is stopped."""
        path = self.path("memory")
        self.ask("pmemsave", val=0, size=MEMORY, filename=path)
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        os.unlink(path)
        return digest

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()
        self.errors.close()


def migrate(source, target, accel, scheme, bandwidth=1 << 40):
    """Migrates; gives what `info migrate` says, and what the accelerator says of itself."""
    if scheme == "tcp":
        target.ask("migrate-incoming", uri="tcp:127.0.0.1:0")
        address = target.ask("query-migrate")["socket-address"][0]
        uri = f"tcp:127.0.0.1:{address['port']}"
    else:
        uri = f"unix:{target.path('migration')}"
        target.ask("migrate-incoming", uri=uri)
    source.ask("migrate-set-parameters", **{
        "zero-page-detection": "multifd", "accel-path": accel, "max-bandwidth": bandwidth, "downtime-limit": 500,
    })
    before = len(source.stderr())
    source.ask("migrate", uri=uri)
    ended = lambda info: info if info.get("status") in ("completed", "failed", "cancelled") else None
    info = until("migration", lambda: ended(source.ask("query-migrate")))
    if info["status"] != "completed":
        return info, None
    until("target", lambda: target.ask("query-migrate").get("status") == "completed")
    # The report comes when the channels end.
    said = re.compile(r"accel-path: (\d+) pages checked, (\d+) zero: (.*)")
    report = until("report", lambda: said.search(source.stderr()[before:])) if accel else None
    if not accel and said.search(source.stderr()[before:]):
        raise Wrong("an accelerator reported though none was asked for")
    return info, report


def row(what, info, report):
    ram = info["ram"]
    checked, zero = (report.group(1), report.group(2)) if report else ("-", "-")
    print(f"{what:<34} {ram['normal'] + ram['duplicate']:>8} {ram['duplicate']:>8} {checked:>8} {zero:>8} "
          f"{ram['dirty-sync-count']:>6} {info['total-time']:>6} {info['downtime']:>8}", flush=True)
    if report:
        if int(checked) != ram["normal"] + ram["duplicate"] or int(zero) != ram["duplicate"]:
            raise Wrong(f"{what}: the accelerator and `info migrate` do not count the same pages")
        print(f"    {report.group(3)}")


def run(options, folder):
    accel = options.accel.split(",")
    vms = []

    def start(name, incoming=True):
        vms.append(Vm(options, folder, name, incoming))
        return vms[-1]

    try:
        first = start("first", incoming=False)
        print(first.human("info version").strip())
        first.passes(5, "before any migration")

        info, _ = migrate(first, start("nobody"), ["dsa:/dev/dsa/wq99.0"], "unix")
        if info["status"] != "failed" or "wq99.0" not in info.get("error-desc", ""):
            raise Wrong(f"a device that is not there: {info}")
        print(f"a device that is not there: {info['error-desc']}")
        if first.ask("query-status")["status"] != "running":
            raise Wrong("the VM does not run on after a migration that failed")

        print(f"\n{'migration':<34} {'pages':>8} {'zero':>8} {'checked':>8} {'zero':>8} {'passes':>6} {'ms':>6} {'downtime':>8}")
        second = start("second")
        # So slowly that the guest writes to its pages again before all were sent.
        live = migrate(first, second, accel, "tcp", bandwidth=32 << 20)
        row(f"live, {options.accel}, tcp", *live)
        if live[0]["ram"]["normal"] + live[0]["ram"]["duplicate"] < (MEMORY >> 12) + 256:
            raise Wrong("no page was sent twice: that was no live migration")
        print("    " + "; ".join(line.strip() for line in first.human("info migrate").splitlines()
                                if line.strip().startswith(("duplicate:", "normal:"))))
        if first.ask("query-migrate-parameters")["accel-path"] != accel:
            raise Wrong("accel-path is not what was set")
        second.passes(PASSES, "after a live migration")

        second.ask("stop")
        third, fourth = start("third"), start("fourth")
        by_cpu, nothing = migrate(second, third, [], "unix")
        row("stopped, the processor, unix", by_cpu, nothing)
        by_accel, report = migrate(third, fourth, accel, "unix")
        row(f"stopped, {options.accel}, unix", by_accel, report)
        for count in ["duplicate", "normal"]:
            if by_cpu["ram"][count] != by_accel["ram"][count]:
                raise Wrong(f"{count}: {by_cpu['ram'][count]} by the processor, {by_accel['ram'][count]} by the accelerator")
        memories = {vm.memory() for vm in (second, third, fourth)}
        if len(memories) != 1:
            raise Wrong("the memories of the stopped VMs differ")
        fourth.ask("cont")
        fourth.passes(PASSES, "after two migrations of the stopped VM")
        print(f"\nthe guest found its memory right in {PASSES} passes after each; the stopped VM has the same zero pages and the same "
              f"{MEMORY >> 20} MiB on both ways")
    finally:
        for vm in vms:
            vm.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("qemu")
    parser.add_argument("guest")
    parser.add_argument("--accel", default="model", help="accel-path, separated by commas")
    parser.add_argument("--l", default="/usr/share/qemu", help="folder of QEMU's ROMs")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="vmtax-qemu-")
    try:
        run(options, folder)
    except Wrong as wrong:
        sys.exit(f"migrate.py: {wrong}")
    finally:
        shutil.rmtree(folder)


main()
