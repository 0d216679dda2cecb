"""Tests the package where PyTorch is missing or broken: what needs it says so in one sentence."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

# The import of torch fails as it does where there is none, or one that cannot be loaded.
HIDE = "import sys; sys.modules['torch'] = None; "


class WithoutTorch(unittest.TestCase):
    def last_line(self, code, hide=HIDE):
        done = subprocess.run([sys.executable, "-c", hide + code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertNotIn("During handling", done.stderr)
        self.assertNotIn("adviser.py", done.stderr, "the frames of the package are no business of its user")
        return done.stderr.splitlines()[-1]

    def test_names_that_need_it_say_so(self):
        for code in ("import copus; copus.Adviser", "from copus import Adviser"):
            says = self.last_line(code)
            self.assertIn("copus.Adviser needs PyTorch", says)
            self.assertIn("pip install torch", says)

    def test_a_pytorch_that_cannot_be_loaded_is_named(self):
        for error in ("OSError('libcudart.so.12: cannot open shared object file')", "ImportError('undefined symbol: x')"):
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "torch.py").write_text(f"raise {error}\n")
                says = self.last_line("from copus import Adviser", f"import sys; sys.path.insert(0, {folder!r}); ")
            self.assertIn("copus.Adviser needs PyTorch, which cannot be imported (", says)

    def test_the_rest_of_the_package_does_without(self):
        subprocess.run([sys.executable, "-c", HIDE + "import copus; print(copus.__version__, copus.Advice)"], check=True,
                       capture_output=True)


if __name__ == "__main__":
    unittest.main()
