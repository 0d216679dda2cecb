// Tests the GPU kernels on the emulated device, with sizes that kernels_test.cpp lacks and with misaligned memory,
// against the generic kernels in float64.
#include "copus/model/gpu/kernels.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "copus/model/gpu/emulated_device.h"
#include "copus/model/gpu/optimizer.h"
#include "copus/model/kernels/kernel_implementations.h"
#include "copus/model/testing/reference_decoder.h"

namespace copus {
namespace {

namespace generic = kernels::generic;
using reference::relative_error;

struct Case {
  at::ScalarType dtype;
  bool aligned;
};

class GpuKernels : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { at::manual_seed(20261122); }
  // Every test must have launched a GPU kernel.
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_GT(gpu::emulated::device().launches, launches_);
  }

  // Returns random float64 values that the dtype represents exactly.
  static at::Tensor random(at::IntArrayRef shape) {
    return at::randn(shape, at::kFloat).to(GetParam().dtype).to(at::kDouble);
  }
  // Copies values in the dtype to contiguous memory that begins at a multiple of 16 bytes, or one element after that.
  static at::Tensor place(const at::Tensor& values, at::ScalarType dtype) {
    const int64_t offset = GetParam().aligned ? 0 : 1;
    const at::Tensor placed = at::empty({values.numel() + offset}, dtype).narrow(0, offset, values.numel());
    return placed.view(values.sizes()).copy_(values);
  }
  static at::Tensor narrow(const at::Tensor& values) { return place(values, GetParam().dtype); }
  static at::Tensor master(const at::Tensor& values) { return place(values, at::kFloat); }
  static void expect_close(const at::Tensor& ours, const at::Tensor& expected, const std::string& what) {
    EXPECT_LE(relative_error(ours, expected), GetParam().dtype == at::kFloat ? 3e-6 : 1e-2) << what;
  }

 private:
  const int64_t launches_ = gpu::emulated::device().launches;
};

// Widths for one thread, for partial warps, for every number of packs per thread, and too wide for the registers.
TEST_P(GpuKernels, Norm) {
  for (const auto& [rows, width] :
       {std::pair{1, 3}, {3, 24}, {65, 72}, {17, 104}, {3, 1001}, {2, 2048}, {2, 4096}, {2, 8192}, {2, 8200}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << width);
    const at::Tensor residual = random({rows, width}), delta = random({rows, width}), weight = random({width});
    const at::Tensor dy = random({rows, width}), upstream = random({rows, width});
    const at::Tensor some_bias = random({width});
    for (const auto& [second, is_layer] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      const at::Tensor bias = is_layer ? some_bias : at::Tensor();
      const auto result = kernels::add_norm(narrow(residual), second ? narrow(delta) : at::Tensor(), narrow(weight),
                                            is_layer ? narrow(bias) : at::Tensor(), 1e-5);
      const at::Tensor sum = second ? at::add(narrow(residual), narrow(delta)) : narrow(residual);
      EXPECT_TRUE(result.sum.equal(sum));
      const auto expected = generic::add_norm(sum.to(at::kDouble), {}, weight, bias, 1e-5);
      expect_close(result.normed, expected.normed, "normed");
      const at::Tensor weight_gradient = master(at::ones({width})), wide = at::ones({width}, at::kDouble);
      const at::Tensor dx =
          kernels::norm_backward(narrow(dy), narrow(sum.to(at::kDouble)), result.statistics, narrow(weight),
                                 second ? narrow(upstream) : at::Tensor(), weight_gradient);
      const at::Tensor expected_dx = generic::norm_backward(dy, sum.to(at::kDouble), expected.statistics, weight,
                                                            second ? upstream : at::Tensor(), wide);
      expect_close(dx, expected_dx, "input gradient");
      expect_close(weight_gradient - 1, wide - 1, "weight gradient");
    }
  }
}

