// `copus bench regret`: measures how much time decision rules gain and lose in many simulated runs, whose true values
// are known. Each result is compared with the best single configuration and the best sequence of configurations in
// hindsight.
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"
#include "copus/cli/option_checks.h"
#include "copus/simulate/regret.h"
#include "copus/workshop/bench/regret_jobs.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/table.h"

namespace copus {
namespace {

struct RegretCommandOptions {
  int64_t scenarios = 100, first = 0;
  ScenarioGroup group = ScenarioGroup::chosen;
  std::vector<std::string> policies = {"copus"};
  std::vector<std::string> settings;
  bool calibrated = false;
  std::optional<int64_t> scenario;
  ScenarioLength length;
  std::optional<int64_t> interval_steps;
  bool trace = false;
  int64_t worst = 5;
  bool json = false;
};

// One rule and its results.
struct JudgedRule {
  std::string policy;
  std::vector<RegretOutcome> outcomes;
};

// Returns the configuration of the scenario's run under a rule: a policy and settings.
RunConfig with_rule(const Scenario& scenario, const std::string& policy, const RegretCommandOptions& options) {
  std::vector<std::string> overrides;
  if (options.interval_steps) {
    overrides.push_back(
        concat("adapt.interval_samples=", *options.interval_steps * scenario.config.train.global_batch));
  }
  for (const std::string& setting : options.settings) {
    if (!setting.starts_with("adapt.") && !setting.starts_with("noise_scale.")) {
      throw UserError(concat("--set ", setting, ": a rule is a policy with settings of [adapt] and [noise_scale]; ",
                             "all else is the scenario's"));
    }
    if (options.interval_steps && setting.starts_with("adapt.interval_samples")) {
      throw UserError("--interval-steps sets adapt.interval_samples; give one of the two");
    }
    overrides.push_back(setting);
  }
  overrides.push_back("adapt.policy=" + policy);
  RunConfig config = parse_run_config(to_toml(scenario.config), "the scenario", overrides);
  if (options.calibrated) config.noise_scale.critical_batches = measured_critical_batches(scenario);
  const AdaptConfig& own = scenario.config.adapt;
  AdaptConfig candidates = config.adapt;
  candidates.global_batches = own.global_batches;
  candidates.micro_batches = own.micro_batches;
  candidates.schedules = own.schedules;
  candidates.virtual_stages = own.virtual_stages;
  candidates.recomputes = own.recomputes;
  candidates.sequence_parallel = own.sequence_parallel;
  candidates.zero_stages = own.zero_stages;
  candidates.max_tensor_parallel = own.max_tensor_parallel;
  if (config.adapt != candidates) {
    throw UserError("--set: which configurations there are is the scenario's; set what chooses among them");
  }
  return config;
}

std::string gain_in_percent(double share) { return format_number("%.1f", 100 * share); }

// Prints one decision as one line.
void print_decision(const SimulatedDecision& simulated) {
  const Decision& decision = simulated.decision;
  const std::string seen = decision.noise_scale ? format_number("%.3g", *decision.noise_scale) : "-";
  std::cout << "step " << decision.step << ", " << format_number("%.4g", simulated.seconds) << " s, noise scale "
            << format_number("%.3g", simulated.truth.noise_scale) << " (seen " << seen << "), critical batch "
            << format_number("%.3g", simulated.truth.critical_batch) << ", in " << to_string(decision.current) << ": "
            << decision.choice.reason << '\n';
}

void print_clairvoyant(const Scenario& scenario) {
  const StraightRun& straight = scenario.best_static;
  const ClairvoyantRun& best = scenario.clairvoyant;
  std::cout << "best static: " << to_string(straight.configuration) << ", " << format_number("%.4g", straight.seconds)
            << " s to a progress of " << format_number("%.4g", straight.progress)
            << "\nclairvoyant: " << format_number("%.4g", best.seconds) << " s to "
            << format_number("%.4g", best.progress) << ", " << counted(best.relayouts, "re-layout") << '\n';
  const Configuration* before = nullptr;
  for (size_t i = 0; i < best.by_piece.size(); ++i) {
    const Configuration& now = best.by_piece[i];
    if (before == nullptr || *before != now) {
      std::cout << "  from " << format_number("%.4g", scenario.truth.pieces()[i].begin) << ": " << to_string(now)
                << '\n';
    }
    before = &now;
  }
}

int run_one_scenario(const RegretCommandOptions& options, const std::vector<SimulatedJob>& jobs) {
  const Scenario scenario = make_scenario(*options.scenario, jobs, options.length);
  std::cout << describe(scenario) << '\n';
  print_clairvoyant(scenario);
  for (const std::string& policy : options.policies) {
    std::cout << policy << ":\n";
    const RunConfig config = with_rule(scenario, policy, options);
    const SimulatedRun run = simulate(scenario, config, options.trace ? print_decision : DecisionListener());
    const RegretOutcome outcome = outcome_of(scenario, run);
    std::cout << policy << ": " << format_number("%+.2f %%", 100 * outcome.slowdown()) << " of best static's time ("
              << "clairvoyant " << format_number("%+.2f %%", 100 * (outcome.clairvoyant_time - 1)) << "); "
              << counted(run.steps, "step") << ", " << counted(run.relayouts, "re-layout") << ", "
              << counted(run.batch_changes, "batch change") << ", " << counted(run.calibrations, "calibration")
              << "; ended in " << to_string(run.last) << '\n';
  }
  std::cout << std::flush;
  return 0;
}

nlohmann::json to_json(const RegretSummary& summary) {
  return {{"scenarios", summary.scenarios},
          {"captured", summary.captured},
          {"clairvoyant_gain", summary.clairvoyant_gain},
          {"within_1_percent", summary.within_1_percent},
          {"within_3_percent", summary.within_3_percent},
          {"median_slowdown", summary.median_slowdown},
          {"worst_slowdown", summary.worst_slowdown},
          {"relayouts", summary.relayouts},
          {"batch_changes", summary.batch_changes}};
}

nlohmann::json to_json(const RegretOutcome& outcome) {
  return {{"scenario", outcome.scenario},
          {"job", outcome.job},
          {"worth", outcome.worth},
          {"growth", outcome.growth},
          {"slowdown", outcome.slowdown()},
          {"clairvoyant_slowdown", outcome.clairvoyant_time - 1},
          {"steps", outcome.steps},
          {"relayouts", outcome.relayouts},
          {"batch_changes", outcome.batch_changes},
          {"calibrations", outcome.calibrations},
          {"pause_share", outcome.pause_share}};
}

using Families = std::map<std::string, std::vector<RegretOutcome>>;

// The outcomes by family: by worth, by growth of the noise scale, and by job.
std::map<std::string, Families> by_family(const std::vector<RegretOutcome>& outcomes) {
  std::map<std::string, Families> families;
  for (const RegretOutcome& outcome : outcomes) {
    families["worth"][outcome.worth].push_back(outcome);
    families["growth"][outcome.growth].push_back(outcome);
    families["job"][outcome.job].push_back(outcome);
  }
  return families;
}

nlohmann::json to_json(const JudgedRule& rule, const RegretCommandOptions& options) {
  nlohmann::json result = to_json(summarise(rule.outcomes));
  result["policy"] = rule.policy;
  result["settings"] = options.settings;
  if (options.interval_steps) result["interval_steps"] = *options.interval_steps;
  for (const auto& [kind, families] : by_family(rule.outcomes)) {
    for (const auto& [family, outcomes] : families) result["by_" + kind][family] = to_json(summarise(outcomes));
  }
  for (const RegretOutcome& outcome : rule.outcomes) result["outcomes"].push_back(to_json(outcome));
  return result;
}

constexpr int regret_widths[] = {-24, 10, 10, 10, 8, 8, 8, 8, 10, 8};

void print_summary(const std::string& name, const RegretSummary& summary) {
  print_cells(regret_widths, {name, std::to_string(summary.scenarios), gain_in_percent(summary.clairvoyant_gain),
                              gain_in_percent(summary.captured), gain_in_percent(summary.within_1_percent),
                              gain_in_percent(summary.within_3_percent), gain_in_percent(summary.median_slowdown),
                              gain_in_percent(summary.worst_slowdown), format_number("%.1f", summary.relayouts),
                              format_number("%.1f", summary.batch_changes)});
}

void print_rule(const JudgedRule& rule, const std::vector<Scenario>& worst_scenarios) {
  print_summary(rule.policy, summarise(rule.outcomes));
  for (const auto& [kind, families] : by_family(rule.outcomes)) {
    for (const auto& [family, outcomes] : families) print_summary("  " + family, summarise(outcomes));
  }
  std::cout << "worst for " << rule.policy << ":\n";
  for (const Scenario& scenario : worst_scenarios) {
    const auto outcome = std::find_if(rule.outcomes.begin(), rule.outcomes.end(),
                                      [&](const RegretOutcome& o) { return o.scenario == scenario.number; });
    std::cout << "  " << format_number("%+.1f %%", 100 * outcome->slowdown()) << "  " << describe(scenario) << '\n';
  }
}

int run_scenarios(const RegretCommandOptions& options, const std::vector<SimulatedJob>& jobs) {
  std::vector<JudgedRule> rules;
  for (const std::string& policy : options.policies) rules.push_back({policy, {}});
  const double start = monotonic_seconds();
  for (int64_t i = 0; i < options.scenarios; ++i) {
    const Scenario scenario = make_scenario(number_in(options.group, options.first + i), jobs, options.length);
    for (JudgedRule& rule : rules) {
      const RunConfig config = with_rule(scenario, rule.policy, options);
      rule.outcomes.push_back(outcome_of(scenario, simulate(scenario, config)));
    }
  }
  const double seconds = monotonic_seconds() - start;
  if (options.json) {
    nlohmann::json result{{"group", to_string(options.group)}, {"scenarios", options.scenarios}, {"seconds", seconds}};
    for (const JudgedRule& rule : rules) result["rules"].push_back(to_json(rule, options));
    std::cout << json_text(result) << '\n' << std::flush;
    return 0;
  }
  std::cout << options.scenarios << " scenarios of the " << to_string(options.group) << " group in "
            << format_number("%.1f", seconds) << " s; all in %, slowdowns against the best static run of hindsight\n\n";
  print_cells(regret_widths,
              {"", "scenarios", "to gain", "captured", "<= 1 %", "<= 3 %", "median", "worst", "re-layouts", "batches"});
  for (const JudgedRule& rule : rules) {
    std::vector<Scenario> worst;
    for (const RegretOutcome& outcome : worst_of(rule.outcomes, static_cast<size_t>(options.worst))) {
      worst.push_back(make_scenario(outcome.scenario, jobs, options.length));
    }
    print_rule(rule, worst);
  }
  std::cout << std::flush;
  return 0;
}

int run_regret_bench(const RegretCommandOptions& options) {
  for (const std::string& policy : options.policies) {
    if (policy == to_string(PolicyKind::none)) {
      throw UserError("--policy none decides nothing; a run that stays as it is has the policy \"static\"");
    }
  }
  if (options.trace && !options.scenario) throw UserError("--trace shows the decisions of one run: give --scenario");
  const std::vector<SimulatedJob> jobs = regret_jobs();
  return options.scenario ? run_one_scenario(options, jobs) : run_scenarios(options, jobs);
}

}  // namespace

void add_regret_bench(CLI::App& bench, CommandAction& action) {
  auto options = std::make_shared<RegretCommandOptions>();
  CLI::App& regret = *bench.add_subcommand(
      "regret", "Simulate whole runs whose truth is known, and compare rules of decision with what was possible");
  regret.add_option("--scenarios", options->scenarios, "How many runs to simulate")
      ->check(at_least(1))
      ->capture_default_str();
  add_named_option(regret, "--group", options->group,
                   "Which scenarios: rules are chosen by one group and judged by the others");
  regret.add_option("--policy", options->policies, "Policies to compare, as adapt.policy")->capture_default_str();
  regret.add_option("--set", options->settings,
                    "A setting of [adapt] or [noise_scale] for all of them, section.key=value");
  regret.add_flag("--calibrated", options->calibrated,
                  "Give the rules critical batches that an earlier run's branches would have shown, with their errors");
  regret.add_option("--first", options->first, "The first of them")
      ->check(number_in(Range<int64_t>{0, 100'000}))
      ->capture_default_str();
  regret.add_option("--scenario", options->scenario, "Simulate this scenario alone")->check(at_least(0));
  const auto steps = number_in(Range<int64_t>{1, 1'000'000'000});
  regret
      .add_option("--whole-steps", options->length.whole_steps,
                  "Steps of a whole run in its first batch; by default 2,000 to 20,000")
      ->check(steps);
  regret
      .add_option("--steps", options->length.steps,
                  "End each run where it would be after so many steps in its first batch")
      ->check(steps);
  regret
      .add_option("--interval-steps", options->interval_steps,
                  "Steps in a run's first batch between two decisions, in place of adapt.interval_samples")
      ->check(steps);
  regret.add_flag("--trace", options->trace, "Print every decision of that scenario");
  regret.add_option("--worst", options->worst, "How many of the worst scenarios to name")
      ->check(at_least(0))
      ->capture_default_str();
  regret.add_flag("--json", options->json, "Print one JSON object");
  regret.footer(
      "Examples:\n  copus bench regret --policy copus cona static\n"
      "  copus bench regret --set adapt.alpha=0.5 --scenario 12 --trace");
  regret.callback([options, &action] { action = [options] { return run_regret_bench(*options); }; });
}

}  // namespace copus
