// A configuration in the words of the program that is to train in it: flags, or lines of its configuration file.
#pragma once

#include <string>
#include <vector>

#include "copus/plan/plan.h"

namespace copus {

struct PasteText {
  std::string where;  // what it goes into: "nanotron's YAML file"
  std::string text;   // lines, the last one with its end
};

// Writes how the layout, its schedule and its batches are told to the question's program, for each form that it reads.
// The configuration must be one that the program can run (unable_reason).
std::vector<PasteText> paste_texts(const PlanQuestion& question, const Configuration& configuration);

}  // namespace copus