TEST_P(GpuKernels, ColumnSumsOfManyRows) {
  for (const auto& [rows, width] : {std::pair{1, 3}, {1024, 72}, {1025, 8}, {2600, 70}}) {
    const at::Tensor dy = random({rows, width}), gradient = master(at::ones({width}));
    kernels::add_linear_bias_gradient(gradient, narrow(dy));
    expect_close(gradient - 1, dy.sum(0), "sums");
  }
}

// Heads of the usual sizes, and more heads than a thread rotates.
TEST_P(GpuKernels, Rotary) {
  for (const int64_t head_dim : {2, 10, 64, 80, 128, 512}) {
    const kernels::AttentionShape shape{2, 5, 7, 3, head_dim};
    const at::Tensor qkv = random({10, shape.row()});
    for (const bool backward : {false, true}) {
      const at::Tensor ours = narrow(qkv), expected = qkv.clone(), angle = at::rand({5, head_dim / 2}, at::kDouble) * 6;
      kernels::rotary_(ours, shape, master(angle.cos()), master(angle.sin()), backward);
      generic::rotary_(expected, shape, angle.cos(), angle.sin(), backward);
      expect_close(ours, expected, "rotated by " + std::to_string(head_dim));
    }
  }
}

TEST_P(GpuKernels, Activations) {
  for (const auto& [rows, width] : {std::pair{1, 1}, {3, 8}, {2, 1001}, {2, 4864}}) {
    for (const kernels::Activation kind :
         {kernels::Activation{ActivationFunction::silu, true}, kernels::Activation{ActivationFunction::gelu_tanh, true},
          kernels::Activation{ActivationFunction::gelu_tanh, false},
          kernels::Activation{ActivationFunction::gelu, true}, kernels::Activation{ActivationFunction::gelu, false}}) {
      const at::Tensor input = random({rows, int64_t{kind.is_gated ? 2 : 1} * width}) * 4, dy = random({rows, width});
      const at::Tensor stored = narrow(input), stored_dy = narrow(dy);
      const auto expected = generic::activate_backward(dy, stored.to(at::kDouble), kind);
      expect_close(kernels::activate(stored, kind), expected.activation, "activation");
      const auto result = kernels::activate_backward(stored_dy, stored, kind);
      expect_close(result.input, expected.input, "gradient");
      expect_close(result.activation, expected.activation, "activation again");
    }
  }
}

// Few and many tokens, in one sort tile or several. Tokens are distinct, Zipf-distributed or equal, so that a token's
// rows are in one tile of sums, in two or in many.
TEST_P(GpuKernels, EmbeddingGradient) {
  const int64_t vocab = 1009;
  for (const auto& [rows, width] : {std::pair{1, 8}, {3, 5}, {65, 24}, {1100, 8}, {70, 2100}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << width);
    const at::Tensor dy = random({rows, width});
    const at::Tensor zipf = at::rand({rows}, at::kDouble).mul(std::log(vocab)).exp().to(at::kLong) - 1;
    const at::Tensor same = at::full({rows}, 700, at::kLong);
    const std::pair<at::Tensor, int64_t> cases[] = {{at::randperm(rows, at::kLong) % vocab, 5}, {zipf, 0}, {same, 5}};
    for (const auto& [tokens, first_token] : cases) {
      const at::Tensor part = random({vocab - 15, width});
      const at::Tensor gradient = master(part), expected = part.clone();
      kernels::add_embedding_gradient(gradient, narrow(dy), tokens, first_token);
      generic::add_embedding_gradient(expected, dy, tokens, first_token);
      expect_close(gradient - part, expected - part, "gradient");
      EXPECT_TRUE(kernels::embedding_part(narrow(part), tokens, first_token)
                      .equal(generic::embedding_part(narrow(part), tokens, first_token)));
    }
  }
}

