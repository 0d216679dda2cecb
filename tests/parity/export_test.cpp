// Tests models that Copus writes: whole in one file, in shards, and rounded to bfloat16. Copus reads back what it
// wrote, bit for bit, and transformers (check_export.py) finds the model that it wrote itself.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "copus/base/testing/test_support.h"
#include "copus/checkpoint/testing/snapshot.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/layers/decoder.h"
#include "tests/parity/reference.h"

namespace copus::parity {
namespace {

namespace fs = std::filesystem;

struct Export {
  const char* name;
  DType dtype;
  int64_t shard_bytes;
};

constexpr Export exports[] = {
    {"float32", DType::f32, hugging_face_shard_bytes},
    {"sharded", DType::f32, 100'000},
    {"bfloat16", DType::bf16, hugging_face_shard_bytes},
};

// Writes from the store's memory, as `copus convert` and training write models.
void write_export(const fs::path& directory, const HuggingFaceModel& model, const Export& how) {
  const ParameterStore store = load(model, at::kFloat);
  std::vector<HostTensor> weights;
  std::vector<TensorView> views;
  for (const Parameter& parameter : store.parameters()) {
    if (parameter.tied_copy) continue;
    HostTensor weight = make_host_tensor(parameter.info.name, DType::f32, parameter.info.shape);
    kernels::copy_to_host(store.master(parameter), weight.bytes.get());
    weights.push_back(std::move(weight));
    views.push_back(weights.back().view());
  }
  write_hugging_face(directory, model.description(), views, how.dtype, {}, how.shard_bytes);
}

void expect_same_weights(const HuggingFaceModel& model, const HuggingFaceModel& original, const Export& how) {
  EXPECT_EQ(model.description(), original.description());
  ASSERT_EQ(model.weights().size(), original.weights().size());
  for (const auto& [name, weight] : model.weights()) {
    EXPECT_EQ(weight.dtype, how.dtype) << name;
    if (how.dtype == DType::f32) {
      EXPECT_TRUE(std::ranges::equal(weight.bytes, original.weight(name).bytes)) << name;
    }
  }
}

// Writes the logits of a model, for check_export.py.
void write_logits(const fs::path& path, const HuggingFaceModel& model, const at::Tensor& tokens) {
  ParameterStore store = load(model, at::kFloat);
  const at::Tensor host_tokens = tokens.cpu();
  const at::Tensor host_logits = Decoder(store, Recompute::none).logits(tokens).contiguous().cpu();
  const auto view = [](const char* name, DType dtype, const at::Tensor& tensor) {
    return TensorView{
        name, dtype, tensor.sizes().vec(), {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}};
  };
  write_safetensors(path, std::vector{view("tokens", DType::i64, host_tokens), view("logits", DType::f32, host_logits)},
                    {});
}

TEST(Export, IsTheSameModelToUsAndToTransformers) {
  if (!has_reference()) GTEST_SKIP() << skip_reason;
  const TemporaryFolder folder;
  for (const char* architecture : architectures) {
    const Reference reference(architecture);
    for (const Export& how : exports) {
      SCOPED_TRACE(concat(architecture, ", ", how.name));
      const fs::path directory = folder.path() / architecture / how.name;
      fs::create_directories(directory);
      write_export(directory, reference.model(), how);
      EXPECT_EQ(fs::exists(directory / "model.safetensors.index.json"), how.shard_bytes < hugging_face_shard_bytes);
      const HuggingFaceModel model = open_hugging_face(directory);
      expect_same_weights(model, reference.model(), how);
      write_logits(fs::path(directory).concat(".safetensors"), model, reference.expected("tokens"));
    }
  }
  const std::string command = concat("'" COPUS_PYTHON "' '" COPUS_CHECK_EXPORT "' '", reference_folder().string(),
                                     "' '", folder.path().string(), "'");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace copus::parity
