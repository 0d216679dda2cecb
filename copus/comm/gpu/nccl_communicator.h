// One group of a world over NCCL: host memory goes to the host world's group, device memory to NCCL.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "copus/comm/communicator.h"
#include "copus/comm/gpu/nccl_links.h"

namespace copus {

class NcclCommunicator : public Communicator {
 public:
  // Refers to both for its whole life.
  NcclCommunicator(Communicator& host, NcclLinks& links);

  Work start_all_reduce(void* data, int64_t count, DataType type, Reduction reduction) override;
  Work start_reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                            Reduction reduction) override;
  Work start_all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  Work start_broadcast(void* data, int64_t count, DataType type, int64_t root) override;
  Work start_send(const void* data, int64_t count, DataType type, int64_t to) override;

  void all_reduce(void* data, int64_t count, DataType type, Reduction reduction = Reduction::sum) override;
  void reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  void all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  void broadcast(void* data, int64_t count, DataType type, int64_t root) override;
  void send(const void* data, int64_t count, DataType type, int64_t to) override;
  void receive(void* data, int64_t count, DataType type, int64_t from) override;
  void barrier() override;
  // All messages of a call lie in the same kind of memory, on all members.
  void exchange(std::span<const Message> outgoing, std::span<const Message> incoming) override;

 private:
  bool is_on_device(const void* data) const { return links_.runtime().is_device_memory(data); }
  Work start(const char* what, const std::function<NcclResult(NcclComm*, void* stream)>& issue);
  NcclUse messages(int64_t from, int64_t to) const;
  void copy_own(void* output, const void* input, int64_t count, DataType type);

  Communicator& host_;
  NcclLinks& links_;
  const NcclUse collectives_;
};

}  // namespace copus
