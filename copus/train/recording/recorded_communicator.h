// A communicator that reports its operations to a StepRecorder.
#pragma once

#include <string>
#include <utility>

#include "copus/comm/communicator.h"
#include "copus/train/recording/step_recorder.h"

namespace copus {

class RecordedCommunicator final : public WrappedCommunicator {
 public:
  // `group` and `recorder` must outlive this object. `label` names the group: "data", "tensor", ...
  RecordedCommunicator(Communicator& group, StepRecorder& recorder, std::string label)
      : WrappedCommunicator(group), recorder_(recorder), label_(std::move(label)) {}

 private:
  // Starts an operation, which is recorded when a wait for it has ended.
  Work do_start(const Operation& operation) override;
  void do_run(const Operation& operation) override;

  StepRecorder& recorder_;
  const std::string label_;
};

}  // namespace copus
