// Tests every kernel, fused and generic, on the test device with random shapes, against autograd through a plain
// formula in float64.
#include "copus/model/kernels/kernels.h"

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "copus/model/kernels/kernel_implementations.h"
#include "copus/model/testing/reference_decoder.h"
#include "copus/model/testing/test_device.h"

namespace copus {
namespace {

using kernels::AttentionShape;
using reference::gradients;
using reference::relative_error;

// float64 has 53 bits; sums of some thousand terms lose a few of its 16 digits.
constexpr double float64_tolerance = 1e-12;
// float32 has 24 bits; the error of a sum grows with the square root of some thousand terms.
constexpr double float32_tolerance = 3e-6;
// bfloat16 stores 8 bits; every stored intermediate adds half a unit, 2^-9.
constexpr double bfloat16_tolerance = 1e-2;

double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? float64_tolerance : dtype == at::kFloat ? float32_tolerance : bfloat16_tolerance;
}

at::ScalarType master(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

at::TensorOptions on_device(at::ScalarType dtype) { return at::TensorOptions(dtype).device(test_device()); }

class Kernels : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(20260101); }

  static at::ScalarType dtype() { return GetParam(); }
  // Returns random float64 values that the dtype represents exactly.
  static at::Tensor random(at::IntArrayRef shape) {
    return at::randn(shape, at::kFloat).to(test_device(), dtype()).to(at::kDouble);
  }
  static at::Tensor narrow(const at::Tensor& tensor) { return tensor.detach().to(dtype(), false, true).contiguous(); }
  static void expect_close(const at::Tensor& ours, const at::Tensor& expected, const std::string& what) {
    EXPECT_LE(relative_error(ours, expected), tolerance(dtype())) << what;
  }
};

TEST_P(Kernels, Norms) {
  for (const auto& [rows, width] : {std::pair{1, 8}, {70, 24}, {129, 64}, {65, 100}, {200, 7}}) {
    for (const auto& [with_delta, is_layer] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      SCOPED_TRACE(testing::Message() << (is_layer ? "LayerNorm of " : "RMSNorm of ") << rows << " x " << width);
      const at::Tensor residual = random({rows, width}).set_requires_grad(true);
      const at::Tensor delta = random({rows, width});
      const at::Tensor weight = random({width}).set_requires_grad(true), bias = random({width});
      const at::Tensor dy = random({rows, width}), upstream = random({rows, width});
      const at::Tensor sum =
          with_delta ? narrow(residual + delta).to(at::kDouble) + (residual - residual.detach()) : residual;
      const at::Tensor normed =
          is_layer ? reference::layer_norm(sum, weight, bias, 1e-5) : reference::rms_norm(sum, weight, 1e-5);
      const auto expected = gradients(normed, {residual, weight}, dy);
      for (const bool generic : {false, true}) {
        const auto forward = generic ? kernels::generic::add_norm : kernels::add_norm;
        const auto backward = generic ? kernels::generic::norm_backward : kernels::norm_backward;
        const auto result = forward(narrow(residual), with_delta ? narrow(delta) : at::Tensor(), narrow(weight),
                                    is_layer ? narrow(bias) : at::Tensor(), 1e-5);
        expect_close(result.normed, normed, "normed");
        at::Tensor weight_gradient = at::ones({width}, on_device(master(dtype())));
        const at::Tensor dx =
            backward(narrow(dy), result.sum, result.statistics, narrow(weight), narrow(upstream), weight_gradient);
        expect_close(dx, expected[0] + upstream, "input gradient");
        expect_close(weight_gradient - 1, expected[1], "weight gradient");
      }
    }
  }
}

struct AttentionCase {
  int64_t batch, sequence, heads, kv_heads, head_dim, window = 0;
  double multiplier = 0;
  double rotated_share = 1;
  double softcap = 0;
};

