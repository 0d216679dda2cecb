#include "copus/model/weight_gradients.h"

#include "copus/model/kernels.h"

namespace copus {

void WeightGradients::Task::run() const {
  kernels::add_linear_weight_gradient(weight_gradient, dy, x);
  if (bias_gradient.defined()) kernels::add_linear_bias_gradient(bias_gradient, dy);
}

void WeightGradients::add(const at::Tensor& weight_gradient, const at::Tensor& bias_gradient, const at::Tensor& dy,
                          const at::Tensor& x) {
  Task task{weight_gradient, bias_gradient, dy, x};
  if (mode_ == Mode::immediate) {
    task.run();
  } else {
    tasks_.push_back(std::move(task));
  }
}

void WeightGradients::run() {
  for (Task& task : tasks_) {
    task.run();
    task = {};
  }
  tasks_.clear();
}

}  // namespace copus