// Rows with fewer columns than threads, and with so many that a thread reads several packs at once.
TEST_P(GpuKernels, CrossEntropy) {
  for (const auto& [rows, vocab, softcap] : {std::tuple{1, 2, 0.0},
                                             {3, 1000, 0.0},
                                             {65, 40, 0.0},
                                             {3, 2051, 0.0},
                                             {3, 20520, 0.0},
                                             {3, 1000, 2.0},
                                             {65, 41, 30.0}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << vocab << ", soft-cap " << softcap);
    const at::Tensor logits = random({rows, vocab}) * 3, targets = at::randint(vocab, {rows}, at::kLong);
    targets[0] = vocab - 1;
    if (rows > 1) targets[1] = ignored_target;
    if (rows > 2) logits[2].narrow(0, 0, vocab / 2).fill_(-INFINITY);
    const at::Tensor values = narrow(logits), expected = values.to(at::kDouble);
    const at::Tensor sum = at::ones({}, at::kDouble), expected_sum = sum.clone();
    if (rows > 2) targets[2] = vocab - 2;
    generic::cross_entropy_(expected, targets, 0.25, true, expected_sum, softcap);
    kernels::cross_entropy_(values, targets, 0.25, true, sum, softcap);
    expect_close(values, expected, "gradient");
    expect_close(sum, expected_sum, "loss");
  }
}

TEST_P(GpuKernels, RoundingIsThatOfAten) {
  at::Tensor values = at::randn({1003}, at::kFloat) * at::randn({1003}, at::kFloat).mul(30).exp();
  const std::vector<float> special = {NAN, INFINITY, -INFINITY, -0.0F, 1e-45F, 3.4e38F, 1.00390625F, 1.01171875F};
  for (size_t i = 0; i < special.size(); ++i) values[static_cast<int64_t>(i)] = special[i];
  for (const int64_t count : {1003, 1000}) {
    const at::Tensor from = master(values.narrow(0, 0, count)), to = place(at::zeros({count}), at::kBFloat16);
    kernels::round_to(from, to);
    EXPECT_TRUE(at::equal(at::nan_to_num(to, 7), at::nan_to_num(from.to(at::kBFloat16), 7)));
  }
}

TEST_P(GpuKernels, AdamW) {
  for (const int64_t count : {1, 1000, 1027}) {
    at::Tensor state[4], expected[4];
    for (int i = 0; i < 4; ++i) {
      expected[i] =
          i == 3 ? at::rand({count}, at::kFloat).to(at::kDouble) : at::randn({count}, at::kFloat).to(at::kDouble);
      state[i] = master(expected[i]);
    }
    const kernels::AdamWStep step{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, 0.19, 0.1};
    kernels::adamw_({state[0], state[2], state[3]}, state[1], step);
    generic::adamw_({expected[0], expected[2], expected[3]}, expected[1], step);
    for (int i = 0; i < 4; ++i) EXPECT_LE(relative_error(state[i], expected[i]), 3e-6) << count << ": " << i;
  }
}

TEST_P(GpuKernels, Signum) {
  for (const int64_t count : {1, 1000, 1027}) {
    at::Tensor state[3], expected[3];  // masters, gradients, momenta
    for (int i = 0; i < 3; ++i) {
      expected[i] = at::randn({count}, at::kFloat).to(at::kDouble);
      state[i] = master(expected[i]);
    }
    const kernels::SignumStep step{1e-2, 0.9, 0.1, 0.5};
    kernels::signum_(state[0], state[2], state[1], step);
    generic::signum_(expected[0], expected[2], expected[1], step);
    for (int i = 0; i < 3; ++i) EXPECT_LE(relative_error(state[i], expected[i]), 3e-6) << count << ": " << i;
  }
}

// float64 sums these squares exactly, so any order must give the CPU's words. They span all exponents.
TEST_P(GpuKernels, SquaredNormIsTheCpusToTheBit) {
  const int64_t count = 9001;
  const at::Tensor integers = at::randint(-2000, 2000, {count}, at::kFloat);
  const at::Tensor block = at::arange(count, at::kLong).div(64, "floor");
  for (const int64_t spread : {0, 1, 100}) {
    const at::Tensor scale = at::exp2((block * 37 % (2 * spread + 1) - spread).to(at::kDouble) / 2).to(at::kFloat);
    const at::Tensor exact = at::exp2(scale.log2().round()).to(at::kFloat);
    const at::Tensor values = master(integers * exact);
    for (const auto& [begin, end] :
         {std::pair<int64_t, int64_t>{0, count}, {5, count - 3}, {63, 65}, {4096, 8192}, {70, 71}, {8, 8}}) {
      const ExactSum ours = kernels::squared_norm(values, begin, end);
      const ExactSum cpu = kernels::on_cpu::squared_norm(values, begin, end);
      EXPECT_EQ(ours.value(), cpu.value()) << begin << " .. " << end << " spread " << spread;
      EXPECT_EQ(ours.words(), cpu.words());
    }
  }
}

