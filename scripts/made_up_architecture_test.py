#!/usr/bin/env python3
"""Adds a made-up architecture as docs/adding-an-architecture.md says, in a copy of the room `description`.

Usage: made_up_architecture_test.py CXX LIBRARY_OF_BASE

Edits only files that the page names, at the functions and tables that it names. Then compiles the room, and a program
that reads, writes and counts a model of the architecture; it is a mixture of options that no published model has.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "adding-an-architecture.md"
ROOM = "copus/description"

# Files of the room: the places that the page names there, the lines behind which lines are added, and these.
EDITS = {
    "model_description.h": [
        ("enum class Architecture", "enum class Architecture {", "made_up,"),
        (
            "named_values<Architecture>",
            "std::to_array<NamedValue<Architecture>>({",
            '{Architecture::made_up, "made_up"},',
        ),
    ],
    "model_description.cpp": [
        (
            "causal_language_model_class",
            "causal_language_model_class(Architecture architecture) {\n  switch (architecture) {",
            'case Architecture::made_up: return "MadeUpForCausalLM";',
        )
    ],
    "architecture_config.cpp": [
        (
            "values_without",
            "constexpr std::pair<std::string_view, double> values_without[] = {",
            '{"made_up_multiplier", 1},',
        ),
        (
            "make_config",
            "ArchitectureConfig make_config(Architecture architecture) {\n  switch (architecture) {",
            """
    case Architecture::made_up:
      return {.defaults = {.max_position_embeddings = 300, .norm = NormKind::layer, .qk_norm = QkNorm::projection,
                           .block_norm = BlockNorm::both, .parallel_residual = true},
              .fields = {"made_up_multiplier", "attention_bias"},
              .dropout = {{"made_up_pdrop", 0.25}},
              .rope = {.may_be_partial = true},
              .read = [](const Fields& config, ModelDescription& model) {
                model.residual_multiplier = config.positive_number("made_up_multiplier").value_or(1);
                if (config.boolean("made_up_twist")) config.fail("twists are not supported");
              },
              .write = [](const ModelDescription& model, nlohmann::json& config) {
                config["made_up_multiplier"] = model.residual_multiplier;
                config["partial_rotary_factor"] = config["rope_parameters"]["partial_rotary_factor"] =
                    model.partial_rotary_factor;
              }};""",
        ),
    ],
}

PROGRAM = """
#include <cstdio>
#include "copus/base/error.h"
#include "copus/description/model_description.h"
using namespace copus;
int failures = 0;
void expect(bool holds, const char* what) {
  if (!holds) std::printf("expected: %s\\n", what), ++failures;
}
#define EXPECT(condition) expect(condition, #condition)
std::string message_of(const std::string& text) {
  try {
    parse_model_description(text, "here");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}
int main() {
  const std::string shape = R"("vocab_size": 10, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 2})";
  const std::string text = R"({"model_type": "made_up", "made_up_multiplier": 0.5, "attention_bias": true,
    "partial_rotary_factor": 0.5, )" + shape;
  const ModelDescription model = parse_model_description(text, "here");
  EXPECT(model.max_position_embeddings == 300 && model.parallel_residual && model.qkv_bias);
  EXPECT(model.residual_multiplier == 0.5 && model.rotary_dim() == 2);
  EXPECT(parse_model_description(to_hugging_face_config(model, "float32"), "written") == model);
  EXPECT(dropout_in(text, "here") == "\\"made_up_pdrop\\" is 0.25 (transformers' default)");
  EXPECT(architectures_with("made_up_multiplier") == std::vector{Architecture::made_up});
  EXPECT(value_without("made_up_multiplier") == 1);
  EXPECT(message_of(R"({"model_type": "made_up", "made_up_twist": true, )" + shape).find("twists") != std::string::npos);
  EXPECT(message_of(R"({"model_type": "other"})").find("MadeUpForCausalLM") != std::string::npos);
  // Embedding and head, and of a layer: projections, their biases, feed-forward, norms of queries and keys and of both
  // blocks' inputs and outputs; the last norm.
  EXPECT(count_parameters(model) == 2 * 80 + 2 * (4 * 64 + 4 * 8 + 3 * 96 + 2 * 8 + 4 * 16) + 16);
  return failures;
}
"""


class MadeUpArchitecture(unittest.TestCase):
    compiler, base = "", ""

    def test_the_page_names_all_that_it_takes(self):
        page = PAGE.read_text(encoding="utf-8")
        for name, edits in EDITS.items():
            self.assertIn(f"`{ROOM}/{name}`", page, "the page does not name the file")
            for place, _, _ in edits:
                self.assertIn(f"`{place}`", page, f"the page does not name a place in {name}")

    def test_models_of_it_are_read_written_and_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            room = pathlib.Path(folder) / ROOM
            shutil.copytree(ROOT / ROOM, room, ignore=shutil.ignore_patterns("*_test.cpp", "testing"))
            for name, edits in EDITS.items():
                text = (room / name).read_text(encoding="utf-8")
                for _, anchor, added in edits:
                    self.assertEqual(text.count(anchor), 1, f"{name} has one {anchor!r}")
                    text = text.replace(anchor, f"{anchor}\n{added}\n")
                (room / name).write_text(text, encoding="utf-8")
            program = pathlib.Path(folder) / "program"
            main = program.with_suffix(".cpp")
            main.write_text(PROGRAM, encoding="utf-8")
            # Without a case for it a switch is an error.
            command = [self.compiler, "-std=c++20", "-O0", "-Wall", "-Werror", "-I", folder, "-I", str(ROOT), str(main)]
            sources = [
                "architecture_config config_fields hugging_face_config hugging_face_config_write model_description",
                "layer_blocks rope_config stored_tensors",
            ]
            command += [str(room / f"{name}.cpp") for name in " ".join(sources).split()]
            result = subprocess.run(
                [*command, self.base, "-o", str(program)], capture_output=True, text=True, check=False
            )
            self.assertEqual(result.returncode, 0, result.stderr[-3000:])
            result = subprocess.run([str(program)], capture_output=True, text=True, check=False)
            self.assertEqual((result.returncode, result.stdout), (0, ""))


if __name__ == "__main__":
    MadeUpArchitecture.base = sys.argv.pop()
    MadeUpArchitecture.compiler = sys.argv.pop()
    unittest.main()
