// `copus simulate`: simulates the decisions of policies in runs of real size. Step times are predicted; losses follow a
// published scaling law.
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/units.h"
#include "copus/cli/commands.h"
#include "copus/cli/option_checks.h"
#include "copus/cli/predict/plan_options.h"
#include "copus/config/descriptions.h"
#include "copus/description/configuration_text.h"
#include "copus/simulate/law_scenario.h"
#include "copus/simulate/simulated_run.h"

namespace copus {

namespace {

struct SimulateOptions {
  std::string file;
  std::vector<std::string> overrides;
  std::vector<std::string> policies = {"copus", "copus-paper", "static"};
  std::string pause, tokens;
  LawQuestion question;
  bool json = false;
};

struct SimulatedPolicy {
  std::string name;
  SimulatedRun run;
};

// Refuses a run on a clock other than the modelled clock. This check comes first, because the other checks would ask
// the user for settings that policies need only on other clocks.
void check_clock(const std::string& text, const SimulateOptions& options) {
  std::vector<std::string> overrides = options.overrides;
  overrides.insert(overrides.end(), {"adapt.policy=none", "adapt.advise=false"});
  check_is_modelled(parse_run_config(text, options.file, overrides));
}

// The configuration of the run under each policy. All of them are checked before the first simulation.
std::vector<RunConfig> read_configurations(const SimulateOptions& options) {
  const std::string text = read_named_file(options.file, "copus simulate", expected_run_file("simulate"));
  check_clock(text, options);
  std::vector<RunConfig> configurations;
  for (const std::string& policy : options.policies) {
    if (std::count(options.policies.begin(), options.policies.end(), policy) > 1) {
      throw UserError(concat("--policy ", policy, " is given more than once"));
    }
    std::vector<std::string> overrides = options.overrides;
    overrides.push_back("adapt.policy=" + policy);
    configurations.push_back(parse_run_config(text, options.file, overrides));
    const PolicyKind kind = configurations.back().adapt.policy;
    if (kind == PolicyKind::none) {
      throw UserError("--policy none decides nothing; a run that stays as it is has the policy \"static\"");
    }
    if (kind == PolicyKind::oracle || kind == PolicyKind::script) {
      throw UserError(concat("--policy ", policy, " follows a file about another run, and does not decide"));
    }
  }
  return configurations;
}

double read_tokens(const std::string& text) {
  constexpr Range<double> simulated{1e6, 1e15};
  const auto tokens = static_cast<double>(parse_tokens(text));
  if (simulated.contains(tokens)) return tokens;
  throw UserError(concat("--tokens ", text, ": a simulated run has ", describe(simulated)));
}

// Limits the number of steps, because each step of a simulated run takes the controller some tens of microseconds.
void check_is_short_enough(const RunConfig& config, const LawScenario& scenario) {
  constexpr double most_steps = 1e8;
  const std::vector<int64_t>& batches = config.adapt.global_batches;
  const int64_t first = config.train.global_batch;
  const int64_t largest = batches.empty() ? first : std::max(first, *std::max_element(batches.begin(), batches.end()));
  const double steps =
      scenario.world.truth.samples_to(scenario.world.end.value, largest) / static_cast<double>(largest);
  if (steps <= most_steps) return;
  throw UserError(concat("a run to the loss of ", format_count(scenario.tokens), " tokens takes ", format_count(steps),
                         " steps even in batches of ", largest, ", and more than ", format_count(most_steps),
                         " take hours to simulate: set a smaller --tokens or larger batches"));
}

double tokens_of(double samples, const RunConfig& config) {
  return samples * static_cast<double>(predicted_job(config).sequence_length);
}

constexpr const char* not_measured =
    "Times are predicted, and losses are those of a published law: nothing here was measured.";

nlohmann::ordered_json to_json(const SimulateOptions& options, const RunConfig& config, const LawScenario& scenario,
                               const std::vector<SimulatedPolicy>& policies) {
  const LawQuestion& question = options.question;
  nlohmann::ordered_json result{{"note", not_measured},
                                {"law", to_string(question.law)},
                                {"worth", to_string(question.worth)},
                                {"truth_alpha", question.truth_alpha},
                                {"calibration", question.calibration},
                                {"pause_seconds", nullptr},
                                {"parameters", scenario.loss.parameters},
                                {"tokens", scenario.tokens}};
  if (question.pause_seconds) result["pause_seconds"] = *question.pause_seconds;
  for (const LawTarget& target : scenario.targets) {
    result["targets"].push_back(
        {{"loss", target.loss},
         {"tokens", tokens_of(target.progress, config)},
         {"critical_batch", target.critical_batch},
         {"best_static",
          {{"configuration", to_string(target.best_static.configuration)}, {"seconds", target.best_static.seconds}}},
         {"clairvoyant_seconds", target.clairvoyant_seconds}});
  }
  for (const auto& [name, run] : policies) {
    nlohmann::ordered_json policy{{"policy", name},
                                  {"steps", run.steps},
                                  {"relayouts", run.relayouts},
                                  {"batch_changes", run.batch_changes},
                                  {"pause_seconds", run.pause_seconds},
                                  {"last", to_string(run.last)}};
    for (size_t i = 0; i < scenario.targets.size(); ++i) {
      const LawTarget& target = scenario.targets[i];
      const Arrival& arrival = run.arrivals[i];
      policy["targets"].push_back({{"loss", target.loss},
                                   {"seconds", arrival.seconds},
                                   {"tokens", tokens_of(arrival.samples, config)},
                                   {"over_best_static", arrival.seconds / target.best_static.seconds},
                                   {"over_clairvoyant", arrival.seconds / target.clairvoyant_seconds}});
    }
    result["policies"].push_back(policy);
  }
  return result;
}

// Prints cells right-aligned in columns of 16 characters, wide enough for all of these tables.
void print_row(const std::vector<std::string>& cells) {
  for (const std::string& cell : cells) std::cout << std::string(cell.size() < 16 ? 16 - cell.size() : 1, ' ') << cell;
  std::cout << '\n';
}

std::string three_digits(double value) { return format_number("%.3f", value); }

std::string what_is_true(const LawQuestion& question, const ClusterConfig& cluster) {
  return concat("Taken for true: critical batch by ", to_string(question.law), ", ",
                format_number("%g", question.calibration),
                " times the noise scale (--calibration); worth of a sample: ", to_string(question.worth),
                "; learning rate's gain: alpha ", format_number("%g", question.truth_alpha), "; re-layouts pause ",
                question.pause_seconds ? concat("for ", format_duration(*question.pause_seconds)) : "as planned",
                "; layouts are off by ", format_number("%.0f %%", 100 * cluster.truth_layout_error),
                cluster.truth ? ", on another cluster than believed" : "", ".");
}

void print_text(const SimulateOptions& options, const RunConfig& config, const LawScenario& scenario,
                const std::vector<SimulatedPolicy>& policies) {
  const PredictedJob job = predicted_job(config);
  std::cout << format_count(scenario.loss.parameters) << " parameters on " << config.parallel.world_size()
            << " ranks, sequences of " << job.sequence_length << "; to the loss of " << format_count(scenario.tokens)
            << " tokens; losses are nats per token.\n"
            << not_measured << '\n'
            << what_is_true(options.question, config.cluster) << "\n\nIn hindsight:\n";
  print_row({"loss", "critical batch", "clairvoyant", "best static", "which is"});
  for (const LawTarget& target : scenario.targets) {
    print_row({three_digits(target.loss), format_count(target.critical_batch),
               format_duration(target.clairvoyant_seconds), format_duration(target.best_static.seconds),
               "  " + to_string(target.best_static.configuration)});
  }
  for (const auto& [name, run] : policies) {
    std::cout << '\n'
              << name << ": " << counted(run.steps, "step") << ", " << counted(run.relayouts, "re-layout") << " ("
              << format_duration(run.pause_seconds) << "), " << counted(run.batch_changes, "batch change")
              << "; ended in " << to_string(run.last) << '\n';
    print_row({"loss", "time", "/ best static", "/ clairvoyant", "tokens"});
    for (size_t i = 0; i < scenario.targets.size(); ++i) {
      const LawTarget& target = scenario.targets[i];
      const Arrival& arrival = run.arrivals[i];
      print_row({three_digits(target.loss), format_duration(arrival.seconds),
                 three_digits(arrival.seconds / target.best_static.seconds),
                 three_digits(arrival.seconds / target.clairvoyant_seconds),
                 format_count(tokens_of(arrival.samples, config))});
    }
  }
}

int run_simulate(SimulateOptions options) {
  if (!options.pause.empty()) options.question.pause_seconds = read_duration("--pause", options.pause);
  if (!options.tokens.empty()) options.question.tokens = read_tokens(options.tokens);
  const std::vector<RunConfig> configurations = read_configurations(options);
  const LawScenario scenario = make_law_scenario(configurations.front(), options.question);
  check_is_short_enough(configurations.front(), scenario);
  std::vector<RunConfig> simulated;
  for (const RunConfig& config : configurations) simulated.push_back(as_simulated(config, scenario));
  std::vector<SimulatedPolicy> policies;
  for (size_t i = 0; i < simulated.size(); ++i) {
    policies.push_back({options.policies[i], simulate(scenario.world, simulated[i])});
  }
  if (options.json) {
    std::cout << json_text(to_json(options, configurations.front(), scenario, policies)) << '\n';
  } else {
    print_text(options, configurations.front(), scenario, policies);
  }
  return 0;
}

}  // namespace

void add_simulate(CLI::App& program, CommandAction& action) {
  auto options = std::make_shared<SimulateOptions>();
  CLI::App& command = *program.add_subcommand(
      "simulate", "Let policies decide in runs of real size, whose losses follow a published law");
  LawQuestion& question = options->question;
  command
      .add_option("RUN.toml", options->file,
                  "A run on the modelled clock; the simulated runs are of the job that it stands for")
      ->required();
  add_settings_option(command, options->overrides,
                      "A setting in place of the file's: section.key=value; may be repeated");
  command.add_option("--policy", options->policies, "Policies to simulate (adapt.policy)")
      ->check(one_of(all_names<PolicyKind>()))
      ->type_name("NAME")
      ->capture_default_str();
  add_named_option(command, "--law", question.law, "How the critical batch grows");
  command
      .add_option_function<std::string>(
          "--worth", [&question](const std::string& name) { question.worth = *find_value<WorthShape>(name); },
          "How a sample's worth falls with the batch")
      ->check(one_of({"hyperbola", "root"}))
      ->default_str("hyperbola");
  command
      .add_option("--truth-alpha", question.truth_alpha,
                  "What a larger learning rate really brings: its factor to the power of twice this")
      ->check(number_in(Range<double>{0, 1}))
      ->capture_default_str();
  command.add_option("--calibration", question.calibration, "The true critical batch over the noise scale")
      ->check(number_in(Range<double>{1e-3, 1e3}))
      ->capture_default_str();
  command.add_option("--pause", options->pause, "How long each re-layout stops training (as its plan predicts)")
      ->type_name("TIME");
  command.add_option("--tokens", options->tokens,
                     "Tokens to the last loss, in small batches: 10B, 1T, 1e10 (20 for each parameter)");
  command.add_option("--targets", question.losses, "Losses on the way whose times are asked, nats per token")
      ->type_name("LOSS");
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n"
      "  copus simulate configs/runs/modelled-64-h100.toml --tokens 1e10 --targets 6 4 3\n"
      "  copus simulate RUN.toml --law olmo --truth-alpha 0.5 --policy copus static-best --pause 45s --json");
  command.callback([options, &action] { action = [options] { return run_simulate(*options); }; });
}

}  // namespace copus
