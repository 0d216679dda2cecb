#include "copus/workshop/bench/models.h"

#include <algorithm>
#include <iterator>

#include "copus/base/error.h"

namespace copus {

namespace {

struct Shape {
  const char* name;
  int64_t layers, hidden, heads, kv_heads, ffn, vocab;
};
constexpr Shape shapes[] = {
    {"a", 8, 512, 8, 4, 1408, 8192},       {"b", 6, 256, 4, 4, 704, 256},          {"30M", 8, 512, 8, 8, 1408, 4096},
    {"100M", 12, 768, 12, 12, 2048, 8192}, {"300M", 24, 1024, 16, 16, 2560, 8192}, {"tiny", 4, 32, 4, 2, 64, 256},
};

}  // namespace

ModelDescription bench_model(const std::string& name) {
  const auto* const shape = std::ranges::find(shapes, name, &Shape::name);
  COPUS_CHECK(shape != std::end(shapes), name);
  ModelDescription model;
  model.num_layers = shape->layers;
  model.hidden_size = shape->hidden;
  model.num_heads = shape->heads;
  model.num_kv_heads = shape->kv_heads;
  model.head_dim = shape->hidden / shape->heads;
  model.intermediate_size = shape->ffn;
  model.vocab_size = shape->vocab;
  return model;
}

}  // namespace copus
