#include "copus/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "copus/base/error.h"
#include "copus/base/text/units.h"
#include "copus/plan/plan_refusal.h"

namespace copus {

namespace {

bool is_faster(const PlannedConfiguration& one, const PlannedConfiguration& other) {
  return one.seconds < other.seconds;
}

}  // namespace

SearchSpace PlanQuestion::whole_space() const {
  SearchSpace whole = abilities(program);
  whole.world_size = space.world_size;
  whole.global_batches = space.global_batches;
  whole.max_tensor_parallel = space.max_tensor_parallel;
  whole.virtual_stages = possible_virtual_stages(program, model);
  whole.allows = [who = program, what = model, length = sequence_length](const Configuration& configuration) {
    return !unable_reason(who, what, configuration, length);
  };
  return whole;
}

std::string seconds_in_words(double seconds) {
  if (seconds < 0.00995) return format_number("%.2f ms", 1e3 * seconds);
  if (seconds < 0.9995) return format_number("%.0f ms", 1e3 * seconds);
  return format_number(seconds < 999.995 ? "%.2f s" : "%.0f s", seconds);
}

TrainingTime training_time(const PlanQuestion& question, const PlannedConfiguration& planned) {
  const auto batch = static_cast<double>(planned.configuration.global_batch);
  const double steps =
      std::ceil(static_cast<double>(question.tokens) / (batch * static_cast<double>(question.sequence_length)));
  const double hours = steps * planned.seconds / 3600;
  return {steps, hours / 24, hours * static_cast<double>(question.space.world_size)};
}

PlannedConfiguration planned(const TableCell& cell, const PlanQuestion& question) {
  PlannedConfiguration result{.configuration = cell.configuration,
                              .memory = cell.memory,
                              .seconds = cell.step.seconds,
                              .relative_deviation = cell.step.relative_deviation,
                              .parts = question.knowledge.under_factors(cell.parts),
                              .measured_steps = cell.measured_steps,
                              .beyond_measured = cell.beyond_measured};
  // The measured step time does not show how it divides into parts, so all parts are scaled by the same factor.
  const double stretch = result.seconds / result.parts.total();
  visit_parts(result.parts, [&](const char* /*name*/, double& seconds) { seconds *= stretch; });
  result.tokens_per_second_per_gpu =
      tokens_per_second_per_rank(cell.configuration, question.sequence_length, result.seconds);
  result.model_flops_utilization =
      model_flops_utilization(question.model, question.sequence_length, result.tokens_per_second_per_gpu,
                              question.cluster.device.peak_flops_per_second);
  return result;
}

Plan make_plan(const PlanQuestion& question) {
  if (const auto lacking = lacking_model(question.program, question.model, question.sequence_length)) {
    throw UserError(
        concat("--model ", question.model_name, ": ", *lacking, "; take another model, or another --system"));
  }
  const PerformanceTable table = make_table(question.model, question.sequence_length, question.cluster, question.system,
                                            question.space, question.knowledge);
  if (table.cells.empty()) {
    throw UserError(table.too_large == 0 ? why_nothing_is_possible(question) : why_nothing_fits(question, table));
  }
  Plan plan{.configurations = static_cast<int64_t>(table.cells.size()), .too_large = table.too_large, .batches = {}};
  // The index of the fastest configuration, by batch and layout.
  std::map<int64_t, std::map<ParallelStrategy, size_t>> fastest_cells;
  for (const int64_t batch : question.space.global_batches) fastest_cells[batch];
  for (size_t i = 0; i < table.cells.size(); ++i) {
    const TableCell& cell = table.cells[i];
    auto& of_batch = fastest_cells[cell.configuration.global_batch];
    const auto [place, added] = of_batch.try_emplace(layout_of(cell.configuration.strategy), i);
    if (!added && cell.step.seconds < table.cells[place->second].step.seconds) place->second = i;
  }
  for (const auto& [batch, cells] : fastest_cells) {
    BatchPlan& of_batch = plan.batches.emplace_back(BatchPlan{batch, {}});
    for (const auto& [layout, index] : cells) of_batch.layouts.push_back(planned(table.cells[index], question));
    std::stable_sort(of_batch.layouts.begin(), of_batch.layouts.end(), is_faster);
  }
  return plan;
}

std::vector<Crossover> crossovers(const Plan& plan) {
  std::vector<Crossover> found;
  const BatchPlan* before = nullptr;
  for (const BatchPlan& batch : plan.batches) {
    if (batch.layouts.empty()) continue;
    const ParallelStrategy layout = batch.layouts.front().layout();
    if (before != nullptr && layout != before->layouts.front().layout()) {
      found.push_back({before->global_batch, batch.global_batch, before->layouts.front().layout(), layout});
    }
    before = &batch;
  }
  return found;
}

}  // namespace copus