// Fewer and more heads than a GPU block has warps. Heads shorter than one pack per warp, equal to it, and longer; 256
// is the longest that the GPU's backward kernel accepts.
TEST_P(Kernels, NormsOfHeads) {
  for (const AttentionCase& c : {AttentionCase{1, 1, 1, 1, 2},
                                 {2, 35, 2, 2, 6},
                                 {1, 16, 4, 2, 16},
                                 {1, 70, 12, 3, 20},
                                 {1, 17, 3, 1, 128},
                                 {1, 17, 9, 2, 250},
                                 {1, 17, 3, 1, 256},
                                 {1, 3, 2, 1, 300}}) {
    SCOPED_TRACE(testing::Message() << c.heads << " heads of " << c.head_dim);
    const AttentionShape shape{c.batch, c.sequence, c.heads, c.kv_heads, c.head_dim};
    const int64_t rows = c.batch * c.sequence;
    const at::Tensor qkv = random({rows, shape.row()}).set_requires_grad(true);
    const at::Tensor query_weight = random({c.head_dim}).set_requires_grad(true);
    const at::Tensor key_weight = random({c.head_dim}).set_requires_grad(true);
    const at::Tensor heads = qkv.view({rows, c.heads + 2 * c.kv_heads, c.head_dim});
    const at::Tensor normed = at::cat({reference::rms_norm(heads.narrow(1, 0, c.heads), query_weight, 1e-5),
                                       reference::rms_norm(heads.narrow(1, c.heads, c.kv_heads), key_weight, 1e-5),
                                       heads.narrow(1, c.heads + c.kv_heads, c.kv_heads)},
                                      1)
                                  .flatten(1);
    const at::Tensor dy = random({rows, shape.row()});
    const auto expected = gradients(normed, {qkv, query_weight, key_weight}, dy);
    for (const bool generic : {false, true}) {
      const auto forward = generic ? kernels::generic::normalize_heads : kernels::normalize_heads;
      const auto backward = generic ? kernels::generic::normalize_heads_backward_ : kernels::normalize_heads_backward_;
      expect_close(forward(narrow(qkv), shape, narrow(query_weight), narrow(key_weight), 1e-5), normed, "normed");
      const at::Tensor gradient = narrow(dy);
      const at::Tensor of_query = at::ones({c.head_dim}, on_device(master(dtype())));
      const at::Tensor of_key = at::ones({c.head_dim}, on_device(master(dtype())));
      backward(gradient, narrow(qkv), shape, narrow(query_weight), narrow(key_weight), 1e-5, of_query, of_key);
      expect_close(gradient, expected[0], "gradient");
      expect_close(of_query - 1, expected[1], "gradient of the queries' weight");
      expect_close(of_key - 1, expected[2], "gradient of the keys' weight");
    }
  }
}

// As on two ranks with different query heads and the same key heads, which only the first rank counts.
TEST_P(Kernels, NormsOfProjections) {
  for (const AttentionCase& c :
       {AttentionCase{1, 1, 1, 1, 2}, {2, 35, 2, 2, 6}, {1, 70, 12, 3, 20}, {1, 17, 3, 1, 128}}) {
    SCOPED_TRACE(testing::Message() << c.heads << " heads of " << c.head_dim);
    const AttentionShape shape{c.batch, c.sequence, c.heads, c.kv_heads, c.head_dim};
    const int64_t rows = c.batch * c.sequence, queries = c.heads * c.head_dim, keys = c.kv_heads * c.head_dim;
    const at::Tensor qkv = random({rows, shape.row()}).set_requires_grad(true);
    // The other rank's queries have the same widths; only their sums matter here.
    const at::Tensor other = random({rows, queries});
    const at::Tensor query_weight = random({queries}).set_requires_grad(true);
    const at::Tensor key_weight = random({keys}).set_requires_grad(true);
    const at::Tensor all_queries = at::cat({qkv.narrow(1, 0, queries), other}, 1);
    const at::Tensor all_weights = at::cat({query_weight, at::zeros({queries}, query_weight.options())});
    const at::Tensor normed = at::cat(
        {reference::rms_norm(all_queries, all_weights, 1e-5).narrow(1, 0, queries),
         reference::rms_norm(qkv.narrow(1, queries, keys), key_weight, 1e-5), qkv.narrow(1, queries + keys, keys)},
        1);
    const at::Tensor dy = random({rows, shape.row()});
    const auto expected = gradients(normed, {qkv, query_weight, key_weight}, dy);
    const kernels::ProjectionNorm norm{narrow(query_weight), narrow(key_weight), 2 * queries, keys, 1e-5};
    for (const bool generic : {false, true}) {
      namespace other_kernels = kernels::generic;
      const auto squares_of = generic ? other_kernels::projection_squares : kernels::projection_squares;
      const auto forward = generic ? other_kernels::normalize_projections : kernels::normalize_projections;
      const auto products_of = generic ? other_kernels::projection_products : kernels::projection_products;
      const auto backward =
          generic ? other_kernels::normalize_projections_backward_ : kernels::normalize_projections_backward_;
      const at::Tensor squares = squares_of(narrow(qkv), shape);
      squares.select(1, 0).add_(other.square().sum(1));
      expect_close(forward(narrow(qkv), shape, norm, squares), normed, "normed");
      const at::Tensor gradient = narrow(dy);
      const at::Tensor of_query = at::ones({queries}, on_device(master(dtype())));
      const at::Tensor of_key = at::ones({keys}, on_device(master(dtype())));
      const at::Tensor products = products_of(gradient, narrow(qkv), shape, norm);
      backward(gradient, narrow(qkv), shape, norm, squares, products, of_query, of_key);
      expect_close(gradient, expected[0], "gradient");
      expect_close(of_query - 1, expected[1], "gradient of the queries' weight");
      expect_close(of_key - 1, expected[2], "gradient of the keys' weight");
    }
  }
}

