#include "copus/plan/plan_explain.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <functional>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text_distance.h"
#include "copus/base/units.h"

namespace copus {

namespace {

constexpr const char* example = "d=8,t=1,p=1,v=1,mb=2,zero=1,sp=0,schedule=1f1b,recompute=none";

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw UserError(concat("--explain ", text, ": ", why, "; expected something like ", example, " (any part of it)"));
}

int64_t whole_number(std::string_view text, std::string_view key, std::string_view value, int64_t least, int64_t most) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < least || number > most) {
    refuse(text, concat(key, " must be a whole number from ", least, " to ", most, ", got \"", value, "\""));
  }
  return number;
}

template <class Enum>
Enum one_of(std::string_view text, std::string_view key, std::string_view value, const std::vector<Enum>& values) {
  std::string names;
  for (const Enum candidate : values) {
    if (to_string(candidate) == value) return candidate;
    names += concat(names.empty() ? "" : ", ", to_string(candidate));
  }
  refuse(text, concat(key, " must be one of ", names, ", got \"", value, "\""));
}

bool matches(const PartialConfiguration& asked, const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  const auto agrees = [](const auto& wanted, const auto& value) { return !wanted || *wanted == value; };
  return strategy.data_parallel == asked.data_parallel && strategy.tensor_parallel == asked.tensor_parallel &&
         strategy.pipeline_parallel == asked.pipeline_parallel &&
         agrees(asked.virtual_stages, strategy.virtual_stages) && agrees(asked.schedule, strategy.schedule) &&
         agrees(asked.sequence_parallel, strategy.sequence_parallel) && agrees(asked.zero_stage, strategy.zero_stage) &&
         agrees(asked.recompute, strategy.recompute) && agrees(asked.micro_batch, configuration.micro_batch);
}

// What was named, and the plainest choice of the rest.
Configuration completed(const PartialConfiguration& asked, int64_t global_batch) {
  Configuration configuration{.strategy = {.data_parallel = asked.data_parallel,
                                           .tensor_parallel = asked.tensor_parallel,
                                           .pipeline_parallel = asked.pipeline_parallel,
                                           .virtual_stages = asked.virtual_stages.value_or(1),
                                           .sequence_parallel = asked.sequence_parallel.value_or(false),
                                           .zero_stage = asked.zero_stage.value_or(0),
                                           .recompute = asked.recompute.value_or(Recompute::none)},
                              .global_batch = global_batch,
                              .micro_batch = asked.micro_batch.value_or(1)};
  const bool interleaved = configuration.strategy.virtual_stages > 1;
  configuration.strategy.schedule =
      asked.schedule.value_or(interleaved ? PipelineSchedule::interleaved_1f1b : PipelineSchedule::one_f_one_b);
  return configuration;
}

// All that it may be, whatever the plan's own options left out.
std::vector<Configuration> candidates(const PlanQuestion& question, const PartialConfiguration& asked,
                                      int64_t global_batch) {
  SearchSpace space;
  space.world_size = question.space.world_size;
  space.global_batches = {global_batch};
  if (asked.micro_batch) space.micro_batches = {*asked.micro_batch};
  std::vector<Configuration> found = enumerate(question.model, question.sequence_length, space);
  std::erase_if(found, [&](const Configuration& candidate) { return !matches(asked, candidate); });
  // What makes no difference, such as ZeRO with d = 1, is enumerated in one form only, which may not be the one named.
  const Configuration plain = completed(asked, global_batch);
  if (found.empty() && !infeasible_reason(question.model, plain, question.sequence_length)) found.push_back(plain);
  return found;
}

// "bubble +120 ms, DP communication +35 ms", largest first; differences that do not matter are left out.
std::string why_slower(const PlannedConfiguration& here, const PlannedConfiguration& best) {
  const StepTimeParts& a = here.parts;
  const StepTimeParts& b = best.parts;
  std::vector<std::pair<double, const char*>> differences = {
      {a.compute - b.compute, "compute"},
      {a.tensor_communication - b.tensor_communication, "TP communication"},
      {a.bubble - b.bubble, "bubble"},
      {a.data_communication - b.data_communication, "DP communication"},
      {a.optimizer - b.optimizer, "optimizer"}};
  std::sort(differences.begin(), differences.end(), std::greater<>());
  std::string text;
  for (const auto& [difference, name] : differences) {
    if (difference < 0.05 * (here.seconds - best.seconds) || difference <= 0) continue;
    text += concat(text.empty() ? "" : ", ", name, " +", seconds_in_words(difference));
  }
  return text;
}

std::string details(const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  std::string text = concat("micro-batch ", configuration.micro_batch);
  if (strategy.pipeline_parallel > 1) text += concat(", ", to_string(strategy.schedule));
  if (strategy.virtual_stages > 1) text += concat(", ", strategy.virtual_stages, " virtual stages");
  if (strategy.sequence_parallel) text += ", sequence parallel";
  if (strategy.zero_stage > 0) text += concat(", ZeRO-", strategy.zero_stage);
  if (strategy.recompute != Recompute::none) text += concat(", recompute ", to_string(strategy.recompute));
  return text;
}

// What the plan looks at, as far as its options let it; sorted.
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

