// A configuration in the notation of the program that will train in it: flags, or lines of its configuration file.
#pragma once

#include <string>
#include <vector>

#include "copus/plan/plan.h"

namespace copus {

struct PasteText {
  std::string where;  // the file or command that it belongs to: "nanotron's YAML file"
  std::string text;   // lines, each with its line end
};

// Writes the layout, its schedule and its batches for the program of `question`, in each form that the program reads.
// The program must be able to run the configuration (unable_reason).
std::vector<PasteText> paste_texts(const PlanQuestion& question, const Configuration& configuration);

}  // namespace copus
