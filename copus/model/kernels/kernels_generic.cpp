#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/description/model_description.h"
#include "copus/model/kernels/kernel_implementations.h"
#include "copus/model/kernels/part_timer.h"

namespace copus::kernels {

// ---- memory -------------------------------------------------------------------------------------------------------

at::Tensor empty(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  return at::empty(shape, at::TensorOptions().dtype(dtype).device(device));
}

at::Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  return at::zeros(shape, at::TensorOptions().dtype(dtype).device(device));
}

at::Tensor over_host_memory(void* data, at::IntArrayRef shape, at::ScalarType dtype, std::function<void()> release) {
  const auto release_data = [release = std::move(release)](void* /*data*/) { release(); };
  return at::from_blob(data, shape, release_data, at::TensorOptions().dtype(dtype));
}

// Copies to a GPU through pinned memory, so that the copy is asynchronous. ATen's allocator does not reuse this memory
// before the copy is done.
at::Tensor from_host(const int64_t* data, at::IntArrayRef shape, at::Device device) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kLong);
  const at::Tensor host = at::empty(shape, options.pinned_memory(!device.is_cpu()));
  std::copy_n(data, host.numel(), static_cast<int64_t*>(host.data_ptr()));
  return device.is_cpu() ? host : empty(shape, at::kLong, device).copy_(host, /*non_blocking=*/true);
}

Documents documents_from_host(const int64_t* starts, int64_t batch, int64_t sequence, at::Device device) {
  std::vector<int64_t> bounds;
  int64_t longest = 0;
  const auto end_document = [&](int64_t row) {
    if (!bounds.empty()) longest = std::max(longest, row - bounds.back());
    bounds.push_back(row);
  };
  for (int64_t row = 0; row < batch * sequence; ++row) {
    if (starts[row] == row % sequence) end_document(row);
  }
  end_document(batch * sequence);
  return {from_host(starts, {batch, sequence}, device),
          from_host(bounds.data(), {std::ssize(bounds)}, device).to(at::kInt), longest};
}

at::Tensor from_host(const double* data, at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  const at::Tensor view = at::from_blob(const_cast<double*>(data), shape, at::TensorOptions().dtype(at::kDouble));
  return empty(shape, dtype, device).copy_(view);
}

void copy_to_host(const at::Tensor& from, void* to) {
  at::from_blob(to, from.sizes(), at::TensorOptions().dtype(from.scalar_type())).copy_(from);
}

void copy_from_host(const void* from, const at::Tensor& to) {
  to.copy_(at::from_blob(const_cast<void*>(from), to.sizes(), at::TensorOptions().dtype(to.scalar_type())));
}

at::Tensor add(const at::Tensor& a, const at::Tensor& b) {
  const PartTimer timer(Part::elementwise);
  return at::add(a, b);
}

at::Tensor add_one(const at::Tensor& x) {
  const PartTimer timer(Part::elementwise);
  return at::add(x, 1);
}

at::Tensor multiply(const at::Tensor& x, double factor) {
  const PartTimer timer(Part::elementwise);
  return at::mul(x, factor);
}

at::Tensor soft_cap(const at::Tensor& logits, double softcap) {
  const PartTimer timer(Part::elementwise);
  return at::tanh(logits / softcap) * softcap;
}

// ---- linear layers ------------------------------------------------------------------------------------------------

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const PartTimer timer(Part::matmul);
  return bias.defined() ? at::addmm(bias, x, weight.t()) : at::mm(x, weight.t());
}

at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& weight) {
  const PartTimer timer(Part::matmul);
  return at::mm(dy, weight);
}

void linear_input_gradient_into(const at::Tensor& out, const at::Tensor& dy, const at::Tensor& weight) {
  const PartTimer timer(Part::matmul);
  at::Tensor target = out;
  at::mm_out(target, dy, weight);
}

