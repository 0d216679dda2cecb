#include "copus/train/optimizer.h"

#include <cmath>
#include <map>

#include "copus/model/kernels.h"

namespace copus {

namespace {

bool decays(const ParameterInfo& info) {
  return info.kind == ParameterKind::embedding || info.kind == ParameterKind::linear;
}

at::Tensor view_of(const at::Tensor& flat, const Parameter& parameter) {
  return flat.narrow(0, parameter.offset, parameter.info.num_elements()).view(parameter.info.shape);
}

}  // namespace

AdamW::AdamW(ParameterStore& parameters, const OptimizerConfig& config) : parameters_(parameters), config_(config) {
  const auto& buckets = parameters.buckets();
  for (int64_t b = 0; b < static_cast<int64_t>(buckets.size()); ++b) {
    if (!buckets[b].master.defined()) {  // a tied head, updated with its embedding
      moments_.emplace_back();
      continue;
    }
    const int64_t size = buckets[b].master.numel();
    moments_.push_back({buckets[b].master.new_zeros({size}), buckets[b].master.new_zeros({size})});
    // A range reaches to the next parameter: the padding between them has no gradient and stays zero.
    std::map<int64_t, bool> decays_from;  // by offset
    for (const int64_t index : buckets[b].parameters) {
      const Parameter& parameter = parameters.parameters()[index];
      decays_from[parameter.offset] = decays(parameter.info);
    }
    for (auto next = decays_from.begin(); next != decays_from.end();) {
      const auto [begin, decay] = *next;
      while (next != decays_from.end() && next->second == decay) ++next;
      ranges_.push_back({b, begin, next == decays_from.end() ? size : next->first, decay});
    }
  }
}

double AdamW::gradient_norm() const {
  double sum = 0;
  for (const Bucket& bucket : parameters_.buckets()) {
    if (bucket.master.defined()) sum += kernels::squared_norm(bucket.gradient);
  }
  return std::sqrt(sum);
}

void AdamW::step(double learning_rate, double gradient_factor) {
  ++steps_;
  kernels::AdamWStep step;
  step.lr = learning_rate;
  step.beta1 = config_.beta1;
  step.beta2 = config_.beta2;
  step.epsilon = config_.epsilon;
  step.bias_correction1 = 1 - std::pow(config_.beta1, static_cast<double>(steps_));
  step.bias_correction2 = 1 - std::pow(config_.beta2, static_cast<double>(steps_));
  step.gradient_scale = gradient_factor;
  for (const Range& range : ranges_) {
    const Bucket& bucket = parameters_.buckets()[range.bucket];
    const BucketMoments& moments = moments_[range.bucket];
    const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, range.begin, range.end - range.begin); };
    step.weight_decay = range.decays ? config_.weight_decay : 0;
    kernels::adamw_(part(bucket.master), part(bucket.gradient), part(moments.exp_avg), part(moments.exp_avg_sq), step);
  }
  parameters_.publish_weights();
}

at::Tensor AdamW::exp_avg(const Parameter& parameter) const {
  return view_of(moments_[parameter.bucket].exp_avg, parameter);
}

at::Tensor AdamW::exp_avg_sq(const Parameter& parameter) const {
  return view_of(moments_[parameter.bucket].exp_avg_sq, parameter);
}

void add_tied_gradient(const ParameterStore& parameters) {
  const Parameter* head = parameters.find_tied_copy();
  if (head != nullptr) parameters.find(head->info.name).gradient.add_(head->gradient);
}

double clip_factor(double gradient_norm, double clip_norm) {
  return clip_norm > 0 && gradient_norm > clip_norm ? clip_norm / gradient_norm : 1;
}

}  // namespace copus
