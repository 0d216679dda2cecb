// model.safetensors.index.json, beside the two files that a model is in.
#include "copus/checkpoint/shards.h"
#include "fuzz_target.h"

using namespace copus;

namespace {

std::filesystem::path make_model() {
  const std::vector<std::byte> bytes(4);
  const auto write = [&](const char* file, const char* tensor) {
    const std::vector<TensorView> tensors = {{tensor, DType::f32, {1}, bytes}};
    write_safetensors(scratch_folder() / file, tensors, pytorch_metadata);
  };
  write("model-00001-of-00002.safetensors", "a");
  write("model-00002-of-00002.safetensors", "b");
  return scratch_folder();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path folder = make_model();
  write_scratch(folder / model_index_file_name, text_of(data, size));
  const auto files = accepted([&] { return open_model_files(folder); });
  if (files) expect(!files->empty() && files->size() <= 2, "there are other files than the model's");
  return 0;
}
