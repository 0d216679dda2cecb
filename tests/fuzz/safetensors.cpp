// A safetensors file.
#include "copus/checkpoint/safetensors.h"

#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path path = scratch_folder() / "model.safetensors";
  static const std::filesystem::path path_again = scratch_folder() / "again.safetensors";
  write_scratch(path, text_of(data, size));
  const auto file = accepted([&] { return SafetensorsFile(path); });
  if (!file) return 0;
  std::string content = safetensors_header(file->tensors(), file->metadata());
  for (const TensorView& tensor : file->tensors()) {
    expect(file->find(tensor.name) == &tensor, "a tensor is not found by its name");
    if (is_floating_point(tensor.dtype)) to_float(tensor);
    content.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  write_scratch(path_again, content);
  const SafetensorsFile again(path_again);
  expect(again.metadata() == file->metadata(), "metadata read back as others");
  expect(again.tensors().size() == file->tensors().size(), "there is another number of tensors");
  for (size_t i = 0; i < again.tensors().size(); ++i) {
    const TensorView &ours = again.tensors()[i], &theirs = file->tensors()[i];
    expect(ours.name == theirs.name && ours.dtype == theirs.dtype && ours.shape == theirs.shape &&
               ours.bytes.size() == theirs.bytes.size(),
           "a tensor reads back as another one");
  }
  return 0;
}
