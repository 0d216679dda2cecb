#!/usr/bin/env python3
"""Tests scripts/setup as a user who is not root: a copy of scripts/ in which apt-get and its like are programs of ours.

Ends with 77, which CTest takes for skipped, where there is no dpkg-deb.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent
HEADER = "usr/include/nlohmann/json.hpp"
# Only what is in $INSTALLED is installed; apt-get has one package beside those asked for, which one of them needs.
PROGRAMS = {
    "id": "echo 1000",
    "sudo": "exit 1",
    "dpkg-query": '[[ " $INSTALLED " == *" ${!#} "* ]] && echo -n installed',
    "apt-get": """
echo "apt-get $*" >>"$LOG"
[[ -z "$UNREACHABLE" ]] || { echo "E: no network" >&2; exit 100; }
case " $* " in
  *" install "*) echo "Inst needed-by-it (1.0 Debian [all])" ;;
  *" download "*)
    for package in needed-by-it nlohmann-json3-dev; do cp "$DEBS/$package.deb" .; done ;;
esac""",
}
MISSING = "nlohmann-json3-dev"


def make_package(folder: pathlib.Path, name: str, file: str) -> None:
    tree = folder / name
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: none\n")
    (tree / file).parent.mkdir(parents=True)
    (tree / file).write_text("content\n")
    subprocess.run(["dpkg-deb", "--build", tree, folder / f"{name}.deb"], check=True, stdout=subprocess.DEVNULL)


class WithoutRoot(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        shutil.copytree(SCRIPTS, self.folder / "project" / "scripts")
        (self.folder / "torch").mkdir()
        (self.folder / "torch" / "TorchConfig.cmake").touch()
        (self.folder / "bin").mkdir()
        for name, text in PROGRAMS.items():
            program = self.folder / "bin" / name
            program.write_text(f"#!/usr/bin/env bash\n{text}\n")
            program.chmod(0o755)
        make_package(self.folder, MISSING, HEADER)
        make_package(self.folder, "needed-by-it", "lib/needed")
        (self.folder / "log").touch()

    def bash(self, command, unreachable="", installed=None, **variables):
        listed = (SCRIPTS / "debian-packages.txt").read_text().split("\n") + ["python3-venv"]
        installed = " ".join(package for package in listed if package != MISSING) if installed is None else installed
        environment = dict(os.environ, PATH=f"{self.folder}/bin:{os.environ['PATH']}", DEBS=str(self.folder),
                           COPUS_TORCH_DIR=str(self.folder / "torch"), INSTALLED=installed, UNREACHABLE=unreachable,
                           LOG=str(self.folder / "log")) | variables
        return subprocess.run(["bash", "-c", command], cwd=self.folder / "project", env=environment, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True)

    def test_what_the_build_needs_is_unpacked_once(self):
        result = self.bash("scripts/setup --build")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        unpacked = self.folder / "project" / ".cache" / "debian"
        self.assertEqual((unpacked / HEADER).read_text(), "content\n")
        self.assertTrue((unpacked / "usr" / "lib" / "needed").exists(), "/lib is /usr/lib")
        self.assertEqual([path.name for path in unpacked.parent.iterdir()], ["debian"])
        asked = (self.folder / "log").read_text()
        self.assertIn(f"download needed-by-it {MISSING}", asked)
        self.assertEqual(self.bash("scripts/setup --build").returncode, 0)
        self.assertEqual((self.folder / "log").read_text(), asked, "asked for again")

    def test_builds_find_what_was_unpacked(self):
        self.bash("scripts/setup --build")
        found = self.bash('source scripts/lib.sh; echo "$CMAKE_PREFIX_PATH $LD_LIBRARY_PATH $PATH"').stdout
        unpacked = self.folder / "project" / ".cache" / "debian"
        self.assertTrue(found.startswith(f"{unpacked}/usr"), found)
        self.assertIn(f" {unpacked}/usr/lib/", found)
        self.assertTrue(found.endswith(f":{unpacked}/usr/bin\n"), found)

    def test_what_cannot_be_had_is_listed(self):
        result = self.bash("scripts/setup --build", unreachable="yes")
        self.assertEqual(result.returncode, 2)
        self.assertIn("E: no network", result.stderr)
        self.assertIn(f"unpacking them failed (see above): {MISSING}", result.stderr)
        self.assertIn(f"apt-get install -y --no-install-recommends {MISSING}", result.stderr)
        self.assertFalse((self.folder / "project" / ".cache" / "debian").exists(), "nothing half-made")

    def test_programs_from_elsewhere_are_enough(self):
        (self.folder / "bin" / "ninja").write_text("")
        (self.folder / "bin" / "ninja").chmod(0o755)
        listed = (SCRIPTS / "debian-packages.txt").read_text().replace("ninja-build", "").split("\n")
        result = self.bash("scripts/setup --build", installed=" ".join(listed + ["python3-venv"]))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("download", (self.folder / "log").read_text())

    def test_an_old_libtorch_in_the_environment_is_none(self):
        venv = self.folder / "project" / ".venv"
        torch = venv / "lib" / "python3.11" / "site-packages" / "torch" / "share" / "cmake" / "Torch"
        for folder in (torch, venv / "bin"):
            folder.mkdir(parents=True)
        (torch / "TorchConfig.cmake").touch()
        for name in ("python", "pip"):
            (venv / "bin" / name).write_text('#!/bin/sh\necho "pip $*" >>"$LOG"\nexit 1\n')
            (venv / "bin" / name).chmod(0o755)
        for version, is_taken in (("2.9.1", False), ("2.11.0", True), ("2.13.0", True)):
            (torch / "TorchConfigVersion.cmake").write_text(f'set(PACKAGE_VERSION "{version}")\n')
            result = self.bash("scripts/setup --build", COPUS_TORCH_DIR="")
            self.assertEqual(result.returncode, 0 if is_taken else 2, version + result.stdout + result.stderr)
            self.assertEqual("Downloading libtorch" in result.stdout, not is_taken, version)

    def test_the_set_up_of_developers_says_what_needs_root(self):
        result = self.bash("scripts/setup")
        self.assertEqual(result.returncode, 2)
        self.assertIn("installing them needs root: nlohmann-json3-dev", result.stderr)
        self.assertIn("scripts/build, needs no root", result.stderr)


if __name__ == "__main__":
    if not shutil.which("dpkg-deb"):
        print("SKIPPED: dpkg-deb is not installed")
        sys.exit(77)
    unittest.main()
