#include "copus/model/layers/tensor_parallel.h"

#include <exception>
#include <vector>

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/tensor_messages.h"

namespace copus {

namespace {

bool is_certainly_done(const Work& work) {
  try {
    return work.done();
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

PendingRows::~PendingRows() {
  if (!is_under_way_ || is_certainly_done(work_)) return;
  rows_.unsafeReleaseTensorImpl();
  source_.unsafeReleaseTensorImpl();
}

at::Tensor PendingRows::wait() {
  work_.wait();
  is_under_way_ = false;
  source_.reset();
  return std::move(rows_);
}

TensorParallel::TensorParallel(Communicator& group, bool sequence_parallel)
    : group_(&group), sequence_parallel_(sequence_parallel) {}

TensorParallel::Collective TensorParallel::gathering(const at::Tensor& local) const {
  at::Tensor all = kernels::empty({local.size(0) * size(), local.size(1)}, local.scalar_type(), local.device());
  const std::vector<int64_t> counts(size(), local.numel());
  const auto operation = Operation::all_gather(local.data_ptr(), all.data_ptr(), counts, data_type_of(local));
  return {std::move(all), operation};
}

TensorParallel::Collective TensorParallel::reducing(const at::Tensor& partial) const {
  const DataType type = data_type_of(partial);
  if (!sequence_parallel()) {
    return {partial, Operation::all_reduce(partial.data_ptr(), partial.numel(), type, Reduction::sum)};
  }
  COPUS_CHECK(partial.size(0) % size() == 0, partial.size(0), " rows on ", size(), " ranks");
  // Copies the result: a view of `partial` would keep the memory of all rows alive.
  at::Tensor local =
      kernels::empty({local_rows(partial.size(0)), partial.size(1)}, partial.scalar_type(), partial.device());
  const std::vector<int64_t> counts(size(), local.numel());
  const auto operation = Operation::reduce_scatter(partial.data_ptr(), local.data_ptr(), counts, type, Reduction::sum);
  return {std::move(local), operation};
}

at::Tensor TensorParallel::gather(const at::Tensor& local) const {
  if (!sequence_parallel()) return local;
  Collective collective = gathering(local);
  group_->run(collective.operation);
  return std::move(collective.rows);
}

at::Tensor TensorParallel::reduce(const at::Tensor& partial) const {
  if (size() == 1) return partial;
  Collective collective = reducing(partial);
  group_->run(collective.operation);
  return std::move(collective.rows);
}

PendingRows TensorParallel::start_gather(const at::Tensor& local) const {
  if (!sequence_parallel()) return PendingRows(local);
  Collective collective = gathering(local);
  return PendingRows(std::move(collective.rows), local, group_->start(collective.operation));
}

PendingRows TensorParallel::start_reduce(const at::Tensor& partial) const {
  if (size() == 1) return PendingRows(partial);
  Collective collective = reducing(partial);
  return PendingRows(std::move(collective.rows), partial, group_->start(collective.operation));
}

void TensorParallel::add_up(const at::Tensor& values) const {
  if (size() == 1) return;
  group_->all_reduce(values.data_ptr(), values.numel(), data_type_of(values));
}

}  // namespace copus
