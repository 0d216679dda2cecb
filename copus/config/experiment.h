// An experiment: `copus compare` runs several training policies, called arms, with the same seeds, and compares the
// requested quantities. The user writes the experiment in TOML.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "copus/config/run_config.h"

namespace copus {

struct ExperimentArm {
  std::string name;              // also names the folder of the arm's runs
  std::string group;             // only the fastest arm of a group is compared; empty: always compared
  std::vector<std::string> set;  // "section.key=value" strings, as `copus train --set` takes them
  bool operator==(const ExperimentArm&) const = default;
};

struct Experiment {
  std::string base;                      // path of the run configuration of all arms
  std::vector<std::string> set;          // settings of all arms; an arm's own settings override them
  std::vector<int64_t> seeds;            // train.seed of the compared runs, the same for each arm
  std::vector<int64_t> screening_seeds;  // train.seed of the runs that choose the fastest arm of each group
  bool draw_per_seed = false;            // whether each run's cluster.truth_seed is its train.seed
  std::vector<double> targets;           // held-out losses, nats per token
  bool final_loss = false;               // whether to compare the held-out losses at the end of the runs
  std::string reference;                 // the arm or group with which the others are compared
  std::vector<ExperimentArm> arms;
  bool operator==(const Experiment&) const = default;

  // Returns the compared names in the order of the file: arms without a group, and groups.
  std::vector<std::string> contenders() const;
  std::vector<ExperimentArm> arms_of(std::string_view group) const;
};

// Parses an experiment. `source` names the file in messages. Throws UserError for malformed TOML, an unknown or missing
// key, a wrong type, and contradictions. Does not check the arms' settings.
Experiment parse_experiment(std::string_view toml_text, const std::string& source);

// Returns the configuration of one run. `base_text` is the content of the file experiment.base. Throws as
// parse_run_config does; the UserError names the arm.
RunConfig run_config_of(const Experiment& experiment, std::string_view base_text, const ExperimentArm& arm,
                        int64_t seed);

// Throws UserError if the arms' results cannot be compared: text, sequence length, clock, the clock's job or cluster,
// or the held-out sample differ, or no run measures the requested held-out losses. Also if each seed has a draw of
// layout errors of its own, but the runs have no such errors.
void check_arms_are_comparable(const Experiment& experiment, std::string_view base_text, const std::string& source);

}  // namespace copus
