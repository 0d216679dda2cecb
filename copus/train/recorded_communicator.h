// A communicator whose operations are told to a StepRecorder.
#pragma once

#include <string>

#include "copus/comm/communicator.h"
#include "copus/train/step_recorder.h"

namespace copus {

class RecordedCommunicator : public Communicator {
 public:
  // Refers to both for its whole life. `label` names the group: "data", "tensor", ...
  RecordedCommunicator(Communicator& group, StepRecorder& recorder, std::string label)
      : Communicator(group.ranks(), group.rank()), group_(group), recorder_(recorder), label_(std::move(label)) {}

  Work start_all_reduce(void* data, int64_t count, DataType type, Reduction reduction) override;
  Work start_reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                            Reduction reduction) override;
  Work start_all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  Work start_broadcast(void* data, int64_t count, DataType type, int64_t root) override;
  Work start_send(const void* data, int64_t count, DataType type, int64_t to) override;

  void all_reduce(void* data, int64_t count, DataType type, Reduction reduction) override;
  void reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  void all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  void broadcast(void* data, int64_t count, DataType type, int64_t root) override;
  void send(const void* data, int64_t count, DataType type, int64_t to) override;
  void receive(void* data, int64_t count, DataType type, int64_t from) override;
  void barrier() override;
  void exchange(std::span<const Message> outgoing, std::span<const Message> incoming) override;

 private:
  // Starts an operation and records it when somebody has waited for it.
  template <class Start>
  Work start(const char* category, const char* operation, Start start);
  // Records an operation that is waited for at once.
  template <class Operate>
  void record(const char* category, const char* operation, Operate operate);

  Communicator& group_;
  StepRecorder& recorder_;
  std::string label_;
};

}  // namespace copus
