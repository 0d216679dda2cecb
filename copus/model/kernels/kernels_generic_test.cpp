// Tests ATen's operators on the test device: products added to wider gradients, and attention.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "copus/model/kernels/kernel_implementations.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/model/memory/device_memory.h"
#include "copus/model/testing/reference_decoder.h"
#include "copus/model/testing/test_device.h"

namespace copus {
namespace {

using reference::relative_error;

// The gradient has a fraction that bfloat16 could not keep beside the product, a whole number.
TEST(KernelsGeneric, WeightGradientsAddUpInTheirOwnDtype) {
  at::manual_seed(21);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor dy = at::randint(-1, 2, {40, 24}, wide).to(test_device());
    const at::Tensor x = at::randint(-1, 2, {40, 16}, wide).to(test_device());
    const at::Tensor gradient = at::full({24, 16}, 1 + std::ldexp(1.0, -14), wide).to(test_device());
    const at::Tensor expected = gradient + 2 * at::mm(dy.t(), x);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      kernels::add_linear_weight_gradient(gradient, dy.to(dtype), x.to(dtype));
    }
    EXPECT_TRUE(gradient.equal(expected)) << dtype;
  }
}

// On a GPU, ATen's flash attention computes bfloat16 heads of 64 and 128. It must accept our views of one joint matrix,
// and fewer key/value heads than query heads. Our composition computes heads of 10, and other dtypes.
TEST(KernelsGeneric, AttentionMatchesAutogradWhateverTheOperator) {
  struct Case {
    at::ScalarType dtype;
    int64_t heads, kv_heads, head_dim, sequence;
    double tolerance;
  };
  for (const Case& c : {Case{at::kDouble, 4, 2, 10, 33, 1e-12}, Case{at::kFloat, 4, 4, 64, 33, 1e-5},
                        Case{at::kBFloat16, 6, 2, 64, 130, 2e-2}, Case{at::kBFloat16, 7, 1, 64, 64, 2e-2},
                        Case{at::kBFloat16, 4, 4, 128, 70, 2e-2}, Case{at::kBFloat16, 4, 2, 10, 33, 2e-2}}) {
    SCOPED_TRACE(testing::Message() << c.dtype << ", " << c.heads << " heads of " << c.head_dim << " over "
                                    << c.kv_heads << ", sequence " << c.sequence);
    at::manual_seed(22);
    const kernels::AttentionShape shape{2, c.sequence, c.heads, c.kv_heads, c.head_dim};
    const int64_t rows = shape.batch * shape.sequence;
    const at::Tensor qkv = at::randn({rows, shape.row()}).to(test_device(), c.dtype);
    const at::Tensor dy = at::randn({rows, c.heads * c.head_dim}).to(test_device(), c.dtype);

    const at::Tensor leaf = qkv.to(at::kDouble).set_requires_grad(true);
    const at::Tensor all = leaf.view({2, c.sequence, c.heads + 2 * c.kv_heads, c.head_dim}).transpose(1, 2);
    const at::Tensor expected = reference::attention(all.narrow(1, 0, c.heads), all.narrow(1, c.heads, c.kv_heads),
                                                     all.narrow(1, c.heads + c.kv_heads, c.kv_heads))
                                    .transpose(1, 2)
                                    .reshape({rows, c.heads * c.head_dim});
    const at::Tensor expected_gradient = reference::gradients(expected, {leaf}, dy.to(at::kDouble))[0];

    const kernels::AttentionResult result = kernels::generic::attention(qkv, shape);
    EXPECT_EQ(result.output.scalar_type(), c.dtype);
    EXPECT_LE(relative_error(result.output, expected), c.tolerance);
    const at::Tensor gradient = kernels::generic::attention_backward(dy, qkv, result, shape);
    EXPECT_EQ(gradient.sizes(), qkv.sizes());
    EXPECT_LE(relative_error(gradient, expected_gradient), c.tolerance);
    EXPECT_TRUE(gradient.equal(kernels::generic::attention_backward(dy, qkv, result, shape))) << "it repeats bitwise";
  }
}

TEST(KernelsGeneric, WhatComesFromTheHostMayChangeAtOnce) {
  std::vector<int64_t> values(1000, 7);
  const at::Tensor there = kernels::from_host(values.data(), {10, 100}, test_device());
  std::fill(values.begin(), values.end(), 8);
  EXPECT_TRUE(there.eq(7).all().item<bool>());
  EXPECT_EQ(kernels::from_host(values.data(), {0}, test_device()).numel(), 0);
}

TEST(DeviceMemory, CountsTensorsAndSaysWhenThereIsNoMore) {
  install_caching_allocator();
  const DeviceMemory before = device_memory(test_device());
  reset_peak_device_memory(test_device());
  constexpr int64_t bytes = int64_t{1} << 22;
  at::Tensor tensor = kernels::empty({bytes}, at::kByte, test_device());
  EXPECT_EQ(device_memory(test_device()).used_bytes, before.used_bytes + bytes);
  tensor.reset();
  const DeviceMemory after = device_memory(test_device());
  EXPECT_EQ(after.used_bytes, before.used_bytes);
  EXPECT_EQ(after.peak_used_bytes, before.used_bytes + bytes);
  EXPECT_GE(after.reserved_bytes, after.used_bytes);
  EXPECT_EQ(after.total_bytes == 0, test_device().is_cpu());

  EXPECT_TRUE(fits_into_memory([&] { kernels::empty({bytes}, at::kByte, test_device()); }));
  if (test_device().is_cpu()) set_host_memory_limit(host_memory().reserved_bytes + bytes);
  EXPECT_FALSE(fits_into_memory([&] { kernels::empty({int64_t{1} << 45}, at::kByte, test_device()); }));
  set_host_memory_limit(0);
  const auto is_out_of_device_memory = [] {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "as a GPU's allocator says it");
  };
  EXPECT_FALSE(fits_into_memory(is_out_of_device_memory));
  EXPECT_THROW(fits_into_memory([] { TORCH_CHECK(false, "another mistake"); }), c10::Error);
}

}  // namespace
}  // namespace copus
