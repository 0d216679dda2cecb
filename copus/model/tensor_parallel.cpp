#include "copus/model/tensor_parallel.h"

#include <vector>

#include "copus/base/error.h"
#include "copus/model/kernels.h"

namespace copus {
namespace {

DataType data_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DataType::float32;
    case at::kDouble:
      return DataType::float64;
    case at::kBFloat16:
      return DataType::bfloat16;
    default:
      fail_check("a floating-point type", __FILE__, __LINE__, c10::toString(tensor.scalar_type()));
  }
}

}  // namespace

TensorParallel::TensorParallel(Communicator& group, bool sequence_parallel)
    : group_(&group), sequence_parallel_(sequence_parallel) {}

at::Tensor TensorParallel::gather(const at::Tensor& local) const {
  if (!sequence_parallel()) return local;
  COPUS_CHECK(local.is_contiguous() && local.device().is_cpu());
  at::Tensor all = kernels::empty({local.size(0) * size(), local.size(1)}, local.scalar_type(), local.device());
  const std::vector<int64_t> counts(static_cast<size_t>(size()), local.numel());
  group_->all_gather(local.data_ptr(), all.data_ptr(), counts, data_type(local));
  return all;
}

at::Tensor TensorParallel::reduce(const at::Tensor& partial) const {
  if (size() == 1) return partial;
  COPUS_CHECK(partial.is_contiguous() && partial.device().is_cpu());
  if (!sequence_parallel()) {
    group_->all_reduce(partial.data_ptr(), partial.numel(), data_type(partial));
    return partial;
  }
  COPUS_CHECK(partial.size(0) % size() == 0, partial.size(0), " rows on ", size(), " ranks");
  // Not into the rank's own rows of `partial`: a view would keep the memory of all rows alive.
  at::Tensor local =
      kernels::empty({local_rows(partial.size(0)), partial.size(1)}, partial.scalar_type(), partial.device());
  const std::vector<int64_t> counts(static_cast<size_t>(size()), local.numel());
  group_->reduce_scatter(partial.data_ptr(), local.data_ptr(), counts, data_type(partial));
  return local;
}

void TensorParallel::add_up(const at::Tensor& values) const {
  if (size() == 1) return;
  COPUS_CHECK(values.is_contiguous() && values.device().is_cpu());
  group_->all_reduce(values.data_ptr(), values.numel(), data_type(values));
}

}  // namespace copus