TEST_P(Kernels, ActivationsAndTheirGradients) {
  for (const auto& [rows, width] : {std::pair{1, 4}, {33, 40}, {64, 176}, {5, 3}}) {
    for (const kernels::Activation kind :
         {kernels::Activation{ActivationFunction::silu, true}, kernels::Activation{ActivationFunction::silu, false},
          kernels::Activation{ActivationFunction::gelu_tanh, true},
          kernels::Activation{ActivationFunction::gelu_tanh, false},
          kernels::Activation{ActivationFunction::gelu, true}, kernels::Activation{ActivationFunction::gelu, false}}) {
      SCOPED_TRACE(testing::Message() << (kind.is_gated ? "gated " : "") << static_cast<int>(kind.function));
      const at::Tensor input = (random({rows, int64_t{kind.is_gated ? 2 : 1} * width}) * 4).set_requires_grad(true);
      const at::Tensor dy = random({rows, width}), gate = input.narrow(1, 0, width);
      at::Tensor activation = kind.function == ActivationFunction::silu
                                  ? at::silu(gate)
                                  : at::gelu(gate, kind.function == ActivationFunction::gelu ? "none" : "tanh");
      if (kind.is_gated) activation = activation * input.narrow(1, width, width);
      const at::Tensor expected = gradients(activation, {input}, dy)[0];
      for (const bool generic : {false, true}) {
        const auto forward = generic ? kernels::generic::activate : kernels::activate;
        const auto backward = generic ? kernels::generic::activate_backward : kernels::activate_backward;
        expect_close(forward(narrow(input), kind), activation, "activation");
        const auto result = backward(narrow(dy), narrow(input), kind);
        expect_close(result.input, expected, "gradient");
        expect_close(result.activation, activation, "activation again");
      }
    }
  }
}

TEST_P(Kernels, RotaryAndAttention) {
  // Sizes around the block of 64 and the group of 8, with and without shared key heads. Head dimensions that are not
  // multiples of vector widths.
  for (const AttentionCase& c : {AttentionCase{1, 1, 1, 1, 2},
                                 {2, 7, 2, 2, 6},
                                 {1, 64, 4, 2, 16},
                                 {2, 65, 4, 1, 64},
                                 {1, 130, 2, 2, 20},
                                 {1, 200, 6, 3, 128},
                                 {3, 24, 2, 1, 10},
                                 // Windows of one position, within a block, of a block, across its edge, of several
                                 // blocks, and longer than the sequence.
                                 {2, 70, 2, 1, 6, 1},
                                 {1, 200, 2, 1, 16, 5},
                                 {1, 200, 2, 2, 16, 64},
                                 {1, 200, 2, 1, 16, 65},
                                 {2, 330, 2, 1, 8, 130},
                                 {1, 130, 2, 2, 8, 131},
                                 // Other scales.
                                 {2, 65, 4, 2, 16, 0, 0.1},
                                 {2, 70, 2, 1, 6, 9, 0.7},
                                 // Soft-caps far below some of the scores, also with windows.
                                 {2, 7, 2, 2, 6, 0, 0, 1, 2.5},
                                 {2, 65, 4, 2, 16, 0, 3.0, 1, 1.5},
                                 {1, 200, 2, 1, 16, 65, 0, 1, 0.7},
                                 // Heads that rotate only partly.
                                 {2, 7, 2, 2, 16, 0, 0, 0.75},
                                 {1, 66, 4, 1, 10, 0, 0, 0.2}}) {
    const AttentionShape shape{c.batch, c.sequence, c.heads, c.kv_heads, c.head_dim, c.window, c.multiplier, c.softcap};
    const int64_t rows = c.batch * c.sequence,
                  half = std::lround(static_cast<double>(c.head_dim) * c.rotated_share) / 2;
    const at::Tensor qkv = random({rows, shape.row()}).set_requires_grad(true);
    const at::Tensor angle = at::rand({c.sequence, half}, at::kDouble).to(test_device()) * 6;
    const at::Tensor cosine = angle.cos().to(master(dtype())), sine = angle.sin().to(master(dtype()));
    const at::Tensor heads = qkv.view({c.batch, c.sequence, c.heads + 2 * c.kv_heads, c.head_dim}).transpose(1, 2);
    // Rounds values stored between the two kernels to the dtype; the gradient passes through unchanged.
    const auto stored = [&](const at::Tensor& x) { return x + (narrow(x).to(at::kDouble) - x).detach(); };
    const at::Tensor query = stored(reference::rotate(heads.narrow(1, 0, c.heads), cosine, sine));
    const at::Tensor key = stored(reference::rotate(heads.narrow(1, c.heads, c.kv_heads), cosine, sine));
    const at::Tensor value = heads.narrow(1, c.heads + c.kv_heads, c.kv_heads);
    const at::Tensor output = reference::attention(query, key, value, c.window, c.multiplier, c.softcap)
                                  .transpose(1, 2)
                                  .flatten(2)
                                  .flatten(0, 1);
    const at::Tensor dy = random({rows, c.heads * c.head_dim});
    const at::Tensor expected = gradients(output, {qkv}, dy)[0];
    for (const bool generic : {false, true}) {
      SCOPED_TRACE(testing::Message() << "sequence " << c.sequence << " head_dim " << c.head_dim << " generic "
                                      << generic);
      const auto rotate = generic ? kernels::generic::rotary_ : kernels::rotary_;
      const at::Tensor rotated = narrow(qkv);
      rotate(rotated, shape, cosine, sine, false);
      const auto result = generic ? kernels::generic::attention(rotated, shape) : kernels::attention(rotated, shape);
      expect_close(result.output, output, "output");
      const at::Tensor gradient = generic ? kernels::generic::attention_backward(narrow(dy), rotated, result, shape)
                                          : kernels::attention_backward(narrow(dy), rotated, result, shape);
      rotate(gradient, shape, cosine, sine, true);
      expect_close(gradient, expected, "gradient");
    }
  }
}

