// AdamW's state for a range of elements: as libtorch tensors, or as pointers for the kernels of a device.
#pragma once

namespace copus {

template <class T>
struct AdamWState {
  T master, exp_avg, exp_avg_sq;

  // Returns change(tensor) for each tensor.
  template <class Change>
  auto map(const Change& change) const -> AdamWState<decltype(change(master))> {
    return {change(master), change(exp_avg), change(exp_avg_sq)};
  }
};

}  // namespace copus
