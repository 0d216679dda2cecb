// Makes scenarios. A scenario holds the true values of one simulated run, which are drawn from the scenario's number
// alone. Decision rules are chosen on one group of scenarios and judged on the other groups.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/simulate/hindsight.h"
#include "copus/simulate/job.h"
#include "copus/simulate/world.h"

namespace copus {

enum class ScenarioGroup {
  chosen,     // rules are chosen on this group
  held_back,  // rules are judged on this group, which has families of laws that `chosen` lacks
  by_prior,   // rules are judged here too; families are as likely as in docs/decisions/simulate.md
};
template <>
inline constexpr auto named_values<ScenarioGroup> =
    std::to_array<NamedValue<ScenarioGroup>>({{ScenarioGroup::chosen, "chosen"},
                                              {ScenarioGroup::held_back, "held-back"},
                                              {ScenarioGroup::by_prior, "by-prior"}});

// The law by which a sample's worth (worth.h) falls with the batch and changes over the run.
enum class WorthFamily {
  hyperbola,   // with a critical batch of 0.5 to 8 times the noise scale
  root,        // like hyperbola, but with the square root of its worth
  measured,    // curves measured by branches of a run
  kaplan,      // a hyperbola whose critical batch grows as in Kaplan et al. 2020
  olmo,        // a hyperbola whose critical batch grows as measured for OLMo, far above the noise scale
  step_bound,  // a hyperbola whose early part is limited by the number of updates
  progress,    // a hyperbola whose critical batch is a power of the run's progress
};
template <>
inline constexpr auto named_values<WorthFamily> =
    std::to_array<NamedValue<WorthFamily>>({{WorthFamily::hyperbola, "hyperbola"},
                                            {WorthFamily::root, "root"},
                                            {WorthFamily::measured, "measured"},
                                            {WorthFamily::kaplan, "kaplan"},
                                            {WorthFamily::olmo, "olmo"},
                                            {WorthFamily::step_bound, "step-bound"},
                                            {WorthFamily::progress, "progress"}});

// Returns the group of a scenario's number. Below a million, even numbers are in the chosen group and odd numbers in
// the held-back group. From a million on, scenarios are drawn from the prior.
ScenarioGroup group_of(int64_t number);
// Returns the number of the scenario with this index (from 0) in a group.
int64_t number_in(ScenarioGroup group, int64_t index);
// Returns the families from which a group draws; a family listed k times is k times as likely.
//
// The chosen group lacks the root form, OLMo's growth and the jump at a decay, which other groups have. A rule that is
// fitted to the chosen group's families, instead of adapting to each run, therefore does worse in the other groups. The
// root form and OLMo's growth resemble families of the chosen group (the measured curves, Kaplan's growth), as the
// truth of a user's run probably does. Neither the chosen nor the held-back group has the law by progress.
std::vector<WorthFamily> worth_families(ScenarioGroup group);
std::vector<GrowthFamily> growth_families(ScenarioGroup group);

struct Scenario : SimulatedWorld {
  int64_t number = 0;
  std::string job;
  WorthFamily worth = WorthFamily::hyperbola;
  Growth growth;
  double calibration =
      1;             // the critical batch over the noise scale at the end of the run, at the reference batch's rate
  RunConfig config;  // the run's initial configuration, in the plan's fastest layout; no policy is set
  StraightRun best_static;
  ClairvoyantRun clairvoyant;
};

// Lengths that replace those drawn for the scenario.
struct ScenarioLength {
  std::optional<int64_t> whole_steps = {};  // steps of the whole run at its first batch; empty: drawn
  std::optional<int64_t> steps = {};        // cuts the run after so many steps at its first batch
};

// Makes a scenario. The same number, jobs and length always give the same scenario.
Scenario make_scenario(int64_t number, const std::vector<SimulatedJob>& jobs, const ScenarioLength& asked = {});

// Returns the critical batches that branches in the scenario's first batch and in branch_batch_of it would have
// measured in an earlier run of the same job, at 1, 4 and 16 % of its progress. Where the worth is no hyperbola, they
// belong to the hyperbola with the same ratio of the worths of these two batches. Their logarithms have a standard
// error of 0.3.
std::vector<MeasuredCriticalBatch> measured_critical_batches(const Scenario& scenario);

// Describes a scenario in one line: "12: 8b-64 kaplan power c=2.3 ...".
std::string describe(const Scenario& scenario);

}  // namespace copus
