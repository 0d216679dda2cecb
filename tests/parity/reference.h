// Reads what generate.py has written for one architecture: a Hugging Face model, and the results of transformers with
// it.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "copus/base/error.h"
#include "copus/checkpoint/hugging_face.h"
#include "copus/checkpoint/safetensors.h"
#include "copus/model/memory/parameters.h"
#include "copus/model/testing/test_device.h"
#include "copus/train/state/state_transfer.h"

namespace copus::parity {

inline constexpr const char* architectures[] = {
    "llama", "qwen2", "mistral", "mistral_window", "qwen3",       "smollm3", "olmo2",    "llama_biases",
    "gpt2",  "olmo3", "granite", "phi3",           "gemma3_text", "gemma2",  "gpt_neox", "phi3_longrope"};

inline constexpr const char* skip_reason =
    "There is no reference to compare with. CTest computes it as the test parity.reference, with transformers, which "
    "`make setup` installs in .venv.";

inline std::filesystem::path reference_folder() { return COPUS_PARITY_DIR; }

// Tells whether the reference is complete; generate.py writes its stamp last.
inline bool has_reference() { return std::filesystem::exists(reference_folder() / "generated_by.sha256"); }

class Reference {
 public:
  explicit Reference(const std::string& architecture)
      : model_(open_hugging_face(reference_folder() / architecture)),
        expected_(reference_folder() / architecture / "expected.safetensors") {}

  const HuggingFaceModel& model() const { return model_; }

  // Returns a copy, on the tests' device, of one of the tensors that generate.py's first comment lists: int64, float32
  // or float64.
  at::Tensor expected(const std::string& name) const {
    const TensorView* view = expected_.find(name);
    COPUS_CHECK(view != nullptr, expected_.path().string(), " has no ", name);
    at::Tensor tensor = at::empty(view->shape, view->dtype == DType::i64   ? at::kLong
                                               : view->dtype == DType::f64 ? at::kDouble
                                                                           : at::kFloat);
    COPUS_CHECK(tensor.nbytes() == view->bytes.size(), name, " is ", safetensors_name(view->dtype));
    std::memcpy(tensor.mutable_data_ptr(), view->bytes.data(), view->bytes.size());
    return tensor.to(test_device());
  }

 private:
  HuggingFaceModel model_;
  SafetensorsFile expected_;
};

// Returns a store on the tests' device that holds the model's weights. Float64 weights equal the float32 ones exactly.
inline ParameterStore load(const HuggingFaceModel& model, at::ScalarType compute_dtype) {
  ParameterStore store(model.description(), compute_dtype, test_device());
  if (compute_dtype != at::kDouble) {
    load_weights(store, model.weights());
    return store;
  }
  const ParameterStore single = load(model, at::kFloat);
  for (const Parameter& parameter : store.parameters()) {
    if (!parameter.tied_copy) store.master(parameter).copy_(single.master(single.find(parameter.info.name)));
  }
  store.publish_weights();
  return store;
}

}  // namespace copus::parity
