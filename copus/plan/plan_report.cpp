#include "copus/plan/plan_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "copus/base/error.h"
#include "copus/base/text/text_table.h"
#include "copus/base/text/units.h"
#include "copus/description/configuration_text.h"
#include "copus/performance/measured/machine.h"
#include "copus/performance/measured/prediction_range.h"
#include "copus/plan/paste_text.h"
#include "copus/plan/published_slowdown.h"

namespace copus {

namespace {

// Shows at least three digits.
std::string three_digits(double number) {
  return number >= 99.95 ? with_commas(number) : format_number("%#.3g", number);
}

std::string percent(double share) { return format_number("%.0f %%", 100 * share); }
std::string gibibytes(double bytes) { return format_number("%.1f", bytes / gibibyte); }

std::vector<std::string> joined(std::vector<std::string> first, const std::vector<std::string>& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

int64_t measured_steps(const PlanQuestion& question) {
  const auto& cells = question.knowledge.cells();
  return std::accumulate(cells.begin(), cells.end(), int64_t{0},
                         [](int64_t sum, const auto& cell) { return sum + cell.second.steps(); });
}

std::string steps_and_configurations(const PlanQuestion& question) {
  return concat(counted(measured_steps(question), "measured step"), " of ",
                counted(std::ssize(question.knowledge.cells()), "configuration"));
}

std::string heading(const PlanQuestion& question, const Plan& plan) {
  std::string text =
      concat(title_of(question), "\n", with_commas(static_cast<double>(plan.configurations)), " configurations fit");
  if (question.memory_of_rank() == 0) {
    text += " (the cluster does not say how much memory its devices have)";
  } else if (plan.too_large > 0) {
    text += concat(", ", with_commas(static_cast<double>(plan.too_large)), " need too much memory");
  }
  text += measured_steps(question) == 0
              ? ".\nAll times are predictions: none is corrected by a measurement (--profile).\n"
              : concat(".\nPredictions are corrected by ", steps_and_configurations(question), ".\n");
  if (const std::string basis = basis_of(question.program); !basis.empty()) text += basis + "\n";
  const ClusterDescription& cluster = question.cluster;
  const int64_t nodes = nodes_of(cluster, question.space.world_size);
  if (extrapolation_deviation(nodes, cluster.measured_nodes) > 0) {
    text += concat("These are ", nodes, " nodes; ", question.cluster_name, " was compared with measurements on up to ",
                   cluster.measured_nodes, ": beyond, predictions are less sure.\n");
  }
  const int64_t ranks = question.space.world_size, node = cluster.ranks_per_node;
  if (ranks > node && ranks % node != 0) {
    text += concat("Nodes of ", node, " are not all full: the last one has ", ranks % node,
                   " of the ranks, and groups are placed as on full nodes.\n");
  }
  if (const auto warning = warning_of_precision(question.cluster.device, question.precision)) {
    text += concat("Warning: ", *warning, ".\n");
  } else if (question.precision == "fp32" && !measured_precision(question.cluster.device)) {
    text += "Computing is taken to be as fast as the cluster's description says: see that it describes fp32.\n";
  }
  return text;
}

// Whether the layout would not fit if it needed more memory than predicted by the median error of published runs.
bool may_not_fit(const PlanQuestion& question, const PlannedConfiguration& row) {
  const double available = question.memory_of_rank();
  return available > 0 && row.memory.parts.total() * (1 + published_memory_error.median) > available;
}

std::string ranking_text(const PlanQuestion& question, const BatchPlan& batch, int64_t top) {
  const size_t count = std::min(batch.layouts.size(), static_cast<size_t>(top));
  std::vector<Configuration> shown;
  for (size_t i = 0; i < count; ++i) shown.push_back(batch.layouts[i].configuration);
  const std::vector<std::vector<std::string>> rows = configuration_rows(shown);
  TextTable times(joined(joined({"#"}, rows.front()),
                         {"step", "+-", "tokens/s/GPU", "MFU", "compute", "tensor", "bubble", "data", "optimizer"}));
  TextTable memory(
      {"#", "weights", "gradients", "optimizer", "activations", "logits", "workspace", "total", "pipeline rank"});
  for (size_t i = 0; i < count; ++i) {
    const PlannedConfiguration& row = batch.layouts[i];
    const auto share = [&](double part) { return percent(part / row.seconds); };
    times.add(joined(
        joined({std::to_string(i + 1)}, rows[i + 1]),
        {seconds_in_words(row.seconds), percent(row.relative_deviation), three_digits(row.tokens_per_second_per_gpu),
         utilization_text(row.model_flops_utilization), share(row.parts.compute), share(row.parts.tensor_communication),
         share(row.parts.bubble), share(row.parts.data_communication), share(row.parts.optimizer)}));
    const MemoryParts& parts = row.memory.parts;
    memory.add({std::to_string(i + 1), gibibytes(parts.weights), gibibytes(parts.gradients), gibibytes(parts.optimizer),
                gibibytes(parts.activations), gibibytes(parts.logits), gibibytes(parts.workspace),
                gibibytes(parts.total()), std::to_string(row.memory.pipeline_rank)});
  }
  const double available = question.memory_of_rank();
  const size_t tight = std::count_if(batch.layouts.begin(), batch.layouts.begin() + static_cast<std::ptrdiff_t>(count),
                                     [&](const PlannedConfiguration& row) { return may_not_fit(question, row); });
  return concat("\nGlobal batch ", batch.global_batch, ": ", count, " of ", batch.layouts.size(),
                " layouts, each at its fastest; time by part in percent of the step\n", times.text(),
                doubt_about_times(question), "\n\nMemory of the rank that needs most, GiB",
                available > 0 ? concat(", of ", gibibytes(available)) : std::string(), "\n", memory.text(),
                doubt_about_memory(),
                tight == 0 ? "" : concat("; with such an error ", tight, " of these layouts would not fit"), "\n");
}

// Writes the duration of the whole training: for the fastest layouts of one batch, or for the fastest layout of each of
// several batches.
std::string training_time_text(const PlanQuestion& question, const Plan& plan, int64_t top) {
  const bool one_batch = plan.batches.size() == 1;
  TextTable table({"B", "layout", "steps", "days", "+-", "GPU-hours"});
  for (const BatchPlan& batch : plan.batches) {
    const size_t count = std::min(batch.layouts.size(), static_cast<size_t>(one_batch ? top : 1));
    for (size_t i = 0; i < count; ++i) {
      const PlannedConfiguration& row = batch.layouts[i];
      const TrainingTime time = training_time(question, row);
      table.add({std::to_string(batch.global_batch), to_string(row.layout()), with_commas(time.steps),
                 three_digits(time.days), percent(row.relative_deviation), three_digits(time.gpu_hours)});
    }
  }
  return concat("\nTraining on ", format_count(static_cast<double>(question.tokens)),
                " tokens: steps alone, without evaluation, checkpoints and interruptions\n", table.text(),
                doubt_about_times(question), "\n");
}

std::string pasted(const PlanQuestion& question, const char* what, const Configuration& configuration) {
  std::string text;
  for (const PasteText& paste : paste_texts(question, configuration)) {
    text += concat("\n", what, ", for ", paste.where, ":\n\n", paste.text);
  }
  return text;
}

std::string warning_of_memory(const PlanQuestion& question, const PlannedConfiguration& row) {
  if (!may_not_fit(question, row)) return "";
  return concat("\nThe first layout fills ", percent(row.memory.parts.total() / question.memory_of_rank()),
                " of the memory and may run out of it: have the next one ready, or plan with room "
                "(a smaller memory_gigabytes).\n");
}

std::string sweep_text(const PlanQuestion& question, const Plan& plan) {
  std::vector<Configuration> fastest;
  for (const BatchPlan& batch : plan.batches) {
    if (!batch.layouts.empty()) fastest.push_back(batch.layouts.front().configuration);
  }
  const std::vector<std::vector<std::string>> rows = configuration_rows(fastest);
  TextTable table(joined(rows.front(), {"step", "+-", "tokens/s/GPU", "MFU", "GiB", "next best", "behind by"}));
  std::string without;
  auto row = rows.begin();
  for (const BatchPlan& batch : plan.batches) {
    if (batch.layouts.empty()) {
      without += concat(without.empty() ? "" : ", ", batch.global_batch);
      continue;
    }
    const PlannedConfiguration& best = batch.layouts.front();
    const bool alone = batch.layouts.size() == 1;
    table.add(
        joined(*++row, {seconds_in_words(best.seconds), percent(best.relative_deviation),
                        three_digits(best.tokens_per_second_per_gpu), utilization_text(best.model_flops_utilization),
                        gibibytes(best.memory.parts.total()), alone ? "-" : to_string(batch.layouts[1].layout()),
                        alone ? "-" : format_number("%.1f %%", 100 * (batch.layouts[1].seconds / best.seconds - 1))}));
  }
  std::string text = concat("\nThe fastest layout by global batch\n", table.text(), doubt_about_times(question), "\n",
                            doubt_about_memory(), "\n\n");
  if (!without.empty()) text += concat("No configuration fits at a global batch of ", without, ".\n");
  const std::vector<Crossover> changes = crossovers(plan);
  if (changes.empty()) text += "The fastest layout is the same at every batch.\n";
  for (const Crossover& change : changes) {
    text += concat("Between ", change.last_batch, " and ", change.first_batch, " the fastest layout changes from ",
                   to_string(change.from), " to ", to_string(change.to), ".\n");
  }
  return text;
}

}  // namespace

std::string title_of(const PlanQuestion& question) {
  return concat(question.model_name, " on ", question.space.world_size, " x ", question.device_name(),
                ", sequences of ", question.sequence_length,
                question.system.document_length > 0
                    ? concat(" with documents of ", format_number("%.0f", question.system.document_length))
                    : "",
                ", ", question.precision,
                question.system.optimizer == OptimizerKind::adamw
                    ? ""
                    : concat(", optimizer ", to_string(question.system.optimizer)),
                question.program == PlannedSystem::copus ? "" : concat(", trained by ", full_name(question.program)));
}

std::string utilization_text(double model_flops_utilization) {
  return std::isfinite(model_flops_utilization) ? format_number("%.1f %%", 100 * model_flops_utilization) : "n/a";
}

std::string with_commas(double number) {
  const std::string digits = format_number("%.0f", number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string doubt_about_times(const PlanQuestion& question) {
  if (measured_steps(question) > 0) {
    return concat("+-: one standard deviation, after ", steps_and_configurations(question));
  }
  const std::string begin = "+-: one standard deviation, assumed. ";
  const auto found = published_slowdown(question.program, question.device_name());
  if (!found) {
    return concat(begin, "No run of ", full_name(question.program), " on ", question.device_name(),
                  " was compared with such predictions (docs/performance-model.md)");
  }
  const auto times = [](double factor) { return format_number("%.2f", factor); };
  return concat(begin, "Measured steps of ", full_name(question.program), " on ", found->generation, " took ",
                times(found->median), " times as long as predicted so in the median of ", found->figures, " (",
                found->fitted_on, "; half: ", times(found->lower), " to ", times(found->upper), ")",
                found->judged == 0 ? "" : concat(", ", found->judged, " others ", times(found->judged_median)),
                "; docs/performance-model.md");
}

std::string doubt_about_memory() {
  return concat("Predicted for published runs, memory is ",
                format_number("%.1f %%", 100 * published_memory_error.median), " off in the median of ",
                with_commas(static_cast<double>(published_memory_error.runs)), " runs (docs/performance-model.md)");
}

std::string to_text(const PlanQuestion& question, const Plan& plan, int64_t top) {
  const std::string begin = heading(question, plan);
  const std::string training = question.tokens > 0 ? training_time_text(question, plan, top) : "";
  if (plan.batches.size() > 1) return begin + sweep_text(question, plan) + training;
  const BatchPlan& batch = plan.batches.front();
  return concat(begin, ranking_text(question, batch, top), training, warning_of_memory(question, batch.layouts.front()),
                pasted(question, "The first layout", batch.layouts.front().configuration));
}

std::string to_text(const PlanQuestion& question, const std::vector<Explanation>& explanations) {
  std::string text;
  bool tells_times = false;
  for (const Explanation& explanation : explanations) {
    text += concat("\nGlobal batch ", explanation.global_batch, ": ", explanation.text, "\n");
    if (explanation.verdict != Explanation::Verdict::fits) continue;
    text += pasted(question, "It", explanation.configuration->configuration);
    tells_times = true;
  }
  if (tells_times) text += concat("\nOf all times here: ", doubt_about_times(question), "\n");
  return text;
}

}  // namespace copus
