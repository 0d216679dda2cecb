// Writes and reads the events of decisions.jsonl as JSON. fields(event, visitor) lists the fields of each event once,
// for both directions.
#include <array>
#include <charconv>
#include <map>
#include <span>
#include <type_traits>

#include "copus/base/error.h"
#include "copus/base/files/hash.h"
#include "copus/base/text/json_text.h"
#include "copus/report/json_fields.h"
#include "copus/report/knowledge_json.h"
#include "copus/report/logs/decision_log.h"

namespace copus {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// A hash, written as text because some JSON readers lack 64-bit integers.
struct HashField {
  uint64_t& value;
};
struct ConstHashField {
  uint64_t value;
};
HashField hash_field(uint64_t& value) { return {value}; }
ConstHashField hash_field(const uint64_t& value) { return {value}; }

std::string checksum_of(const std::vector<std::string>& values) {
  Hasher hasher;
  for (const std::string& value : values) {
    hasher.update(std::as_bytes(std::span(value)));
    hasher.update(std::as_bytes(std::span("\n", 1)));
  }
  return hasher.hex();
}

template <class Candidate, class Visitor>
void ranked_fields(Candidate& candidate, Visitor&& visit) {
  visit("configuration", candidate.configuration);
  visit("step_seconds", candidate.step_seconds);
  visit("goodput", candidate.goodput);
  visit("gain_low", candidate.gain_low);
  visit("gain_high", candidate.gain_high);
}

class Writer : public JsonFieldWriter {
 public:
  using JsonFieldWriter::operator();
  void operator()(const char* name, const Knowledge& value) { (*this)(name, to_json(value)); }
  void operator()(const char* name, const ConstHashField& hash) {
    std::string text(16, '0');
    std::array<char, 16> digits;
    const auto end = std::to_chars(digits.begin(), digits.end(), hash.value, 16).ptr;
    std::copy(digits.begin(), end, text.end() - (end - digits.begin()));
    (*this)(name, text);
  }
  void operator()(const char* name, const std::vector<RankedCandidate>& candidates) {
    OrderedJson list = OrderedJson::array();
    for (const RankedCandidate& candidate : candidates) {
      Writer writer;
      ranked_fields(candidate, writer);
      list.push_back(writer.object());
    }
    (*this)(name, list);
  }

  // Writes the values of a state, preceded by their checksum. The checksum reveals manual edits, which would have
  // unpredictable effects.
  void operator()(const char* name, const std::vector<std::string>& values) {
    if (values.empty()) {
      (*this)(name, nullptr);
      return;
    }
    OrderedJson list = OrderedJson::array({checksum_of(values)});
    for (const std::string& value : values) list.push_back(value);
    (*this)(name, list);
  }
};

class Reader : public JsonFieldReader {
 public:
  explicit Reader(const Json& object) : JsonFieldReader(object), object_(object) {}

  using JsonFieldReader::operator();
  void operator()(const char* name, std::map<std::string, double>& values) const {
    const Json& field = json_member(object_, name);
    if (!field.is_object()) throw UserError(concat("\"", name, "\" is not an object"));
    const JsonFieldReader read(field);
    values.clear();
    for (const auto& [key, value] : field.items()) read(key.c_str(), values[key]);
  }
  void operator()(const char* name, Knowledge& value) const { value = knowledge_from_json(json_member(object_, name)); }
  void operator()(const char* name, const HashField& hash) const {
    std::string text;
    (*this)(name, text);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash.value, 16);
    if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) {
      throw UserError(concat("\"", name, "\" is not 16 hexadecimal digits"));
    }
  }
  void operator()(const char* name, std::vector<RankedCandidate>& candidates) const {
    const Json& list = json_member(object_, name);
    if (!list.is_array()) throw UserError(concat("\"", name, "\" is not a list"));
    candidates.clear();
    for (const Json& element : list) ranked_fields(candidates.emplace_back(), Reader(element));
  }
  void operator()(const char* name, std::vector<std::string>& values) const {
    values.clear();
    const auto field = object_.find(name);
    if (field == object_.end() || field->is_null()) return;
    std::string checksum;
    if (field->is_array()) {
      for (const Json& value : *field) {
        if (!value.is_string()) throw UserError(concat("\"", name, "\" is not a list of strings"));
        (checksum.empty() ? checksum : values.emplace_back()) = value.get<std::string>();
      }
    }
    if (values.empty() || checksum != checksum_of(values)) {
      throw UserError(concat("\"", name, "\" does not fit its checksum"));
    }
  }

 private:
  const Json& object_;
};

