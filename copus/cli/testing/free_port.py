"""Ports of this machine, for tests that run beside each other."""

import pathlib
import random
import socket


def free_port() -> str:
    """A port of 127.0.0.1 on which nobody listens, for the arguments or the environment of a process.

    The system gives outgoing connections ports from a range of its own, and other tests open connections meanwhile. So
    the port lies below that range, unless the range begins too low for that. Two calls hardly ever return the same port.
    """
    ephemeral = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    last = ephemeral if ephemeral > 11_000 else 65_536
    chance = random.SystemRandom()  # not the generator that a test has seeded, which draws alike in every process
    while True:
        port = chance.randrange(10_000, last)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return str(port)
