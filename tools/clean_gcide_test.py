#!/usr/bin/env python3
"""Tests of the dictionary's cleaning, on entries as the dictd edition prints them. Standard library only."""

import gzip
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import clean_gcide

AFFECT = r"""
Affect \Af*fect"\ ([a^]f*f[e^]kt"), v. t. [imp. & p. p. {Affected}; p. pr. & vb.
   n. {Affecting}.] [L. affectus, p. p. of afficere; see
   {Fact}.]
   1. To act upon; to produce an effect or change upon; as, a
      na["i]ve friend. See {Act}.
      [1913 Webster]

            The climate affected their health and spirits.
                                                  --Shak.
      [1913 Webster]

   2. (Med.) To love; to regard with affection. [Obs.] --Fuller.
      [1913 Webster]

            This proud man affects imperial ?way. --Dryden.
      [1913 Webster] Affected

"""
DOCUMENT = """Affect, verb.
To act upon; to produce an effect or change upon; as, a na\u00efve friend.
"The climate affected their health and spirits." -- Shakespeare
To love; to regard with affection."""
REFERENCE = '\nLamentin \\La*men"tin\\, n.\n   See {Lamantin}.\n   [1913 Webster]\n'


class CleanGcideTest(unittest.TestCase):
    def test_an_entry_becomes_sentences(self):
        self.assertEqual([clean_gcide.clean_entry(entry) for entry in clean_gcide.split_entries(AFFECT)], [DOCUMENT])

    def test_entries_without_a_sentence_are_left_out(self):
        self.assertEqual([clean_gcide.clean_entry(entry) for entry in clean_gcide.split_entries(REFERENCE)], [""])

    def test_every_hundredth_entry_is_held_out(self):
        tool = Path(__file__).with_name("clean_gcide.py")
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "gcide.dict.dz"
            entries = (AFFECT.replace("Affect ", f"Affect{i} ", 1) for i in range(250))
            source.write_bytes(gzip.compress(("header\n\n" + "".join(entries) + REFERENCE).encode()))
            subprocess.run([sys.executable, tool, source, Path(folder) / "out"], check=True, capture_output=True)
            train = (Path(folder) / "out" / "train.txt").read_text(encoding="utf-8").split("\n\n\n")
            held_out = (Path(folder) / "out" / "held_out.txt").read_text(encoding="utf-8").split("\n\n\n")
        self.assertEqual([document.split(",")[0] for document in held_out], ["Affect99", "Affect199", ""])
        self.assertEqual(len(train), 248 + 1)
        self.assertNotIn("Affect99", "".join(train))


if __name__ == "__main__":
    unittest.main()
