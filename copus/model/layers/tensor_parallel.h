// The collectives of the tensor-parallel group for the model's layers (Shoeybi et al. 2019; with sequence parallelism
// Korthikanti et al. 2022). Outside attention and feed-forward every rank holds all rows of the residual stream or,
// with sequence parallelism, rows / size of them, in the order of the ranks. On one rank every operation is the
// identity.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "copus/comm/communicator.h"

namespace copus {

// Rows that a collective is gathering or summing. If nobody waits for the collective, as after an exception, and it is
// not done, the memory of the rows is leaked, because the collective may still use it. The process is about to exit
// then: after the failure of another rank, from which a job recovers, every operation has ended (task_queue.h).
class [[nodiscard]] PendingRows {
 public:
  explicit PendingRows(at::Tensor rows) : rows_(std::move(rows)) {}
  PendingRows(at::Tensor rows, at::Tensor source, Work work)
      : rows_(std::move(rows)), source_(std::move(source)), work_(std::move(work)), is_under_way_(true) {}
  PendingRows(const PendingRows&) = delete;
  PendingRows& operator=(const PendingRows&) = delete;
  ~PendingRows();

  // Waits for the collective and returns the rows. Call it once.
  at::Tensor wait();

 private:
  at::Tensor rows_, source_;  // output and input of the collective
  Work work_;
  bool is_under_way_ = false;
};

class TensorParallel {
 public:
  TensorParallel() = default;  // one rank
  // `group` has its ranks in the order of the tensor-parallel coordinate, and must outlive this object.
  TensorParallel(Communicator& group, bool sequence_parallel);

  int64_t size() const { return group_ ? group_->size() : 1; }
  int64_t rank() const { return group_ ? group_->rank() : 0; }
  bool sequence_parallel() const { return sequence_parallel_ && size() > 1; }
  // Returns this rank's number of rows of the residual stream for a micro-batch of `rows` tokens.
  int64_t local_rows(int64_t rows) const { return sequence_parallel() ? rows / size() : rows; }

  // Gathers all rows from local rows [local rows, width], before a column-parallel layer. Without sequence parallelism
  // this is the identity. Also serves as the backward pass of reduce().
  at::Tensor gather(const at::Tensor& local) const;

  // Sums the ranks' partial results [rows, width] after a row-parallel layer, and returns the local rows of the sum.
  // Also serves as the backward pass of gather(). May overwrite `partial`.
  at::Tensor reduce(const at::Tensor& partial) const;

  // Start gather() or reduce(), to overlap with computation. Do not write to the argument before wait() has returned.
  PendingRows start_gather(const at::Tensor& local) const;
  PendingRows start_reduce(const at::Tensor& partial) const;

  // Sums in place over the ranks; for the statistics of the vocabulary-parallel loss.
  void add_up(const at::Tensor& values) const;

 private:
  struct Collective {
    at::Tensor rows;  // the gathered rows
    Operation operation;
  };
  Collective gathering(const at::Tensor& local) const;
  Collective reducing(const at::Tensor& partial) const;

  Communicator* group_ = nullptr;
  bool sequence_parallel_ = false;
};

}  // namespace copus