// Makes documents of these lengths, which together fill the sequences.
kernels::Documents documents_of(const std::vector<std::vector<int64_t>>& lengths, int64_t sequence) {
  std::vector<int64_t> starts;
  for (const std::vector<int64_t>& of_sequence : lengths) {
    int64_t start = 0;
    for (const int64_t length : of_sequence) {
      starts.insert(starts.end(), length, start);
      start += length;
    }
  }
  return kernels::documents_from_host(starts.data(), std::ssize(lengths), sequence, test_device());
}

TEST(Documents, BoundsAreThoseOfAllSequences) {
  const kernels::Documents documents = documents_of({{1, 1, 5, 3}, {10}, {4, 6}}, 10);
  EXPECT_TRUE(documents.bounds.cpu().equal(at::tensor({0, 1, 2, 7, 10, 20, 24, 30}, at::kInt)));
  EXPECT_EQ(documents.longest, 10) << "documents end with their sequence";
  EXPECT_TRUE(documents.starts[0].cpu().equal(at::tensor({0, 1, 2, 2, 2, 2, 2, 7, 7, 7}, at::kLong)));
  EXPECT_EQ(documents_of({{2, 3}, {1, 4}}, 5).longest, 4);
}

TEST_P(Kernels, DocumentsAttendToThemselvesAlone) {
  // Documents of one token, within a block, ending with a block, across its edges, and over several blocks. The two
  // sequences of a batch are split differently.
  const std::vector<std::vector<int64_t>> cuts = {{1, 1, 5, 57, 1, 64, 71}, {130, 3, 67}};
  // GPUs have a kernel for heads of 16 elements in bf16 without a window.
  for (const auto& [window, head_dim] : {std::pair{0, 12}, {0, 16}, {1, 12}, {40, 12}, {70, 12}}) {
    AttentionShape shape{2, 200, 4, 2, head_dim, window};
    shape.documents = documents_of(cuts, shape.sequence);
    const at::Tensor qkv = random({shape.batch * shape.sequence, shape.row()}).set_requires_grad(true);
    const at::Tensor heads = qkv.view({shape.batch, shape.sequence, -1, shape.head_dim}).transpose(1, 2);
    std::vector<at::Tensor> outputs;
    for (int64_t row = 0; row < shape.batch; ++row) {
      int64_t first = 0;
      for (const int64_t length : cuts[row]) {
        const at::Tensor document = heads.narrow(0, row, 1).narrow(2, first, length);
        outputs.push_back(
            reference::attention(document.narrow(1, 0, 4), document.narrow(1, 4, 2), document.narrow(1, 6, 2), window)
                .transpose(1, 2)
                .flatten(2)
                .flatten(0, 1));
        first += length;
      }
    }
    const at::Tensor output = at::cat(outputs);
    const at::Tensor dy = random({shape.batch * shape.sequence, shape.heads * shape.head_dim});
    const at::Tensor expected = gradients(output, {qkv}, dy)[0];
    for (const bool generic : {false, true}) {
      SCOPED_TRACE(testing::Message() << "window " << window << " head_dim " << head_dim << " generic " << generic);
      const auto result =
          generic ? kernels::generic::attention(narrow(qkv), shape) : kernels::attention(narrow(qkv), shape);
      expect_close(result.output, output, "output");
      expect_close(generic ? kernels::generic::attention_backward(narrow(dy), narrow(qkv), result, shape)
                           : kernels::attention_backward(narrow(dy), narrow(qkv), result, shape),
                   expected, "gradient");
    }
  }
}

// Attention whose backward pass handles some sequences at a time (placement/attention_workspace.h). A CPU would take
// minutes.
TEST(LongAttention, RepeatsBitwiseAndKnowsNoOtherSequences) {
  if (test_device().is_cpu()) GTEST_SKIP() << "for a GPU: COPUS_TEST_DEVICE";
  at::manual_seed(31);
  for (const AttentionShape& shape : {AttentionShape{3, 4096, 16, 2, 128}, AttentionShape{4, 2048, 14, 2, 64}}) {
    const int64_t rows = shape.batch * shape.sequence, width = shape.heads * shape.head_dim;
    const at::TensorOptions options = at::TensorOptions().dtype(at::kBFloat16).device(test_device());
    const at::Tensor qkv = at::randn({rows, shape.row()}, options), dy = at::randn({rows, width}, options);
    EXPECT_EQ(kernels::on_cudnn::takes_attention(qkv, shape), kernels::on_cudnn::is_for(test_device()));
    const auto result = kernels::attention(qkv, shape);
    const at::Tensor gradient = kernels::attention_backward(dy, qkv, result, shape);
    const auto expected = kernels::generic::attention(qkv, shape);
    // Two computations in bfloat16 differ by rounding.
    EXPECT_LE(relative_error(result.output, expected.output), 1e-2);
    EXPECT_LE(relative_error(result.log_sum_exp, expected.log_sum_exp), 1e-4);
    EXPECT_LE(relative_error(gradient, kernels::generic::attention_backward(dy, qkv, expected, shape)), 1e-2);
    for (int repetition = 0; repetition < 5; ++repetition) {
      EXPECT_TRUE(kernels::attention(qkv, shape).output.equal(result.output));
      EXPECT_TRUE(kernels::attention_backward(dy, qkv, result, shape).equal(gradient));
    }
    AttentionShape one = shape;
    one.batch = 1;
    const at::Tensor last_qkv = qkv.narrow(0, rows - shape.sequence, shape.sequence);
    const auto last = kernels::attention(last_qkv, one);
    EXPECT_TRUE(last.output.equal(result.output.narrow(0, rows - shape.sequence, shape.sequence)));
    const at::Tensor last_dy = dy.narrow(0, rows - shape.sequence, shape.sequence);
    EXPECT_TRUE(kernels::attention_backward(last_dy, last_qkv, last, one)
                    .equal(gradient.narrow(0, rows - shape.sequence, shape.sequence)));
  }
}

