#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "copus/model/kernels/kernels.h"
#include "copus/train/optimizer/adamw.h"
#include "copus/train/testing/zero_slots.h"

namespace copus {
namespace {

ModelDescription tiny_model() {
  ModelDescription model;
  model.architecture = Architecture::qwen2;
  model.vocab_size = 11;
  model.hidden_size = 6;
  model.intermediate_size = 10;
  model.num_layers = 2;
  model.num_heads = 2;
  model.num_kv_heads = 1;
  model.head_dim = 4;
  model.qkv_bias = true;
  return model;
}

std::vector<double> values_of(const at::Tensor& tensor) {
  std::vector<double> values(tensor.numel());
  kernels::copy_to_host(tensor, values.data());
  return values;
}

// Returns a gradient that differs by element, parameter and step.
double gradient_value(int64_t parameter, int64_t element, int64_t step) {
  return std::sin(1.0 + 0.7 * static_cast<double>(parameter) + 0.31 * static_cast<double>(element) +
                  1.9 * static_cast<double>(step));
}

void set_gradients(const ParameterStore& store, int64_t step) {
  for (int64_t p = 0; p < static_cast<int64_t>(store.parameters().size()); ++p) {
    const Parameter& parameter = store.parameters()[p];
    std::vector<double> values(parameter.info.num_elements());
    for (int64_t i = 0; i < parameter.info.num_elements(); ++i) values[i] = gradient_value(p, i, step);
    kernels::copy_from_host(values.data(), parameter.gradient);
  }
}

// AdamW as in the paper, element by element, in fp64.
TEST(AdamW, FollowsAHandWrittenReference) {
  OptimizerConfig config;
  config.weight_decay = 0.3;
  const std::vector<double> rates = {1e-2, 3e-2, 2e-2};
  const std::vector<double> factors = {1, 0.25, 0.5};

  ParameterStore store(tiny_model(), at::kDouble, at::kCPU);
  store.initialize(7);
  std::vector<std::vector<double>> expected;
  for (const Parameter& parameter : store.parameters()) expected.push_back(values_of(store.master(parameter)));

  AdamW optimizer(store, config, zero_slots(store));
  for (int64_t step = 0; step < 3; ++step) {
    set_gradients(store, step);
    optimizer.step({.number = step + 1, .learning_rate = rates[step], .gradient_factor = factors[step]});
  }
  EXPECT_EQ(optimizer.steps(), 3);

  for (int64_t p = 0; p < static_cast<int64_t>(store.parameters().size()); ++p) {
    const Parameter& parameter = store.parameters()[p];
    const bool decays = parameter.info.kind == ParameterKind::embedding || parameter.info.kind == ParameterKind::linear;
    for (int64_t i = 0; i < parameter.info.num_elements(); ++i) {
      double weight = expected[p][i];
      double first = 0;
      double second = 0;
      for (int64_t step = 0; step < 3; ++step) {
        const double gradient = factors[step] * gradient_value(p, i, step);
        first = config.beta1 * first + (1 - config.beta1) * gradient;
        second = config.beta2 * second + (1 - config.beta2) * gradient * gradient;
        const double t = static_cast<double>(step + 1);
        const double mean = first / (1 - std::pow(config.beta1, t));
        const double variance = second / (1 - std::pow(config.beta2, t));
        if (decays) weight -= rates[step] * config.weight_decay * weight;
        weight -= rates[step] * mean / (std::sqrt(variance) + config.epsilon);
      }
      ASSERT_NEAR(values_of(store.master(parameter))[i], weight, 1e-12) << parameter.info.name << "[" << i << "]";
      ASSERT_NEAR(values_of(optimizer.slot_tensors(0)[parameter.bucket])[parameter.offset + i], first, 1e-12)
          << parameter.info.name;
      ASSERT_NEAR(values_of(optimizer.slot_tensors(1)[parameter.bucket])[parameter.offset + i], second, 1e-12)
          << parameter.info.name;
    }
  }
}

// Signum as in Bernstein et al. 2018, with decoupled weight decay, element by element, in fp64.
TEST(Signum, FollowsAHandWrittenReferenceForOneStepAndForTwenty) {
  OptimizerConfig config{.kind = OptimizerKind::signum};
  config.weight_decay = 0.3;
  const auto rate = [](int64_t step) { return step % 2 == 0 ? 1e-2 : 3e-2; };
  const auto factor = [](int64_t step) { return step % 3 == 0 ? 1 : 0.25; };
  for (const int64_t steps : {1, 20}) {
    ParameterStore store(tiny_model(), at::kDouble, at::kCPU);
    store.initialize(7);
    std::vector<std::vector<double>> begin;
    for (const Parameter& parameter : store.parameters()) begin.push_back(values_of(store.master(parameter)));
    const std::unique_ptr<Optimizer> optimizer = make_optimizer(store, config, zero_slots(store, config.kind));
    ASSERT_EQ(optimizer->num_slots(), 1U);
    for (int64_t step = 0; step < steps; ++step) {
      set_gradients(store, step);
      optimizer->step({.number = step + 1, .learning_rate = rate(step), .gradient_factor = factor(step)});
    }
    for (int64_t p = 0; p < static_cast<int64_t>(store.parameters().size()); ++p) {
      const Parameter& parameter = store.parameters()[p];
      const std::vector<double> weights = values_of(store.master(parameter));
      const std::vector<double> momenta = values_of(optimizer->slot_tensors(0)[parameter.bucket]);
      const bool is_matrix = parameter.info.shape.size() > 1;
      for (int64_t i = 0; i < parameter.info.num_elements(); ++i) {
        double weight = begin[p][i], momentum = 0;
        for (int64_t step = 0; step < steps; ++step) {
          momentum = config.beta1 * momentum + (1 - config.beta1) * factor(step) * gradient_value(p, i, step);
          const double sign = momentum > 0 ? 1 : momentum < 0 ? -1 : 0;
          weight -= rate(step) * (sign + (is_matrix ? config.weight_decay : 0) * weight);
        }
        ASSERT_NEAR(weights[i], weight, 1e-12) << parameter.info.name << "[" << i << "] after " << steps;
        ASSERT_NEAR(momenta[parameter.offset + i], momentum, 1e-12) << parameter.info.name;
      }
    }
  }
}

TEST(AdamW, PublishesTheRoundedWeights) {
  ParameterStore store(tiny_model(), at::kBFloat16, at::kCPU);
  store.initialize(7);
  AdamW optimizer(store, OptimizerConfig{}, zero_slots(store));
  for (const Bucket& bucket : store.buckets()) bucket.gradient.fill_(1);
  optimizer.step({.number = 1, .learning_rate = 0.1});
  for (const Parameter& parameter : store.parameters()) {
    EXPECT_TRUE(parameter.weight.equal(store.master(parameter).to(at::kBFloat16))) << parameter.info.name;
  }
}

TEST(AdamW, TheNormIsThatOfAllGradients) {
  ParameterStore store(tiny_model(), at::kDouble, at::kCPU);
  const AdamW optimizer(store, OptimizerConfig{}, zero_slots(store));
  set_gradients(store, 0);
  double sum = 0;
  for (int64_t p = 0; p < static_cast<int64_t>(store.parameters().size()); ++p) {
    for (int64_t i = 0; i < store.parameters()[p].info.num_elements(); ++i) sum += std::pow(gradient_value(p, i, 0), 2);
  }
  EXPECT_NEAR(optimizer.squared_gradient_norm().value(), sum, 1e-12);
}

// Uses the sum of a parameter's gradient, which a part of the parameter could not compute, and has two slots that it
// does not change.
class WholeMatrices final : public Optimizer {
 public:
  static std::vector<OptimizerSlot> own_slots() {
    return {{"sum", DType::f32, CutUnit::matrix}, {"second", DType::f32}, {"third", DType::f32}};
  }
  WholeMatrices(ParameterStore& parameters, const std::vector<BucketState>& state)
      : Optimizer(parameters, own_slots(), state) {}

