#include "copus/description/configuration_json.h"

#include <array>
#include <nlohmann/json.hpp>

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr std::array schedules = {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b,
                                  PipelineSchedule::interleaved_1f1b, PipelineSchedule::zb_h1};
constexpr std::array recomputes = {Recompute::none, Recompute::attention, Recompute::full};

// Calls visit(name, member) for every field, in the order in which they are written.
template <class AConfiguration, class Visitor>
void fields(AConfiguration& configuration, Visitor&& visit) {
  auto& strategy = configuration.strategy;
  visit("data_parallel", strategy.data_parallel);
  visit("tensor_parallel", strategy.tensor_parallel);
  visit("pipeline_parallel", strategy.pipeline_parallel);
  visit("virtual_stages", strategy.virtual_stages);
  visit("sequence_parallel", strategy.sequence_parallel);
  visit("zero_stage", strategy.zero_stage);
  visit("schedule", strategy.schedule);
  visit("recompute", strategy.recompute);
  visit("global_batch", configuration.global_batch);
  visit("micro_batch", configuration.micro_batch);
}

struct Writer {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();

  void operator()(const char* name, int64_t value) { object[name] = value; }
  void operator()(const char* name, bool value) { object[name] = value; }
  void operator()(const char* name, PipelineSchedule value) { object[name] = to_string(value); }
  void operator()(const char* name, Recompute value) { object[name] = to_string(value); }
};

class Reader {
 public:
  explicit Reader(const nlohmann::json& object) : object_(object) {
    if (!object.is_object()) throw UserError("a configuration is not a JSON object");
  }

  void operator()(const char* name, int64_t& value) const {
    const nlohmann::json& field = find(name);
    if (!field.is_number_integer()) reject(name, "an integer");
    value = field.get<int64_t>();
    const int64_t least = std::string_view(name) == "zero_stage" ? 0 : 1;
    if (value < least) throw UserError(concat("\"", name, "\" of a configuration is below ", least));
  }
  void operator()(const char* name, bool& value) const {
    const nlohmann::json& field = find(name);
    if (!field.is_boolean()) reject(name, "true or false");
    value = field.get<bool>();
  }
  void operator()(const char* name, PipelineSchedule& value) const { value = one_of(name, schedules); }
  void operator()(const char* name, Recompute& value) const { value = one_of(name, recomputes); }

 private:
  [[noreturn]] static void reject(const char* name, const char* expected) {
    throw UserError(concat("\"", name, "\" of a configuration is not ", expected));
  }

  const nlohmann::json& find(const char* name) const {
    const auto field = object_.find(name);
    if (field == object_.end()) throw UserError(concat("a configuration has no \"", name, "\""));
    return *field;
  }

  template <class Enum, size_t Count>
  Enum one_of(const char* name, const std::array<Enum, Count>& values) const {
    const nlohmann::json& field = find(name);
    for (const Enum value : values) {
      if (field == to_string(value)) return value;
    }
    throw UserError(concat("\"", name, "\" of a configuration is ", field.dump(), ", which is not known"));
  }

  const nlohmann::json& object_;
};

}  // namespace

std::string to_json(const Configuration& configuration) {
  Writer writer;
  fields(configuration, writer);
  return writer.object.dump();
}

Configuration configuration_from_json(std::string_view text) {
  Configuration configuration;
  fields(configuration, Reader(nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false)));
  return configuration;
}

}  // namespace copus
