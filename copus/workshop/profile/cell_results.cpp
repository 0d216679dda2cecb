#include "copus/workshop/profile/cell_results.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "copus/base/text/units.h"
#include "copus/description/configuration_text.h"
#include "copus/orchestrator/predictions/step_time_learner.h"
#include "copus/workshop/table.h"

namespace copus {

namespace {

nlohmann::json to_json(const StepTimeParts& parts) {
  nlohmann::json json;
  visit_parts(parts, [&](const char* name, double seconds) { json[name] = seconds; });
  return json;
}

}  // namespace

std::string name_of(const Cell& cell, const RunConfig& config) {
  return to_string(cell.configuration, configuration_of(config));
}

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
                    {"relative_deviation", corrected.relative_deviation},
                    {"peak_bytes", cell.peak_bytes},
                    {"predicted_bytes", cell.predicted_bytes}});
  }
  return {{"clock", to_string(config.cluster.clock)},
          {"precision", to_string(config.execution.precision)},
          {"cells", rows},
          {"failed", failed},
          {"factors",
           {{"compute", knowledge.factor(Factor::compute)},
            {"tensor_links", knowledge.factor(Factor::tensor_links)},
            {"data_links", knowledge.factor(Factor::data_links)},
            {"bubble", knowledge.factor(Factor::bubble)}}}};
}

void print_results(const nlohmann::json& results) {
  constexpr int widths[] = {5, 12, 12, 10, 12, 12, 12, 0};
  std::cout << "seconds of a step, on the " << results["clock"].get<std::string>()
            << " clock; learned: as the profile predicts it from now on; MiB of the rank that holds most\n\n";
  print_cells(widths,
              {"ranks", "predicted", "measured", "spread %", "learned", "predicted", "measured", "  configuration"});
  for (const nlohmann::json& row : results["cells"]) {
    const auto seconds = [&](const char* field) { return format_number("%.4f", row[field].get<double>()); };
    const auto mebibytes = [&](const char* field) {
      return format_number("%.1f", row[field].get<double>() / static_cast<double>(int64_t{1} << 20));
    };
    print_cells(widths,
                {std::to_string(row["ranks"].get<int64_t>()), seconds("predicted_seconds"), seconds("measured_seconds"),
                 format_number("%.1f", 100 * row["relative_spread"].get<double>()), seconds("corrected_seconds"),
                 mebibytes("predicted_bytes"), mebibytes("peak_bytes"), concat("  ", row["cell"].get<std::string>())});
  }
  std::cout << "\nfactors of what was predicted:";
  for (const auto& [name, factor] : results["factors"].items()) {
    std::cout << "  " << name << " " << format_number("%.2f", factor.get<double>());
  }
  std::cout << '\n' << std::flush;
}

}  // namespace copus