  mutable std::vector<std::string> names;

 private:
  void change(const UpdatedElements& elements, const WeightUpdate& update) const override {
    ASSERT_NE(elements.parameter, nullptr);
    EXPECT_EQ(elements.master.numel(), elements.parameter->info.num_elements());
    names.push_back(elements.parameter->info.name);
    elements.slots[0].add_(elements.gradient.sum());
    elements.master.sub_(elements.slots[0], update.learning_rate);
  }
};

TEST(Optimizer, WhereASlotNeedsWholeMatricesEachParameterIsUpdatedAtOnceAlsoWithAJournal) {
  ModelDescription model = tiny_model();
  model.vocab_size = 8192;  // more elements than the journal's pieces of divisible slots
  ASSERT_GT(model.vocab_size * model.hidden_size, UpdateJournal::piece_elements);
  std::vector<std::vector<double>> embeddings;
  for (const bool has_journal : {false, true}) {
    ParameterStore store(model, at::kFloat, at::kCPU);
    store.initialize(7);
    std::vector<BucketState> state(store.buckets().size());
    for (size_t b = 0; b < state.size(); ++b) {
      const at::Tensor& master = store.buckets()[b].master;
      for (size_t slot = 0; slot < WholeMatrices::own_slots().size(); ++slot) {
        state[b].slots.push_back(kernels::zeros({master.numel()}, at::kFloat, at::kCPU));
      }
    }
    WholeMatrices optimizer(store, state);
    std::vector<std::byte> memory(UpdateJournal::bytes(model.vocab_size * model.hidden_size, 3) + 64);
    UpdateJournal journal(std::span<std::byte>(memory).subspan(-reinterpret_cast<intptr_t>(memory.data()) & 63));
    for (int64_t number = 1; number < 3; ++number) {
      for (const Bucket& bucket : store.buckets()) bucket.gradient.copy_(bucket.master).add_(number);
      optimizer.step({.number = number, .learning_rate = 1e-3}, has_journal ? &journal : nullptr);
    }
    const size_t updates = 2 * store.parameters().size();
    EXPECT_EQ(optimizer.names.size(), updates);
    std::vector<double>& embedding = embeddings.emplace_back();
    const at::Tensor master = store.master(store.parameters().front());
    const auto* const first = static_cast<const float*>(master.data_ptr());
    embedding.assign(first, first + master.numel());
  }
  EXPECT_TRUE(embeddings[0] == embeddings[1]);
}

TEST(ClipFactor, BringsLongGradientsDownToTheLimit) {
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(4, 1), 0.25);
  EXPECT_EQ(clip_factor(4, 0), 1);
}

}  // namespace
}  // namespace copus
