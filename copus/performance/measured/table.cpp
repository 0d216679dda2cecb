#include "copus/performance/measured/table.h"

#include <cmath>
#include <utility>

#include "copus/performance/measured/prediction_range.h"

namespace copus {

PerformanceTable make_table(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                            const TrainingSystem& system, const SearchSpace& space, const Knowledge& knowledge) {
  MemoryModel memory_model(model, sequence_length, system);
  StepTimeModel time_model(model, sequence_length, cluster, system);
  const auto predict = [&](const Configuration& configuration, const MemoryPrediction& memory) {
    const StepTimeParts parts = time_model.predict(configuration);
    TableCell cell{.configuration = configuration,
                   .parts = parts,
                   .memory = memory,
                   .step = knowledge.correct(configuration, parts),
                   .measured_steps = knowledge.measured_steps(configuration)};
    const double extrapolation =
        extrapolation_deviation(nodes_of(cluster, configuration.strategy.world_size()), cluster.measured_nodes);
    if (extrapolation > 0 && cell.measured_steps == 0) {
      cell.beyond_measured = true;
      cell.step.relative_deviation = std::hypot(cell.step.relative_deviation, extrapolation);
    }
    return cell;
  };

  const double available = memory_of_rank(cluster, space.world_size);
  const std::vector<Configuration> configurations = enumerate(model, sequence_length, space);
  PerformanceTable table;
  table.cells.reserve(configurations.size());
  std::optional<std::pair<Configuration, MemoryPrediction>> smallest;
  for (const Configuration& configuration : configurations) {
    const MemoryPrediction memory = memory_model.predict(configuration);
    if (available == 0 || memory.parts.total() <= available) {
      table.cells.push_back(predict(configuration, memory));
    } else {
      ++table.too_large;
      if (!smallest || memory.parts.total() < smallest->second.parts.total()) smallest = {configuration, memory};
    }
  }
  if (table.cells.empty() && smallest) table.smallest = predict(smallest->first, smallest->second);
  return table;
}

}  // namespace copus
