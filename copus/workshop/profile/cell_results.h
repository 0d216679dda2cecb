// Holds what `copus profile --config` has measured for each configuration, and prints the results.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/performance/measured/learning.h"
#include "copus/performance/step_time.h"

namespace copus {

// A configuration to measure.
struct Cell {
  Configuration configuration;
  std::vector<double> step_seconds = {};  // of all rounds
  StepTimeParts parts = {};               // predicted by the time model
  // Bytes of the rank that needs most. peak_bytes is measured and covers tensors only; the memory model's prediction
  // covers all memory.
  int64_t peak_bytes = 0;
  double predicted_bytes = 0;
  bool has_failed = false;
};

// The text with which --cell names this cell in the same run.
std::string name_of(const Cell& cell, const RunConfig& config);

// The output of --json. `knowledge` is what was learned from some of the cells. `config` names the precision of
// training.
nlohmann::json results_of(const std::vector<Cell>& cells, const Knowledge& knowledge, const RunConfig& config);
void print_results(const nlohmann::json& results);

}  // namespace copus
