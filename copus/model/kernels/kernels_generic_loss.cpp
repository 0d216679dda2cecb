// The generic kernels for parts of a vocabulary: embedding and loss (kernel_implementations.h).
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "copus/description/model_description.h"
#include "copus/model/kernels/kernel_implementations.h"

namespace copus::kernels::generic {

at::Tensor soft_cap_slope(const at::Tensor& capped, double softcap) { return 1 - (capped / softcap).square(); }

namespace {

// For each token: whether it is in a part of the vocabulary, and its index in the part (a row or column). For tokens
// outside the part, the index is arbitrary but valid.
struct PartIndex {
  at::Tensor index, here;
};
PartIndex part_index(const at::Tensor& tokens, int64_t first_token, int64_t vocab) {
  const at::Tensor index = tokens - first_token;
  return {index.clamp(0, vocab - 1), index.ge(0).logical_and(index.lt(vocab))};
}

}  // namespace

at::Tensor embedding_part(const at::Tensor& weight, const at::Tensor& tokens, int64_t first_token) {
  const auto [index, here] = part_index(tokens, first_token, weight.size(0));
  return at::where(here.unsqueeze(1), at::embedding(weight, index), at::zeros({}, weight.options()));
}

void add_embedding_gradient(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& tokens,
                            int64_t first_token) {
  const auto [index, here] = part_index(tokens, first_token, gradient.size(0));
  gradient.index_put_({index}, at::where(here.unsqueeze(1), dy, at::zeros({}, dy.options())).to(gradient.scalar_type()),
                      true);
}

namespace {

// Returns the logits in the master dtype, soft-capped if softcap > 0.
at::Tensor capped(const at::Tensor& logits, double softcap) {
  const at::Tensor wide = logits.to(master_dtype(logits));
  return softcap > 0 ? soft_cap(wide, softcap) : wide;
}

}  // namespace

void cross_entropy_(const at::Tensor& logits, const at::Tensor& targets, double loss_scale, bool gradient,
                    const at::Tensor& loss_sum, double softcap) {
  const at::Tensor wide = capped(logits, softcap);
  const at::Tensor counted = targets.ne(ignored_target).unsqueeze(1);
  const at::Tensor index = targets.clamp_min(0).unsqueeze(1);
  const at::Tensor log_sum_exp = wide.logsumexp(1, true);
  const at::Tensor losses = (log_sum_exp - wide.gather(1, index)).to(at::kDouble);
  loss_sum.add_(at::where(counted, losses, at::zeros({}, losses.options())).sum());
  if (!gradient) return;
  at::Tensor dlogits = (wide - log_sum_exp).exp();
  dlogits.scatter_add_(1, index, at::ones({}, wide.options()).neg().expand({wide.size(0), 1}));
  if (softcap > 0) dlogits.mul_(soft_cap_slope(wide, softcap));
  logits.copy_(dlogits.mul_(loss_scale).mul_(counted));
}

at::Tensor softmax_statistics(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                              double softcap) {
  const at::Tensor wide = capped(logits, softcap);
  const auto [index, here] = part_index(targets, first_token, logits.size(1));
  const at::Tensor largest = wide.amax({1}, true);
  const at::Tensor target_logit =
      at::where(here.unsqueeze(1), wide.gather(1, index.unsqueeze(1)), at::zeros({}, wide.options()));
  return at::cat({largest, (wide - largest).exp().sum(1, true), target_logit}, 1).to(at::kDouble);
}

void cross_entropy_part_(const at::Tensor& logits, const at::Tensor& targets, int64_t first_token,
                         const at::Tensor& statistics, double loss_scale, bool gradient, const at::Tensor& loss_sum,
                         double softcap) {
  const at::Tensor counted = targets.ne(ignored_target);
  const at::Tensor part_largest = statistics.select(2, 0), largest = part_largest.amax({0});
  const at::Tensor sum = (statistics.select(2, 1) * (part_largest - largest).exp()).sum(0);
  const at::Tensor losses = sum.log() + (largest - statistics.select(2, 2).sum(0));
  loss_sum.add_(at::where(counted, losses, at::zeros({}, losses.options())).sum());
  if (!gradient) return;
  const at::ScalarType wide = master_dtype(logits);
  const at::Tensor values = capped(logits, softcap);
  const auto [index, here] = part_index(targets, first_token, logits.size(1));
  at::Tensor dlogits = (values - largest.to(wide).unsqueeze(1)).exp() / sum.to(wide).unsqueeze(1);
  dlogits.scatter_add_(1, index.unsqueeze(1), here.to(wide).neg().unsqueeze(1));
  if (softcap > 0) dlogits.mul_(soft_cap_slope(values, softcap));
  logits.copy_(dlogits.mul_(loss_scale).mul_(counted.unsqueeze(1)));
}

}  // namespace copus::kernels::generic
