// An experiment: the training policies, called arms, that `copus compare` runs with the same seeds, and the quantities
// that it measures. The user writes the experiment in TOML; parsing checks it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "copus/config/run_config.h"

namespace copus {

struct ExperimentArm {
  std::string name;              // also the name of the folder of its runs
  std::string group;             // arms of a group are screened, only the fastest is compared; empty: always compared
  std::vector<std::string> set;  // "section.key=value" strings, as `copus train --set` takes them
  bool operator==(const ExperimentArm&) const = default;
};

struct Experiment {
  std::string base;                      // path of the run configuration of all arms
  std::vector<std::string> set;          // settings of all arms, applied before those of the arm
  std::vector<int64_t> seeds;            // train.seed of the compared runs, the same for each arm
  std::vector<int64_t> screening_seeds;  // seeds on which the arms of a group are screened
  std::vector<double> targets;           // held-out losses, nats per token
  bool final_loss = false;               // whether held-out losses at the end of the runs are compared
  std::string reference;                 // the arm or group that the others are compared with
  std::vector<ExperimentArm> arms;
  bool operator==(const Experiment&) const = default;

  // The names that are compared: arms without a group, and groups, in the order of the file.
  std::vector<std::string> contenders() const;
  std::vector<ExperimentArm> arms_of(std::string_view group) const;
};

// Reads an experiment. `source` names the file in messages. Throws UserError for malformed TOML, an unknown or missing
// key, a wrong type, and contradictions within the file. Does not check the settings themselves.
Experiment parse_experiment(std::string_view toml_text, const std::string& source);

// Returns the configuration of one run. `base_text` is the content of experiment.base. Throws UserError, which names
// the arm, as parse_run_config does.
RunConfig run_config_of(const Experiment& experiment, std::string_view base_text, const ExperimentArm& arm,
                        int64_t seed);

// Throws UserError if runs of the arms cannot be compared. They cannot if they differ in text, sequence length, clock,
// the job or cluster of the clock, or the sample of held-out text. They also cannot if held-out losses are requested
// that no run measures.
void check_arms_are_comparable(const Experiment& experiment, std::string_view base_text, const std::string& source);

}  // namespace copus
