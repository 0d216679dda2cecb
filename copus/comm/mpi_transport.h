// One group's blocking operations over MPI point-to-point messages on MPI_COMM_WORLD; groups are kept apart by their
// tags. No MPI collectives: their order of summation is the library's own, and making a communicator for them would
// wait for the other members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "copus/comm/mpi_health.h"
#include "copus/comm/transport.h"

namespace copus {

class MpiTransport final : public Transport {
 public:
  // Tags that a group needs, from its first tag on.
  static constexpr int num_tags = 3;

  // `ranks`: the group in world ranks; `rank`: this rank's place among them.
  MpiTransport(std::vector<int64_t> ranks, int64_t rank, int first_tag, MpiHealth& health, double wait_seconds);
  ~MpiTransport() override;

  void all_reduce(void* data, int64_t count, DataType type, Reduction reduction) override;
  void reduce_scatter(void* input, void* output, std::span<const int64_t> counts, DataType type,
                      Reduction reduction) override;
  void all_gather(const void* input, void* output, std::span<const int64_t> counts, DataType type) override;
  void broadcast(void* data, int64_t count, DataType type, int64_t root) override;
  void barrier() override;
  void send(const void* data, int64_t bytes, int64_t to) override;
  void receive(void* data, int64_t bytes, int64_t from) override;
  bool try_send(const void* data, int64_t bytes, int64_t to) override;

 private:
  class Messages;
  struct BufferedSend;

  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  void reduce_parts(const std::byte* input, std::byte* output, std::span<const int64_t> counts, DataType type,
                    Reduction reduction);
  void gather_parts(const void* input, std::byte* output, std::span<const int64_t> counts, int64_t element_bytes);

  std::vector<int64_t> ranks_;
  int64_t rank_;
  int first_tag_;
  MpiHealth& health_;
  double wait_seconds_;
  std::vector<std::byte> received_;  // parts of the others that a reduction sums
  std::mutex buffered_mutex_;
  std::list<BufferedSend> buffered_;  // of try_send
};

}  // namespace copus