TEST_P(Kernels, CachedAttentionIsTheEndOfFullAttention) {
  for (const auto& [window, softcap] : {std::pair{0, 0.0}, {1, 0.0}, {5, 0.0}, {19, 0.0}, {30, 0.0}, {5, 1.2}}) {
    const AttentionShape shape{2, 19, 4, 2, 8, window, 0, softcap};
    const at::Tensor qkv = random({shape.batch * shape.sequence, shape.row()});
    const at::Tensor heads = narrow(qkv).view({2, 19, 8, 8}).transpose(1, 2);
    const at::Tensor full = kernels::attention(narrow(qkv), shape).output.view({2, 19, 32});
    const at::Tensor last = kernels::cached_attention(heads.narrow(1, 0, 4).narrow(2, 16, 3), heads.narrow(1, 4, 2),
                                                      heads.narrow(1, 6, 2), shape);
    expect_close(last, full.narrow(1, 16, 3), "last positions");
  }
}

TEST_P(Kernels, CrossEntropy) {
  for (const auto& [rows, vocab, softcap] : {std::tuple{1, 2, 0.0},
                                             {50, 256, 0.0},
                                             {33, 1000, 0.0},
                                             {17, 31, 0.0},
                                             {1, 2, 5.0},
                                             {33, 1000, 2.0},
                                             {17, 31, 30.0}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << vocab << ", soft-cap " << softcap);
    const at::Tensor logits = (random({rows, vocab}) * 3).set_requires_grad(true);
    at::Tensor targets = at::randint(vocab, {rows}, at::kLong).to(test_device());
    if (rows > 1) targets[rows / 2] = ignored_target;
    const at::Tensor capped = softcap > 0 ? softcap * at::tanh(logits / softcap) : logits;
    const at::Tensor loss = reference::loss(capped.unsqueeze(0), targets.unsqueeze(0));
    const at::Tensor expected = gradients(loss, {logits})[0] * 0.25;
    if (softcap > 0) expect_close(kernels::soft_cap(narrow(logits), softcap), capped, "capped");
    for (const bool generic : {false, true}) {
      const auto kernel = generic ? kernels::generic::cross_entropy_ : kernels::cross_entropy_;
      const at::Tensor sum = at::ones({}, on_device(at::kDouble)), values = narrow(logits);
      kernel(values, targets, 0.25, false, sum, softcap);
      EXPECT_TRUE(values.equal(narrow(logits))) << "without gradient the logits stay";
      expect_close(sum - 1, loss, "loss");
      kernel(values, targets, 0.25, true, sum, softcap);
      expect_close((sum - 1) / 2, loss, "loss");
      expect_close(values, expected, "gradient");
    }
  }
}

TEST_P(Kernels, CrossEntropyPassesOnWhatIsNotFinite) {
  for (const double bad : {std::nan(""), static_cast<double>(INFINITY)}) {
    const at::Tensor logits = narrow(random({3, 40}));
    logits[1][7] = bad;
    const at::Tensor sum = at::zeros({}, on_device(at::kDouble));
    kernels::cross_entropy_(logits, at::tensor({1, 2, 3}, at::kLong).to(test_device()), 1.0, true, sum);
    EXPECT_FALSE(std::isfinite(sum.item<double>()));
  }
}