// Visits the fields of an event, which is const when it is written.
template <class Event>
struct Fields;

template <>
struct Fields<ControllerBegin> {
  static constexpr const char* name = "begin";
  static void visit(auto& event, auto&& visitor) {
    visitor("step", event.step, json_count);
    visitor("policy", event.policy);
    visitor("advise", event.advise);
    visitor("configuration", event.configuration);
    visitor("rate_factor", event.rate_factor, json_positive);
    visitor("file", event.file);
    visitor("knowledge", event.knowledge);
    visitor("state", event.state);
  }
};

template <>
struct Fields<ControllerState> {
  static constexpr const char* name = "state";
  static void visit(auto& event, auto&& visitor) {
    visitor("step", event.step, json_count);
    visitor("begin_step", event.begin_step, json_count);
    visitor("configuration", event.configuration);
    visitor("values", event.values);
  }
};

template <>
struct Fields<ControllerResumed> {
  static constexpr const char* name = "resumed";
  static void visit(auto& event, auto&& visitor) { visitor("step", event.step, json_count); }
};

template <>
struct Fields<Decision> {
  static constexpr const char* name = "decision";
  static void visit(auto& event, auto&& visitor) {
    visitor("step", event.step, json_count);
    visitor("consumed_samples", event.consumed_samples, json_count);
    visitor("policy", event.policy);
    visitor("current", event.current);
    visitor("moves", event.moves);
    visitor("target", event.choice.target);
    visitor("commit_after_step", event.commit_after_step);
    visitor("predicted_gain", event.choice.predicted_gain);
    visitor("reason", event.choice.reason);
    visitor("noise_scale", event.noise_scale);
    visitor("noise_scale_low", event.noise_scale_low);
    visitor("noise_scale_high", event.noise_scale_high);
    visitor("critical_batch", event.critical_batch);
    visitor("learning_rate", event.learning_rate);
    visitor("phase", event.phase);
    visitor("clipped_share", event.clipped_share);
    visitor("best", event.choice.best);
    visitor("rate_factor", event.rate_factor);
    visitor("target_rate_factor", event.target_rate_factor);
    visitor("rate_cap", event.rate_cap);
    visitor("wanted_boundary", event.choice.commit_after_step);
    visitor("inputs_hash", hash_field(event.inputs_hash));
  }
};

template <>
struct Fields<SwitchReport> {
  static constexpr const char* name = "switch";
  static void visit(auto& event, auto&& visitor) {
    visitor("after_step", event.after_step, json_count);
    visitor("consumed_samples", event.consumed_samples, json_count);
    visitor("from", event.from);
    visitor("to", event.to);
    visitor("outcome", event.outcome);
    visitor("reason", event.reason);
    visitor("lack_of_memory", event.is_lack_of_memory);
    visitor("rate_factor", event.rate_factor, json_positive);
    visitor("pause_seconds", event.pause_seconds, json_seconds);
    visitor("prepare_seconds", event.prepare_seconds);
    visitor("phase_seconds", event.phase_seconds);
    visitor("bytes_copied", event.bytes_copied);
    visitor("bytes_received", event.bytes_received);
    visitor("peak_bytes", event.peak_bytes);
    visitor("peak_bound_bytes", event.peak_bound_bytes);
  }
};

template <>
struct Fields<LoggedRealised> {
  static constexpr const char* name = "realised";
  static void visit(auto& event, auto&& visitor) {
    visitor("step", event.step, json_count);
    visitor("decision_step", event.realised.decision_step);
    visitor("from", event.realised.from);
    visitor("to", event.realised.to);
    visitor("predicted_step_seconds", event.realised.predicted_step_seconds);
    visitor("realised_step_seconds", event.realised.realised_step_seconds);
    visitor("predicted_gain", event.realised.predicted_gain);
    visitor("realised_gain", event.realised.realised_gain);
    visitor("progress_ratio", event.realised.progress_ratio);
  }
};

