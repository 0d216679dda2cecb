"""Tests the package where PyTorch is missing or broken: what needs it says so in one sentence."""

import subprocess
import sys
import unittest

# The import of torch fails as it does where there is none, or one that cannot be loaded.
HIDE = "import sys; sys.modules['torch'] = None; "


class WithoutTorch(unittest.TestCase):
    def last_line(self, code):
        done = subprocess.run([sys.executable, "-c", HIDE + code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertNotIn("During handling", done.stderr)
        self.assertNotIn("adviser.py", done.stderr, "the frames of the package are no business of its user")
        return done.stderr.splitlines()[-1]

    def test_names_that_need_it_say_so(self):
        for code in ("import copus; copus.Adviser", "from copus import Adviser"):
            says = self.last_line(code)
            self.assertIn("copus.Adviser needs PyTorch", says)
            self.assertIn("pip install torch", says)

    def test_the_rest_of_the_package_does_without(self):
        subprocess.run([sys.executable, "-c", HIDE + "import copus; print(copus.__version__, copus.Advice)"], check=True,
                       capture_output=True)


if __name__ == "__main__":
    unittest.main()