TEST_P(Kernels, LinearAndEmbedding) {
  const at::Tensor x = random({37, 24}).set_requires_grad(true), weight = random({40, 24}).set_requires_grad(true);
  const at::Tensor bias = random({40}).set_requires_grad(true), dy = random({37, 40});
  const at::Tensor y = at::matmul(x, weight.t()) + bias;
  const auto expected = gradients(y, {x, weight, bias}, dy);
  expect_close(kernels::linear(narrow(x), narrow(weight), narrow(bias)), y, "output");
  expect_close(kernels::linear_input_gradient(narrow(dy), narrow(weight)), expected[0], "input gradient");
  const at::Tensor weight_gradient = at::ones({40, 24}, on_device(master(dtype())));
  kernels::add_linear_weight_gradient(weight_gradient, narrow(dy), narrow(x));
  expect_close(weight_gradient - 1, expected[1], "weight gradient");
  const at::Tensor bias_gradient = at::ones({40}, on_device(master(dtype())));
  kernels::add_linear_bias_gradient(bias_gradient, narrow(dy));
  expect_close(bias_gradient - 1, expected[2], "bias gradient");

  const at::Tensor tokens = at::randint(40, {37}, at::kLong).to(test_device());
  expect_close(kernels::embedding(narrow(weight), tokens), at::embedding(weight, tokens), "embedding");
  const at::Tensor row_gradient = random({37, 24});
  const at::Tensor table_gradient = gradients(at::embedding(weight, tokens), {weight}, row_gradient)[0];
  for (const bool generic : {false, true}) {
    const auto kernel = generic ? kernels::generic::add_embedding_gradient : kernels::add_embedding_gradient;
    const at::Tensor gradient = at::ones({40, 24}, on_device(master(dtype())));
    kernel(gradient, narrow(row_gradient), tokens, 0);
    expect_close(gradient - 1, table_gradient, "embedding gradient");
  }
}

// The vocabulary is split into three parts of different sizes, one of a single token.
TEST_P(Kernels, PartsOfTheVocabularyMakeTheWhole) {
  const int64_t vocab = 131, rows = 37;
  const std::vector<int64_t> begin = {0, 64, 65, vocab};
  const at::Tensor table = random({vocab, 24}), dy = random({rows, 24});
  const at::Tensor tokens = at::randint(vocab, {rows}, at::kLong).to(test_device());
  tokens[3] = 64;
  at::Tensor targets = tokens.roll(1);
  targets[rows / 2] = ignored_target;
  const at::Tensor leaf = table.clone().set_requires_grad(true);
  const at::Tensor table_gradient = gradients(at::embedding(leaf, tokens), {leaf}, dy)[0];
  for (const auto& [generic, softcap] : {std::pair{false, 0.0}, {true, 0.0}, {false, 2.0}, {true, 2.0}}) {
    SCOPED_TRACE(testing::Message() << "generic " << generic << ", soft-cap " << softcap);
    const at::Tensor logits = (random({rows, vocab}) * 3).set_requires_grad(true);
    const at::Tensor capped = softcap > 0 ? softcap * at::tanh(logits / softcap) : logits;
    const at::Tensor loss = reference::loss(capped.unsqueeze(0), targets.unsqueeze(0));
    const at::Tensor logits_gradient = gradients(loss, {logits})[0] * 0.25;
    const auto look_up = generic ? kernels::generic::embedding_part : kernels::embedding_part;
    const auto add_gradient = generic ? kernels::generic::add_embedding_gradient : kernels::add_embedding_gradient;
    const auto statistics_of = generic ? kernels::generic::softmax_statistics : kernels::softmax_statistics;
    const auto cross_entropy = generic ? kernels::generic::cross_entropy_part_ : kernels::cross_entropy_part_;
    const auto part_of = [&](const at::Tensor& whole, int64_t dimension, size_t part) {
      return narrow(whole.narrow(dimension, begin[part], begin[part + 1] - begin[part]));
    };
    at::Tensor embedded = at::zeros({rows, 24}, on_device(at::kDouble));
    std::vector<at::Tensor> statistics;
    for (size_t part = 0; part < 3; ++part) {
      embedded += look_up(part_of(table, 0, part), tokens, begin[part]);
      const at::Tensor gradient = at::ones({begin[part + 1] - begin[part], 24}, on_device(master(dtype())));
      add_gradient(gradient, narrow(dy), tokens, begin[part]);
      expect_close(gradient - 1, table_gradient.narrow(0, begin[part], gradient.size(0)), "embedding gradient");
      statistics.push_back(statistics_of(part_of(logits, 1, part), targets, begin[part], softcap));
    }
    EXPECT_TRUE(embedded.equal(at::embedding(table, tokens)));
    for (size_t part = 0; part < 3; ++part) {
      const at::Tensor values = part_of(logits, 1, part), sum = at::ones({}, on_device(at::kDouble));
      cross_entropy(values, targets, begin[part], at::stack(statistics), 0.25, false, sum, softcap);
      EXPECT_TRUE(values.equal(part_of(logits, 1, part))) << "without gradient the logits stay";
      expect_close(sum - 1, loss, "loss");
      cross_entropy(values, targets, begin[part], at::stack(statistics), 0.25, true, sum, softcap);
      expect_close((sum - 1) / 2, loss, "loss");
      expect_close(values, logits_gradient.narrow(1, begin[part], values.size(1)), "gradient");
    }
  }
}

TEST_P(Kernels, APartPassesOnWhatIsNotFinite) {
  const at::Tensor targets = at::tensor({1, 2, 3}, at::kLong).to(test_device());
  for (const double bad : {std::nan(""), static_cast<double>(INFINITY)}) {
    const at::Tensor first = narrow(random({3, 20})), second = narrow(random({3, 20}));
    second[1][7] = bad;
    const at::Tensor statistics =
        at::stack({kernels::softmax_statistics(first, targets, 0), kernels::softmax_statistics(second, targets, 20)});
    const at::Tensor sum = at::zeros({}, on_device(at::kDouble));
    kernels::cross_entropy_part_(first, targets, 0, statistics, 1.0, true, sum);
    EXPECT_FALSE(std::isfinite(sum.item<double>()));
  }
}

