#!/usr/bin/env python3
"""Tests scripts/setup as a user who is not root: a copy of scripts/ in which apt-get and similar programs are
imitations.

Exits with 77, which CTest counts as skipped, if there is no dpkg-deb.
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
# Only packages in $INSTALLED are installed; apt-get adds one dependency to the requested packages.
PROGRAMS = {
    "id": "echo 1000",
    "sudo": 'echo "sudo $*" >>"$LOG"; exit 1',
    "cmake": 'printf "%s\\n" "$@" >>"$LOG.cmake"',
    "dpkg-query": """
[[ "$1" != -L ]] || { echo /lib/libc.so.6; exit; }
[[ " $INSTALLED " == *" ${!#} "* ]] && echo -n installed""",
    "apt-get": """
echo "apt-get $*" >>"$LOG"
[[ -z "$UNREACHABLE" ]] || [[ "$UNREACHABLE" == "by old lists" && " $* " != *" download "* ]] ||
  [[ "$UNREACHABLE" == "by old lists" && " $* " == *" Dir::State::Lists="* ]] || { echo "E: no network" >&2; exit 100; }
case " $* " in
  *" install "*) echo "Inst needed-by-it (1.0 Debian [all])" ;;
  *" download "*)
    for package in needed-by-it nlohmann-json3-dev; do cp "$DEBS/$package.deb" .; done ;;
esac""",
}
MISSING = "nlohmann-json3-dev"


def make_package(folder: pathlib.Path, name: str, files: dict[str, str]) -> None:
    tree = folder / name
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: none\n")
    for file, text in files.items():
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_text(text)
        (tree / file).chmod(0o755)
    subprocess.run(["dpkg-deb", "--build", tree, folder / f"{name}.deb"], check=True, stdout=subprocess.DEVNULL)


class WithoutRoot(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve() / "with blanks"
        self.folder.mkdir()
        shutil.copytree(SCRIPTS, self.folder / "project" / "scripts")
        shutil.copytree(SCRIPTS.parent / "cmake", self.folder / "project" / "cmake")
        (self.folder / "torch").mkdir()
        (self.folder / "torch" / "TorchConfig.cmake").touch()
        (self.folder / "bin").mkdir()
        for name, text in PROGRAMS.items():
            program = self.folder / "bin" / name
            program.write_text(f"#!/usr/bin/env bash\n{text}\n")
            program.chmod(0o755)
        make_package(self.folder, MISSING, {HEADER: "content\n"})
        make_package(self.folder, "needed-by-it", {"lib/needed": "content\n"})
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

    def test_a_program_that_is_started_by_hand_finds_what_was_unpacked(self):
        make_package(self.folder, "needed-by-it", {f"lib/{os.uname().machine}-linux-gnu/libneeded.so": "content\n"})
        self.bash("scripts/setup --build; source scripts/lib.sh; configure_and_build build program")
        libraries = self.folder / "project" / ".cache" / "debian" / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"
        self.assertTrue((libraries / "libneeded.so").exists())
        self.assertIn(f"-DCMAKE_BUILD_RPATH={libraries}", (self.folder / "log.cmake").read_text().splitlines())

    def test_what_cannot_be_had_is_listed(self):
        result = self.bash("scripts/setup --build", unreachable="yes")
        self.assertEqual(result.returncode, 2)
        self.assertIn("E: no network", result.stderr)
        self.assertIn(f"unpacking them failed (see above): {MISSING}", result.stderr)
        self.assertIn(f"apt-get install -y --no-install-recommends {MISSING}", result.stderr)
        self.assertFalse((self.folder / "project" / ".cache" / "debian").exists(), "nothing half-made")

    def test_old_package_lists_are_not_the_end(self):
        result = self.bash("scripts/setup --build", unreachable="by old lists")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(" update\n", (self.folder / "log").read_text())
        self.assertEqual((self.folder / "project" / ".cache" / "debian" / HEADER).read_text(), "content\n")

    def test_a_compiler_that_comes_later_is_found_with_its_headers(self):
        self.bash("scripts/setup --build")
        make_package(self.folder, "needed-by-it", {"usr/bin/g++": "content\n", "usr/include/stdio.h": "content\n"})
        found = self.bash(f"""source scripts/lib.sh
