#!/usr/bin/env python3
"""Tests where a build looks for Debian packages (cmake/FindDebianPackage.cmake), with a package that no system has.

Usage: find_debian_package_test.py CMAKE
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PROJECT = f"""
cmake_minimum_required(VERSION 3.25)
project(with_a_package NONE)
include("{SOURCE}/cmake/FindDebianPackage.cmake")
find_debian_package(copusexample libcopusexample-dev)
find_path(HEADERS copusexample.h)
message(STATUS "found ${{copusexample_DIR}} and ${{HEADERS}}")
"""


class FindDebianPackage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        (self.folder / "CMakeLists.txt").write_text(PROJECT)

    def unpack(self, place):
        config = self.folder / place / f"usr/lib/{os.uname().machine}-linux-gnu/cmake/copusexample"
        include = self.folder / place / "usr/include"
        config.mkdir(parents=True)
        include.mkdir(parents=True)
        (config / "copusexampleConfig.cmake").touch()
        (include / "copusexample.h").touch()
        return f"found {config} and {include}"

    def configure(self):
        """The exit code and the output of CMake, started as pip starts it, without the variables of scripts/build."""
        environment = {name: value for name, value in os.environ.items() if name != "CMAKE_PREFIX_PATH"}
        command = [CMAKE, "-S", self.folder, "-B", self.folder / "build"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def assert_found_in(self, place):
        found = self.unpack(place)
        code, said = self.configure()
        self.assertEqual(code, 0, said)
        self.assertIn(found, said)

    def test_packages_are_found_that_were_unpacked_without_root(self):
        self.assert_found_in(".cache/debian")

    def test_packages_are_found_that_were_brought_along(self):
        self.assert_found_in("third_party")

    def test_a_package_that_is_nowhere_is_named(self):
        code, said = self.configure()
        self.assertNotEqual(code, 0, said)
        self.assertIn("copusexample was not found. Run `scripts/setup --build`, which needs no root, or: apt-get install "
                      "libcopusexample-dev", said)


if __name__ == "__main__":
    CMAKE = sys.argv[1]
    unittest.main(argv=sys.argv[:1])
