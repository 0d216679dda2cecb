// The operations of a group of one: a copy where input and output differ, and else nothing.
#pragma once

#include "copus/comm/transport.h"

namespace copus {

class SoloTransport : public Transport {
 public:
  void all_reduce(void* data, int64_t count, DataType type, Reduction reduction) override;
  void reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                      Reduction reduction) override;
  void all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  void broadcast(void* data, int64_t count, DataType type, int64_t root) override;
  void barrier() override;

  // COPUS_CHECK: there is nobody to send to.
  void send(const void* data, int64_t bytes, int64_t to) override;
  void receive(void* data, int64_t bytes, int64_t from) override;
  bool try_send(const void* data, int64_t bytes, int64_t to) override;
};

}  // namespace copus