echo "${{CXX:-none}}"
scripts/unpack-debian-packages {MISSING} >/dev/null
use_unpacked_packages
echo $CXX""")
        self.assertEqual(found.returncode, 0, found.stderr)
        unpacked = self.folder / "project" / ".cache" / "debian"
        self.assertEqual(found.stdout.splitlines(), ["none", f"{unpacked}/usr/bin/g++ --sysroot={unpacked}"])

    def test_no_compiler_is_unpacked_where_the_path_has_blanks(self):
        (self.folder / "few").mkdir()
        for program in ("bash", "dirname", "env", "grep", "nproc", "uname"):
            (self.folder / "few" / program).symlink_to(shutil.which(program))
        result = self.bash('PATH="${PATH%%:*}:$PWD/../few"; scripts/setup --build', installed="")
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, "^error: a compiler that is unpacked here does not work in a folder with b")
        self.assertNotIn("download", (self.folder / "log").read_text())

    def test_libtorch_needs_no_pip(self):
        (self.folder / "project" / "scripts" / "fetch_wheel_parts.py").write_text("""import sys, zipfile
index, wheel, _, folder, *patterns = sys.argv[1:]
with zipfile.ZipFile(f"{folder}/{wheel}", "w") as archive:
    for pattern in patterns:
        archive.writestr(pattern.replace("*", "some"), index)
""")
        result = self.bash("unset COPUS_TORCH_DIR PIP_FIND_LINKS; PIP_INDEX_URL=https://mine scripts/setup --build")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertNotIn(".venv", [path.name for path in (self.folder / "project").iterdir()])
        libtorch = self.folder / "project" / ".cache" / "libtorch"
        for file in ("torch/lib/libtorch_cpu.so", "some/libcupti.so.13", "some/libcudart.so.13"):
            self.assertEqual((libtorch / file).read_text(), "https://mine")

    def test_the_parts_of_libtorch_are_of_the_version_that_is_required(self):
        version = (SCRIPTS / "requirements-torch.txt").read_text().split("==")[1].strip()
        self.assertIn(f" torch-{version}-cp", (SCRIPTS / "setup").read_text(),
                      "scripts/setup names another wheel than scripts/requirements-torch.txt; see unpack_libtorch")

    def test_programs_from_elsewhere_are_enough(self):
        (self.folder / "bin" / "ninja").write_text("")
        (self.folder / "bin" / "ninja").chmod(0o755)
        listed = (SCRIPTS / "debian-packages.txt").read_text().replace("ninja-build", "").split("\n")
        result = self.bash("scripts/setup --build", installed=" ".join(listed + ["python3-venv"]))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((self.folder / "log").read_text(), "", "neither apt-get nor sudo has anything to do")

    def test_off_debian_headers_that_were_brought_along_are_enough(self):
        (self.folder / "few").mkdir()
        for program in ("bash", "dirname", "env", "grep", "nproc", "python3", "rm", "sed", "uname"):
            (self.folder / "few" / program).symlink_to(shutil.which(program))
        for program, text in {"cmake": "", "ninja": "", "g++": '[[ " $* " == *" -isystem third_party/usr/include "* ]]'}.items():
            (self.folder / "few" / program).write_text(f"#!/usr/bin/env bash\n{text}\n")
            (self.folder / "few" / program).chmod(0o755)
        command = 'PATH="$PWD/../few"; scripts/setup --build'
        self.assertRegex(self.bash(command).stdout, r"note: not a Debian system, .*: gtest/gtest\.h [^)]*gpu-check --prepare")
        (self.folder / "project/third_party/usr/include").mkdir(parents=True)
        result = self.bash(command)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)

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
