"""Ports of this machine, for tests that run at the same time."""

import pathlib
import random
import socket


def free_port() -> str:
    """Returns a port of 127.0.0.1 on which nobody listens, for the arguments or the environment of a process.

    The system assigns ports of a certain range to outgoing connections, which other tests open meanwhile. The port is
    therefore below that range, unless the range begins too low. Two calls almost never return the same port.
    """
    ephemeral = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    last = ephemeral if ephemeral > 11_000 else 65_536
    chance = random.SystemRandom()  # not the generator that a test seeds, which draws the same numbers in every process
    while True:
        port = chance.randrange(10_000, last)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return str(port)
