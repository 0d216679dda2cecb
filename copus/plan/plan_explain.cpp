#include "copus/plan/plan_explain.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/units.h"

namespace copus {

namespace {

// Completes a configuration in which only some parts are named, with the simplest choice for the others.
Configuration completed(const PlanQuestion& question, const ConfigurationChange& asked, int64_t global_batch) {
  Configuration configuration = apply(asked, {});
  take_what_is_usual(question.program, asked, configuration.strategy);
  configuration.global_batch = global_batch;
  if (configuration.strategy.virtual_stages > 1 && !asked.names("schedule")) {
    configuration.strategy.schedule = PipelineSchedule::interleaved_1f1b;
  }
  return configuration;
}

std::optional<std::string> why_impossible(const PlanQuestion& question, const Configuration& configuration) {
  if (auto reason =
          infeasible_reason(question.model, configuration, question.sequence_length, question.space.interleaved_rounds))
    return reason;
  return unable_reason(question.program, question.model, configuration, question.sequence_length);
}

// All configurations that match the request, including configurations that the plan's own options exclude.
std::vector<Configuration> candidates(const PlanQuestion& question, const ConfigurationChange& asked,
                                      const Configuration& plain) {
  SearchSpace space = question.whole_space();
  space.global_batches = {plain.global_batch};
  space.max_tensor_parallel = 0;
  if (asked.names("b")) space.micro_batches = {plain.micro_batch};
  if (asked.names("replicas")) space.zero_replicas = {plain.strategy.zero_replicas};
  std::vector<Configuration> found = enumerate(question.model, question.sequence_length, space);
  std::erase_if(found, [&](const Configuration& candidate) {
    return layout_of(candidate.strategy) != layout_of(plain.strategy) || !matches(asked, candidate);
  });
  // An option without effect, such as ZeRO with d = 1, is enumerated with one value only. The user may have named a
  // different value.
  if (found.empty() && !why_impossible(question, plain)) found.push_back(plain);
  return found;
}

// Lists the parts of a step that take significantly longer than in `best`, the largest difference first: "bubble +120
// ms, data communication +35 ms".
std::string why_slower(const PlannedConfiguration& here, const PlannedConfiguration& best) {
  const StepTimeParts& a = here.parts;
  const StepTimeParts& b = best.parts;
  std::vector<std::pair<double, const char*>> differences = {
      {a.compute - b.compute, "compute"},
      {a.tensor_communication - b.tensor_communication, "tensor communication"},
      {a.bubble - b.bubble, "bubble"},
      {a.data_communication - b.data_communication, "data communication"},
      {a.optimizer - b.optimizer, "optimizer"}};
  std::sort(differences.begin(), differences.end(), std::greater<>());
  std::string text;
  for (const auto& [difference, name] : differences) {
    if (difference < 0.05 * (here.seconds - best.seconds) || difference <= 0) continue;
    text += concat(text.empty() ? "" : ", ", name, " +", seconds_in_words(difference));
  }
  return text;
}

// The configurations that the plan considers within the user's options, sorted.
std::vector<Configuration> configurations_of_the_plan(const PlanQuestion& question, int64_t global_batch) {
  SearchSpace space = question.space;
  space.global_batches = {global_batch};
  std::vector<Configuration> all = enumerate(question.model, question.sequence_length, space);
  std::sort(all.begin(), all.end());
  return all;
}

std::string why_left_out(const PlanQuestion& question, const Configuration& configuration) {
  if (configuration.strategy.tensor_parallel > question.space.max_tensor_parallel) {
    return concat("tensor parallelism stays within a node of ", question.space.max_tensor_parallel);
  }
  const bool power_of_two = std::has_single_bit(static_cast<uint64_t>(configuration.micro_batch));
  if (question.space.micro_batches.empty() && !power_of_two) return "its micro-batches are powers of two";
  return "its options do not allow it, or something simpler does the same";
}

// Returns the place of the configuration's layout in the plan, "rank 3 of 12 layouts". If the plan has this layout in a
// faster configuration, also says how that configuration differs.
std::string place_of(const BatchPlan& batch, const PlannedConfiguration& configuration) {
  const auto row = std::find_if(batch.layouts.begin(), batch.layouts.end(), [&](const PlannedConfiguration& other) {
    return other.layout() == configuration.layout();
  });
  COPUS_CHECK(row != batch.layouts.end(), "a plan without the layout of one of its configurations");
  std::string rank = concat("rank ", row - batch.layouts.begin() + 1, " of ", batch.layouts.size(), " layouts");
  if (row->configuration == configuration.configuration) return rank;
  return concat("where the layout at its fastest (", rank, "), ", to_string(row->configuration), ", takes ",
                seconds_in_words(row->seconds));
}

std::string compared(const PlannedConfiguration& here, const PlannedConfiguration& best) {
  const double slower = 100 * (here.seconds / best.seconds - 1);
  if (slower < 0) return format_number("%.1f %% faster", -slower);
  const std::string reasons = why_slower(here, best);
  return concat(format_number("%.1f %% slower", slower), reasons.empty() ? "" : concat(" (", reasons, ")"));
}

std::string why_not(const PlanQuestion& question, const BatchPlan& batch, const PlannedConfiguration& found,
                    bool of_the_plan) {
  const std::string begin =
      concat(to_string(found.configuration), " fits: ", seconds_in_words(found.seconds), " a step");
  const std::string place =
      of_the_plan ? "" : concat(", which the plan leaves out: ", why_left_out(question, found.configuration));
  if (batch.layouts.empty()) return concat(begin, place, ". Nothing fits of what the plan looks at.");
  const PlannedConfiguration& best = batch.layouts.front();
  if (best.configuration == found.configuration) return concat(begin, ". It is the fastest of the plan.");
  return concat(begin, of_the_plan ? concat(", ", place_of(batch, found)) : place, ". The fastest of the plan, ",
                to_string(best.configuration), ", takes ", seconds_in_words(best.seconds), ": this is ",
                compared(found, best), ".");
}

}  // namespace

Explanation explain(const PlanQuestion& question, const BatchPlan& batch, const ConfigurationChange& asked) {
  using Verdict = Explanation::Verdict;
  const Configuration plain = completed(question, asked, batch.global_batch);
  const std::string name = to_string(layout_of(plain.strategy));
  const int64_t size = plain.strategy.world_size();
  if (size != question.space.world_size) {
    return {batch.global_batch, Verdict::impossible,
            concat(name, " needs ", size, " GPUs (d x t x p), and the plan is for ", question.space.world_size, "."),
            std::nullopt};
  }
  const std::vector<Configuration> all = candidates(question, asked, plain);
  if (all.empty()) {
    const auto reason = why_impossible(question, plain);
    return {batch.global_batch, Verdict::impossible,
            concat(name, " is impossible: ", reason.value_or("nothing goes with what was named"), "."), std::nullopt};
  }

  const std::vector<Configuration> plans_own = configurations_of_the_plan(question, batch.global_batch);
  StepTimeModel time(question.model, question.sequence_length, question.cluster, question.system);
  MemoryModel memory(question.model, question.sequence_length, question.system);
  // The fastest of the fitting configurations that the plan considers, if there are any.
  std::optional<TableCell> fastest;
  std::optional<TableCell> smallest;
  bool of_the_plan = false;
  for (const Configuration& configuration : all) {
    TableCell cell{.configuration = configuration,
                   .parts = time.predict(configuration),
                   .memory = memory.predict(configuration),
                   .step = {},
                   .measured_steps = question.knowledge.measured_steps(configuration)};
    cell.step = question.knowledge.correct(configuration, cell.parts);
    if (!smallest || cell.memory.parts.total() < smallest->memory.parts.total()) smallest = cell;
    if (out_of_memory_reason(cell.memory, question.memory_of_rank())) continue;
    const bool looked_at = std::binary_search(plans_own.begin(), plans_own.end(), configuration);
    const bool is_better =
        !fastest || std::pair(!looked_at, cell.step.seconds) < std::pair(!of_the_plan, fastest->step.seconds);
    if (!is_better) continue;
    fastest = cell;
    of_the_plan = looked_at;
  }
  if (fastest) {
    const PlannedConfiguration found = planned(*fastest, question);
    return {batch.global_batch, Verdict::fits, why_not(question, batch, found, of_the_plan), found};
  }
  const auto reason = out_of_memory_reason(smallest->memory, question.memory_of_rank());
  COPUS_CHECK(reason, "a cell that neither fits nor does not");
  return {batch.global_batch, Verdict::too_large,
          concat(name, ", with what saves most memory (", to_string(smallest->configuration), "), ", *reason, "."),
          planned(*smallest, question)};
}

}  // namespace copus