namespace {

// Ways to add a product of bfloat16 matrices to a float32 matrix.
enum class WideSum {
  in_product,     // the product accumulates in the float32 elements, which are read and written once
  after_product,  // computes the product in float32, then adds it
  after_rounding  // computes the product in bfloat16, then adds it
};

void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, WideSum way) {
  at::Tensor target = sum;
  switch (way) {
    case WideSum::in_product:
      at::addmm_outf(sum, a, b, sum.scalar_type(), 1, 1, target);
      break;
    case WideSum::after_product:
      target.add_(at::mm(a, b, sum.scalar_type()));
      break;
    case WideSum::after_rounding:
      target.add_(at::mm(a, b));
      break;
  }
}

// Tests whether `way` adds a small matrix product to a float32 gradient without rounding to bfloat16: the exact sum
// fits into float32 but not into bfloat16. Throws if this libtorch or device lacks the operator.
bool is_exact(WideSum way, at::Device device) {
  constexpr int64_t rows = 64, in = 32, out = 48;
  const auto whole_numbers = [&](int64_t columns) {
    return at::arange(rows * columns, at::TensorOptions().dtype(at::kFloat).device(device))
        .remainder_(7)
        .sub_(3)
        .view({rows, columns});
  };
  const at::Tensor dy = whole_numbers(out), x = whole_numbers(in);
  const at::Tensor sum = at::empty({out, in}, dy.options()).fill_(1 + std::ldexp(1.0, -12));
  const at::Tensor expected = sum + at::mm(dy.t(), x);
  try {
    add_product(sum, dy.to(at::kBFloat16).t(), x.to(at::kBFloat16), way);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error&) {
    return false;
  }
  return sum.equal(expected);
}

// Returns the most exact WideSum that the process's devices support. All devices are of one type, so one test suffices.
// libtorch 2.11 and 2.13 for CUDA support all three. libtorch for ROCm may refuse products whose result type is wider
// than the factors', and then supports only the least exact WideSum.
WideSum wide_sum(at::Device device) {
  if (device.is_cpu()) return WideSum::after_rounding;
  static const WideSum best = [&] {
    for (const WideSum way : {WideSum::in_product, WideSum::after_product}) {
      if (is_exact(way, device)) return way;
    }
    return WideSum::after_rounding;
  }();
  return best;
}

}  // namespace

void add_linear_weight_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x) {
  const PartTimer timer(Part::matmul);
  if (gradient.scalar_type() == dy.scalar_type()) {
    gradient.addmm_(dy.t(), x);
  } else {
    add_product(gradient, dy.t(), x, wide_sum(dy.device()));
  }
}

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& tokens) {
  const PartTimer timer(Part::elementwise);
  return at::embedding(weight, tokens);
}

namespace generic {

void round_to(const at::Tensor& from, const at::Tensor& to) { to.copy_(from); }

}  // namespace generic

// ---- device -------------------------------------------------------------------------------------------------------

void synchronize(at::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

// Multiplies varying values: a GPU multiplies ones faster, because they need less power.
double time_matmul(int64_t n, at::ScalarType dtype, at::Device device) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat).device(device);
  const at::Tensor a = at::arange(n * n, options).remainder_(251).div_(251).sub_(0.5).to(dtype).view({n, n});
  at::Tensor out = at::mm(a, a);
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 5; ++round) {
    synchronize(device);
    const double start = monotonic_seconds();
    out = at::mm(a, a);
    synchronize(device);
    best = std::min(best, monotonic_seconds() - start);
  }
  return best;
}