// More tiles than blocks, as in every large model. A thread goes from its values in one tile to those in another, whose
// squares may be too large or too small for the thread's words.
TEST_P(GpuKernels, SquaredNormOfSeveralTilesABlock) {
  const int64_t blocks_of_values = 7 * gpu::squared_norm_threads, count = blocks_of_values * 64 - 5;
  const at::Tensor exponents = at::randint(-55, 51, {blocks_of_values}, at::kDouble).repeat_interleave(64);
  const at::Tensor values =
      master(at::randint(1, 2000, {count}, at::kDouble) * at::exp2(exponents).narrow(0, 0, count));
  const int64_t begin = 3, end = count - 2;
  ExactSum expected;
  expected.add(kernels::on_cpu::squared_norm(values, begin, end));
  const auto kernel =
      GetParam().aligned ? gpu::squared_norm_kernel<gpu::vector_width<float>> : gpu::squared_norm_kernel<1>;
  for (const int64_t blocks : {1, 2, 5}) {
    ExactSum words, sum;
    const gpu::SquaredNorm arguments{static_cast<const float*>(values.data_ptr()), begin, end, words.words().data()};
    gpu::launch(kernel, {blocks}, gpu::squared_norm_threads, nullptr, arguments);
    sum.add(words);
    EXPECT_EQ(sum.words(), expected.words()) << blocks << " blocks";
  }
}

// Sums rounded to float64 depend on the order of additions and on where blocks begin.
TEST_P(GpuKernels, SquaredNormRoundsAsTheCpu) {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl")) {
    GTEST_SKIP() << "the order is that of vectors which this processor lacks";
  }
  const at::Tensor values = master(at::randn({9001}, at::kFloat) * at::randn({9001}, at::kFloat).mul(12).exp());
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 9001}, {5, 8998}, {63, 65}, {70, 4170}}) {
    const ExactSum ours = kernels::squared_norm(values, begin, end);
    EXPECT_EQ(ours.words(), kernels::on_cpu::squared_norm(values, begin, end).words()) << begin << " .. " << end;
  }
}

TEST_P(GpuKernels, SquaredNormCountsWhatIsNotFinite) {
  at::Tensor values = at::ones({300}, at::kFloat);
  values[100] = INFINITY;
  EXPECT_EQ(kernels::squared_norm(master(values), 0, 300).value(), INFINITY);
  EXPECT_EQ(kernels::squared_norm(master(values), 0, 100).value(), 100);
  values[290] = NAN;
  EXPECT_TRUE(std::isnan(kernels::squared_norm(master(values), 0, 300).value()));
}

TEST_P(GpuKernels, NormSumAddsUpAndStartsAnew) {
  const at::Tensor values = master(at::full({500}, 2.0));
  kernels::NormSum sum(values.device());
  for (int round = 0; round < 2; ++round) {
    sum.add(values, 0, 100);
    sum.add(values, 100, 499);
    sum.add(values.to(at::kDouble), 499, 500);
    EXPECT_EQ(sum.take().value(), 2000);
  }
}

INSTANTIATE_TEST_SUITE_P(, GpuKernels,
                         testing::Values(Case{at::kFloat, true}, Case{at::kFloat, false}, Case{at::kBFloat16, true},
                                         Case{at::kBFloat16, false}),
                         [](const auto& parameter) {
                           return std::string(c10::toString(parameter.param.dtype)) +
                                  (parameter.param.aligned ? "" : "Unaligned");
                         });

}  // namespace
}  // namespace copus
