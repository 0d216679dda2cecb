// The tensor-parallel group as the model's layers use it (Shoeybi et al. 2019; with sequence parallelism Korthikanti et
// al. 2022). Between attention and feed-forward every rank holds all rows of the residual stream, or with sequence
// parallelism rows / size of them, in the order of the ranks. With one rank every operation is the identity.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "copus/comm/communicator.h"

namespace copus {

// Rows that a collective is bringing together. Where they are not waited for, because an exception came in between, the
// collective may still be at work in their memory: then that is never given back. The process is about to end.
class [[nodiscard]] PendingRows {
 public:
  explicit PendingRows(at::Tensor rows) : rows_(std::move(rows)) {}
  PendingRows(at::Tensor rows, at::Tensor source, Work work)
      : rows_(std::move(rows)), source_(std::move(source)), work_(std::move(work)), is_under_way_(true) {}
  PendingRows(const PendingRows&) = delete;
  PendingRows& operator=(const PendingRows&) = delete;
  ~PendingRows();

  // Waits for the collective and returns the rows. Once.
  at::Tensor wait();

 private:
  at::Tensor rows_, source_;  // what the collective writes, and what it reads
  Work work_;
  bool is_under_way_ = false;
};

class TensorParallel {
 public:
  TensorParallel() = default;  // one rank
  // Refers to `group`, whose order is that of the tensor-parallel coordinate.
  TensorParallel(Communicator& group, bool sequence_parallel);

  int64_t size() const { return group_ ? group_->size() : 1; }
  int64_t rank() const { return group_ ? group_->rank() : 0; }
  bool sequence_parallel() const { return sequence_parallel_ && size() > 1; }
  // Returns how many rows of a micro-batch with `rows` tokens this rank's residual stream holds.
  int64_t local_rows(int64_t rows) const { return sequence_parallel() ? rows / size() : rows; }

  // Gathers every row before a column-parallel layer, from local ones [local rows, width]. The identity without
  // sequence parallelism. It is also the backward of reduce().
  at::Tensor gather(const at::Tensor& local) const;

  // Adds up the ranks' partial results [rows, width] after a row-parallel layer, and as the backward of gather(); this
  // rank keeps its local rows of the sum. May overwrite `partial`.
  at::Tensor reduce(const at::Tensor& partial) const;

  // Start both, to go on beside computing. What is given must not be written to before its rows are waited for.
  PendingRows start_gather(const at::Tensor& local) const;
  PendingRows start_reduce(const at::Tensor& partial) const;

  // Adds up in place over the ranks; for statistics of the vocabulary-parallel loss.
  void add_up(const at::Tensor& values) const;

 private:
  struct Collective {
    at::Tensor rows;  // which it brings together
    Operation operation;
  };
  Collective gathering(const at::Tensor& local) const;
  Collective reducing(const at::Tensor& partial) const;

  Communicator* group_ = nullptr;
  bool sequence_parallel_ = false;
};

}  // namespace copus
