"""Tests deploy/ without Docker or Kubernetes. The environments in the manifests must form a job of two machines, and
the steps of the container files must be existing commands.

Usage: deploy_test.py PATH_TO_COPUS [unittest options]. Exits with 77, for skipped, if Python lacks yaml.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import unittest

from free_port import free_port
from program_test_support import COPUS, MODEL, ROOT, TIMEOUT, TORCHRUN, ProgramTest
from two_hosts import TwoHosts

try:
    import yaml
except ImportError:
    sys.exit(77)

DEPLOY = ROOT / "deploy"
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def documents(name):
    return {document["kind"]: document for document in yaml.safe_load_all((DEPLOY / name).read_text())}


def pod_of(name):
    return documents(name)["Job"]["spec"]["template"]["spec"]


def environment_of(container, index):
    """The environment of the pod with this index; the value of the field is set by Kubernetes."""
    values = {}
    for variable in container["env"]:
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        if field is not None:
            assert field == INDEX, field
        values[variable["name"]] = variable["value"] if field is None else str(index)
    return values


class Kubernetes(ProgramTest):
    def setUp(self):
        super().setUp()
        self.write_run("RUN.toml", steps=6, model=MODEL + "[parallel]\ndata_parallel = 2\ntensor_parallel = 2\n")

    def losses(self, run):
        lines = (self.folder / run / "run.jsonl").read_text().splitlines()
        return [record["loss"] for record in map(json.loads, lines) if "loss" in record]

    def name_pods(self, name):
        """Makes two hosts, each as isolated as a pod. Each pod has the name that the manifest's service gives it."""
        hosts = TwoHosts(self)
        metadata = documents(name)["Job"]["metadata"]["name"], documents(name)["Service"]["metadata"]["name"]
        names = ["{}-{}.{}".format(metadata[0], index, metadata[1]) for index in range(2)]
        for host in hosts.names:
            folder = pathlib.Path("/etc/netns", host)  # `ip netns exec` shows its files as those of /etc
            folder.mkdir(parents=True)
            self.addCleanup(shutil.rmtree, folder)
            lines = [f"{address} {name}\n" for address, name in zip(hosts.addresses, names)]
            (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
        return [["ip", "netns", "exec", host, "unshare", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc",
                 "sh", "-c", 'hostname "$0" && mount -t tmpfs tmpfs /dev/shm && exec "$@"', name.split(".")[0]]
                for host, name in zip(hosts.names, names)]

    def assert_trains_as_one_machine(self, name, program, changes, *settings, pods=([], [])):
        """Starts the manifest's pods as processes, with the words in `pods` before each command."""
        container, = pod_of(name)["containers"]
        self.assertEqual(documents(name)["Job"]["spec"]["completions"], len(pods))
        command = [program.get(word, word) for word in container.get("command", ["copus"])] + container["args"]
        pods = [subprocess.Popen([*pod, *command, *settings], cwd=self.folder, text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env={**os.environ, **environment_of(container, index), **changes})
                for index, pod in enumerate(pods)]
        for pod in pods:
            self.addCleanup(pod.kill)
        for pod in pods:
            output, errors = pod.communicate(timeout=TIMEOUT)
            self.assertEqual(pod.returncode, 0, output + errors)
        self.assert_done("train", "RUN.toml", "--run-dir", "alone")
        self.assertEqual(len(self.losses("alone")), 6)
        self.assertEqual(self.losses("runs/my"), self.losses("alone"))

    def test_the_pods_of_cpus_train_as_one_machine(self):
        container, = pod_of("kubernetes-cpu.yaml")["containers"]
        self.assertEqual(set(environment_of(container, 0)), NAMES)
        self.assert_trains_as_one_machine("kubernetes-cpu.yaml", {"copus": COPUS},
                                          {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()})

    def test_the_pods_of_gpus_train_as_one_machine(self):
        if not pathlib.Path(TORCHRUN).exists():
            self.skipTest("there is no torchrun")
        self.assert_trains_as_one_machine("kubernetes-cuda.yaml", {"copus": COPUS, "torchrun": TORCHRUN},
                                          {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": free_port(),
                                           "PET_NPROC_PER_NODE": "2"}, "--set", "train.device=cpu")

    def test_the_pods_of_cpus_train_as_one_machine_in_networks_of_their_own(self):
        self.assert_trains_as_one_machine("kubernetes-cpu.yaml", {"copus": COPUS}, {},
                                          pods=self.name_pods("kubernetes-cpu.yaml"))

    def test_the_pods_of_gpus_train_as_one_machine_in_networks_of_their_own(self):
        if not pathlib.Path(TORCHRUN).exists():
            self.skipTest("there is no torchrun")
        self.assert_trains_as_one_machine("kubernetes-cuda.yaml", {"copus": COPUS, "torchrun": TORCHRUN},
                                          {"PET_NPROC_PER_NODE": "2"}, "--set", "train.device=cpu",
                                          pods=self.name_pods("kubernetes-cuda.yaml"))

    def test_the_numbers_and_names_of_a_manifest_agree(self):
        for name, size in (("kubernetes-cpu.yaml", "WORLD_SIZE"), ("kubernetes-cuda.yaml", "PET_NNODES")):
            with self.subTest(name):
                service, job = documents(name)["Service"], documents(name)["Job"]
                self.assertEqual(job["spec"]["completionMode"], "Indexed")
                self.assertEqual(job["spec"]["completions"], job["spec"]["parallelism"])
                # The replacement for a lost pod exits with 2 while the other pods train.
                self.assertNotIn("FailJob", [rule["action"] for rule in job["spec"]["podFailurePolicy"]["rules"]])
                self.assertIn("backoffLimitPerIndex", job["spec"])
                self.assertEqual(service["spec"]["selector"], {"job-name": job["metadata"]["name"]})
                pod = pod_of(name)
                self.assertEqual(pod["subdomain"], service["metadata"]["name"])
                container, = pod["containers"]
                waiting, = pod["initContainers"]
                self.assertEqual(waiting["env"], container["env"])
                values = environment_of(container, 0)
                self.assertEqual(values[size], str(job["spec"]["completions"]))
                address = values.get("MASTER_ADDR") or values["PET_MASTER_ADDR"]
                self.assertEqual(address, f"{job['metadata']['name']}-0.{service['metadata']['name']}")
                self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, {one["name"] for one in pod["volumes"]})
                gpus = container["resources"]["limits"].get("nvidia.com/gpu")
                self.assertEqual(values.get("PET_NPROC_PER_NODE"), gpus)

    def test_the_wait_for_the_name_ends_when_there_is_one(self):
        for name in ("kubernetes-cpu.yaml", "kubernetes-cuda.yaml"):
            waiting, = pod_of(name)["initContainers"]
            variable = re.search(r"\$(\w+)", waiting["command"][-1])[1]
            done = subprocess.run(waiting["command"], env={**os.environ, variable: "localhost"}, timeout=60, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stderr)


