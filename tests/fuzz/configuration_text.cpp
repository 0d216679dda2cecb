// Configurations as people write them: "d=2,t=1,p=2,B=32,b=4".
#include "copus/description/configuration_text.h"

#include "copus/description/model_description.h"
#include "fuzz_target.h"

using namespace copus;

namespace {

ModelDescription small_model() {
  ModelDescription model;
  model.vocab_size = 256;
  model.hidden_size = 96;
  model.intermediate_size = 192;
  model.num_layers = 12;
  model.num_heads = 12;
  model.num_kv_heads = 4;
  model.head_dim = 8;
  model.max_position_embeddings = 128;
  return model;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = text_of(data, size);
  const auto change = accepted([&] { return parse_configuration_change(text); });
  if (!change) return 0;
  expect(parse_configuration_change(to_string(*change)) == *change, "a change reads back as another one");

  const Configuration from{{.data_parallel = 4, .pipeline_parallel = 2}, 64, 2};
  const Configuration to = apply(*change, from);
  expect(parse_configuration(to_string(to)) == to, "a configuration reads back as another one");
  expect(parse_strategy(to_string(to.strategy)) == to.strategy, "a layout reads back as another one");
  expect(matches(*change, to), "a change that was made does not match");
  constexpr std::string_view arrow = " -> ";
  if (const std::string told = describe_change(from, to); !told.empty()) {
    const std::string behind = told.substr(told.find(arrow) + arrow.size());
    expect(apply(parse_configuration_change(behind), from) == to, "what is told of a change is another change");
  }
  configuration_rows({from, to});
  infeasible_reason(small_model(), to, 128);
  return 0;
}
