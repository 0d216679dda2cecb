"""Tests `copus doctor` as a process: its lines, its exit code, and that a bad environment is reported as one.

Usage: doctor_test.py PATH_TO_COPUS [unittest options]. The unit tests cover its judgements, with given values.
"""

import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import unittest

from program_test_support import COPUS, TIMEOUT, WITH_TORCH, ProgramTest



class Doctor(ProgramTest):
    def examine(self, *arguments, program=COPUS, limits=None, **variables):
        """Returns the exit code, and the findings by subject; for a subject with several findings the last one."""
        environment = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "RANK")}
        done = subprocess.run([program, "doctor", "--json", *arguments], cwd=self.folder, text=True, capture_output=True,
                              timeout=TIMEOUT, env={**environment, **variables}, preexec_fn=limits)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["bad"] > 0, done.returncode == 1)
        return done.returncode, {finding["subject"]: finding for finding in report["findings"]}

    def beside(self, script):
        """Makes a copy of the program, with a copus-torch in the same folder that runs `script`."""
        program = self.folder / "bin" / "copus"
        program.parent.mkdir(exist_ok=True)
        shutil.copy2(COPUS, program)
        trainer = program.with_name("copus-torch")
        trainer.write_text(f"#!/bin/sh\n{script}\n")
        trainer.chmod(0o755)
        return program

    def test_says_what_the_machine_can_do(self):
        done = subprocess.run([COPUS, "doctor"], cwd=self.folder, text=True, capture_output=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        subjects = ["program", "cores", "memory", "threads", "open files", "run directory", "shared memory", "ports",
                    "host name", "links", "clock", "launcher", "environment", "peer memory", "GPUs"]
        for subject in subjects + (["libtorch", "CPU"] if WITH_TORCH else ["trainer"]):
            self.assertRegex(done.stdout, rf"(?m)^(ok|warning|bad) +{subject} +\S", subject)
        self.assertRegex(done.stdout.splitlines()[-1], r"^Nothing is bad, \d+ warnings?\.$")
        self.assertEqual(list(self.folder.glob("copus-doctor*")), [])

    def test_says_what_a_build_without_libtorch_lacks(self):
        program = self.folder / "copus"
        shutil.copy2(COPUS, program)
        code, findings = self.examine(program=program)
        self.assertEqual(code, 0)
        self.assertEqual(findings["trainer"]["verdict"], "warning")
        self.assertIn("does not train", findings["trainer"]["text"])

    def test_a_folder_that_cannot_be_written_is_bad(self):
        code, findings = self.examine("--run-dir", "/proc/runs")
        self.assertEqual((code, findings["run directory"]["verdict"]), (1, "bad"))

    def test_few_open_files_are_bad(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (36, 36))

        code, findings = self.examine(limits=limit)
        self.assertEqual((code, findings["open files"]["verdict"]), (1, "bad"))

    def test_half_of_a_launchers_variables_are_bad(self):
        code, findings = self.examine(RANK="1")
        self.assertEqual((code, findings["launcher"]["verdict"]), (1, "bad"))

    def test_harmful_variables_are_warnings(self):
        code, findings = self.examine(CUDA_DEVICE_MAX_CONNECTIONS="1")
        self.assertEqual((code, findings["environment"]["verdict"]), (0, "warning"))

    def test_needs_no_home(self):
        environment = {name: value for name, value in os.environ.items() if name != "HOME"}
        done = subprocess.run([COPUS, "doctor"], cwd=self.folder, text=True, capture_output=True, env=environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_trainer_that_does_not_start_is_bad(self):
        program = self.beside("echo 'cannot open libtorch_cpu.so' >&2; exit 127")
        code, findings = self.examine(program=program)
        self.assertEqual((code, findings["trainer"]["verdict"]), (1, "bad"))
        self.assertIn("exit code 127: cannot open libtorch_cpu.so", findings["trainer"]["text"])
        program.with_name("copus-torch").chmod(0o644)
        code, findings = self.examine(program=program)
        self.assertIn("Permission denied", findings["trainer"]["text"])

    def test_a_driver_that_ends_the_trainer_keeps_what_came_before(self):
        line = json.dumps({"verdict": "ok", "subject": "libtorch", "text": "2.11", "remedy": ""})
        code, findings = self.examine(program=self.beside(f"echo '{line}'; kill -SEGV $$"))
        self.assertEqual((code, findings["libtorch"]["text"]), (1, "2.11"))
        self.assertIn("after libtorch with signal 11", findings["trainer"]["text"])

    def test_a_driver_that_hangs_is_bad(self):
        line = json.dumps({"verdict": "ok", "subject": "libtorch", "text": "2.11", "remedy": ""})
        code, findings = self.examine(program=self.beside(f"echo '{line}'; exec sleep 600"))
        self.assertEqual((code, findings["trainer"]["text"]), (1, "no answer within 8 s after libtorch"))

    def test_a_slow_load_is_a_warning(self):
        code, findings = self.examine(program=self.beside("exec sleep 600"))
        self.assertEqual((code, findings["trainer"]["verdict"]), (0, "warning"))
        self.assertIn("run copus doctor again", findings["trainer"]["remedy"])

    def test_the_hidden_command_is_no_users(self):
        self.assertNotIn("doctor-trainer", self.assert_done("--help").stdout)

    @unittest.skipUnless(WITH_TORCH, "needs libtorch")
    def test_names_the_libtorch_that_it_loads(self):
        _, findings = self.examine()
        self.assertRegex(findings["libtorch"]["text"], r"^\d+\.\d+\.\d+\S* from /\S+")
        self.assertTrue(pathlib.Path(findings["libtorch"]["text"].split(" from ")[1]).is_dir())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
