// The batches of `copus plan --global-batch`, "16,24,64..1024", and the configurations that there are with them.
#include "copus/cli/predict/plan_options.h"
#include "copus/description/search_space.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Pieces pieces(text_of(data, size));
  SearchSpace space;
  space.world_size = 1 + pieces.byte() % 16;
  const auto batches = accepted([&] { return parse_global_batches(pieces.rest()); });
  if (!batches) return 0;
  std::string text;
  for (const int64_t batch : *batches) text += concat(text.empty() ? "" : ",", batch);
  expect(parse_global_batches(text) == *batches, "batches read back as others");

  constexpr ptrdiff_t few = 3;  // more of them add time and nothing new
  space.global_batches.assign(batches->begin(), batches->begin() + std::min(std::ssize(*batches), few));
  space.recomputes = {Recompute::none};
  space.zero_stages = {0, 3};
  ModelDescription model;
  model.vocab_size = 256;
  model.hidden_size = 64;
  model.intermediate_size = 96;
  model.num_layers = 6;
  model.num_heads = 8;
  model.num_kv_heads = 4;
  model.head_dim = 8;
  model.max_position_embeddings = 64;
  for (const Configuration& configuration : enumerate(model, 64, space)) {
    expect(!infeasible_reason(model, configuration, 64), "a configuration is listed that the model does not allow");
    expect(configuration.strategy.world_size() == space.world_size, "a configuration is of another number of ranks");
  }
  return 0;
}