TEST_P(Kernels, ResultsDoNotDependOnTheNumberOfThreads) {
  const AttentionShape shape{2, 70, 4, 2, 16};
  const at::Tensor qkv = narrow(random({140, shape.row()})), dy = narrow(random({140, 64}));
  const at::Tensor weight = narrow(random({64}));
  const auto run = [&](int64_t threads) {
    kernels::set_num_threads(threads);
    const auto result = kernels::attention(qkv, shape);
    const at::Tensor weight_gradient = at::zeros({64}, on_device(master(dtype())));
    const auto norm = kernels::add_norm(result.output, dy, weight, {}, 1e-5);
    const at::Tensor dx = kernels::norm_backward(dy, norm.sum, norm.statistics, weight, dy, weight_gradient);
    const at::Tensor gradient = kernels::attention_backward(dx, qkv, result, shape);
    return at::cat({gradient.flatten().to(at::kDouble), weight_gradient.to(at::kDouble),
                    at::full({1}, kernels::squared_norm(weight_gradient.repeat({1000}), 0, 64000).value(),
                             on_device(at::kDouble))});
  };
  const int64_t before = kernels::num_threads();
  const at::Tensor one = run(1), two = run(2), three = run(3);
  kernels::set_num_threads(before);
  EXPECT_TRUE(one.equal(two));
  EXPECT_TRUE(one.equal(three));
}

INSTANTIATE_TEST_SUITE_P(, Kernels, testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& parameter) { return std::string(c10::toString(parameter.param)); });

TEST(AdamW, MatchesItsDefinitionInFloat64) {
  at::manual_seed(7);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    for (const bool generic : {false, true}) {
      const at::Tensor start = at::randn({1000}, at::kDouble).to(test_device(), dtype);
      at::Tensor ours = start.clone(), m = at::zeros({1000}, on_device(dtype)), v = at::zeros({1000}, on_device(dtype));
      at::Tensor expected = start.to(at::kDouble), mean = at::zeros({1000}, on_device(at::kDouble)),
                 square = mean.clone();
      for (int t = 1; t <= 5; ++t) {
        const at::Tensor gradient = at::randn({1000}, at::kDouble).to(test_device(), dtype);
        const kernels::AdamWStep step{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.5, 1 - std::pow(0.9, t), 1 - std::pow(0.95, t)};
        (generic ? kernels::generic::adamw_ : kernels::adamw_)({ours, m, v}, gradient, step);
        const at::Tensor scaled = gradient.to(at::kDouble) * 0.5;
        mean = 0.9 * mean + 0.1 * scaled;
        square = 0.95 * square + 0.05 * scaled * scaled;
        expected = expected * (1 - 1e-3) -
                   1e-2 * (mean / step.bias_correction1) / ((square / step.bias_correction2).sqrt() + 1e-8);
      }
      EXPECT_LE(relative_error(ours, expected), tolerance(dtype));
    }
  }
}

TEST(AdamW, DoesNotDependOnTheNumberOfThreads) {
  at::manual_seed(9);
  const at::Tensor start = at::randn({100003}).to(test_device()), gradient = at::randn({100003}).to(test_device());
  const kernels::AdamWStep step{1e-2, 0.9, 0.95, 1e-8, 0.1, 0.37, 0.1, 0.05};
  const auto run = [&](int64_t threads) {
    kernels::set_num_threads(threads);
    const at::Tensor master = start.clone(), mean = start.flip(0), square = start.square();
    kernels::adamw_({master, mean, square}, gradient, step);
    return at::cat({master, mean, square});
  };
  const int64_t before = kernels::num_threads();
  const at::Tensor one = run(1), two = run(2), three = run(3);
  kernels::set_num_threads(before);
  EXPECT_TRUE(one.equal(two));
  EXPECT_TRUE(one.equal(three));
}

TEST(Signum, MatchesItsDefinitionInFloat64) {
  at::manual_seed(7);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    for (const bool generic : {false, true}) {
      const at::Tensor start = at::randn({1003}, at::kDouble).to(test_device(), dtype);
      at::Tensor ours = start.clone(), m = at::zeros({1003}, on_device(dtype));
      at::Tensor expected = start.to(at::kDouble), momentum = at::zeros({1003}, on_device(at::kDouble));
      for (int t = 1; t <= 5; ++t) {
        at::Tensor gradient = at::randn({1003}, at::kDouble).to(test_device(), dtype);
        gradient.narrow(0, 500, 10).zero_();  // zero momentum has no sign
        (generic ? kernels::generic::signum_ : kernels::signum_)(ours, m, gradient, {1e-2, 0.9, 0.1, 0.5});
        momentum = 0.9 * momentum + 0.1 * 0.5 * gradient.to(at::kDouble);
        expected = expected - 1e-2 * (momentum.sign() + 0.1 * expected);
      }
      EXPECT_LE(relative_error(ours, expected), tolerance(dtype));
      EXPECT_LE(relative_error(m, momentum), tolerance(dtype));
    }
  }
}

