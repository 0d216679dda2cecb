// Scenarios: what is true in one simulated run, drawn from the scenario's number alone. Rules are chosen by the
// scenarios of one half, and judged once by those of the other, which hold families that nobody has chosen by.
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

enum class ScenarioHalf { chosen, held_back };
template <>
inline constexpr auto named_values<ScenarioHalf> =
    std::to_array<NamedValue<ScenarioHalf>>({{ScenarioHalf::chosen, "chosen"}, {ScenarioHalf::held_back, "held-back"}});

// What is true of a sample's worth.
enum class WorthFamily {
  hyperbola,   // with a critical batch of 0.5 to 8 times the noise scale
  root,        // likewise, in the root form
  measured,    // the measured curves
  kaplan,      // a hyperbola whose critical batch grows as Kaplan et al. 2020 have it
  olmo,        // a hyperbola whose critical batch grows as measured for OLMo, far above a noise scale of its own growth
  step_bound,  // a hyperbola whose early part is limited by the number of updates, whatever the noise scale
};
template <>
inline constexpr auto named_values<WorthFamily> =
    std::to_array<NamedValue<WorthFamily>>({{WorthFamily::hyperbola, "hyperbola"},
                                            {WorthFamily::root, "root"},
                                            {WorthFamily::measured, "measured"},
                                            {WorthFamily::kaplan, "kaplan"},
                                            {WorthFamily::olmo, "olmo"},
                                            {WorthFamily::step_bound, "step-bound"}});

// Even numbers are the chosen half, odd ones are held back.
ScenarioHalf half_of(int64_t number);
// Returns the number of a half's scenario `index`, from 0.
int64_t number_in(ScenarioHalf half, int64_t index);
// Returns the families that a half draws from: the chosen half lacks the root form and OLMo's growth, and the jump at a
// decay. A rule that has learned the families it was chosen by, rather than to adapt, loses on those. The root form and
// OLMo's each stand near one that is there (the measured curves, Kaplan's growth), as the truth of a user's run will.
std::vector<WorthFamily> worth_families(ScenarioHalf half);
std::vector<GrowthFamily> growth_families(ScenarioHalf half);

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

// Makes a scenario; the same number and jobs give the same. With `steps` the run ends where it would be after so many
// steps in its first batch, and the truth is that of the whole run.
Scenario make_scenario(int64_t number, const std::vector<SimulatedJob>& jobs,
                       std::optional<int64_t> steps = std::nullopt);

// Describes a scenario in one line: "12: 8b-64 kaplan power c=2.3 ...".
std::string describe(const Scenario& scenario);

}  // namespace copus
