// The options of `copus profile`, and its work with --config: it measures configurations of a run ("cells").
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/workshop/run_ranks.h"

namespace copus {

struct ProfileOptions {
  std::string machine;  // the file to write
  Precision precision = Precision::automatic;
  std::string device;  // to describe; empty: the usual one
  std::string config;
  std::vector<std::string> overrides;
  std::string cluster;
  std::vector<std::string> names;  // of cells
  int64_t cells = 12;
  std::vector<int64_t> ranks;
  uint64_t seed = 1;
  int64_t steps = 3;
  int64_t rounds = 3;
  std::string output;
  int64_t learn_from = 0;
  bool json = false;
};

// With --config: runs steps of configurations, learns from them, prints the results and writes the profile. Returns the
// exit code.
int profile_cells(const ProfileOptions& options);
// A job of run_ranks. Request: "config" (the text of a run configuration with as many ranks) and "steps". Result: the
// "precision" of training, the "seconds" of each step, and the "peak_bytes" of the rank that held most.
nlohmann::json measure_cell_as_rank(const nlohmann::json& request, const RankEnvironment& environment);

}  // namespace copus
