// `copus profile`: measures this machine. With --machine it describes the machine as a cluster; with --config it runs
// steps of some configurations and learns from them.
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/cli/option_checks.h"
#include "copus/config/descriptions.h"
#include "copus/performance/measured/machine.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/profile/machine_bench.h"
#include "copus/workshop/profile/profile_cells.h"
#include "copus/workshop/self_test/self_test.h"

namespace copus {
namespace {

constexpr const char* cores_comment =
    "# This machine as a cluster, measured by `copus profile --machine`: ranks of one node that share its cores as\n"
    "# devices. A device is one core with one thread, measured while every other core did the same; figures are\n"
    "# medians. Matrix products: those of linear layers, at 512 x 512 x 512 and with one of the three sizes changed.\n"
    "# Attention: causal, heads of 64. Memory: the addition and norm between matrix products, whose operands may be\n"
    "# in a cache. Launch: the smallest kernel. Links: all-reduces over shared memory. Memory size: the machine's,\n"
    "# shared out to the cores.\n\n";

constexpr const char* gpus_comment =
    "# This machine as a cluster, measured by `copus profile --machine`: ranks of one node that share its GPUs. A "
    "device\n"
    "# is one GPU, measured while every other one did the same; figures are medians. Matrix products: those of linear\n"
    "# layers, at 4096 x 4096 x 4096 and with one of the three sizes changed. Attention: causal, 8192 tokens, 16 heads "
    "of\n"
    "# 128. Memory: the addition and norm between matrix products, of 8192 x 4096. Launch: the smallest kernel, one "
    "after\n"
    "# another. Links: all-reduces of the GPUs' memory; with a single GPU, of two ranks that share it, through the "
    "host.\n"
    "# Memory size: what was free. Where each rank has a GPU of its own, NCCL's communicators, the context and the "
    "whole\n"
    "# memory were measured instead.\n\n";

// The work of each rank. Request: "precision" and "device". Result: the text of the cluster file.
nlohmann::json measure_machine_as_rank(const nlohmann::json& request, const RankEnvironment& environment) {
  const auto precision = find_value<Precision>(request.at("precision").get<std::string>()).value();
  return to_toml(
      describe_machine(measure_machine(precision, request.at("device").get<std::string>(), environment.local_rank,
                                       join_world(environment, default_wait_seconds))));
}

// Writes a cluster file.
int profile_machine(const ProfileOptions& options) {
  check_can_be_written("--machine", options.machine);
  const std::string device = options.device.empty() ? usual_device() : options.device;
  // One rank for each device, but at least two, because links are measured too.
  const int64_t ranks = std::max<int64_t>(2, devices_of_machine(device));
  const auto toml =
      run_ranks(ranks, "machine", {{"precision", to_string(options.precision)}, {"device", device}}).get<std::string>();
  write_file_durably(options.machine, (device == "cpu" ? cores_comment : gpus_comment) + toml);
  std::cout << toml << "\nwritten to " << options.machine << '\n' << std::flush;
  return 0;
}

int run_profile(const ProfileOptions& options) {
  if (options.machine.empty() == options.config.empty()) {
    throw UserError(
        "give --machine FILE to describe this machine, or --config RUN.toml to measure configurations of a "
        "run (see 'copus profile --help')");
  }
  return options.machine.empty() ? profile_cells(options) : profile_machine(options);
}

}  // namespace

void add_profile(CLI::App& program, CommandAction& action, RankJobs& jobs) {
  jobs["machine"] = measure_machine_as_rank;
  jobs["cell"] = measure_cell_as_rank;
  auto options = std::make_shared<ProfileOptions>();
  CLI::App& profile = *program.add_subcommand("profile", about_profile);
  profile.add_option("--machine", options->machine, "Describe this machine: the cluster file to write")
      ->type_name("FILE");
  add_named_option(profile, "--precision", options->precision, "With --machine: auto, fp32 or bf16");
  profile.add_option("--device", options->device, "With --machine: cpu or cuda (default: cuda where there is one)")
      ->check(one_of({"cpu", "cuda"}));
  profile.add_option("--config", options->config, "Measure configurations of this run")->type_name("RUN.toml");
  add_settings_option(profile, options->overrides,
                      "A setting that overrides the run's: section.key=value; may be repeated");
  profile
      .add_option("--cluster", options->cluster,
                  "What predictions are for, and the clock of a run that says cluster.clock: a cluster file, or the "
                  "name of one that ships (default: the run's)")
      ->type_name("FILE");
  profile
      .add_option("--cell", options->names,
                  concat("A configuration to measure, as PART=VALUE,...; the rest is as in the run; may be repeated "
                         "(default: those that teach most). Parts: ",
                         configuration_parts()))
      ->allow_extra_args(false)
      ->type_name("NAME");
  profile.add_option("--cells", options->cells, "How many to choose where none is named")
      ->check(at_least(1))
      ->capture_default_str();
  profile.add_option("--ranks", options->ranks, "Numbers of ranks to choose from (default: the run's)")
      ->check(at_least(1));
  profile.add_option("--seed", options->seed, "Of the choice")->capture_default_str();
  profile.add_option("--steps", options->steps, "Steps to measure of each configuration in each round")
      ->check(at_least(1))
      ->capture_default_str();
  profile.add_option("--rounds", options->rounds, "Rounds in which the configurations take turns")
      ->check(at_least(1))
      ->capture_default_str();
  profile.add_option("--output", options->output, "The profile to write")->type_name("FILE");
  profile
      .add_option("--learn-from", options->learn_from,
                  "Learn from the first so many configurations alone, to judge the others' prediction by them")
      ->check(at_least(1));
  profile.add_flag("--json", options->json, "Print one JSON object");
  profile.footer(
      "Examples:\n"
      "  copus profile --machine here.toml\n"
      "  copus profile --config RUN.toml --cluster here.toml --ranks 1 2 4 --output profile.json\n"
      "  copus profile --config RUN.toml --cluster here.toml --cell d=2,t=1,p=1 --cell d=1,t=1,p=2,b=1");
  profile.callback([options, &action] { action = [options] { return run_profile(*options); }; });
}

}  // namespace copus
