#include "copus/description/configuration_change.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr int64_t most = int64_t{1} << 24;

// The values of one part, "name=value".
class Part {
 public:
  Part(std::string_view name, std::string_view value) : name_(name), value_(value) {}

  int64_t number(int64_t low, int64_t high) const {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value_.data(), value_.data() + value_.size(), number);
    if (error != std::errc() || end != value_.data() + value_.size() || number < low || number > high) {
      fail(high == most ? concat("a whole number, at least ", low) : concat("a whole number from ", low, " to ", high));
    }
    return number;
  }

  template <class Enum, size_t num_values>
  Enum one_of(const std::array<Enum, num_values>& values) const {
    std::string expected;
    for (const Enum value : values) {
      if (to_string(value) == value_) return value;
      expected += concat(expected.empty() ? "" : ", ", to_string(value));
    }
    fail(concat("one of ", expected));
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw UserError(concat("\"", name_, "=", value_, "\": expected ", expected));
  }

  std::string_view name_, value_;
};

void read_part(const std::string& name, const Part& part, ConfigurationChange& change) {
  static constexpr std::array schedules{PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b,
                                        PipelineSchedule::interleaved_1f1b, PipelineSchedule::zb_h1};
  static constexpr std::array recomputes{Recompute::none, Recompute::attention, Recompute::full};
  if (name == "d") {
    change.data_parallel = part.number(1, most);
  } else if (name == "t") {
    change.tensor_parallel = part.number(1, most);
  } else if (name == "p") {
    change.pipeline_parallel = part.number(1, most);
  } else if (name == "v") {
    change.virtual_stages = part.number(1, most);
  } else if (name == "schedule") {
    change.schedule = part.one_of(schedules);
  } else if (name == "sp") {
    change.sequence_parallel = part.number(0, 1) == 1;
  } else if (name == "zero") {
    change.zero_stage = part.number(0, 1);
  } else if (name == "recompute") {
    change.recompute = part.one_of(recomputes);
  } else if (name == "B") {
    change.global_batch = part.number(1, most);
  } else if (name == "Bm") {
    change.micro_batch = part.number(1, most);
  } else {
    throw UserError(concat("\"", name, "\" is nothing that a configuration has; it has d, t and p (data, tensor and ",
                           "pipeline parallel), B and Bm (global batch and micro-batch), v, schedule, sp, zero and ",
                           "recompute"));
  }
}

std::string_view yes_or_no(bool value) { return value ? "on" : "off"; }

}  // namespace

ConfigurationChange parse_configuration_change(std::string_view text) {
  ConfigurationChange change;
  std::vector<std::string> seen;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      throw UserError(concat("\"", part, "\" is no part of a configuration; expected NAME=VALUE, separated by commas, ",
                             "as in d=2,t=1,p=2,B=32"));
    }
    const std::string name(part.substr(0, equals));
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
      throw UserError(concat("\"", name, "\" is given twice"));
    }
    seen.push_back(name);
    read_part(name, Part(part.substr(0, equals), part.substr(equals + 1)), change);
    if (comma == std::string_view::npos) return change;
    text.remove_prefix(comma + 1);
  }
}

Configuration apply(const ConfigurationChange& change, const Configuration& configuration) {
  Configuration result = configuration;
  ParallelStrategy& strategy = result.strategy;
  strategy.data_parallel = change.data_parallel.value_or(strategy.data_parallel);
  strategy.tensor_parallel = change.tensor_parallel.value_or(strategy.tensor_parallel);
  strategy.pipeline_parallel = change.pipeline_parallel.value_or(strategy.pipeline_parallel);
  if (strategy.pipeline_parallel == 1) {
    strategy.virtual_stages = 1;
    strategy.schedule = PipelineSchedule::one_f_one_b;
  }
  if (strategy.tensor_parallel == 1) strategy.sequence_parallel = false;
  if (strategy.data_parallel == 1) strategy.zero_stage = 0;
  strategy.virtual_stages = change.virtual_stages.value_or(strategy.virtual_stages);
  strategy.schedule = change.schedule.value_or(strategy.schedule);
  strategy.sequence_parallel = change.sequence_parallel.value_or(strategy.sequence_parallel);
  strategy.zero_stage = change.zero_stage.value_or(strategy.zero_stage);
  strategy.recompute = change.recompute.value_or(strategy.recompute);
  result.global_batch = change.global_batch.value_or(result.global_batch);
  result.micro_batch = change.micro_batch.value_or(result.micro_batch);
  return result;
}

std::string describe_change(const Configuration& from, const Configuration& to) {
  std::string text;
  const auto add = [&](const char* name, const auto& before, const auto& after) {
    if (before != after) text += concat(text.empty() ? "" : ", ", name, " ", before, " -> ", after);
  };
  const ParallelStrategy &before = from.strategy, &after = to.strategy;
  add("batch", from.global_batch, to.global_batch);
  add("micro-batch", from.micro_batch, to.micro_batch);
  add("layout", to_string(before), to_string(after));
  add("schedule", to_string(before.schedule), to_string(after.schedule));
  add("virtual stages", before.virtual_stages, after.virtual_stages);
  add("sequence parallel", yes_or_no(before.sequence_parallel), yes_or_no(after.sequence_parallel));
  add("zero", before.zero_stage, after.zero_stage);
  add("recompute", to_string(before.recompute), to_string(after.recompute));
  return text;
}

std::string describe_configuration(const Configuration& configuration) {
  const ParallelStrategy& strategy = configuration.strategy;
  std::string special;
  const auto add = [&](bool applies, const std::string& text) {
    if (applies) special += concat(special.empty() ? " (" : ", ", text);
  };
  add(strategy.schedule != PipelineSchedule::one_f_one_b, std::string(to_string(strategy.schedule)));
  add(strategy.virtual_stages > 1, concat(strategy.virtual_stages, " virtual stages"));
  add(strategy.sequence_parallel, "sequence parallel");
  add(strategy.zero_stage > 0, concat("zero ", strategy.zero_stage));
  add(strategy.recompute != Recompute::none, concat("recompute ", to_string(strategy.recompute)));
  return concat("batch ", configuration.global_batch, " of micro-batches of ", configuration.micro_batch, " in layout ",
                to_string(strategy), special, special.empty() ? "" : ")");
}

}  // namespace copus
