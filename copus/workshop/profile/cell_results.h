// What `copus profile --config` has found out of each configuration, and how it prints that.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/performance/learning.h"
#include "copus/performance/step_time.h"

namespace copus {

// A configuration that is measured.
struct Cell {
  Configuration configuration;
  std::vector<double> step_seconds = {};  // steps of all rounds
  StepTimeParts parts = {};               // as the model of time predicts it
  // Bytes of the rank that holds most: of tensors, as measured, and of all that the model of memory predicts.
  int64_t peak_bytes = 0;
  double predicted_bytes = 0;
  bool has_failed = false;
};

// The text that --cell reads as this cell in the same run.
std::string name_of(const Cell& cell, const RunConfig& config);

// What --json prints, given what was learned from some of the cells. `config` names the precision that was trained in.
nlohmann::json results_of(const std::vector<Cell>& cells, const Knowledge& knowledge, const RunConfig& config);
void print_results(const nlohmann::json& results);

}  // namespace copus