namespace generic {
namespace {

struct Heads {
  at::Tensor query, key, value;  // views [batch, heads or kv_heads, sequence, head_dim]
};

Heads split_heads(const at::Tensor& qkv, const AttentionShape& s) {
  const at::Tensor rows = qkv.view({s.batch, s.sequence, s.heads + 2 * s.kv_heads, s.head_dim}).transpose(1, 2);
  return {rows.narrow(1, 0, s.heads), rows.narrow(1, s.heads, s.kv_heads),
          rows.narrow(1, s.heads + s.kv_heads, s.kv_heads)};
}

at::Tensor repeat_heads(const at::Tensor& tensor, int64_t times) { return tensor.repeat_interleave(times, 1); }

// Returns the mask, which is true where a query sees a key: [length_q, length_k], with documents [batch, 1, length_q,
// length_k]. The last query is at the position of the last key.
at::Tensor causal_mask(int64_t queries, int64_t keys, int64_t window, const at::Tensor& document_starts,
                       at::Device device) {
  const int64_t last = keys - queries;
  at::Tensor mask = at::ones({queries, keys}, at::TensorOptions().dtype(at::kBool).device(device)).tril(last);
  if (window > 0) mask = mask.triu(last - window + 1);
  if (!document_starts.defined()) return mask;
  const at::Tensor positions = at::arange(keys, document_starts.options());
  return mask.logical_and(positions >= document_starts.view({-1, 1, queries, 1}));
}

at::Tensor masked_scores(const at::Tensor& query, const at::Tensor& key, const AttentionShape& shape) {
  at::Tensor scores = at::matmul(query, key.transpose(2, 3)).to(master_dtype(query)) * shape.scale();
  if (shape.softcap > 0) scores = soft_cap(scores, shape.softcap);
  const at::Tensor mask = causal_mask(query.size(2), key.size(2), shape.window, shape.documents.starts, query.device());
  return scores.masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
}

// Selects ATen's attention operator for these heads; on GPUs there are several. The operators read query, key and value
// in place, and several query heads may share a key/value head. `math` stands for our own composition, which also
// computes cases that the operators do not support, such as float32.
//
// ATen selects by device, shape and determinism. If kernels must be deterministic (configure_aten), it selects flash
// attention on compute capabilities 8.0 to 12.1. (The backward pass of cuDNN in ATen is faster on 9.0 and 10.x, but its
// order of additions varies.) Before that, this function excludes shapes that the operators cannot handle without
// ATen's front end: heads of odd sizes, which the front end would pad, and heads of 192 to 256, for which flash
// attention lacks a backward pass on some devices.
at::SDPBackend attention_operator(const Heads& h, const AttentionShape& shape) {
  const int64_t head_dim = h.query.size(3);
  // These operators have neither windows nor soft-caps.
  if (shape.softcap > 0 || shape.has_window()) return at::SDPBackend::math;
  if (!h.query.is_cuda() || h.query.scalar_type() != at::kBFloat16) return at::SDPBackend::math;
  if (head_dim % 8 != 0 || (head_dim > 192 && head_dim != 256)) return at::SDPBackend::math;
  const auto choice = static_cast<at::SDPBackend>(at::_fused_sdp_choice(
      h.query, h.key, h.value, std::nullopt, 0.0, /*is_causal=*/true, std::nullopt, /*enable_gqa=*/true));
  const bool is_known = choice == at::SDPBackend::flash_attention || choice == at::SDPBackend::cudnn_attention;
  if (!is_known) return at::SDPBackend::math;
  // Flash attention supports whatever cuDNN does, and also documents of different lengths.
  return shape.documents.defined() ? at::SDPBackend::flash_attention : choice;
}

// Returns views of queries, keys and values by row: [batch * sequence, heads or kv_heads, head_dim].
Heads heads_of_rows(const at::Tensor& qkv, const AttentionShape& s) {
  const at::Tensor rows = qkv.view({s.batch * s.sequence, s.heads + 2 * s.kv_heads, s.head_dim});
  return {rows.narrow(1, 0, s.heads), rows.narrow(1, s.heads, s.kv_heads),
          rows.narrow(1, s.heads + s.kv_heads, s.kv_heads)};
}

// Converts [batch, heads, sequence, head_dim] to [batch * sequence, heads * head_dim]. Shares the argument's memory if
// the elements are already in this order.
at::Tensor join_heads(const at::Tensor& heads) {
  return heads.transpose(1, 2).reshape({heads.size(0) * heads.size(2), heads.size(1) * heads.size(3)});
}

}  // namespace

namespace {

// The query heads and the key heads of a matrix, one head per row, in new memory: [rows * heads, head_dim].
struct HeadRows {
  at::Tensor query, key;
};

HeadRows rows_of_heads(const at::Tensor& qkv, const AttentionShape& s) {
  const at::Tensor heads = qkv.view({-1, s.heads + 2 * s.kv_heads, s.head_dim});
  return {heads.narrow(1, 0, s.heads).reshape({-1, s.head_dim}),
          heads.narrow(1, s.heads, s.kv_heads).reshape({-1, s.head_dim})};
}

void put_heads(const at::Tensor& qkv, const AttentionShape& s, const HeadRows& rows) {
  const at::Tensor heads = qkv.view({-1, s.heads + 2 * s.kv_heads, s.head_dim});
  heads.narrow(1, 0, s.heads).copy_(rows.query.view({-1, s.heads, s.head_dim}));
  heads.narrow(1, s.heads, s.kv_heads).copy_(rows.key.view({-1, s.kv_heads, s.head_dim}));
}

}  // namespace

at::Tensor normalize_heads(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& query_weight,
                           const at::Tensor& key_weight, double epsilon) {
  const HeadRows rows = rows_of_heads(qkv, shape);
  at::Tensor result = qkv.clone();
  put_heads(result, shape,
            {add_norm(rows.query, {}, query_weight, {}, epsilon).normed,
             add_norm(rows.key, {}, key_weight, {}, epsilon).normed});
  return result;
}

void normalize_heads_backward_(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                               const at::Tensor& query_weight, const at::Tensor& key_weight, double epsilon,
                               const at::Tensor& query_weight_gradient, const at::Tensor& key_weight_gradient) {
  const HeadRows rows = rows_of_heads(qkv, shape), dy = rows_of_heads(gradient, shape);
  const auto backward = [&](const at::Tensor& of, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& weight_gradient) {
    const at::Tensor statistics = add_norm(x, {}, weight, {}, epsilon).statistics;
    return norm_backward(of, x, statistics, weight, {}, weight_gradient);
  };
  put_heads(gradient, shape,
            {backward(dy.query, rows.query, query_weight, query_weight_gradient),
             backward(dy.key, rows.key, key_weight, key_weight_gradient)});
}

namespace {

// Calls compute(part, x, weight, width) for a matrix's queries (part 0) and keys (part 1); x is a view.
template <class Compute>
void for_projections(const at::Tensor& qkv, const AttentionShape& s, const ProjectionNorm& norm, Compute compute) {
  const int64_t queries = s.heads * s.head_dim, keys = s.kv_heads * s.head_dim;
  compute(0, qkv.narrow(1, 0, queries), norm.query_weight, norm.query_width);
  compute(1, qkv.narrow(1, queries, keys), norm.key_weight, norm.key_width);
}

at::Tensor projection_rstd(const at::Tensor& squares, int64_t part, int64_t width, double epsilon) {
  return squares.narrow(1, part, 1).div(static_cast<double>(width)).add_(epsilon).rsqrt_();
}

}  // namespace

at::Tensor projection_squares(const at::Tensor& qkv, const AttentionShape& shape) {
  at::Tensor sums = at::empty({qkv.size(0), 2}, qkv.options().dtype(master_dtype(qkv)));
  for_projections(qkv, shape, {}, [&](int64_t part, const at::Tensor& x, const at::Tensor&, int64_t) {
    sums.select(1, part).copy_(x.to(sums.scalar_type()).square().sum(1));
  });
  return sums;
}

at::Tensor normalize_projections(const at::Tensor& qkv, const AttentionShape& shape, const ProjectionNorm& norm,
                                 const at::Tensor& squares) {
  at::Tensor result = qkv.clone();
  for_projections(result, shape, norm, [&](int64_t part, const at::Tensor& x, const at::Tensor& weight, int64_t width) {
    x.copy_(x.to(squares.scalar_type()) * projection_rstd(squares, part, width, norm.epsilon) * weight);
  });
  return result;
}

at::Tensor projection_products(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                               const ProjectionNorm& norm) {
  at::Tensor sums = at::empty({qkv.size(0), 2}, qkv.options().dtype(master_dtype(qkv)));
  const at::Tensor all_products = gradient.to(sums.scalar_type()) * qkv;
  for_projections(all_products, shape, norm,
                  [&](int64_t part, const at::Tensor& products, const at::Tensor& weight, int64_t) {
                    sums.select(1, part).copy_((products * weight).sum(1));
                  });
  return sums;
}

void normalize_projections_backward_(const at::Tensor& gradient, const at::Tensor& qkv, const AttentionShape& shape,
                                     const ProjectionNorm& norm, const at::Tensor& squares, const at::Tensor& products,
                                     const at::Tensor& query_weight_gradient, const at::Tensor& key_weight_gradient) {
  for_projections(
      gradient, shape, norm, [&](int64_t part, const at::Tensor& dy, const at::Tensor& weight, int64_t width) {
        const at::Tensor rstd = projection_rstd(squares, part, width, norm.epsilon);
        const at::Tensor x = qkv.narrow(1, part == 0 ? 0 : query_weight_gradient.numel(), dy.size(1));
        const at::Tensor normalized = x.to(squares.scalar_type()) * rstd, wide = dy.to(squares.scalar_type());
        (part == 0 ? query_weight_gradient : key_weight_gradient).add_((wide * normalized).sum(0));
        const at::Tensor projection = products.narrow(1, part, 1).div(static_cast<double>(width)) * rstd;
        dy.copy_((wide * weight - normalized * projection) * rstd);
      });
}

void rotary_(const at::Tensor& qkv, const AttentionShape& shape, const at::Tensor& cosine, const at::Tensor& sine,
             bool backward) {
  const int64_t half = cosine.size(1);
  const at::Tensor rotated = qkv.view({shape.batch, shape.sequence, shape.heads + 2 * shape.kv_heads, shape.head_dim})
                                 .narrow(2, 0, shape.heads + shape.kv_heads);
  const at::ScalarType wide = master_dtype(qkv);
  const at::Tensor first = rotated.narrow(3, 0, half).to(wide, false, true);
  const at::Tensor second = rotated.narrow(3, half, half).to(wide, false, true);
  const at::Tensor c = cosine.view({-1, shape.sequence, 1, half});
  const at::Tensor s = (backward ? -sine : sine).view({-1, shape.sequence, 1, half});
  rotated.narrow(3, 0, half).copy_(first * c - second * s);
  rotated.narrow(3, half, half).copy_(second * c + first * s);
}

namespace {

AttentionResult attention_by_math(const Heads& h, const AttentionShape& shape) {
  const int64_t shared = h.query.size(1) / h.key.size(1);
  const at::Tensor scores = masked_scores(h.query, repeat_heads(h.key, shared), shape);
  const at::Tensor weights = at::softmax(scores, 3).to(h.query.scalar_type());
  return {at::matmul(weights, repeat_heads(h.value, shared)), scores.logsumexp(3)};
}

Heads attention_backward_by_math(const at::Tensor& dy, const Heads& h, const at::Tensor& output,
                                 const at::Tensor& log_sum_exp, const AttentionShape& shape) {
  const int64_t shared = h.query.size(1) / h.key.size(1);
  const at::Tensor key = repeat_heads(h.key, shared), value = repeat_heads(h.value, shared);
  const at::ScalarType wide = master_dtype(dy), narrow = dy.scalar_type();
  const at::Tensor scores = masked_scores(h.query, key, shape), p = (scores - log_sum_exp.unsqueeze(3)).exp();
  const at::Tensor dp = at::matmul(dy, value.transpose(2, 3)).to(wide);
  const at::Tensor dot = (dy.to(wide) * output.to(wide)).sum(3, true);
  at::Tensor ds = p * (dp - dot) * shape.scale();
  // Masked scores are minus infinity; their gradient is 0.
  if (shape.softcap > 0) ds = ds * soft_cap_slope(scores.clamp_min(-shape.softcap), shape.softcap);
  ds = ds.to(narrow);
  const auto sum_shared = [&](const at::Tensor& gradient) {
    return gradient.unflatten(1, {h.key.size(1), shared}).sum(2).to(narrow);
  };
  return {at::matmul(ds, key), sum_shared(at::matmul(ds.transpose(2, 3), h.query)),
          sum_shared(at::matmul(p.to(narrow).transpose(2, 3), dy))};
}

// Attention within documents of different lengths, without scores across documents. If kernels must be deterministic,
// its backward pass repeats bitwise.
AttentionResult flash_attention_of_documents(const at::Tensor& qkv, const AttentionShape& shape) {
  const Heads h = heads_of_rows(qkv, shape);
  const auto& [starts, bounds, longest] = shape.documents;
  const auto all = at::_flash_attention_forward(h.query, h.key, h.value, bounds, bounds, longest, longest, 0.0,
                                                /*is_causal=*/true, /*return_debug_mask=*/false, shape.scale());
  return {std::get<0>(all).view({qkv.size(0), shape.heads * shape.head_dim}), std::get<1>(all)};
}

at::Tensor flash_attention_of_documents_backward(const at::Tensor& output_gradient, const at::Tensor& qkv,
                                                 const AttentionResult& forward, const AttentionShape& shape) {
  const Heads h = heads_of_rows(qkv, shape);
  const auto& [starts, bounds, longest] = shape.documents;
  const std::vector<int64_t> by_head{qkv.size(0), shape.heads, shape.head_dim};
  const at::Tensor state = empty({}, at::kLong, at::kCPU);  // read only with dropout
  const auto [query, key, value] = at::_flash_attention_backward(
      output_gradient.reshape(by_head), h.query, h.key, h.value, forward.output.view(by_head), forward.log_sum_exp,
      bounds, bounds, longest, longest, 0.0, /*is_causal=*/true, state, state, shape.scale());
  return at::cat({query.flatten(1), key.flatten(1), value.flatten(1)}, 1);
}

bool is_flash_attention_of_documents(const Heads& h, const AttentionShape& shape) {
  return shape.documents.defined() && attention_operator(h, shape) == at::SDPBackend::flash_attention;
}

}  // namespace

AttentionResult attention(const at::Tensor& qkv, const AttentionShape& shape) {
  const Heads h = split_heads(qkv, shape);
  if (is_flash_attention_of_documents(h, shape)) return flash_attention_of_documents(qkv, shape);
  AttentionResult result;
  switch (attention_operator(h, shape)) {
    case at::SDPBackend::flash_attention: {
      const auto all = at::_scaled_dot_product_flash_attention(h.query, h.key, h.value, 0.0, /*is_causal=*/true,
                                                               /*return_debug_mask=*/false, shape.scale());
      result = {std::get<0>(all), std::get<1>(all)};
      break;
    }
    case at::SDPBackend::cudnn_attention: {
      const auto all = at::_scaled_dot_product_cudnn_attention(h.query, h.key, h.value, std::nullopt,
                                                               /*compute_log_sumexp=*/true, 0.0, /*is_causal=*/true,
                                                               /*return_debug_mask=*/false, shape.scale());
      result = {std::get<0>(all), std::get<1>(all)};
      break;
    }
    default:
      result = attention_by_math(h, shape);
  }
  result.output = join_heads(result.output);
  return result;
}

at::Tensor attention_backward(const at::Tensor& output_gradient, const at::Tensor& qkv, const AttentionResult& forward,
                              const AttentionShape& shape) {
  const Heads h = split_heads(qkv, shape);
  if (is_flash_attention_of_documents(h, shape)) {
    return flash_attention_of_documents_backward(output_gradient, qkv, forward, shape);
  }
  const auto per_head = [&](const at::Tensor& rows) {
    return rows.view({shape.batch, shape.sequence, shape.heads, shape.head_dim}).transpose(1, 2);
  };
  const at::Tensor dy = per_head(output_gradient), output = per_head(forward.output);
  // Only dropout reads the random state, and only packed sequences the offsets.
  const at::Tensor state = empty({}, at::kLong, at::kCPU), none;
  Heads d;
  switch (attention_operator(h, shape)) {
    case at::SDPBackend::flash_attention:
      std::tie(d.query, d.key, d.value) = at::_scaled_dot_product_flash_attention_backward(
          dy, h.query, h.key, h.value, output, forward.log_sum_exp, none, none, shape.sequence, shape.sequence, 0.0,
          /*is_causal=*/true, state, state, shape.scale());
      break;
    case at::SDPBackend::cudnn_attention:
      std::tie(d.query, d.key, d.value) = at::_scaled_dot_product_cudnn_attention_backward(
          dy, h.query, h.key, h.value, output, forward.log_sum_exp, state, state, none, none, none, shape.sequence,
          shape.sequence, 0.0, /*is_causal=*/true, shape.scale());
      break;
    default:
      d = attention_backward_by_math(dy, h, output, forward.log_sum_exp, shape);
  }
  return at::cat({join_heads(d.query), join_heads(d.key), join_heads(d.value)}, 1);
}

void add_linear_bias_gradient(const at::Tensor& gradient, const at::Tensor& dy) {
  gradient.add_(dy.sum(0, false, gradient.scalar_type()));
}

void adamw_(const AdamWState<at::Tensor>& state, const at::Tensor& gradient, const AdamWStep& step) {
  const auto& [master, exp_avg, exp_avg_sq] = state;
  const at::Tensor scaled = gradient * step.gradient_scale;
  exp_avg.mul_(step.beta1).add_(scaled, 1 - step.beta1);
  exp_avg_sq.mul_(step.beta2).addcmul_(scaled, scaled, 1 - step.beta2);
  const at::Tensor denominator = at::sqrt(exp_avg_sq).mul_(1 / std::sqrt(step.bias_correction2)).add_(step.epsilon);
  master.mul_(1 - step.lr * step.weight_decay).addcdiv_(exp_avg, denominator, -step.lr / step.bias_correction1);
}

void signum_(const at::Tensor& master, const at::Tensor& momentum, const at::Tensor& gradient, const SignumStep& step) {
  momentum.mul_(step.beta).add_(gradient * step.gradient_scale, 1 - step.beta);
  master.mul_(1 - step.lr * step.weight_decay).add_(at::sign(momentum), -step.lr);
}

void muon_(const at::Tensor& master, const at::Tensor& average, const at::Tensor& direction, const at::Tensor& gradient,
           const MuonStep& step) {
  average.mul_(step.momentum).add_(gradient * step.gradient_scale, 1 - step.momentum);
  master.mul_(1 - step.lr * step.weight_decay).add_(direction, -step.lr);
  direction.zero_();
}

at::Tensor weighted_sum(const at::Tensor& first, double first_weight, const at::Tensor& second, double second_weight) {
  return (first * first_weight).add_(second, second_weight);
}

at::Tensor map_singular_values(const at::Tensor& matrix, std::span<const QuinticPolynomial> polynomials,
                               at::ScalarType dtype) {
  constexpr double smallest_norm = 1e-30;  // keeps a zero matrix zero
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = (matrix / matrix.norm().clamp_min(smallest_norm)).to(dtype);
  if (is_tall) x = x.t().contiguous();
  for (const QuinticPolynomial& polynomial : polynomials) {
    const at::Tensor square = at::mm(x, x.t());
    const at::Tensor factor = at::addmm(square, square, square, polynomial.b, polynomial.c);
    x = at::addmm(x, factor, x, polynomial.a, 1);
  }
  if (is_tall) x = x.t().contiguous();
  return x.to(matrix.scalar_type());
}

ExactSum squared_norm(const at::Tensor& flat, int64_t begin, int64_t end) {
  ExactSum sum;
  for (int64_t from = begin; from < end;) {
    // The first and the last block may be partial. One call sums all whole blocks between them.
    const int64_t whole = (end - from) / squared_norm_block * squared_norm_block;
    const bool aligned = from % squared_norm_block == 0 && whole > 0;
    const int64_t next_cut = (from / squared_norm_block + 1) * squared_norm_block;
    const int64_t count = aligned ? whole : std::min(end, next_cut) - from;
    const at::Tensor blocks = flat.narrow(0, from, count).square().view({-1, aligned ? squared_norm_block : count});
    const at::Tensor sums = blocks.sum(1, false, at::kDouble).to(at::kCPU);
    for (int64_t i = 0; i < sums.numel(); ++i) sum.add(static_cast<const double*>(sums.data_ptr())[i]);
    from += count;
  }
  return sum;
}

}  // namespace generic

at::Tensor cached_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionShape& shape) {
  const PartTimer timer(Part::attention);
  const int64_t shared = query.size(1) / key.size(1);
  const at::Tensor scores = generic::masked_scores(query, generic::repeat_heads(key, shared), shape);
  const at::Tensor weights = at::softmax(scores, 3).to(query.scalar_type());
  return at::matmul(weights, generic::repeat_heads(value, shared)).transpose(1, 2).flatten(2);
}

}  // namespace copus::kernels
