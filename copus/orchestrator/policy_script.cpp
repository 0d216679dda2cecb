// Makes the switches of a file, each at the boundary that it names, so that a run that has adapted can be repeated
// exactly.
#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/description/configuration_fields.h"
#include "copus/description/configuration_json.h"
#include "copus/orchestrator/controller.h"
#include "copus/orchestrator/goodput_ranking.h"
#include "copus/orchestrator/policies.h"

namespace copus {

namespace {

using Json = nlohmann::json;

Json parse_object(std::string_view text, const std::string& source) {
  Json object = Json::parse(text, nullptr, false);
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
    return configuration_from_json(object.at(name).dump());
  } catch (const UserError& error) {
    throw UserError(concat(source, ": ", error.what()));
  }
}

struct ScriptedSwitch {
  int64_t after_step = 0;  // the step boundary
  Configuration configuration;
  double critical_batch = 0;  // B_c in the learning rate's factor from there on; 0: not known
};

// Parses lines of {"after_step": N, "configuration": {...}, "critical_batch": x} (description/configuration_json.h),
// the last optional, in ascending order of after_step. A run's decisions.jsonl is a script too: its lines have a field
// "event", and of them only the switches that moved count; there the configuration may be called "to". Empty lines are
// ignored. `source` names the file in messages. Throws UserError naming the line.
std::vector<ScriptedSwitch> parse_script(std::string_view text, const std::string& source) {
  std::vector<ScriptedSwitch> script;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = concat(source, ":", number);
    const Json object = parse_object(line, where);
    if (object.contains("event")) {
      const bool moved = object["event"] == "switch" && object.contains("outcome") && object["outcome"] == "moved";
      if (!moved) continue;
    }
    ScriptedSwitch entry;
    const auto after_step = object.find("after_step");
    if (after_step == object.end() || !after_step->is_number_integer() || after_step->get<int64_t>() < 1) {
      fail(object, "after_step", "a whole number above 0", where);
    }
    entry.after_step = after_step->get<int64_t>();
    const char* name = object.contains("configuration") || !object.contains("to") ? "configuration" : "to";
    entry.configuration = read_configuration(object, name, where);
    if (const auto critical = object.find("critical_batch"); critical != object.end() && !critical->is_null()) {
      if (!critical->is_number() || critical->get<double>() < 0) {
        fail(object, "critical_batch", "a number of samples, not negative", where);
      }
      entry.critical_batch = critical->get<double>();
    }
    if (!script.empty() && entry.after_step <= script.back().after_step) {
      throw UserError(concat(where, ": switches must ascend by \"after_step\", and ", entry.after_step, " follows ",
                             script.back().after_step));
    }
    script.push_back(entry);
  }
  return script;
}

// Distance of a candidate from the configuration that a script names. The most important part comes first: how the
// ranks are spread, how they work, the batch, the micro-batch.
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
  ScriptPolicy(const RunConfig& config, std::string_view script)
      : config_(config), script_(parse_script(script, config.adapt.file)) {}

  bool is_due(const Observation& observation) const override {
    const ScriptedSwitch* next = upcoming(observation.step);
    return next != nullptr && announced_after(*next) <= observation.step;
  }

  Choice choose(const Situation& situation) override {
    Choice choice = decide(situation);
    const GoodputRanking ranking(config_, believed_noise(situation.latest), situation);
    choice.best = ranking.best();
    choice.predicted_gain = ranking.gain_of(choice.target.value_or(choice.best.front().configuration));
    return choice;
  }

 private:
  // The step after which a switch is announced: early enough for all ranks to hear of a re-layout with the next step
  // and prepare it, but not before a step has run.
  static int64_t announced_after(const ScriptedSwitch& entry) {
    return std::max<int64_t>(1, entry.after_step - 1 - Controller::lead_steps);
  }

  // The first switch that was not announced and whose boundary has not passed; null where there is none.
  const ScriptedSwitch* upcoming(int64_t step) const {
    for (size_t i = announced_; i < script_.size(); ++i) {
      if (script_[i].after_step > step) return &script_[i];
    }
    return nullptr;
  }

  Choice decide(const Situation& situation) {
    Choice choice;
    const ScriptedSwitch* next = upcoming(situation.latest.step);
    if (next == nullptr) {
      choice.reason = "holds: the script has no further switch";
      return choice;
    }
    if (announced_after(*next) > situation.latest.step) {
      choice.reason = concat("holds: the script's next switch follows step ", next->after_step);
      return choice;
    }
    announced_ = static_cast<size_t>(next - script_.data()) + 1;
    const Configuration& target = nearest(situation, next->configuration);
    choice.reason = concat("the script's switch after step ", next->after_step);
    if (target != next->configuration) {
      choice.reason += concat(": ", to_string(next->configuration),
                              " is not feasible here; the nearest that is: ", to_string(target));
    }
    if (target == situation.current) {
      choice.reason = "holds: already there; " + choice.reason;
      return choice;
    }
    choice.target = target;
    choice.critical_batch = next->critical_batch;
    choice.commit_after_step = next->after_step;
    return choice;
  }

  RunConfig config_;
  std::vector<ScriptedSwitch> script_;
  size_t announced_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_script_policy(const RunConfig& config, std::string_view script) {
  return std::make_unique<ScriptPolicy>(config, script);
}

}  // namespace copus
