// The policies that decide the configuration of a run while it trains, with what other rooms must know about each.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "copus/base/named_values.h"

namespace copus {

// Append new policies: logged states of a run contain the number.
enum class PolicyKind {
  none,             // no decisions, no log of them
  fixed,            // "static": decisions are logged; only commands change the configuration
  static_best,      // like fixed, but begins in the layout that is fastest at its batch
  copus,            // the configuration with the highest Goodput
  copus_paper,      // the rule as published in arXiv 2604.26687
  cbs_pessimistic,  // the batch follows the critical batch; the layout is the fastest one at the initial batch
  cbs_optimistic,   // the batch follows the critical batch; the layout is the fastest one at the largest batch
  steps,            // a schedule of batches by consumed samples or tokens (as in Megatron-LM)
  seesaw,           // grows the batch when the schedule would lower the learning rate (arXiv 2510.14717)
  late_switch,      // switches once, late, to a larger batch (arXiv 2602.14208)
  olmo,             // doubles the batch when the critical batch allows it (Merrill et al. 2025, arXiv 2505.23971)
  norm_test,        // grows the batch until the relative error of the gradient is small enough
  ddp_norm,         // the norm test of Lau et al. 2024 (arXiv 2412.21124), for ranks with unsharded gradients
  fsdp_norm,        // the same test for gradients that ZeRO shards
  cona,             // moves to the next power of two if throughput / (batch + noise scale) rises there
  oracle,           // copus with the true noise scale, read from a file
  script,           // decisions read from a file
};

struct PolicyTraits {
  PolicyKind kind;
  std::string_view name;
  bool reads_noise_scale = false;    // decisions depend on the measured noise scale
  bool compares_step_times = false;  // even if only for the log
  // Batches follow a schedule or a script that was fixed before the run, so adapt.hold_in does not hold them.
  bool follows_schedule = false;
  bool may_lack_choice = false;  // the policy makes sense if the initial configuration is the only feasible one
};

// One row for each policy, in the order of PolicyKind.
inline constexpr auto policy_traits = std::to_array<PolicyTraits>({
    {.kind = PolicyKind::none, .name = "none", .may_lack_choice = true},
    {.kind = PolicyKind::fixed, .name = "static", .compares_step_times = true, .may_lack_choice = true},
    {.kind = PolicyKind::static_best, .name = "static-best", .compares_step_times = true, .may_lack_choice = true},
    {.kind = PolicyKind::copus, .name = "copus", .reads_noise_scale = true, .compares_step_times = true},
    {.kind = PolicyKind::copus_paper, .name = "copus-paper", .reads_noise_scale = true, .compares_step_times = true},
    {.kind = PolicyKind::cbs_pessimistic,
     .name = "cbs-pessimistic",
     .reads_noise_scale = true,
     .compares_step_times = true},
    {.kind = PolicyKind::cbs_optimistic,
     .name = "cbs-optimistic",
     .reads_noise_scale = true,
     .compares_step_times = true},
    {.kind = PolicyKind::steps, .name = "steps", .follows_schedule = true, .may_lack_choice = true},
    {.kind = PolicyKind::seesaw, .name = "seesaw", .compares_step_times = true, .follows_schedule = true},
    {.kind = PolicyKind::late_switch, .name = "late-switch", .compares_step_times = true, .follows_schedule = true},
    {.kind = PolicyKind::olmo, .name = "olmo", .reads_noise_scale = true, .compares_step_times = true},
    {.kind = PolicyKind::norm_test, .name = "norm-test", .reads_noise_scale = true, .compares_step_times = true},
    {.kind = PolicyKind::ddp_norm, .name = "ddp-norm", .reads_noise_scale = true, .compares_step_times = true},
    {.kind = PolicyKind::fsdp_norm, .name = "fsdp-norm", .reads_noise_scale = true, .compares_step_times = true},
    {.kind = PolicyKind::cona, .name = "cona", .reads_noise_scale = true, .compares_step_times = true},
    {.kind = PolicyKind::oracle, .name = "oracle", .reads_noise_scale = true, .compares_step_times = true},
    {.kind = PolicyKind::script,
     .name = "script",
     .compares_step_times = true,
     .follows_schedule = true,
     .may_lack_choice = true},
});

constexpr const PolicyTraits& traits_of(PolicyKind policy) { return policy_traits[static_cast<size_t>(policy)]; }
static_assert(std::ranges::all_of(policy_traits, [](const PolicyTraits& row) { return &traits_of(row.kind) == &row; }));

template <>
inline constexpr auto named_values<PolicyKind> = [] {
  std::array<NamedValue<PolicyKind>, policy_traits.size()> values{};
  std::ranges::transform(policy_traits, values.begin(),
                         [](const PolicyTraits& row) { return NamedValue<PolicyKind>{row.kind, row.name}; });
  return values;
}();

}  // namespace copus
