// `copus profile --config`: trains a few steps in each of several configurations (cells), and learns step times from
// these measurements. Every measurement of a cell starts new ranks.
#include "copus/workshop/profile/profile_cells.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/json_text.h"
#include "copus/cli/option_checks.h"
#include "copus/config/descriptions.h"
#include "copus/description/search_space.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/performance/memory.h"
#include "copus/report/files/performance_profile.h"
#include "copus/report/progress/command_progress.h"
#include "copus/train/run/run_data.h"
#include "copus/workshop/memory_file.h"
#include "copus/workshop/profile/cell_bench.h"
#include "copus/workshop/profile/cell_results.h"
#include "copus/workshop/profile/cells.h"

namespace copus {
namespace {

// Replaces settings of [adapt] that a cell may contradict. A run with a policy keeps one, because the policy decides
// whether the training state is in memory that ranks share.
RunConfig with_configuration(RunConfig config, const Configuration& configuration) {
  config.adapt.max_tensor_parallel = 0;
  if (config.adapt.policy != PolicyKind::none) config.adapt.policy = PolicyKind::fixed;
  config.parallel = configuration.strategy;
  config.train.global_batch = configuration.global_batch;
  config.train.micro_batch = configuration.micro_batch;
  return config;
}

RunConfig read_config(const ProfileOptions& options) {
  std::vector<std::string> overrides = options.overrides;
  std::optional<MemoryFile> cluster_file;  // the cluster may be one that ships with the program
  if (!options.cluster.empty()) {
    cluster_file.emplace(to_toml(find_cluster(options.cluster)));
    overrides.push_back("cluster.config=" + cluster_file->path());
  }
  const std::string text = read_named_file(options.config, "--config", expected_run_file("profile"));
  RunConfig config = parse_run_config(text, options.config, overrides);
  if (!is_speed_known(config.cluster.description)) {
    throw UserError(concat(options.cluster.empty()
                               ? concat("--cluster is missing: ", options.config,
                                        " describes no devices that predictions ", "could be for")
                               : concat("--cluster ", options.cluster, ": it does not say how fast its devices are"),
                           "; 'copus profile --machine FILE' describes this machine (see 'copus profile --help')"));
  }
  if (config.cluster.is_modelled()) {
    throw UserError(concat(options.config,
                           ": on cluster.clock \"modelled\" all times are predicted, so there is nothing ",
                           "to measure; give a run on another clock"));
  }
  return config;
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

std::vector<Configuration> most_teaching_configurations(const ProfileOptions& options, const RunConfig& config) {
  std::vector<Configuration> candidates;
  MemoryModel memory(config.model, config.train.sequence_length, executed_system_of(config));
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

// The configurations that the user names, or the configurations whose step times teach most.
std::vector<Cell> cells_of(const ProfileOptions& options, const std::vector<ConfigurationChange>& names,
                           const RunConfig& config) {
  std::vector<Cell> cells;
  for (const Configuration& configuration :
       names.empty() ? most_teaching_configurations(options, config) : named_configurations(names, config)) {
    cells.push_back({.configuration = configuration});
  }
  if (options.learn_from > std::ssize(cells)) {
    throw UserError(concat("--learn-from ", options.learn_from, ": ", cells.size(), " cells are measured"));
  }
  return cells;
}

// Measures every cell once per round, so that a drift of the machine's speed affects all cells alike. Sets the
// precision in `config` to the one in which the cells trained. Throws RanksFailed if ranks fail because of a user's
// mistake, or if the user stops the measurement.
void measure(const ProfileOptions& options, RunConfig& config, std::vector<Cell>& cells) {
  CommandProgress progress("measurements", options.rounds * std::ssize(cells));
  int64_t done = 0;
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (Cell& cell : cells) {
      progress.show(done++);
      if (cell.has_failed) continue;
      const nlohmann::json request{{"config", to_toml(with_configuration(config, cell.configuration))},
                                   {"steps", options.steps}};
      try {
        const nlohmann::json measured = run_ranks(cell.configuration.strategy.world_size(), "cell", request);
        config.execution.precision = find_value<Precision>(measured.at("precision").get<std::string>()).value();
        for (const double seconds : measured.at("seconds")) cell.step_seconds.push_back(seconds);
        cell.peak_bytes = std::max(cell.peak_bytes, measured.at("peak_bytes").get<int64_t>());
      } catch (const RanksFailed& failed) {
        if (failed.exit_code() > 1) throw;
        std::cerr << "copus: left out, since it failed (see above): " << name_of(cell, config) << '\n';
        cell.has_failed = true;
      }
    }
  }
  if (std::ranges::all_of(cells, &Cell::has_failed)) throw UserError("no configuration could be run (see above)");
}

// Predicts all cells, and learns from the first options.learn_from cells.
Knowledge learn(const ProfileOptions& options, const RunConfig& config, std::vector<Cell>& cells) {
  const TrainingSystem system = training_system_of(config);
  StepTimeModel model(config.model, config.train.sequence_length, config.cluster.description, system);
  MemoryModel memory(config.model, config.train.sequence_length, system);
  Knowledge knowledge;
  const int64_t learned = options.learn_from > 0 ? options.learn_from : std::ssize(cells);
  for (int64_t i = 0; i < std::ssize(cells); ++i) {
    Cell& cell = cells[i];
    if (cell.has_failed) continue;
    cell.parts = model.predict(cell.configuration);
    cell.predicted_bytes = memory.predict(cell.configuration).parts.total();
    if (i >= learned) continue;
    knowledge = observe(knowledge, cell.configuration, cell.parts, measurement_of(cell.step_seconds));
  }
  return knowledge;
}

}  // namespace

int profile_cells(const ProfileOptions& options) {
  const std::vector<ConfigurationChange> names = read_names(options.names);
  if (!options.output.empty()) check_can_be_written("--output", options.output);
  RunConfig config = read_config(options);
  resolve_documents(config, open_run_data(config));
  std::vector<Cell> cells = cells_of(options, names, config);
  measure(options, config, cells);
  const Knowledge knowledge = learn(options, config, cells);
  if (!options.output.empty()) {
    write_profile(options.output, {profile_subject(config.model, config.train.sequence_length,
                                                   std::string(to_string(config.execution.precision)),
                                                   config.cluster.description, config.cluster.clock),
                                   knowledge});
  }
  const nlohmann::json results = results_of(cells, knowledge, config);
  if (options.json) {
    std::cout << json_text(results) << '\n' << std::flush;
  } else {
    print_results(results);
    if (!options.output.empty()) std::cout << "written to " << options.output << '\n' << std::flush;
  }
  return 0;
}

nlohmann::json measure_cell_as_rank(const nlohmann::json& request, const RankEnvironment& environment) {
  const RunConfig config = parse_run_config(request.at("config").get<std::string>(), "the configuration of a cell");
  const CellMeasurements measured =
      measure_cell(config, request.at("steps").get<int64_t>(), join_world(environment, config.wait_limit),
                   environment.local_rank, environment.local_world_size);
  return {{"precision", to_string(measured.precision)},
          {"seconds", measured.step_seconds},
          {"peak_bytes", measured.peak_bytes}};
}

}  // namespace copus