template <>
struct Fields<LoggedCommand> {
  static constexpr const char* name = "command";
  static void visit(auto& event, auto&& visitor) {
    visitor("step", event.step, json_count);
    visitor("command", event.command.kind);
    visitor("target", event.command.target);
  }
};

template <>
struct Fields<RanksChanged> {
  static constexpr const char* name = "ranks changed";
  static void visit(auto& event, auto&& visitor) {
    visitor("after_step", event.after_step, json_count);
    visitor("ranks", event.ranks, json_count_from_one);
    visitor("from", event.from);
    visitor("to", event.to);
    visitor("pause_seconds", event.pause_seconds, json_seconds);
    visitor("reason", event.reason);
  }
};

template <>
struct Fields<Unmeasured> {
  static constexpr const char* name = "unmeasured";
  static void visit(auto& event, auto&& visitor) {
    visitor("step", event.step, json_count);
    visitor("reason", event.reason);
  }
};

template <>
struct Fields<RunCalibration> {
  static constexpr const char* name = "calibration";
  static void visit(auto& event, auto&& visitor) {
    visitor("step", event.step, json_count);
    visitor("consumed_samples", event.consumed_samples, json_count);
    visitor("share_done", event.share_done);
    visitor("batch", event.batch, json_count_from_one);
    visitor("branch_batch", event.branch_batch, json_count_from_one);
    visitor("branches", event.branches, json_count);
    visitor("noise_scale", event.noise_scale, json_positive);
    visitor("critical_batch", event.critical_batch, json_positive);
    visitor("deviation", event.deviation, json_positive);
    visitor("seconds", event.seconds, json_seconds);
    visitor("reason", event.reason);
  }
};

// Throws UserError if the fields together describe an impossible event.
void check_calibration(const RunCalibration& calibration) {
  if (calibration.critical_batch.has_value() != calibration.deviation.has_value()) {
    throw UserError("\"critical_batch\" and \"deviation\" are not both null or both numbers");
  }
}

// Throws UserError if the fields together describe an impossible event.
void check_ranks(const RanksChanged& change) {
  if (change.to.global_batch != change.from.global_batch) {
    throw UserError(
        "\"to\" has another global batch than \"from\", and with the ranks alone the batch does not change");
  }
  if (change.ranks < change.to.strategy.world_size()) {
    throw UserError(
        concat("\"to\" needs ", change.to.strategy.world_size(), " ranks, and \"ranks\" is ", change.ranks));
  }
}

// Reads the event that the line names. Tries the alternatives of DecisionEvent from `Index` on.
template <size_t Index = 0>
DecisionEvent read_event(const std::string& name, const Json& json) {
  if constexpr (Index < std::variant_size_v<DecisionEvent>) {
    using Event = std::variant_alternative_t<Index, DecisionEvent>;
    if (name != Fields<Event>::name) return read_event<Index + 1>(name, json);
    Event event;
    if constexpr (std::is_same_v<Event, ControllerBegin>) check_version(json, decision_log_version);
    Fields<Event>::visit(event, Reader(json));
    if constexpr (std::is_same_v<Event, RanksChanged>) check_ranks(event);
    if constexpr (std::is_same_v<Event, RunCalibration>) check_calibration(event);
    return event;
  } else {
    throw UserError(concat("\"event\" is \"", name, "\", which is not known"));
  }
}

}  // namespace

std::string to_line(const DecisionEvent& event) {
  return std::visit(
      [](const auto& alternative) {
        using EventFields = Fields<std::decay_t<decltype(alternative)>>;
        Writer writer;
        writer("event", EventFields::name);
        if (std::is_same_v<EventFields, Fields<ControllerBegin>>) writer("version", decision_log_version);
        EventFields::visit(alternative, writer);
        return json_text(writer.object());
      },
      event);
}

DecisionEvent decision_event_from_line(std::string_view line) {
  const Json json = parse_json(line);
  std::string name;
  JsonFieldReader{json}("event", name);
  return read_event(name, json);
}

}  // namespace copus
