// `copus replay`: gives the inputs that a run's controller received to a new controller. With the run's own settings,
// the new controller must make the same decisions. With other settings, the command shows what the new controller would
// have decided at each point of the run.
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/printable.h"
#include "copus/base/text/units.h"
#include "copus/cli/commands.h"
#include "copus/cli/option_checks.h"
#include "copus/cli/run_directory.h"
#include "copus/report/logs/decision_replay.h"
#include "copus/report/logs/run_log.h"

namespace copus {

namespace {

constexpr int decided_otherwise = 1;

struct ReplayOptions {
  std::filesystem::path directory;
  std::string policy;
  std::vector<std::string> overrides;
  bool json = false;

  bool is_open_loop() const { return !policy.empty() || !overrides.empty(); }
};

int print_replay(const Replay& result, const ReplayOptions& options) {
  if (options.json) {
    nlohmann::ordered_json object{{"same", !result.difference},
                                  {"decisions", result.decisions},
                                  {"switches", result.switches},
                                  {"earlier_decisions", result.earlier_decisions},
                                  {"difference", nullptr}};
    if (result.difference) {
      object["difference"] = {{"step", result.difference->step}, {"what", result.difference->what}};
    }
    std::cout << json_text(object) << '\n';
  } else {
    if (result.earlier_decisions > 0) {
      std::cout << "Left out: " << counted(result.earlier_decisions, "decision")
                << " from before the run was resumed with other settings.\n";
    }
    if (result.difference) {
      std::cout << "After " << counted(result.decisions, "decision that is", "decisions that are") << " the same, step "
                << result.difference->step << ": " << printable(result.difference->what) << ".\n";
    } else {
      std::cout << counted(result.decisions, "decision") << " and " << counted(result.switches, "switch", "switches")
                << ", all the same.\n";
    }
  }
  return result.difference ? decided_otherwise : 0;
}

int print_open_loop(const std::vector<Decision>& decisions, const std::string& policy, const ReplayOptions& options) {
  int64_t moves = 0;
  for (const Decision& decision : decisions) moves += decision.choice.target.has_value();
  if (options.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Decision& decision : decisions) list.push_back(nlohmann::ordered_json::parse(to_line(decision)));
    std::cout << json_text(nlohmann::ordered_json{{"policy", policy}, {"moves", moves}, {"decisions", list}}) << '\n';
    return 0;
  }
  for (const Decision& decision : decisions) {
    std::cout << "step " << decision.step << " in " << to_string(decision.current) << ": "
              << (decision.choice.target ? concat("-> ", to_string(*decision.choice.target), "; ") : "")
              << decision.choice.reason << '\n';
  }
  std::cout << "Policy \"" << policy << "\" would have moved at " << moves << " of "
            << counted(std::ssize(decisions), "decision")
            << ". What the run would then have done, its log cannot say: each decision is asked where the run "
               "was.\n";
  return 0;
}

int run_replay(const ReplayOptions& options) {
  check_is_run("replay", options.directory);
  const std::filesystem::path config_path = options.directory / "config.toml";
  std::vector<std::string> overrides = options.overrides;
  if (!options.policy.empty()) overrides.push_back("adapt.policy=" + options.policy);
  const AnyConfig config = parse_any_config(read_text_file(config_path), config_path.string(), overrides);
  const auto* own = std::get_if<RunConfig>(&config);
  if (own && own->execution.precision == Precision::automatic) {
    throw UserError(concat(config_path.string(), ": train.precision is \"auto\", and a run writes the one that it has ",
                           "found there: this is no configuration that a run has written"));
  }
  const std::vector<StepRecord> records = read_run_log(options.directory / "run.jsonl");
  const std::vector<DecisionEvent> events = read_decision_log(options.directory / "decisions.jsonl");
  if (!options.is_open_loop()) return print_replay(replay(config, records, events), options);
  const JobConfig& job = job_of(config);
  if (job.adapt.policy == PolicyKind::none) {
    throw UserError("--policy none decides nothing: name another one, such as \"copus\" or \"static\"");
  }
  return print_open_loop(replay_open_loop(config, policy_file_text(job), records, events),
                         std::string(to_string(job.adapt.policy)), options);
}

}  // namespace

void add_replay(CLI::App& program, CommandAction& action) {
  auto options = std::make_shared<ReplayOptions>();
  CLI::App& command = *program.add_subcommand(
      "replay", "Decide again what a run has decided, or what another policy would have decided in its place");
  command.add_option("RUN_DIR", options->directory, "The run directory")->required();
  command.add_option("--policy", options->policy, "Ask this policy instead (adapt.policy)")
      ->check(one_of(all_names<PolicyKind>()))
      ->type_name("NAME");
  add_settings_option(command, options->overrides, "Ask with another setting: adapt.key=value; may be repeated");
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Without --policy and --set, exits with 1 where a decision is another than the run's.\n"
      "Examples:\n"
      "  copus replay runs/r1\n"
      "  copus replay runs/r1 --policy cbs-pessimistic\n"
      "  copus replay runs/r1 --set adapt.alpha=0.5 --json");
  command.callback([options, &action] { action = [options] { return run_replay(*options); }; });
}

}  // namespace copus
