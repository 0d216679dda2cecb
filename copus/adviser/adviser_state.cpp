#include "copus/adviser/adviser_state.h"

#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"
#include "copus/report/json_fields.h"

namespace copus {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t current_version = 1;

template <class Average, class Visitor>
void noise_fields(Average& noise, Visitor&& visit) {
  visit_noise_average(noise, [&](const char* name, auto& value, NoiseSum sum) {
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(value)>>) {
      visit(name, value, json_count);
    } else if (sum == NoiseSum::never_negative) {
      visit(name, value, json_not_negative);
    } else {
      visit(name, value);
    }
  });
}

template <class State, class Visitor>
void state_fields(State& state, Visitor&& visit) {
  visit("step", state.step, json_count);
  visit("consumed_samples", state.consumed_samples, json_count);
  visit("skipped_samples", state.skipped_samples, json_count);
  visit("observed_samples", state.observed_samples, json_count);
  visit("elapsed_seconds", state.elapsed_seconds, json_seconds);
}

// The norms of a step that was measured and made an update.
std::optional<NormObservation> norms_of(const StepRecord& record) {
  if (!record.small_batch || !record.small_batch_squared_norm || record.skipped()) return std::nullopt;
  return NormObservation{*record.small_batch, *record.small_batch_squared_norm,
                         static_cast<double>(record.global_batch), record.grad_norm * record.grad_norm};
}

}  // namespace

void AdviserState::complete(const JobConfig& config, StepRecord& record) {
  step += 1;
  consumed_samples += record.global_batch;
  elapsed_seconds += record.step_seconds;
  if (record.skipped()) skipped_samples += record.global_batch;
  if (const std::optional<NormObservation> norms = norms_of(record)) {
    const NoiseWindow window{.samples = config.noise_scale.window_samples};
    const int64_t used = consumed_samples - skipped_samples;
    const auto samples = static_cast<double>(used - std::exchange(observed_samples, used));
    noise = observe(noise, *norms, samples, window);
  }
  record.step = step;
  record.consumed_samples = consumed_samples;
  record.consumed_tokens = consumed_samples * config.train.sequence_length;
  record.skipped_samples = skipped_samples;
  record.elapsed_seconds = elapsed_seconds;
  if (limit_in_tokens(config.train) > 0) {
    record.seconds_left = seconds_left(config.train, record.consumed_tokens, elapsed_seconds, 0);
    record.share_done = share_done(config.train, record.consumed_tokens, elapsed_seconds);
  }
  add_noise_scale(config, noise, record);
}

void AdviserState::repeat(const JobConfig& config, const StepRecord& record) {
  const AdviserState before = *this;
  StepRecord again = record;
  again.noise_scale_low.reset();
  complete(config, again);
  if (again.noise_scale_low && !record.noise_scale_low) {
    *this = before;
    noise = {};
    complete(config, again);
  }
  // If lines are missing the counters continue from the record's.
  step = record.step;
  consumed_samples = record.consumed_samples;
  skipped_samples = record.skipped_samples;
  elapsed_seconds = record.elapsed_seconds;
  configuration.global_batch = record.global_batch;
}

std::string to_text(const KeptState& kept) {
  JsonFieldWriter writer;
  state_fields(kept.state, writer);
  Json object{{"version", current_version}};
  object.update(writer.object());
  object["configuration"] = to_string(kept.state.configuration);
  JsonFieldWriter noise;
  noise_fields(kept.state.noise, noise);
  object["noise_average"] = noise.object();
  object["begin"] = kept.begin ? Json::parse(to_line(*kept.begin)) : Json(nullptr);
  return json_text(object);
}

KeptState kept_state_from_text(const std::string& text) {
  try {
    const nlohmann::json object = parse_json(text);
    JsonFieldReader reader(object);
    check_version(object, current_version);
    KeptState kept;
    state_fields(kept.state, reader);
    reader("configuration", kept.state.configuration);
    noise_fields(kept.state.noise, JsonFieldReader(json_member(object, "noise_average")));
    const nlohmann::json& begin = json_member(object, "begin");
    if (begin.is_null()) return kept;
    const DecisionEvent event = decision_event_from_line(begin.dump());
    if (!std::holds_alternative<ControllerBegin>(event)) throw UserError("\"begin\" is another event");
    kept.begin = std::get<ControllerBegin>(event);
    return kept;
  } catch (const UserError& error) {
    throw UserError(
        concat("the adviser's state cannot be read: ", error.what(), ". Expected the text that Adviser.state() gave"));
  }
}

}  // namespace copus
