#!/usr/bin/env python3
"""Tests `scripts/quickstart --device cuda` and scripts/find_cuda.py on imitated machines of small programs: Pythons
with and without a PyTorch for CUDA, CUDA toolkits, and a `copus` that writes a GPU's results."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TORCH = {"version": "2.11.0+cu130", "cuda": "13.0", "gpus": 1, "capability": [9, 0]}
NVCC = """
[[ "$1" == --version ]] || exit 0
echo 'Cuda compilation tools, release {version}, V{version}.1'"""
COPUS = """
echo "copus $*" >>"$LOG"
case "$1" in
  train) mkdir -p "$4/checkpoints/step-1"; echo '{}' >"$4/checkpoints/step-1/config.json"; cp "$SUMMARY" "$4/summary.json" ;;
  bench) cat "$STEP" ;;
esac"""
SUMMARY = {"held_out_loss": 1.1, "relayouts": 0, "batch_changes": 2, "tokens_per_second": 500000, "consumed_tokens": 60000000,
           "steps": 900, "relayout_pause_seconds": []}
STEP = {"tokens_per_second": 1000000, "mfu": 0.5, "matmul_peak_gflops": 800000}


class Machine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        self.project = self.folder / "project"
        shutil.copytree(ROOT / "scripts", self.project / "scripts")
        shutil.copytree(ROOT / "cmake", self.project / "cmake")
        finder = self.project / "scripts/find_cuda.py"
        text = finder.read_text()
        for device in ('"/dev/nvidia[', '"/dev/dxg'):
            self.assertIn(device, text)
            text = text.replace(device, f'"{self.folder}{device[1:]}')
        finder.write_text(text)
        for name in ("setup", "build", "fetch-corpus"):
            self.write(self.project / "scripts" / name, f'echo "{name} $* $COPUS_TORCH_DIR $COPUS_GPU" >>"$LOG"')
        self.write(self.project / "build/copus", COPUS)
        (self.folder / "summary.json").write_text(json.dumps(SUMMARY))
        (self.folder / "step.json").write_text(json.dumps(STEP))
        # The scripts see only the system's programs of this machine, and a python3 without torch.
        self.write(self.folder / "bin/python3", f'exec {sys.executable} -S "$@"')
        self.packages = self.folder / "env/lib/site-packages"
        (self.packages / "torch/share/cmake").mkdir(parents=True)

    def write(self, file, text):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/usr/bin/env bash\n{text}\n")
        file.chmod(0o755)

    def install_torch(self, **changes):
        described = json.dumps({**TORCH, "cmake": str(self.packages / "torch/share/cmake"), **changes})
        self.write(self.folder / "env/bin/python", f"echo '{described}'")

    def install_cuda(self, version="13.0", runtime=True):
        self.write(self.folder / "cuda/bin/nvcc", NVCC.format(version=version))
        if runtime:
            (self.folder / "cuda/lib64").mkdir()
            (self.folder / "cuda/lib64/libcudart.so").touch()

    def install_headers(self):
        for header in ("nvidia/cudnn/include/cudnn_graph_v9.h", "include/cudnn_frontend.h", "nvidia/cu13/include/nvrtc.h"):
            (self.packages / header).parent.mkdir(parents=True, exist_ok=True)
            (self.packages / header).touch()

    def call(self, *arguments):
        variables = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "LOG": f"{self.folder}/log", "VIRTUAL_ENV": f"{self.folder}/env",
                     "CUDA_HOME": f"{self.folder}/cuda", "SUMMARY": f"{self.folder}/summary.json",
                     "STEP": f"{self.folder}/step.json", "HOME": str(self.folder)}
        done = subprocess.run(["bash", self.project / "scripts/quickstart", *arguments], env=variables, text=True,
                              capture_output=True, timeout=120)
        log = self.folder / "log"
        return done, log.read_text().splitlines() if log.exists() else []

    def assert_lacks(self, *says):
        done, log = self.call("--device", "cuda")
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(log, [], "nothing is set up or built")
        for words in ("this machine lacks", *says):
            self.assertIn(words, done.stderr)

    def assert_found(self):
        done, log = self.call("--device", "cuda")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done, log

    def test_without_any_pytorch_each_python_is_named(self):
        self.assert_lacks("PyTorch for CUDA, 2.11 or newer", f"{self.folder}/bin/python3: no module torch", "pip install torch")

    def test_a_machine_without_a_driver_is_told_before_it_downloads_a_pytorch(self):
        self.assert_lacks("an NVIDIA GPU with its driver", f"{self.folder}/dev/nvidia[0-9]*", "`make quickstart` trains on CPUs")
        (self.folder / "dev").mkdir()
        (self.folder / "dev/nvidia0").touch()
        done, _ = self.call("--device", "cuda")
        self.assertNotIn("an NVIDIA GPU", done.stderr)

    def test_all_that_is_missing_is_one_message(self):
        self.install_torch(cuda="99.0", gpus=0, capability=None)
        self.assert_lacks("nvcc and the runtime library of CUDA 99", "a GPU that PyTorch can use")

    def test_a_pytorch_for_cpus_is_named(self):
        self.install_torch(version="2.11.0+cpu", cuda=None)
        self.install_cuda()
        self.assert_lacks(f"{self.folder}/env/bin/python: torch 2.11.0+cpu is for CPUs")

    def test_an_old_pytorch_is_named(self):
        self.install_torch(version="2.9.1+cu130")
        self.install_cuda()
        self.assert_lacks("torch 2.9.1+cu130 is too old")

    def test_nvcc_of_another_cuda_is_named(self):
        self.install_torch(cuda="99.0")
        self.install_cuda("12.8")
        self.assert_lacks(f"{self.folder}/cuda/bin/nvcc: of CUDA 12.8", "a CUDA toolkit 99.x")

    def test_a_toolkit_without_its_runtime_is_named(self):
        self.install_torch(cuda="99.0")
        self.install_cuda("99.0", runtime=False)
        self.assert_lacks(f"no libcudart.so in {self.folder}/cuda", "nvcc and the runtime library of CUDA 99")

    def test_a_machine_without_a_gpu_is_told(self):
        self.install_torch(gpus=0, capability=None)
        self.install_cuda()
        self.assert_lacks("a GPU that PyTorch can use", "docker run --gpus all")

    def test_an_old_gpu_is_told(self):
        self.install_torch(capability=[7, 5])
        self.install_cuda()
        self.assert_lacks("a GPU of compute capability 8.0 or newer", "the first one has 7.5")

    def test_builds_with_what_it_has_found_and_says_what_the_card_reached(self):
        self.install_torch()
        self.install_cuda()
        self.install_headers()
        done, log = self.assert_found()
        self.assertEqual(log[:2], [f"{step} {self.packages}/torch/share/cmake/Torch cuda" for step in ("setup --build", "build copus")])
        self.assertIn("copus profile --device cuda --precision bf16 --machine runs/this-gpu.toml", log)
        self.assertTrue(any(line.startswith("copus train configs/runs/quickstart-gpu.toml --run-dir runs/") for line in log), log)
        self.assertIn("the card reached  500,000 tokens/s, 25.0% MFU; a step by itself 1,000,000 tokens/s, 50.0% MFU of the 800 "
                      "TFLOP/s", done.stdout)
        self.assertNotIn("attention", done.stderr)

    def test_headers_that_speed_up_attention_are_no_condition(self):
        self.install_torch()
        self.install_cuda()
        done, _ = self.assert_found()
        self.assertIn("attention will be ATen's", done.stderr)
        self.assertIn("pip install 'nvidia-cudnn-frontend==1.32.*'", done.stderr)

    def test_on_cpus_nothing_is_looked_for(self):
        done, log = self.call()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(log[0].split(), ["setup", "--build"])
        self.assertNotIn("card", done.stdout)
        self.assertFalse([line for line in log if "profile" in line or "cuda" in line])

    def test_mistakes(self):
        for arguments in (["--device"], ["--device", "tpu"], ["cuda"]):
            done, log = self.call(*arguments)
            self.assertEqual((done.returncode, log), (2, []))
            self.assertIn("make quickstart DEVICE=cuda", done.stderr)


if __name__ == "__main__":
    unittest.main()
