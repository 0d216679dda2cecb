// What the policies share that Copus is compared with: the log of Goodput beside the decision of their own rule.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "copus/config/run_config.h"
#include "copus/orchestrator/policy.h"

namespace copus {

class BaselinePolicy : public Policy {
 public:
  explicit BaselinePolicy(RunConfig config) : config_(std::move(config)) {}

  Choice choose(const Situation& situation) final;

 protected:
  const RunConfig& config() const { return config_; }

  // Target and reason; the rest of the choice is filled in.
  virtual Choice decide(const Situation& situation) = 0;

  static Choice hold(const std::string& why);
  static Choice move(const Configuration& target, const std::string& why);
  // Holds, while no switch may follow the latest one yet.
  std::optional<Choice> dwell(const Situation& situation) const;

 private:
  RunConfig config_;
};

}  // namespace copus
