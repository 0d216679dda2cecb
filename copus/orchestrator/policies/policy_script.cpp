// A policy that makes the switches listed in a file, each at its step boundary, so that a run that has adapted can be
// repeated exactly.
#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"
#include "copus/description/configuration_text.h"
#include "copus/orchestrator/controller/controller.h"
#include "copus/orchestrator/policies/goodput_ranking.h"
#include "copus/orchestrator/policies/policies.h"

namespace copus {

namespace {

using Json = nlohmann::json;

Json parse_object(std::string_view text, const std::string& source) {
  Json object = parse_json(text);
  if (!object.is_object()) throw UserError(concat(source, ": expected a JSON object, found \"", text, "\""));
  return object;
}

[[noreturn]] void fail(const Json& object, const char* name, const char* expected, const std::string& source) {
  throw UserError(concat(source, ": \"", name, "\" must be ", expected, "; found ",
                         object.contains(name) ? object.at(name).dump() : "nothing"));
}

Configuration read_configuration(const Json& object, const char* name, const std::string& source) {
  if (!object.contains(name)) throw UserError(concat(source, ": there is no \"", name, "\""));
  try {
    const Json& value = object.at(name);
    if (!value.is_string()) fail(object, name, "a configuration, as \"d=2,t=1,p=2,B=32,b=4\"", source);
    return parse_configuration(value.get<std::string>());
  } catch (const UserError& error) {
    throw UserError(concat(source, ": ", error.what()));
  }
}

double read_rate_factor(const Json& value, const Json& object, const std::string& source) {
  if (!value.is_number() || value.get<double>() <= 0) fail(object, "rate_factor", "a number above 0", source);
  return value.get<double>();
}

struct ScriptedSwitch {
  int64_t after_step = 0;  // the step boundary
  Configuration configuration;
  std::optional<double> rate_factor;  // on the learning rate from there on; empty: as [optimizer] says
  void visit_state(StateValues& values) { values(after_step, configuration, rate_factor); }
};

// A change of the learning rate's factor without a switch, from the update of the step after `after_step` on.
struct ScriptedRate {
  int64_t after_step = 0;
  double rate_factor = 1;
  std::optional<int64_t> global_batch;  // that it is for; empty if the script does not say
};

struct Script {
  std::vector<ScriptedSwitch> switches;
  std::vector<ScriptedRate> rates;
};

ScriptedSwitch read_switch(const Json& object, const std::string& where) {
  ScriptedSwitch entry;
  const auto after_step = object.find("after_step");
  if (after_step == object.end() || !after_step->is_number_integer() || after_step->get<int64_t>() < 1) {
    fail(object, "after_step", "a whole number above 0", where);
  }
  entry.after_step = after_step->get<int64_t>();
  const char* name = object.contains("configuration") || !object.contains("to") ? "configuration" : "to";
  entry.configuration = read_configuration(object, name, where);
  if (const auto factor = object.find("rate_factor"); factor != object.end() && !factor->is_null()) {
    entry.rate_factor = read_rate_factor(*factor, object, where);
  }
  return entry;
}

// Builds a script from the events of a run's log. The first event and every decision contain the run's factor on the
// learning rate; the script contains only the changes of the factor. A run that only advises keeps its first factor.
class LoggedScript {
 public:
  // Returns whether the line is a switch that moved, and adds a change of the rate to the script.
  bool is_switch(const Json& object, Script& script, const std::string& where) {
    const Json& event = object["event"];
    if (event == "switch") return object.contains("outcome") && object["outcome"] == "moved";
    if (event == "begin") begin(object, where);
    if (event == "begin" || (event == "decision" && !advises_)) read_rate(object, script, where);
    return false;
  }
  void follow(const ScriptedSwitch& entry) {
    factor_ = entry.rate_factor;
    global_batch_ = entry.configuration.global_batch;
  }

