#!/usr/bin/env python3
"""Prints which device code a program built for CUDA has, and fails unless it has machine code for each ARCHITECTURE:
device_code.py PROGRAM ARCHITECTURE..., e.g. sm_90. Needs objcopy and nm, and no CUDA.

The section .nv_fatbin is a sequence of containers. A container has a header (magic, version, size of the header, size
of the entries), then entries. Each entry has a header (kind, version, size of the header, size of the code; at byte 28
the architecture), then its code.
"""

import pathlib
import struct
import subprocess
import sys
import tempfile

MAGIC = 0xBA55ED50
MACHINE_CODE = 2  # an entry's kind; 1 is PTX


def fatbin_section(program: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        section = pathlib.Path(folder, "section")
        command = ["objcopy", "--dump-section", f".nv_fatbin={section}", program, "/dev/null"]
        subprocess.run(command, stderr=subprocess.DEVNULL)
        return section.read_bytes() if section.is_file() else b""


def architectures(section: bytes) -> tuple[set[str], set[str]]:
    """The architectures of machine code, and those of PTX."""
    machine_code, ptx = set(), set()
    at = 0
    while at + 16 <= len(section):
        magic, _, header_size, size = struct.unpack_from("<IHHQ", section, at)
        if magic != MAGIC:
            at += 8  # padding between containers
            continue
        entry, end = at + header_size, at + header_size + size
        while entry + 32 <= end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", section, entry)
            (architecture,) = struct.unpack_from("<I", section, entry + 28)
            if kind == MACHINE_CODE:
                machine_code.add(f"sm_{architecture}")
            else:
                ptx.add(f"compute_{architecture}")
            entry += entry_header + entry_size
        at = end
    return machine_code, ptx


def main(program: str, *wanted: str) -> None:
    machine_code, ptx = architectures(fatbin_section(program))
    symbols = subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout
    kernels = symbols.count("__device_stub__")  # what the host calls for each
    print(f"{program}: {kernels} kernels; machine code for {sorted(machine_code)}, PTX for {sorted(ptx)}")
    if not kernels:
        sys.exit(f"error: {program} has no kernels")
    missing = set(wanted) - machine_code
    if missing:
        sys.exit(f"error: {program} lacks machine code for {sorted(missing)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
