// The training state of a checkpoint.
#include "copus/train/step/training_state.h"

#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto state = accepted([&] { return parse_training_state(text_of(data, size), "training_state.json"); });
  if (!state) return 0;
  expect(parse_training_state(to_json(*state), "again.json") == *state, "a state reads back as another one");
  return 0;
}
