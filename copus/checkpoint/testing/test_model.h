// For tests: a small model with reproducible numbers, and a checkpoint of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/checkpoint/testing/snapshot.h"
#include "copus/description/model_description.h"

namespace copus {

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

struct TestModel {
  ModelDescription description;
  std::vector<HostTensor> weights;

  std::vector<TensorView> views() const {
    std::vector<TensorView> result;
    for (const HostTensor& tensor : weights) result.push_back(tensor.view());
    return result;
  }
};

// An fp32 tensor whose elements are functions of `seed` and their index: multiples of 1/64 between -4 and 4.
inline HostTensor make_test_tensor(const std::string& name, const std::vector<int64_t>& shape, int64_t seed) {
  HostTensor tensor = make_host_tensor(name, DType::f32, shape);
  auto* values = reinterpret_cast<float*>(tensor.bytes.get());
  for (int64_t i = 0; i < count_elements(shape); ++i) {
    values[i] = static_cast<float>((i * 37 + seed * 101) % 513 - 256) / 64.0f;
  }
  return tensor;
}

inline TestModel make_test_model(int64_t num_layers, bool tied = false, int64_t seed = 1) {
  TestModel model;
  model.description.vocab_size = 20;
  model.description.hidden_size = 8;
  model.description.intermediate_size = 12;
  model.description.num_layers = num_layers;
  model.description.num_heads = 4;
  model.description.num_kv_heads = 2;
  model.description.head_dim = 4;
  model.description.tie_word_embeddings = tied;
  for (const ParameterInfo& parameter : list_parameters(model.description)) {
    model.weights.push_back(make_test_tensor(parameter.name, parameter.shape, seed++));
  }
  return model;
}

// Makes a checkpoint in which everything is a function of `step`, so that a reader can check it without the writer.
inline Snapshot make_test_snapshot(int64_t step) {
  TestModel model = make_test_model(2, false, step);
  Snapshot snapshot;
  snapshot.step = step;
  snapshot.model_config = to_hugging_face_config(model.description, "float32");
  snapshot.run_config = concat("# run of step ", step, "\n");
  snapshot.training_state = concat("{\"step\": ", step, "}\n");
  for (const HostTensor& weight : model.weights) {
    snapshot.optimizer.push_back(make_test_tensor("exp_avg." + weight.name, weight.shape, step + 7));
    snapshot.optimizer.push_back(make_test_tensor("exp_avg_sq." + weight.name, weight.shape, step + 8));
  }
  snapshot.weights = std::move(model.weights);
  return snapshot;
}

// Whether an opened checkpoint equals make_test_snapshot of its step, bit for bit.
inline bool is_test_checkpoint(const Checkpoint& checkpoint) {
  const Snapshot expected = make_test_snapshot(checkpoint.step());
  const auto same = [](const std::vector<HostTensor>& tensors, const auto& found) {
    return tensors.size() == found.size() && std::ranges::all_of(tensors, [&](const HostTensor& tensor) {
             const auto entry = found.find(tensor.name);
             return entry != found.end() && entry->second.shape == tensor.shape &&
                    std::ranges::equal(entry->second.bytes, tensor.view().bytes);
           });
  };
  return checkpoint.model_config() == expected.model_config && checkpoint.run_config() == expected.run_config &&
         checkpoint.training_state() == expected.training_state && same(expected.weights, checkpoint.weights()) &&
         same(expected.optimizer, checkpoint.optimizer());
}

}  // namespace copus
