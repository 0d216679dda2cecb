// For tests: a trainer's whole state, in memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "copus/checkpoint/testing/snapshot.h"
#include "copus/train/step/training_state.h"
#include "copus/train/trainer/trainer.h"

namespace copus {

// Takes everything that Trainer::restore needs. Every rank calls it; only rank 0 gets the result.
inline std::optional<Snapshot> take_snapshot(Trainer& trainer, std::string run_config = "") {
  const CheckpointPlan plan = trainer.plan_checkpoint({.bytes_per_writer = std::numeric_limits<int64_t>::max()});
  Snapshot snapshot;
  int64_t filled = 0;  // filled bytes of the last tensor
  trainer.hand_over_state(plan, [&](std::span<const std::byte> bytes) {
    const auto next = std::ssize(snapshot.weights) + std::ssize(snapshot.optimizer);
    const bool is_new = next == 0 || filled == plan.tensors[next - 1].bytes();
    const CheckpointTensor& tensor = plan.tensors[is_new ? next : next - 1];
    std::vector<HostTensor>& tensors = tensor.is_weight ? snapshot.weights : snapshot.optimizer;
    if (is_new) {
      tensors.push_back(make_host_tensor(tensor.name, DType::f32, tensor.shape));
      filled = 0;
    }
    std::ranges::copy(bytes, tensors.back().bytes.get() + filled);
    filled += std::ssize(bytes);
  });
  if (snapshot.weights.empty()) return std::nullopt;
  snapshot.step = trainer.state().step;
  snapshot.model_config = to_hugging_face_config(trainer.parameters().model(), "float32");
  snapshot.run_config = std::move(run_config);
  snapshot.training_state = to_json(trainer.state());
  return snapshot;
}

}  // namespace copus
