// `copus profile`: what this machine does, measured. With --machine it describes the machine as a cluster; with
// --config it runs steps of some configurations, the program itself, and learns from them. The command starts itself
// again as the ranks, for the machine once and for every cell in every round.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "copus/base/durable_file.h"
#include "copus/base/error.h"
#include "copus/base/units.h"
#include "copus/cli/option_checks.h"
#include "copus/comm/job/launcher.h"
#include "copus/config/descriptions.h"
#include "copus/config/run_config.h"
#include "copus/description/search_space.h"
#include "copus/orchestrator/step_time_learner.h"
#include "copus/performance/learning.h"
#include "copus/performance/machine.h"
#include "copus/performance/memory.h"
#include "copus/performance/step_time.h"
#include "copus/report/performance_profile.h"
#include "copus/workshop/commands.h"
#include "copus/workshop/profile/cell_bench.h"
#include "copus/workshop/profile/cells.h"
#include "copus/workshop/profile/machine_bench.h"
#include "copus/workshop/rank_results.h"
#include "copus/workshop/self_test/self_test.h"

namespace copus {
namespace {

struct Options {
  std::string machine;  // the file to write
  Precision precision = Precision::automatic;
  std::string device;  // to describe; empty: the usual one
  std::string config;
  std::vector<std::string> overrides;
  std::string cluster;
  std::vector<std::string> names;  // of cells
  int64_t cells = 12;
  std::vector<int64_t> ranks;
  uint64_t seed = 1;
  int64_t steps = 3;
  int64_t rounds = 3;
  std::string output;
  int64_t learn_from = 0;
  bool json = false;
  // Of the processes that the command starts.
  std::string as_rank;  // the file that rank 0 writes its result to
};

RankEnvironment environment_of_rank() {
  const std::optional<RankEnvironment> environment = read_rank_environment();
  if (!environment) throw UserError("--as-rank is for the processes that 'copus profile' starts");
  return *environment;
}

// Runs `size` ranks of this program, which write what they find out into a file whose path comes behind `arguments`.
// Returns it, or their exit code.
struct RanksEnd {
  int exit_code = 0;
  nlohmann::json result;
};
RanksEnd run_ranks(int64_t size, std::vector<std::string> arguments) {
  const MemoryFile results;
  arguments.insert(arguments.end(), {"--as-rank", results.path()});
  const int exit_code = launch_ranks(size, arguments);
  if (exit_code != 0) return {exit_code, {}};
  return {0, nlohmann::json::parse(read_text_file(results.path()))};
}

// ---- the machine ----------------------------------------------------------------------------------------------------

int measure_machine_as_rank(const Options& options) {
  const RankEnvironment environment = environment_of_rank();
  const MachineMeasurements measurements = measure_machine(options.precision, options.device, environment.local_rank,
                                                           join_world(environment, default_wait_seconds));
  if (environment.rank == 0) {
    write_results(options.as_rank, nlohmann::json{{"toml", to_toml(describe_machine(measurements))}}.dump());
  }
  return 0;
}

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
    "# Memory size: what was free.\n\n";

int profile_machine(const Options& options) {
  const std::string device = options.device.empty() ? usual_device() : options.device;
  // One rank for each device; two at least, since links are measured too.
  const int64_t ranks = std::max<int64_t>(2, devices_of_machine(device));
  const RanksEnd end = run_ranks(ranks, {"profile", "--machine", options.machine, "--precision",
                                         std::string(to_string(options.precision)), "--device", device});
  if (end.exit_code != 0) return end.exit_code;  // the ranks have said why
  const auto toml = end.result["toml"].get<std::string>();
  write_file_durably(options.machine, (device == "cpu" ? cores_comment : gpus_comment) + toml);
  std::cout << toml << "\nwritten to " << options.machine << '\n' << std::flush;
  return 0;
}

// ---- cells ----------------------------------------------------------------------------------------------------------

RunConfig with_configuration(RunConfig config, const Configuration& configuration) {
  config.parallel = configuration.strategy;
  config.train.global_batch = configuration.global_batch;
  config.train.micro_batch = configuration.micro_batch;
  return config;
}

RunConfig read_config(const Options& options) {
  std::vector<std::string> overrides = options.overrides;
  std::optional<MemoryFile> cluster_file;  // it may be one that ships with the program
  if (!options.cluster.empty()) {
    cluster_file.emplace(to_toml(find_cluster(options.cluster)));
    overrides.push_back("cluster.config=" + cluster_file->path());
  }
  RunConfig config = parse_run_config(read_text_file(options.config), options.config, overrides);
  if (!is_speed_known(config.cluster.description)) {
    throw UserError(concat("--cluster ", options.cluster, ": it does not say how fast its devices are; 'copus profile ",
                           "--machine FILE' describes this machine"));
  }
  return config;
}

int measure_cell_as_rank(const Options& options) {
  const RunConfig config = parse_run_config(read_text_file(options.config), options.config);
  const RankEnvironment environment = environment_of_rank();
  const CellTimes times = measure_cell(config, options.steps, join_world(environment, config.wait_limit),
                                       environment.local_rank, environment.local_world_size);
  if (environment.rank == 0) {
    write_results(options.as_rank,
                  nlohmann::json{{"precision", to_string(times.precision)}, {"seconds", times.step_seconds}}.dump());
  }
  return 0;
}

struct Cell {
  Configuration configuration;
  std::vector<double> step_seconds;  // steps of all rounds
  StepTimeParts parts;
  bool has_failed = false;
};

std::vector<Cell> cells_of(const std::vector<Configuration>& configurations) {
  std::vector<Cell> cells;
  for (const Configuration& configuration : configurations) {
    cells.push_back({.configuration = configuration, .step_seconds = {}, .parts = {}});
  }
  return cells;
}

std::vector<ConfigurationChange> read_names(const std::vector<std::string>& names) {
  std::vector<ConfigurationChange> read;
  for (const std::string& name : names) read.push_back(read_configuration("--cell", name));
  return read;
}

std::vector<Configuration> named_configurations(const std::vector<ConfigurationChange>& names,
                                                const RunConfig& config) {
  std::vector<Configuration> named;
  for (const ConfigurationChange& name : names) {
    named.push_back(apply(name, configuration_of(config)));
    if (const auto reason = infeasible_reason(config.model, named.back(), config.train.sequence_length)) {
      throw UserError(concat("--cell ", to_string(name), " is impossible: ", *reason));
    }
  }
  return named;
}

// The bytes that a rank may fill; 0: not known.
double memory_of_rank(const ClusterDescription& cluster, int64_t ranks) {
  if (cluster.devices_per_node == 0) return cluster.device.memory_bytes;
  const double on_node = static_cast<double>(std::min(ranks, cluster.ranks_per_node));
  return cluster.device.memory_bytes * static_cast<double>(cluster.devices_per_node) / on_node;
}

std::vector<Configuration> most_teaching_configurations(const Options& options, const RunConfig& config) {
  std::vector<Configuration> candidates;
  const bool is_bf16 = config.train.precision == Precision::bf16;
  const Processor processor = processor_of(config);
  MemoryModel memory(config.model, config.train.sequence_length,
                     is_bf16 ? copus_in_bf16(processor) : copus_in_fp32(processor));
  std::vector<int64_t> sizes = options.ranks;
  if (sizes.empty()) sizes.push_back(config.parallel.world_size());
  for (const int64_t size : sizes) {
    SearchSpace space;
    space.world_size = size;
    space.global_batches = {config.train.global_batch};
    for (const Configuration& one : enumerate(config.model, config.train.sequence_length, space)) {
      if (out_of_memory_reason(memory.predict(one), memory_of_rank(config.cluster.description, size))) continue;
      candidates.push_back(one);
    }
  }
  if (candidates.empty()) {
    throw UserError(concat("no configuration of ", sizes.front(),
                           " ranks can train this model with train.global_batch ", config.train.global_batch,
                           "; change --ranks or the batch"));
  }
  return choose_cells(candidates, options.cells, options.seed);
}

// The text that --cell reads as this cell in the same run.
std::string name_of(const Cell& cell, const RunConfig& config) {
  return to_string(cell.configuration, configuration_of(config));
}

// Runs every cell once in every round, so that a machine that grows slower or faster is so for all. Returns the exit
// code of ranks whose end ends the profile.
int measure(const Options& options, RunConfig& config, std::vector<Cell>& cells) {
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (Cell& cell : cells) {
      if (cell.has_failed) continue;
      const MemoryFile of_cell(to_toml(with_configuration(config, cell.configuration)));
      const RanksEnd end = run_ranks(cell.configuration.strategy.world_size(),
                                     {"profile", "--config", of_cell.path(), "--steps", std::to_string(options.steps)});
      if (end.exit_code > 1) return end.exit_code;  // the user's mistake, or the end that the user wanted
      if (end.exit_code != 0) {
        std::cerr << "copus: left out, since it failed (see above): " << name_of(cell, config) << '\n';
        cell.has_failed = true;
        continue;
      }
      config.train.precision = find_value<Precision>(end.result["precision"].get<std::string>()).value();
      for (const double seconds : end.result["seconds"]) cell.step_seconds.push_back(seconds);
    }
  }
  return 0;
}

nlohmann::json to_json(const StepTimeParts& parts) {
  return {{"compute", parts.compute},
          {"tensor_communication", parts.tensor_communication},
          {"bubble", parts.bubble},
          {"data_communication", parts.data_communication},
          {"optimizer", parts.optimizer}};
}

// What the command prints, as JSON.
nlohmann::json results_of(const std::vector<Cell>& cells, const Knowledge& knowledge, const RunConfig& config) {
  nlohmann::json rows = nlohmann::json::array(), failed = nlohmann::json::array();
  for (const Cell& cell : cells) {
    if (cell.has_failed) {
      failed.push_back(name_of(cell, config));
      continue;
    }
    const Measurement measured = measurement_of(cell.step_seconds);
    const Corrected corrected = knowledge.correct(cell.configuration, cell.parts);
    rows.push_back({{"cell", name_of(cell, config)},
                    {"ranks", cell.configuration.strategy.world_size()},
                    {"global_batch", cell.configuration.global_batch},
                    {"steps", measured.steps},
                    {"measured_seconds", measured.median_seconds},
                    {"relative_spread", measured.relative_spread},
                    {"predicted_seconds", cell.parts.total()},
                    {"parts", to_json(cell.parts)},
                    {"learned", knowledge.measured_steps(cell.configuration) > 0},
                    {"corrected_seconds", corrected.seconds},
                    {"relative_deviation", corrected.relative_deviation}});
  }
  return {{"clock", to_string(config.cluster.clock)},
          {"precision", to_string(config.train.precision)},
          {"cells", rows},
          {"failed", failed},
          {"factors",
           {{"compute", knowledge.factor(Factor::compute)},
            {"tensor_links", knowledge.factor(Factor::tensor_links)},
            {"data_links", knowledge.factor(Factor::data_links)},
            {"bubble", knowledge.factor(Factor::bubble)}}}};
}

void print_table(const nlohmann::json& results) {
  std::cout << "seconds of a step, on the " << results["clock"].get<std::string>()
            << " clock; learned: as the profile predicts it from now on\n\n"
            << "ranks   predicted    measured  spread %     learned  configuration\n";
  for (const nlohmann::json& row : results["cells"]) {
    const auto number = [&](const char* field, int width) {
      std::cout << std::setw(width) << format_number("%.4f", row[field].get<double>());
    };
    std::cout << std::setw(5) << row["ranks"].get<int64_t>();
    number("predicted_seconds", 12);
    number("measured_seconds", 12);
    std::cout << std::setw(10) << format_number("%.1f", 100 * row["relative_spread"].get<double>());
    number("corrected_seconds", 12);
    std::cout << "  " << row["cell"].get<std::string>() << '\n';
  }
  std::cout << "\nfactors of what was predicted:";
  for (const auto& [name, factor] : results["factors"].items()) {
    std::cout << "  " << name << " " << format_number("%.2f", factor.get<double>());
  }
  std::cout << '\n' << std::flush;
}

int profile_cells(const Options& options) {
  const std::vector<ConfigurationChange> names = read_names(options.names);
  RunConfig config = read_config(options);
  std::vector<Cell> cells =
      cells_of(names.empty() ? most_teaching_configurations(options, config) : named_configurations(names, config));
  if (options.learn_from > static_cast<int64_t>(cells.size())) {
    throw UserError(concat("--learn-from ", options.learn_from, ": ", cells.size(), " cells are measured"));
  }
  if (const int exit_code = measure(options, config, cells); exit_code != 0) return exit_code;
  if (std::all_of(cells.begin(), cells.end(), [](const Cell& cell) { return cell.has_failed; })) {
    throw UserError("no configuration could be run (see above)");
  }

  const TrainingSystem system = training_system_of(config);
  StepTimeModel model(config.model, config.train.sequence_length, config.cluster.description, system);
  Knowledge knowledge;
  const auto learned = options.learn_from > 0 ? static_cast<size_t>(options.learn_from) : cells.size();
  for (size_t i = 0; i < cells.size(); ++i) {
    Cell& cell = cells[i];
    if (cell.has_failed) continue;
    cell.parts = model.predict(cell.configuration);
    if (i >= learned) continue;
    knowledge = observe(knowledge, cell.configuration, cell.parts, measurement_of(cell.step_seconds));
  }
  if (!options.output.empty()) {
    write_profile(options.output, {profile_subject(config.model, config.train.sequence_length,
                                                   std::string(to_string(config.train.precision)),
                                                   config.cluster.description, config.cluster.clock),
                                   knowledge});
  }
  const nlohmann::json results = results_of(cells, knowledge, config);
  if (options.json) {
    std::cout << results.dump() << '\n' << std::flush;
  } else {
    print_table(results);
    if (!options.output.empty()) std::cout << "written to " << options.output << '\n' << std::flush;
  }
  return 0;
}

int run_profile(const Options& options) {
  if (options.machine.empty() == options.config.empty()) {
    throw UserError(
        "give --machine FILE to describe this machine, or --config RUN.toml to measure configurations of a "
        "run (see 'copus profile --help')");
  }
  if (!options.as_rank.empty()) {
    return options.machine.empty() ? measure_cell_as_rank(options) : measure_machine_as_rank(options);
  }
  return options.machine.empty() ? profile_cells(options) : profile_machine(options);
}

}  // namespace

void add_profile(CLI::App& program, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App& profile = *program.add_subcommand("profile", "Measure this machine, or configurations of a run on it");
  profile.add_option("--machine", options->machine, "Describe this machine: the cluster file to write")
      ->type_name("FILE");
  add_named_option(profile, "--precision", options->precision, "With --machine: auto, fp32 or bf16");
  profile.add_option("--device", options->device, "With --machine: cpu or cuda (default: cuda where there is one)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  profile.add_option("--config", options->config, "Measure configurations of this run")->type_name("RUN.toml");
  profile
      .add_option("--set", options->overrides, "A setting that overrides the run's: section.key=value; may be repeated")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
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
  profile.add_option("--as-rank", options->as_rank)->group("");
  profile.footer(
      "Examples:\n"
      "  copus profile --machine here.toml\n"
      "  copus profile --config RUN.toml --cluster here.toml --ranks 1 2 4 --output profile.json\n"
      "  copus profile --config RUN.toml --cluster here.toml --cell d=2,t=1,p=1 --cell d=1,t=1,p=2,b=1");
  profile.callback([options, &action] { action = [options] { return run_profile(*options); }; });
}

}  // namespace copus
