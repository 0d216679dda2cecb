// The policies, one file each or a few that belong together: policy_goodput.cpp, policy_batch.cpp, policy_cona.cpp,
// policy_script.cpp. make_policy chooses among them.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/orchestrator/policy.h"

namespace copus {

// phi by consumed samples, in ascending order, one point at least; in between linear, beyond constant.
using NoiseTrace = std::vector<std::pair<double, double>>;
// Throws UserError naming the line. Exposed for its messages.
NoiseTrace parse_noise_trace(std::string_view text, const std::string& source);

// From so many consumed samples on, this batch; in ascending order, the first from 0 on.
using StepSchedule = std::vector<std::pair<double, int64_t>>;
// "0:768 250B:1536": see policy_batch.cpp. Throws UserError naming the piece.
StepSchedule parse_step_schedule(std::string_view text, int64_t sequence_length);

// Copus; with `truth` the oracle.
std::unique_ptr<Policy> make_goodput_policy(const RunConfig& config, std::optional<NoiseTrace> truth);
std::unique_ptr<Policy> make_fixed_policy(const RunConfig& config);
// Both critical-batch policies, by config.adapt.policy.
std::unique_ptr<Policy> make_critical_batch_policy(const RunConfig& config);
std::unique_ptr<Policy> make_steps_policy(const RunConfig& config);
std::unique_ptr<Policy> make_olmo_policy(const RunConfig& config);
std::unique_ptr<Policy> make_norm_test_policy(const RunConfig& config);
std::unique_ptr<Policy> make_cona_policy(const RunConfig& config);
std::unique_ptr<Policy> make_script_policy(const RunConfig& config, std::string_view script);

}  // namespace copus