TEST(Muon, UpdateMatchesItsDefinitionInFloat64) {
  at::manual_seed(7);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    for (const bool generic : {false, true}) {
      const at::Tensor start = at::randn({1003}, at::kDouble).to(test_device(), dtype);
      const at::Tensor ours = start.clone(), average = at::zeros({1003}, on_device(dtype));
      at::Tensor expected = start.to(at::kDouble), momentum = at::zeros({1003}, on_device(at::kDouble));
      for (int t = 1; t <= 5; ++t) {
        const at::Tensor gradient = at::randn({1003}, at::kDouble).to(test_device(), dtype);
        const at::Tensor direction = at::randn({1003}, at::kDouble).to(test_device(), dtype);
        expected = expected - 1e-2 * (direction.to(at::kDouble) + 0.1 * expected);
        momentum = 0.9 * momentum + 0.1 * 0.5 * gradient.to(at::kDouble);
        (generic ? kernels::generic::muon_ : kernels::muon_)(ours, average, direction, gradient, {1e-2, 0.9, 0.1, 0.5});
        EXPECT_EQ(direction.count_nonzero().item<int64_t>(), 0);
      }
      EXPECT_LE(relative_error(ours, expected), tolerance(dtype));
      EXPECT_LE(relative_error(average, momentum), tolerance(dtype));
    }
  }
}

// ZeRO splits parameters at any element, which must not change any bit.
TEST(Muon, SplitsChangeNoBit) {
  at::manual_seed(8);
  const at::Tensor start = at::randn({1003}, at::kFloat).to(test_device());
  const at::Tensor gradient = at::randn({1003}, at::kFloat).to(test_device());
  const auto updated = [&](const std::vector<int64_t>& cuts) {
    std::vector<at::Tensor> state = {start.clone(), start * 0.3, start * 0.7};  // master, average, direction
    at::Tensor ahead = at::empty_like(start);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const auto part = [&](const at::Tensor& tensor) { return tensor.narrow(0, cuts[i], cuts[i + 1] - cuts[i]); };
      part(ahead).copy_(kernels::weighted_sum(part(state[1]), 0.9, part(gradient), 0.1));
      kernels::muon_(part(state[0]), part(state[1]), part(state[2]), part(gradient), {1e-2, 0.9, 0.1, 0.5});
    }
    state.push_back(ahead);
    return state;
  };
  const std::vector<at::Tensor> whole = updated({0, 1003});
  for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{0, 1, 1003}, {0, 64, 131, 1000, 1003}}) {
    const std::vector<at::Tensor> split = updated(cuts);
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(split[i].equal(whole[i])) << i;
  }
  EXPECT_LE(relative_error(whole[3], 0.9 * 0.3 * start.to(at::kDouble) + 0.1 * gradient.to(at::kDouble)), 1e-6);
}

TEST(Muon, MapsSingularValuesAndKeepsSingularVectors) {
  at::manual_seed(9);
  const std::vector<QuinticPolynomial> polynomials = newton_schulz_polynomials(NewtonSchulz::polar_express, 12);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{7, 7}, {5, 12}, {12, 5}}) {
    const at::Tensor matrix = at::randn(shape, at::kDouble).to(test_device());
    const auto [u, s, v] = at::linalg_svd(matrix, /*full_matrices=*/false);
    const at::Tensor orthogonal = u.matmul(v);  // after so many iterations all singular values are 1
    EXPECT_LE(relative_error(kernels::map_singular_values(matrix, polynomials, at::kDouble), orthogonal), 1e-6);
    const at::Tensor in_fp32 = kernels::map_singular_values(matrix.to(at::kFloat), polynomials, at::kFloat);
    EXPECT_LE(relative_error(in_fp32, orthogonal), 1e-4);
  }
}

TEST(SquaredNorm, MatchesFloat64) {
  at::manual_seed(8);
  for (const int64_t size : {1, 63, 64, 16384, 100003}) {
    const at::Tensor values = at::randn({size + 7}, at::kFloat).to(test_device());
    const double expected = values.narrow(0, 5, size).to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(kernels::squared_norm(values, 5, 5 + size).value() / expected, 1, 1e-6) << size;
    EXPECT_NEAR(kernels::generic::squared_norm(values, 5, 5 + size).value() / expected, 1, 1e-6) << size;
  }
}

TEST(SquaredNorm, CutsAtBlocksChangeNoBit) {
  at::manual_seed(9);
  const at::Tensor values = at::randn({10000}, at::kFloat).to(test_device());
  const auto norm_of = [&](auto kernel) {
    const double whole = kernel(values, 10, 9999).value();
    for (const int64_t cut : {64, 640, 9984}) {
      ExactSum sum = kernel(values, cut, 9999);
      sum.add(kernel(values, 10, cut));
      EXPECT_EQ(sum.value(), whole) << cut;
    }
  };
  norm_of(kernels::squared_norm);
  norm_of(kernels::generic::squared_norm);
}

}  // namespace
}  // namespace copus
