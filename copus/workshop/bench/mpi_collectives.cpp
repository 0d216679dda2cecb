#include "copus/workshop/bench/mpi_collectives.h"

#include <mpi.h>

#include <algorithm>
#include <vector>

#include "copus/base/error.h"

namespace copus {

namespace {

class OwnMpiCollectives final : public MpiCollectives {
 public:
  OwnMpiCollectives() {
    MPI_Init(nullptr, nullptr);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  OwnMpiCollectives(const OwnMpiCollectives&) = delete;
  OwnMpiCollectives& operator=(const OwnMpiCollectives&) = delete;
  ~OwnMpiCollectives() override { MPI_Finalize(); }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }

  void all_reduce(float* data, int64_t count) override {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }

  void reduce_scatter(const float* input, float* output, std::span<const int64_t> counts) override {
    const std::vector<int> narrow(counts.begin(), counts.end());
    MPI_Reduce_scatter(input, output, narrow.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }

  void all_gather(const float* input, float* output, std::span<const int64_t> counts) override {
    const std::vector<int> narrow(counts.begin(), counts.end());
    const int mine = narrow[rank_];
    if (std::all_of(narrow.begin(), narrow.end(), [&](int count) { return count == mine; })) {
      MPI_Allgather(input, mine, MPI_FLOAT, output, mine, MPI_FLOAT, MPI_COMM_WORLD);
      return;
    }
    std::vector<int> offsets(narrow.size(), 0);
    for (size_t i = 1; i < narrow.size(); ++i) offsets[i] = offsets[i - 1] + narrow[i - 1];
    MPI_Allgatherv(input, mine, MPI_FLOAT, output, narrow.data(), offsets.data(), MPI_FLOAT, MPI_COMM_WORLD);
  }

  void broadcast(int64_t& value, int64_t root) override {
    MPI_Bcast(&value, 1, MPI_INT64_T, static_cast<int>(root), MPI_COMM_WORLD);
  }

  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

 private:
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace

std::unique_ptr<MpiCollectives> MpiCollectives::join() { return std::make_unique<OwnMpiCollectives>(); }

}  // namespace copus
