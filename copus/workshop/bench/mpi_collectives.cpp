#include "copus/workshop/bench/mpi_collectives.h"

#include <mpi.h>

#include <algorithm>
#include <numeric>
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

  void run(const Operation& operation) override {
    const void* const input = operation.input;
    void* const output = operation.output;
    if (operation.kind == OperationKind::all_reduce) {
      MPI_Allreduce(MPI_IN_PLACE, output, static_cast<int>(operation.count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      return;
    }
    const std::vector<int> counts(operation.counts.begin(), operation.counts.end());
    if (operation.kind == OperationKind::reduce_scatter) {
      MPI_Reduce_scatter(input, output, counts.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      return;
    }
    const int mine = counts[rank_];
    if (std::ranges::count(counts, mine) == std::ssize(counts)) {
      MPI_Allgather(input, mine, MPI_FLOAT, output, mine, MPI_FLOAT, MPI_COMM_WORLD);
      return;
    }
    std::vector<int> offsets(counts.size(), 0);
    std::partial_sum(counts.begin(), counts.end() - 1, offsets.begin() + 1);
    MPI_Allgatherv(input, mine, MPI_FLOAT, output, counts.data(), offsets.data(), MPI_FLOAT, MPI_COMM_WORLD);
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