def instructions_of(name):
    """Every (instruction, its text) of a container file."""
    text = re.sub(r"(?m)^#.*\n", "", (DEPLOY / name).read_text()).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


class ContainerFiles(ProgramTest):
    FILES = ("cpu.Dockerfile", "cuda.Dockerfile")

    def test_steps_are_those_that_build_and_install(self):
        for name in self.FILES:
            with self.subTest(name):
                steps = [step.strip() for kind, text in instructions_of(name) if kind == "RUN" for step in text.split("&&")]
                self.assertIn("scripts/setup --build", steps)
                self.assertIn("scripts/build", steps)
                self.assertIn("cmake --install build --prefix /opt/copus", steps)
                for step in steps:
                    program = shlex.split(step)[0]
                    if program.startswith("scripts/"):
                        self.assertTrue(os.access(ROOT / program, os.X_OK), step)
                variables = {name for step in steps for name in re.findall(r"\b(COPUS_\w+)=", step)}
                build = (ROOT / "scripts/build").read_text()
                self.assertEqual([variable for variable in variables if f"${{{variable}:-}}" not in build], [])

    def test_what_starts_is_what_was_installed(self):
        for name in self.FILES:
            with self.subTest(name):
                instructions = instructions_of(name)
                self.assertIn(("ENV", 'PATH="/opt/copus/bin:$PATH"'), instructions)
                self.assertIn(("ENTRYPOINT", '["copus"]'), instructions)
                stages = [text.split()[-1] for kind, text in instructions if kind == "FROM" and " AS " in text]
                for stage in re.findall(r"--from=(\w+)", "\n".join(text for _, text in instructions)):
                    self.assertIn(stage, stages)

    def test_their_first_lines_name_the_file(self):
        for name in self.FILES:
            self.assertIn(f"-f deploy/{name} -", (DEPLOY / name).read_text())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
