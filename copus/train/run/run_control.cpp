#include "copus/train/run/run_control.h"

#include <utility>

#include "copus/base/error.h"
#include "copus/description/configuration_text.h"

namespace copus {

RunControl::RunControl(const RunPlan& plan, Adaptation& adaptation, ControlFiles::Note note)
    : policy_(to_string(plan.config.adapt.policy)), adaptation_(adaptation), files_(plan.directory, std::move(note)) {}

RunControl::~RunControl() {
  const ControlReply ended{false, "the run has ended before it came to it"};
  for (const auto& received : files_.take()) files_.reply(received.name, ended);
  for (const auto& received : waiting_) files_.reply(received.name, ended);
  if (forced_) files_.reply(*forced_, ended);
}

std::optional<SwitchIntent> RunControl::obey_commands(int64_t step, bool standing) {
  std::optional<SwitchIntent> intent;
  std::vector<ControlFiles::Received> received = std::exchange(waiting_, {});
  for (ControlFiles::Received& newer : files_.take()) received.push_back(std::move(newer));
  for (const ControlFiles::Received& one : received) {
    try {
      if (const auto reply = obey(one, step, standing, intent)) files_.reply(one.name, *reply);
    } catch (const UserError& error) {
      files_.reply(one.name, {false, error.what()});
    }
  }
  return intent;
}

std::optional<ControlReply> RunControl::obey(const ControlFiles::Received& received, int64_t step, bool standing,
                                             std::optional<SwitchIntent>& intent) {
  const std::string& command = received.request.command;
  if (command == "status") return ControlReply{true, status(step)};
  if (command == "pause" || command == "resume") {
    const bool pause = command == "pause";
    if (pause == pause_wanted_) return ControlReply{true, pause ? "it is paused already" : "it is not paused"};
    set_pause(step, pause);
    return ControlReply{true, pause ? concat("pauses after step ", step + 1) : concat("goes on after step ", step)};
  }
  if (command != "pin" && command != "unpin" && command != "force") {
    return ControlReply{false, concat("there is no command \"", command, "\"")};
  }
  if (command == "force") return force(received, step, standing, intent);
  const Controller& controller = adaptation_.controller();
  if (!controller.has_policy()) {
    return ControlReply{true, concat("stays with ", to_string(controller.current()), " in any case: adapt.policy is \"",
                                     policy_, "\", and only a command (force) changes that")};
  }
  const bool pin = command == "pin";
  adaptation_.command(step, {pin ? Command::Kind::pin : Command::Kind::unpin, {}});
  return ControlReply{true, pin ? concat("stays with ", to_string(controller.current()))
                                : concat("policy \"", policy_, "\" decides again")};
}

void RunControl::set_pause(int64_t step, bool pause) {
  pause_wanted_ = pause;
  adaptation_.command(step, {pause ? Command::Kind::pause : Command::Kind::resume, {}});
}

std::optional<ControlReply> RunControl::force(const ControlFiles::Received& received, int64_t step, bool standing,
                                              std::optional<SwitchIntent>& intent) {
  const Controller& controller = adaptation_.controller();
  if (controller.under_way()) {
    waiting_.push_back(received);
    return std::nullopt;
  }
  const Configuration target = apply(parse_configuration_change(received.request.target), controller.current());
  intent = adaptation_.command(step, {Command::Kind::force, target});
  if (!intent) return ControlReply{true, concat("it is there already, and stays: ", to_string(target))};
  if (standing) {
    return ControlReply{true, concat("changes ", describe_change(controller.current(), target), " after step ",
                                     intent->commit_after_step, ", once the run goes on, and stays there")};
  }
  forced_ = received.name;
  return std::nullopt;
}

void RunControl::after_switch(const SwitchReport& report, const std::string& text) {
  if (!forced_) return;
  files_.reply(*std::exchange(forced_, std::nullopt), {report.outcome == SwitchReport::Outcome::moved, text});
}

void RunControl::after_ranks_changed() {
  if (!forced_) return;
  files_.reply(*std::exchange(forced_, std::nullopt), {false, "ranks have come or gone meanwhile; ask again"});
}

std::string RunControl::status(int64_t step) const {
  const Controller& controller = adaptation_.controller();
  std::string text = concat("step ", step, pause_wanted_ ? ", paused" : "", ": ", to_string(controller.current()),
                            "; policy ", policy_);
  if (controller.has_policy() && controller.pinned()) text += ", pinned";
  if (const auto& intent = controller.under_way()) {
    text += concat("; changes ", describe_change(controller.current(), intent->configuration), " after step ",
                   intent->commit_after_step);
  }
  return text;
}

}  // namespace copus