 private:
  void begin(const Json& object, const std::string& where) {
    if (!object.contains("version") || object["version"] != decision_log_version) {
      fail(object, "version", concat(decision_log_version, ", the one that this Copus reads").c_str(), where);
    }
    const auto advise = object.find("advise");
    if (advise != object.end() && !advise->is_boolean()) fail(object, "advise", "true or false", where);
    advises_ = advise != object.end() && advise->get<bool>();
    if (object.contains("configuration")) {
      global_batch_ = read_configuration(object, "configuration", where).global_batch;
    }
  }

  void read_rate(const Json& object, Script& script, const std::string& where) {
    const auto factor = object.find("rate_factor");
    if (factor == object.end() || factor->is_null()) return;
    const double value = read_rate_factor(*factor, object, where);
    const auto step = object.find("step");
    if (step == object.end() || !step->is_number_integer() || step->get<int64_t>() < 0) {
      fail(object, "step", "a whole number of at least 0", where);
    }
    if (std::exchange(factor_, value) != value) script.rates.push_back({step->get<int64_t>(), value, global_batch_});
  }

  bool advises_ = false;
  std::optional<double> factor_;
  std::optional<int64_t> global_batch_;
};

// Parses a script. Its lines are {"after_step": N, "configuration": "d=2,t=1,p=2,B=32,b=4", "rate_factor": x}, in
// ascending order of after_step; rate_factor is optional. A run's decisions.jsonl, whose lines have a field "event", is
// a script too. The script then has the switches that moved (the configuration may be called "to") and the changes of
// the learning rate's factor. Empty lines are ignored. `source` names the file in messages. Throws UserError that names
// the line.
Script parse_script(std::string_view text, const std::string& source) {
  Script script;
  LoggedScript log;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = concat(source, ":", number);
    const Json object = parse_object(line, where);
    if (object.contains("event") && !log.is_switch(object, script, where)) continue;
    const ScriptedSwitch entry = read_switch(object, where);
    log.follow(entry);
    if (!script.switches.empty() && entry.after_step <= script.switches.back().after_step) {
      throw UserError(concat(where, ": switches must ascend by \"after_step\", and ", entry.after_step, " follows ",
                             script.switches.back().after_step));
    }
    script.switches.push_back(entry);
  }
  return script;
}

// Distance of a candidate from the configuration in the script. Differences are compared in this order: parallel
// degrees, other options of the strategy, batch, micro-batch.
std::array<double, 4> distance(const Configuration& a, const Configuration& b) {
  const auto ratio = [](int64_t x, int64_t y) {
    return std::abs(std::log(static_cast<double>(x) / static_cast<double>(y)));
  };
  double ratios = 0, differences = 0;
  const auto compare = [&](const ConfigurationField& field, const auto& x, const auto& y) {
    if (field.role == ConfigurationField::Role::degree) {
      ratios += ratio(static_cast<int64_t>(x), static_cast<int64_t>(y));
    } else {
      differences += x == y ? 0 : 1;
    }
  };
  visit_strategy(compare, a.strategy, b.strategy);
  return {ratios, differences, ratio(a.global_batch, b.global_batch), ratio(a.micro_batch, b.micro_batch)};
}

const Configuration& nearest(const Situation& situation, const Configuration& wanted) {
  const Candidate* best = &situation.candidates.front();
  for (const Candidate& candidate : situation.candidates) {
    if (distance(candidate.configuration, wanted) < distance(best->configuration, wanted)) best = &candidate;
  }
  return best->configuration;
}

class ScriptPolicy : public Policy {
 public:
  ScriptPolicy(const JobConfig& config, std::string_view script)
      : config_(config), current_(configuration_of(config)), script_(parse_script(script, config.adapt.file)) {}

  bool is_due(const Observation& observation, const Configuration& /*current*/) const override {
    const ScriptedSwitch* next = upcoming(observation.step);
    return (next != nullptr && announced_after(*next) <= observation.step) ||
           (rated_ < script_.rates.size() && script_.rates[rated_].after_step <= observation.step);
  }

