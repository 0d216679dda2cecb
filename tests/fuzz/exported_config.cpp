// The files of a model's origin that an export takes over: config.json, tokenizer_config.json and tokenizer.json, with
// a byte 0 between them.
#include "copus/checkpoint/exported_config.h"

#include <algorithm>

#include "copus/description/model_description.h"
#include "fuzz_target.h"

using namespace copus;

namespace {

// Cuts off the front of `rest`, up to the next byte 0 or the end.
std::string next_text(std::string_view& rest) {
  const std::string_view text = rest.substr(0, rest.find('\0'));
  rest.remove_prefix(std::min(rest.size(), text.size() + 1));
  return std::string(text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest = text_of(data, size);
  ModelOrigin origin{.config = next_text(rest)};
  origin.tokenizer["tokenizer_config.json"] = next_text(rest);
  origin.tokenizer["tokenizer.json"] = std::string(rest);
  ModelDescription model;
  model.vocab_size = 10;
  model.hidden_size = model.intermediate_size = model.head_dim = 4;
  model.num_layers = model.num_heads = model.num_kv_heads = 1;
  const auto described = accepted([&] { return parse_model_description(origin.config, "config.json"); });
  if (described) model = *described;

  const ExportedConfig exported = exported_config(model, "bfloat16", origin);
  expect(parse_model_description(exported.config, "exported.json") == model, "an export describes another model");
  expect(origin.config.empty() || exported.is_of_another_model == !described, "an origin was mistaken");
  const ExportedConfig again = exported_config(model, "bfloat16", {.config = exported.config});
  expect(again.config == exported.config, "an export of an export differs");
  return 0;
}
