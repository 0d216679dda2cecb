"""Two hosts that are network namespaces of this machine, joined by a virtual cable."""

import os
import shutil
import subprocess
import unittest


def ip(*words: str) -> bool:
    """Runs the program `ip`; returns whether it succeeded."""
    return subprocess.run(["ip", *words], check=False, stderr=subprocess.DEVNULL).returncode == 0


class TwoHosts:
    """Deleted when the test ends. Skips the test if this machine does not allow such hosts."""

    def __init__(self, test: unittest.TestCase):
        if os.getuid() != 0 or not shutil.which("ip"):
            test.skipTest("making network namespaces needs root, and ip")
        self.addresses = ["10.213.9.1", "10.213.9.2"]
        self.names = [f"copus-{os.getpid()}-{letter}" for letter in "ab"]
        self.cables = [f"cm{os.getpid()}{letter}" for letter in "ab"]  # at most 15 characters
        for name in self.names:
            if not ip("netns", "add", name):
                test.skipTest("this machine does not allow network namespaces")
            test.addCleanup(ip, "netns", "delete", name)
        if not ip("link", "add", self.cables[0], "type", "veth", "peer", "name", self.cables[1]):
            test.skipTest("this machine does not allow virtual cables")
        for name, cable, address in zip(self.names, self.cables, self.addresses):
            ip("link", "set", cable, "netns", name)
            ip("-n", name, "address", "add", f"{address}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")

    def set_cable(self, host: int, state: str) -> None:
        """Plugs the cable in ("up") or pulls it ("down")."""
        ip("-n", self.names[host], "link", "set", self.cables[host], state)
