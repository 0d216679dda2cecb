#!/usr/bin/env python3
"""Tests which libtorch a build uses (cmake/FindLibtorch.cmake), with folders that look like one.

Usage: find_libtorch_test.py CMAKE
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import venv

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PROJECT = f"""
cmake_minimum_required(VERSION 3.25)
project(with_libtorch NONE)
include("{SOURCE}/cmake/FindLibtorch.cmake")
"""
IN_VENV = ".venv/lib/python3.11/site-packages/torch"
UNPACKED = ".cache/libtorch/torch"


class FindLibtorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        (self.folder / "CMakeLists.txt").write_text(PROJECT)

    def make_libtorch(self, place, version):
        torch = self.folder / place
        for part in ("lib", "share/cmake/Torch"):
            (torch / part).mkdir(parents=True)
        for library in ("libtorch_cpu.so", "libc10.so", "libgomp.so"):
            (torch / "lib" / library).touch()
        (torch / "share/cmake/Torch/TorchConfigVersion.cmake").write_text(f'set(PACKAGE_VERSION "{version}")\n')
        return torch / "share/cmake/Torch"

    def configure(self, *options, build="build", **variables):
        command = [CMAKE, "-S", self.folder, "-B", self.folder / build, *options]
        result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
        return result.returncode, " ".join((result.stdout + result.stderr).split())

    def assert_taken(self, place, *options, **where):
        code, said = self.configure(*options, **where)
        self.assertEqual(code, 0, said)
        self.assertIn(f"for CPUs in {self.folder / place}", said)

    def assert_refused(self, *options, says, **where):
        code, said = self.configure(*options, **where)
        self.assertNotEqual(code, 0, said)
        self.assertIn(says, said)

    def test_the_wheel_is_looked_for_each_time(self):
        self.make_libtorch(IN_VENV, "2.13.0")
        self.assert_taken(IN_VENV)
        shutil.rmtree(self.folder / ".venv")
        self.assert_refused(says="No libtorch of 2.11 or newer was found")
        self.make_libtorch(UNPACKED, "2.13.0")
        self.assert_taken(UNPACKED)

    def test_an_old_one_is_passed_over(self):
        self.make_libtorch(IN_VENV, "2.9.1")
        self.assert_refused(says="No libtorch of 2.11 or newer was found")
        self.make_libtorch(UNPACKED, "2.11.0")
        self.assert_taken(UNPACKED)

    def test_the_one_that_is_named_is_the_only_one(self):
        self.make_libtorch(IN_VENV, "2.13.0")
        other = self.make_libtorch("other", "2.12.0")
        self.assert_taken("other", f"-DTorch_DIR={other}")
        self.assert_taken("other")
        shutil.rmtree(self.folder / "other")
        self.assert_refused(says=f"Torch_DIR is {other}, which holds no TorchConfigVersion.cmake")
        self.assert_taken(IN_VENV, "-UTorch_DIR")
        old = self.make_libtorch("old", "2.10.0")
        self.assert_refused(f"-DTorch_DIR={old}", says="is 2.10.0; Copus needs 2.11 or newer", build="another")

    def make_environment(self):
        """The options of a wheel's build in an environment, as pip starts it."""
        venv.create(self.folder / "env")
        return "-DCOPUS_PYTHON=ON", f"-DPython3_EXECUTABLE={self.folder}/env/bin/python"

    def test_a_wheel_takes_the_pytorch_of_the_environment_that_pip_hides(self):
        options = self.make_environment()
        self.make_libtorch(IN_VENV, "2.13.0")
        place = f"env/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/torch"
        self.make_libtorch(place, "2.14.0")
        for folder, version in ((place, "2.14.0+cpu"), ("isolated/torch", "2.15.0")):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
            (self.folder / folder / "__init__.py").touch()
            (self.folder / folder / "version.py").write_text(f"__version__ = '{version}'\n")
        self.assert_taken(place, *options, PYTHONPATH=str(self.folder / "isolated"))

    def test_a_wheel_needs_a_pytorch(self):
        options = self.make_environment()
        self.make_libtorch(IN_VENV, "2.13.0")
        self.assert_refused(*options, says=f"{self.folder}/env/bin/python has no PyTorch to build the trainer for")
        named = self.make_libtorch("other", "2.12.0")
        self.assert_refused(*options, f"-DTorch_DIR={named}", says="has no version.py: the Python wheel needs a PyTorch")


if __name__ == "__main__":
    CMAKE = sys.argv[1]
    unittest.main(argv=sys.argv[:1])
