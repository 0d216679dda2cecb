// config.json, by which Hugging Face's transformers describe a model.
#include "copus/description/model_description.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto model = accepted([&] { return parse_model_description(text_of(data, size), "config.json"); });
  if (!model) return 0;
  const std::string json = to_hugging_face_config(*model, "bfloat16");
  expect(parse_model_description(json, "again.json") == *model, "a model that was written is another one when read");
  expect(count_parameters(*model) > 0, "a model has no parameters");
  return 0;
}
