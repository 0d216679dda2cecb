#include "copus/model/layers/weight_gradients.h"

#include "copus/model/kernels/kernels.h"

namespace copus {

void WeightGradients::Task::run() const {
  if (!x.defined()) {
    weight_gradient.add_(dy);
    return;
  }
  kernels::add_linear_weight_gradient(weight_gradient, dy, x);
  if (bias_gradient.defined()) kernels::add_linear_bias_gradient(bias_gradient, dy);
}

void WeightGradients::add(const at::Tensor& weight_gradient, const at::Tensor& bias_gradient, const at::Tensor& dy,
                          const at::Tensor& x) {
  Task task{bucket_, weight_gradient, bias_gradient, dy, x};
  if (mode_ == Mode::immediate) {
    task.run();
  } else {
    tasks_.push_back(std::move(task));
  }
}

at::Tensor WeightGradients::add_norm(const at::Tensor& gradient) {
  if (mode_ != Mode::all_deferred) return gradient;
  at::Tensor later = kernels::zeros(gradient.sizes(), gradient.scalar_type(), gradient.device());
  tasks_.push_back({bucket_, gradient, {}, later, {}});
  return later;
}

void WeightGradients::run(BucketUse* use) {
  const bool tells = use != nullptr && mode_ == Mode::all_deferred;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const int64_t bucket = tasks_[i].bucket;
    if (tells && (i == 0 || tasks_[i - 1].bucket != bucket)) use->gradient_begins(bucket);
    tasks_[i].run();
    tasks_[i] = {.bucket = bucket, .weight_gradient = {}, .bias_gradient = {}, .dy = {}, .x = {}};
    if (tells && (i + 1 == tasks_.size() || tasks_[i + 1].bucket != bucket)) use->gradient_ends(bucket);
  }
  tasks_.clear();
}

}  // namespace copus