// "rank 3 of 12 layouts", or how else its layout would be faster.
std::string place_of(const BatchPlan& batch, const PlannedConfiguration& configuration) {
  const auto row = std::find_if(batch.layouts.begin(), batch.layouts.end(), [&](const PlannedConfiguration& other) {
    return layout_of(other.configuration) == layout_of(configuration.configuration);
  });
  COPUS_CHECK(row != batch.layouts.end(), "a plan without the layout of one of its configurations");
  std::string rank = concat("rank ", row - batch.layouts.begin() + 1, " of ", batch.layouts.size(), " layouts");
  if (row->configuration == configuration.configuration) return rank;
  return concat("where the layout at its fastest (", rank, ") has ", details(row->configuration), " and takes ",
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
  const std::string name = to_string(layout_of(found.configuration));
  const std::string begin =
      concat(name, " fits, with ", details(found.configuration), ": ", seconds_in_words(found.seconds), " a step");
  const std::string place =
      of_the_plan ? "" : concat(", which the plan leaves out: ", why_left_out(question, found.configuration));
  if (batch.layouts.empty()) return concat(begin, place, ". Nothing fits of what the plan looks at.");
  const PlannedConfiguration& best = batch.layouts.front();
  if (best.configuration == found.configuration) return concat(begin, ". It is the fastest of the plan.");
  return concat(begin, of_the_plan ? concat(", ", place_of(batch, found)) : place, ". The fastest of the plan, ",
                to_string(layout_of(best.configuration)), " with ", details(best.configuration), ", takes ",
                seconds_in_words(best.seconds), ": this is ", compared(found, best), ".");
}

}  // namespace

PartialConfiguration parse_partial_configuration(std::string_view text) {
  constexpr int64_t most = int64_t{1} << 20;  // three of them multiply to far less than 2^63
  const std::vector<std::string> keys = {"d", "t", "p", "v", "mb", "zero", "sp", "schedule", "recompute"};
  PartialConfiguration asked;
  std::vector<std::string> seen;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) refuse(text, concat("\"", item, "\" is no KEY=VALUE"));
    const std::string key(item.substr(0, equals));
    const std::string_view value = item.substr(equals + 1);
    const auto number = [&](int64_t least, int64_t largest) { return whole_number(text, key, value, least, largest); };
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) refuse(text, concat("\"", key, "\" is there twice"));
    seen.push_back(key);
    if (key == "d") {
      asked.data_parallel = number(1, most);
    } else if (key == "t") {
      asked.tensor_parallel = number(1, most);
    } else if (key == "p") {
      asked.pipeline_parallel = number(1, most);
    } else if (key == "v") {
      asked.virtual_stages = number(1, most);
    } else if (key == "mb") {
      asked.micro_batch = number(1, most);
    } else if (key == "zero") {
      asked.zero_stage = number(0, 1);
    } else if (key == "sp") {
      asked.sequence_parallel = number(0, 1) == 1;
    } else if (key == "schedule") {
      asked.schedule = one_of(text, key, value, SearchSpace{}.schedules);
    } else if (key == "recompute") {
      asked.recompute = one_of(text, key, value, SearchSpace{}.recomputes);
    } else {
      const auto similar = nearest(key, keys);
      refuse(text, concat("\"", key, "\" is no key", similar ? concat(" (did you mean \"", *similar, "\"?)") : ""));
    }
  }
  return asked;
}

std::string_view to_string(Explanation::Verdict verdict) {
  switch (verdict) {
    case Explanation::Verdict::fits:
      return "fits";
    case Explanation::Verdict::too_large:
      return "too large";
    case Explanation::Verdict::impossible:
      return "impossible";
  }
  fail_check("known verdict", __FILE__, __LINE__, "");
}

Explanation explain(const PlanQuestion& question, const BatchPlan& batch, const PartialConfiguration& asked) {
  using Verdict = Explanation::Verdict;
  const Layout layout{asked.data_parallel, asked.tensor_parallel, asked.pipeline_parallel};
  const std::string name = to_string(layout);
  const int64_t size = asked.data_parallel * asked.tensor_parallel * asked.pipeline_parallel;
  if (size != question.space.world_size) {
    return {batch.global_batch, Verdict::impossible,
            concat(name, " needs ", size, " GPUs (d x t x p), and the plan is for ", question.space.world_size, "."),
            std::nullopt};
  }
  const std::vector<Configuration> all = candidates(question, asked, batch.global_batch);
  if (all.empty()) {
    const auto reason =
        infeasible_reason(question.model, completed(asked, batch.global_batch), question.sequence_length);
    return {batch.global_batch, Verdict::impossible,
            concat(name, " is impossible: ", reason.value_or("nothing goes with what was named"), "."), std::nullopt};
  }

  const std::vector<Configuration> plans_own = configurations_of_the_plan(question, batch.global_batch);
  StepTimeModel time(question.model, question.sequence_length, question.cluster, question.system);
  MemoryModel memory(question.model, question.sequence_length, question.system);
  // One that the plan looks at, if any of these fits.
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
    if (out_of_memory_reason(cell.memory, question.cluster.device.memory_bytes)) continue;
    const bool looked_at = std::binary_search(plans_own.begin(), plans_own.end(), configuration);
    if (fastest &&
        (of_the_plan > looked_at || (of_the_plan == looked_at && fastest->step.seconds <= cell.step.seconds)))
      continue;
    fastest = cell;
    of_the_plan = looked_at;
  }
  if (fastest) {
    const PlannedConfiguration found = planned(*fastest, question);
    return {batch.global_batch, Verdict::fits, why_not(question, batch, found, of_the_plan), found};
  }
  const auto reason = out_of_memory_reason(smallest->memory, question.cluster.device.memory_bytes);
  COPUS_CHECK(reason, "a cell that neither fits nor does not");
  return {batch.global_batch, Verdict::too_large,
          concat(name, ", with what saves most memory (", details(smallest->configuration), "), ", *reason, "."),
          planned(*smallest, question)};
}

}  // namespace copus
