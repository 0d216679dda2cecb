#!/usr/bin/env python3
"""Tests scripts/slurm-train with imitations of SLURM's programs."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().with_name("slurm-train")
# The list of nodes is longer than a pipe's buffer.
PROGRAMS = {
    "scontrol": """
echo "scontrol $*" >>"$LOG"
case "$*" in
  "show hostnames nodes[1-9]") printf 'node-%d\\n' {1..20000} ;;
  "--oneliner show node node-1") echo "NodeName=node-1 NodeAddr=10.0.0.7 NodeHostName=other" ;;
  requeue*) ;;
  *) exit 1 ;;
esac""",
    "srun": 'echo "srun $*, $MASTER_ADDR:$MASTER_PORT" >>"$LOG"; exit "$CODE"',
}


class SlurmTrainTest(unittest.TestCase):
    def submit(self, code):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in PROGRAMS.items():
                program = pathlib.Path(folder, name)
                program.write_text(f"#!/usr/bin/env bash\nset -e\n{text}\n")
                program.chmod(0o755)
            environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", LOG=f"{folder}/log", CODE=str(code),
                               SLURM_JOB_NODELIST="nodes[1-9]", SLURM_JOB_ID="10007", SLURM_CPUS_PER_TASK="8")
            result = subprocess.run([SCRIPT, "my.toml", "runs/my", "--set", "a=b"], env=environment, text=True,
                                    capture_output=True)
            return result, pathlib.Path(folder, "log").read_text().splitlines()

    def test_all_meet_on_the_first_of_many_nodes(self):
        result, log = self.submit(0)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(log[-1], "srun --cpus-per-task=8 build/copus train my.toml --run-dir runs/my --resume "
                                  "--set a=b, 10.0.0.7:20007")

    def test_a_job_whose_time_is_over_goes_back_into_the_queue(self):
        result, log = self.submit(75)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(log[-1], "scontrol requeue 10007")

    def test_a_failure_is_handed_on(self):
        result, log = self.submit(3)
        self.assertEqual(result.returncode, 3)
        self.assertTrue(log[-1].startswith("srun "), log)


if __name__ == "__main__":
    unittest.main()