  Choice choose(const Situation& situation) override {
    follow(situation);
    Choice choice = decide(situation);
    const GoodputRanking ranking(config_, believed_noise(situation.latest), situation);
    choice.best = ranking.best();
    choice.predicted_gain = ranking.gain_of(choice.target.value_or(choice.best.front().configuration));
    return choice;
  }

  void visit_state(StateValues& values) override { values(current_, awaited_, announced_, rated_, rate_factor_); }

 private:
  // Updates the factor on the learning rate. A factor belongs to one batch, so the script sets no factor if a switch
  // failed or led to a different batch than the script's.
  void follow(const Situation& situation) {
    const int64_t global_batch = situation.current.global_batch;
    if (global_batch != current_.global_batch) rate_factor_.reset();
    if (awaited_ && awaited_->configuration == situation.current) rate_factor_ = awaited_->rate_factor;
    awaited_.reset();
    current_ = situation.current;
    for (; rated_ < script_.rates.size() && script_.rates[rated_].after_step <= situation.latest.step; ++rated_) {
      const ScriptedRate& rate = script_.rates[rated_];
      const bool is_for_it = rate.global_batch.value_or(global_batch) == global_batch;
      rate_factor_ = is_for_it ? std::optional(rate.rate_factor) : std::nullopt;
    }
  }

  // Returns the step after which to announce a switch: the latest step from which the ranks can still be ready, but at
  // least 1. The announcement should be late, because until then decisions can follow the script's changes of the
  // learning rate. Whether the previous switch moved the run is unknown until the next decision, so the time must
  // suffice in either case.
  int64_t announced_after(const ScriptedSwitch& entry) const {
    const ParallelStrategy& strategy = entry.configuration.strategy;
    const bool is_relayout =
        strategy != current_.strategy || (awaited_ && strategy != awaited_->configuration.strategy);
    return std::max<int64_t>(1, entry.after_step - 1 - (is_relayout ? Controller::lead_steps : 0));
  }

  // The first unannounced switch whose boundary has not passed; null if there is none.
  const ScriptedSwitch* upcoming(int64_t step) const {
    for (size_t i = announced_; i < script_.switches.size(); ++i) {
      if (script_.switches[i].after_step > step) return &script_.switches[i];
    }
    return nullptr;
  }

  Choice decide(const Situation& situation) {
    Choice choice;
    choice.rate_factor = rate_factor_;
    const ScriptedSwitch* next = upcoming(situation.latest.step);
    if (next == nullptr) {
      choice.reason = "holds: the script has no further switch";
      return choice;
    }
    if (announced_after(*next) > situation.latest.step) {
      choice.reason = concat("holds: the script's next switch follows step ", next->after_step);
      return choice;
    }
    announced_ = static_cast<size_t>(next - script_.switches.data()) + 1;
    const Configuration& target = nearest(situation, next->configuration);
    choice.reason = concat("the script's switch after step ", next->after_step);
    if (target != next->configuration) {
      choice.reason += concat(": ", to_string(next->configuration),
                              " is not feasible here; the nearest that is: ", to_string(target));
    }
    const bool is_its_batch = target.global_batch == next->configuration.global_batch;
    const std::optional<double> target_factor = is_its_batch ? next->rate_factor : std::nullopt;
    if (target == situation.current) {
      choice.rate_factor = rate_factor_ = target_factor;
      choice.reason = "holds: already there; " + choice.reason;
      return choice;
    }
    awaited_ = ScriptedSwitch{next->after_step, target, target_factor};
    choice.target = target;
    choice.target_rate_factor = target_factor;
    choice.commit_after_step = next->after_step;
    return choice;
  }

  JobConfig config_;
  Configuration current_;                  // at the latest decision
  std::optional<ScriptedSwitch> awaited_;  // the switch announced by it
  Script script_;
  size_t announced_ = 0, rated_ = 0;   // number of switches and rates used
  std::optional<double> rate_factor_;  // set by the script; empty: as [optimizer] says
};

}  // namespace

std::unique_ptr<Policy> make_script_policy(const JobConfig& config, std::string_view script) {
  return std::make_unique<ScriptPolicy>(config, script);
}

}  // namespace copus
