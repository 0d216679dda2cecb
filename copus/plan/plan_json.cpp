// A plan as JSON.
#include <cmath>
#include <nlohmann/json.hpp>

#include "copus/base/text/json_text.h"
#include "copus/description/configuration_fields.h"
#include "copus/plan/paste_text.h"
#include "copus/plan/plan_report.h"
#include "copus/plan/published_slowdown.h"

namespace copus {

namespace {

using Json = nlohmann::ordered_json;

Json layout_json(const ParallelStrategy& layout) {
  Json json;
  for (const MeshAxisInfo& axis : mesh_axes) json[axis.key] = layout.*axis.degree;
  return json;
}

Json flags_json(const PlanQuestion& question, const Configuration& configuration) {
  Json flags = Json::array();
  for (const PasteText& paste : paste_texts(question, configuration)) {
    flags.push_back({{"for", paste.where}, {"text", paste.text}});
  }
  return flags;
}

Json to_json(const PlanQuestion& question, const PlannedConfiguration& planned) {
  const MemoryParts& memory = planned.memory.parts;
  Json json;
  visit_configuration(
      [&]<class Value>(const ConfigurationField& field, const Value& value) {
        if constexpr (HasNames<Value>) {
          json[field.name] = to_string(value);
        } else {
          json[field.name] = value;
        }
      },
      planned.configuration);
  json["num_microbatches"] = planned.configuration.num_microbatches();
  json["step_seconds"] = planned.seconds;
  if (question.tokens > 0) {
    const TrainingTime time = training_time(question, planned);
    json["steps"] = time.steps;
    json["days"] = time.days;
    json["gpu_hours"] = time.gpu_hours;
  }
  json["relative_deviation"] = planned.relative_deviation;
  json["beyond_measured"] = planned.beyond_measured;
  json["measured_steps"] = planned.measured_steps;
  json["tokens_per_second_per_gpu"] = planned.tokens_per_second_per_gpu;
  const bool known = std::isfinite(planned.model_flops_utilization);
  json["mfu"] = known ? Json(planned.model_flops_utilization) : Json();
  visit_parts(planned.parts, [&](const char* name, double seconds) { json["seconds"][name] = seconds; });
  json["memory_bytes"] = {{"weights", memory.weights},     {"gradients", memory.gradients},
                          {"optimizer", memory.optimizer}, {"activations", memory.activations},
                          {"logits", memory.logits},       {"workspace", memory.workspace},
                          {"total", memory.total()},       {"pipeline_rank", planned.memory.pipeline_rank}};
  json["flags"] = flags_json(question, planned.configuration);
  return json;
}

// The uncertainty of the numbers, in words and numbers.
Json uncertainty_json(const PlanQuestion& question) {
  Json slowdown;
  if (const auto found = published_slowdown(question.program, question.device_name())) {
    slowdown = {{"generation", found->generation}, {"fitted_on", found->fitted_on}, {"figures", found->figures},
                {"lower", found->lower},           {"median", found->median},       {"upper", found->upper},
                {"judged", found->judged}};
    slowdown["judged_median"] = found->judged > 0 ? Json(found->judged_median) : Json();
  }
  return {
      {"times", doubt_about_times(question)},
      {"memory", doubt_about_memory()},
      {"published_slowdown", slowdown},
      {"published_memory_error", {{"runs", published_memory_error.runs}, {"median", published_memory_error.median}}}};
}

Json known_or_null(double value) { return value > 0 ? Json(value) : Json(); }

}  // namespace

std::string to_json(const PlanQuestion& question, const Plan& plan, int64_t top,
                    const std::vector<Explanation>& explanations) {
  Json json;
  json["model"] = question.model_name;
  json["parameters"] = count_parameters(question.model);
  json["cluster"] = question.cluster_name;
  json["device"] = question.cluster.device.name;
  json["gpus"] = question.space.world_size;
  json["sequence_length"] = question.sequence_length;
  if (question.system.optimizer != OptimizerKind::adamw) json["optimizer"] = to_string(question.system.optimizer);
  if (question.system.document_length > 0) json["document_length"] = question.system.document_length;
  if (question.tokens > 0) json["tokens"] = question.tokens;
  json["precision"] = question.precision;
  json["system"] = to_string(question.program);
  json["training_flops_per_token"] = training_flops_per_token(question.model, question.sequence_length);
  json["peak_flops_per_second"] = known_or_null(question.cluster.device.peak_flops_per_second);
  json["device_memory_bytes"] = known_or_null(question.cluster.device.memory_bytes);
  json["measured_configurations"] = question.knowledge.cells().size();
  json["uncertainty"] = uncertainty_json(question);
  json["configurations"] = plan.configurations;
  json["too_large"] = plan.too_large;
  json["batches"] = Json::array();
  for (const BatchPlan& batch : plan.batches) {
    Json layouts = Json::array();
    for (const PlannedConfiguration& layout : batch.layouts) {
      if (static_cast<int64_t>(layouts.size()) == top) break;
      layouts.push_back(to_json(question, layout));
    }
    json["batches"].push_back(
        {{"global_batch", batch.global_batch}, {"num_layouts", batch.layouts.size()}, {"layouts", layouts}});
  }
  json["crossovers"] = Json::array();
  for (const Crossover& change : crossovers(plan)) {
    json["crossovers"].push_back({{"last_batch", change.last_batch},
                                  {"first_batch", change.first_batch},
                                  {"from", layout_json(change.from)},
                                  {"to", layout_json(change.to)}});
  }
  json["explanations"] = Json::array();
  for (const Explanation& explanation : explanations) {
    json["explanations"].push_back(
        {{"global_batch", explanation.global_batch},
         {"verdict", to_string(explanation.verdict)},
         {"text", explanation.text},
         {"configuration", explanation.configuration ? to_json(question, *explanation.configuration) : Json()}});
  }
  // Names come from paths, which may contain bytes that are not UTF-8.
  return json_text(json);
}

}  // namespace copus
