// Makes scenarios: the true values of one simulated run, drawn from the scenario's number alone. Rules are chosen by
// one group of scenarios and judged by the other groups.
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
  chosen,     // to choose rules by
  held_back,  // to judge rules by, with families that the chosen group lacks
  by_prior,   // to judge rules by, with families as likely as we judge them (docs/decisions/simulate.md)
};
template <>
inline constexpr auto named_values<ScenarioGroup> =
    std::to_array<NamedValue<ScenarioGroup>>({{ScenarioGroup::chosen, "chosen"},
                                              {ScenarioGroup::held_back, "held-back"},
                                              {ScenarioGroup::by_prior, "by-prior"}});

// The law of a sample's worth (worth.h).
enum class WorthFamily {
  hyperbola,   // with a critical batch of 0.5 to 8 times the noise scale
  root,        // the same, in the root form
  measured,    // the measured curves
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
// the held-back group. From a million on, scenarios are drawn by the prior.
ScenarioGroup group_of(int64_t number);
// Returns the number of a group's scenario `index`, from 0.
int64_t number_in(ScenarioGroup group, int64_t index);
// Returns the families from which a group draws; a family listed k times is k times as likely. The chosen group lacks
// the root form, OLMo's growth and the jump at a decay. A rule that is fitted to the chosen group's families, instead
// of adapting, therefore loses in the other groups. The root form and OLMo's growth resemble families of the chosen
// group (the measured curves, Kaplan's growth), and so will the true values of a user's run. The chosen and the
// held-back group lack the law by progress.
std::vector<WorthFamily> worth_families(ScenarioGroup group);
std::vector<GrowthFamily> growth_families(ScenarioGroup group);

struct Scenario : SimulatedWorld {
  int64_t number = 0;
  std::string job;
  WorthFamily worth = WorthFamily::hyperbola;
  Growth growth;
  double calibration =
      1;             // the critical batch over the noise scale at the end of the run, at the reference batch's rate
  RunConfig config;  // of the run as it begins, in the plan's fastest layout; it names no policy
  StraightRun best_static;
  ClairvoyantRun clairvoyant;
};

// Lengths in place of the scenario's own.
struct ScenarioLength {
  std::optional<int64_t> whole_steps = {};  // of the whole run in its first batch; empty: drawn from 2,000 to 20,000
  std::optional<int64_t> steps = {};  // where the run ends, in its first batch; the truth is that of the whole run
};

// Makes a scenario; the same number, jobs and length give the same.
Scenario make_scenario(int64_t number, const std::vector<SimulatedJob>& jobs, const ScenarioLength& length = {});

// Returns the critical batches that branches of an earlier run of the same job, in the scenario's first batch, would
// have measured at 1, 4 and 16 % of its progress. Their logarithms have a standard error of 0.3.
std::vector<MeasuredCriticalBatch> measured_critical_batches(const Scenario& scenario);

// Describes a scenario in one line: "12: 8b-64 kaplan power c=2.3 ...".
std::string describe(const Scenario& scenario);

}  // namespace copus
