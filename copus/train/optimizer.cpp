#include "copus/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "copus/base/error.h"
#include "copus/model/kernels.h"

namespace copus {

namespace {

bool decays(const ParameterInfo& info) {
  return info.kind == ParameterKind::embedding || info.kind == ParameterKind::linear;
}

}  // namespace

std::vector<OptimizerSlot> optimizer_slots(const OptimizerConfig& /*config*/) { return adamw_slots(); }

StateRecipe training_recipe(const OptimizerConfig& config, at::ScalarType compute_dtype) {
  const bool keeps_master = compute_dtype != master_dtype_of(compute_dtype);
  return {.weight = keeps_master ? DType::bf16 : DType::f32,
          .gradient = DType::f32,
          .keeps_master = keeps_master,
          .slots = optimizer_slots(config)};
}

AdamW::AdamW(ParameterStore& parameters, const OptimizerConfig& config, const std::vector<BucketState>& state)
    : parameters_(parameters), config_(config), slots_(optimizer_slots(config).size()) {
  COPUS_CHECK(state.size() == parameters.buckets().size(), state.size());
  for (size_t b = 0; b < state.size(); ++b) {
    const at::Tensor& master = parameters.buckets()[b].master;
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      const at::Tensor& of_bucket = slots_[slot].emplace_back(state[b].slots.at(slot));
      COPUS_CHECK(!master.defined() || of_bucket.numel() == master.numel(), "the slots of another bucket");
    }
    if (!master.defined()) continue;  // a tied head, which is updated as the embedding
    add_update_ranges(static_cast<int64_t>(b));
    add_norm_ranges(static_cast<int64_t>(b));
  }
}

// Adds the ranges of a bucket that are updated alike. A range reaches to the next parameter: the padding between them
// has no gradient and stays zero.
void AdamW::add_update_ranges(int64_t bucket) {
  const Bucket& b = parameters_.buckets()[bucket];
  std::map<int64_t, bool> decays_from;  // by offset: whether elements from there on decay
  for (const int64_t index : b.parameters) {
    const Parameter& parameter = parameters_.parameters()[index];
    decays_from[parameter.offset] = decays(parameter.info);
  }
  for (auto next = decays_from.begin(); next != decays_from.end();) {
    const auto [offset, decay] = *next;
    while (next != decays_from.end() && next->second == decay) ++next;
    const int64_t begin = std::max(offset, b.shard_begin);
    const int64_t end = std::min(next == decays_from.end() ? b.size() : next->first, b.shard_end);
    if (begin < end) update_ranges_.push_back({{bucket, begin, end}, decay});
  }
}

// Adds the ranges that this rank counts in the norm. Of the data-parallel ranks that hold the same part of the reduced
// gradient, the first counts it.
void AdamW::add_norm_ranges(int64_t bucket) {
  const Placement& placement = parameters_.placement();
  if (!is_first_with_its_share(placement)) return;
  const Bucket& b = parameters_.buckets()[bucket];
  const auto counts = [&](const Parameter& parameter) { return counts_here(parameters_, parameter); };
  for (GradientRange range : ranges_of(parameters_, bucket, counts)) {
    range.begin = std::max(range.begin, b.shard_begin);
    range.end = std::min(range.end, b.shard_end);
    if (range.begin < range.end) norm_ranges_.push_back(range);
  }
}

ExactSum AdamW::squared_gradient_norm() const {
  kernels::NormSum sum(parameters_.device());
  for (const GradientRange& range : norm_ranges_) {
    const Bucket& bucket = parameters_.buckets()[range.bucket];
    sum.add(bucket.gradient_shard, range.begin - bucket.shard_begin, range.end - bucket.shard_begin);
  }
  return sum.take();
}

void AdamW::step(const WeightUpdate& update, UpdateJournal* journal) {
  ++steps_;
  COPUS_CHECK(update.number == steps_, "update ", update.number, " after ", steps_ - 1);
  if (journal == nullptr) {
    for (const UpdateRange& range : update_ranges_) change(range, update);
  } else {
    const int64_t done = journal->begin(update.number);
    int64_t piece = 0;
    for (const UpdateRange& range : update_ranges_) {
      for (int64_t begin = range.begin; begin < range.end; begin += UpdateJournal::piece_elements, ++piece) {
        if (piece < done) continue;
        UpdateRange part = range;
        part.begin = begin;
        part.end = std::min(range.end, begin + UpdateJournal::piece_elements);
        journal->protect(piece, memory_of(part));
        change(part, update);
        journal->done(piece);
      }
    }
  }
  parameters_.publish_weights();
}

// The memory that an update changes.
std::vector<std::span<std::byte>> AdamW::memory_of(const UpdateRange& range) const {
  const Bucket& bucket = parameters_.buckets()[range.bucket];
  const auto bytes_of = [&](const at::Tensor& shard) {
    const auto width = static_cast<int64_t>(shard.element_size());
    return std::span(static_cast<std::byte*>(shard.data_ptr()) + (range.begin - bucket.shard_begin) * width,
                     static_cast<size_t>((range.end - range.begin) * width));
  };
  std::vector<std::span<std::byte>> memory = {bytes_of(bucket.master)};
  for (const std::vector<at::Tensor>& slot : slots_) memory.push_back(bytes_of(slot[range.bucket]));
  return memory;
}

void AdamW::change(const UpdateRange& range, const WeightUpdate& update) {
  const UpdateScaling& scaling = update.scaling;
  kernels::AdamWStep step;
  step.lr = update.learning_rate;
  step.beta1 = config_.beta1;
  step.beta2 = scaling.beta2 ? scaling.beta2->value : config_.beta2;
  step.epsilon = config_.epsilon;
  step.bias_correction1 = 1 - std::pow(config_.beta1, static_cast<double>(steps_));
  step.bias_correction2 =
      1 - (scaling.beta2 ? scaling.beta2->product : std::pow(config_.beta2, static_cast<double>(steps_)));
  step.gradient_scale = update.gradient_factor;
  step.weight_decay = range.decays ? config_.weight_decay * scaling.weight_decay_factor : 0;
  const Bucket& bucket = parameters_.buckets()[range.bucket];
  const auto of_shard = [&](const at::Tensor& shard) {
    return shard.narrow(0, range.begin - bucket.shard_begin, range.end - range.begin);
  };
  kernels::adamw_({of_shard(bucket.master), of_shard(slots_[0][range.bucket]), of_shard(slots_[1][range.bucket])},
                  of_shard(bucket.gradient_shard), step);
}

std::vector<BucketState> state_of(const ParameterStore& parameters, const AdamW& optimizer) {
  std::vector<BucketState> state;
  for (size_t b = 0; b < parameters.buckets().size(); ++b) {
    const Bucket& bucket = parameters.buckets()[b];
    BucketState& one = state.emplace_back();
    one = {.weight = bucket.kept_weight, .gradient = bucket.kept_gradient, .master = bucket.master, .slots = {}};
    for (size_t slot = 0; slot < optimizer.num_slots(); ++slot) one.slots.push_back(optimizer.slot(slot)[b]);
  }
  return state;
}

double clip_factor(double gradient_norm, double clip_norm) {
  return clip_norm > 0 && gradient_norm > clip_norm ? clip_norm / gradient_norm : 1;
}

}  // namespace copus
