#include "copus/train/optimizer/optimizer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"
#include "copus/train/optimizer/adamw.h"
#include "copus/train/optimizer/muon.h"
#include "copus/train/optimizer/signum.h"

namespace copus {

namespace {

bool decays(const ParameterInfo& info) {
  return info.kind == ParameterKind::embedding || info.kind == ParameterKind::linear;
}

bool are_updated_alike(const ParameterInfo& one, const ParameterInfo& other) {
  return decays(one) == decays(other) && is_hidden_matrix(one) == is_hidden_matrix(other);
}

std::span<std::byte> memory_of(const at::Tensor& flat) {
  return {static_cast<std::byte*>(flat.data_ptr()), flat.nbytes()};
}

}  // namespace

Optimizer::Optimizer(ParameterStore& parameters, std::vector<OptimizerSlot> slots,
                     const std::vector<BucketState>& state)
    : parameters_(parameters),
      slots_(std::move(slots)),
      cuts_anywhere_(may_cut_anywhere(slots_)),
      tensors_(slots_.size()) {
  COPUS_CHECK(state.size() == parameters.buckets().size(), state.size());
  for (const OptimizerSlot& slot : slots_) COPUS_CHECK(slot.dtype == DType::f32, slot.name);  // like master weights
  for (size_t b = 0; b < state.size(); ++b) {
    const at::Tensor& master = parameters.buckets()[b].master;
    for (size_t slot = 0; slot < tensors_.size(); ++slot) {
      const at::Tensor& of_bucket = tensors_[slot].emplace_back(state[b].slots.at(slot));
      COPUS_CHECK(!master.defined() || of_bucket.numel() == master.numel(), "the slots of another bucket");
    }
    if (!master.defined()) continue;  // a tied head, updated as the embedding
    add_update_ranges(static_cast<int64_t>(b));
    add_norm_ranges(static_cast<int64_t>(b));
  }
}

// Adds the ranges of a bucket that are updated in one call: one parameter or, if slots may be split at any element,
// adjacent parameters with the same kind of update. A range includes the padding up to the next parameter, which has no
// gradient and stays zero.
void Optimizer::add_update_ranges(int64_t bucket) {
  const Bucket& b = parameters_.buckets()[bucket];
  const auto add = [&](int64_t from, int64_t to, const ParameterInfo& info, const Parameter* parameter) {
    const int64_t begin = std::max(from, b.shard_begin), end = std::min(to, b.shard_end);
    if (begin < end) update_ranges_.push_back({{bucket, begin, end}, decays(info), is_hidden_matrix(info), parameter});
  };
  std::map<int64_t, const Parameter*> by_offset;
  for (const int64_t index : b.parameters) {
    const Parameter& parameter = parameters_.parameters()[index];
    by_offset[parameter.offset] = &parameter;
  }
  for (auto next = by_offset.begin(); next != by_offset.end();) {
    const auto [offset, parameter] = *next;
    const ParameterInfo& info = parameter->info;
    if (!cuts_anywhere_) {
      COPUS_CHECK(parameter->box.num_elements() == info.num_elements() && b.shard_begin == 0 && b.shard_end == b.size(),
                  info.name, " is split below the optimizer's unit");
      add(offset, offset + parameter->box.num_elements(), info, parameter);
      ++next;
      continue;
    }
    while (next != by_offset.end() && are_updated_alike(next->second->info, info)) ++next;
    add(offset, next == by_offset.end() ? b.size() : next->first, info, nullptr);
  }
}

// Adds the ranges that this rank counts in the norm. Among data-parallel ranks with the same part of the reduced
// gradient, only the first counts this part.
void Optimizer::add_norm_ranges(int64_t bucket) {
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

ExactSum Optimizer::squared_gradient_norm() const {
  kernels::NormSum sum(parameters_.device());
  for (const GradientRange& range : norm_ranges_) {
    const Bucket& bucket = parameters_.buckets()[range.bucket];
    sum.add(bucket.gradient_shard, range.begin - bucket.shard_begin, range.end - bucket.shard_begin);
  }
  return sum.take();
}

void Optimizer::step(const WeightUpdate& update, UpdateJournal* journal) {
  ++steps_;
  COPUS_CHECK(update.number == steps_, "update ", update.number, " after ", steps_ - 1);
  if (journal == nullptr) {
    for (const UpdateRange& range : update_ranges_) change(elements_of(range), update);
  } else {
    const int64_t done = journal->begin(update.number);
    int64_t piece = 0;
    for (const UpdateRange& range : update_ranges_) {
      const int64_t at_once = cuts_anywhere_ ? UpdateJournal::piece_elements : range.end - range.begin;
      for (int64_t begin = range.begin; begin < range.end; begin += at_once, ++piece) {
        if (piece < done) continue;
        UpdateRange part = range;
        part.begin = begin;
        part.end = std::min(range.end, begin + at_once);
        const UpdatedElements elements = elements_of(part);
        std::vector<std::span<std::byte>> memory = {memory_of(elements.master)};
        for (const at::Tensor& slot : elements.slots) memory.push_back(memory_of(slot));
        journal->protect(piece, memory);
        change(elements, update);
        journal->done(piece);
      }
    }
  }
  parameters_.publish_weights();
}

UpdatedElements Optimizer::elements_of(const UpdateRange& range) const {
  const Bucket& bucket = parameters_.buckets()[range.bucket];
  const auto of_shard = [&](const at::Tensor& shard) {
    return shard.narrow(0, range.begin - bucket.shard_begin, range.end - range.begin);
  };
  UpdatedElements elements{.parameter = range.parameter,
                           .master = of_shard(bucket.master),
                           .gradient = of_shard(bucket.gradient_shard),
                           .slots = {},
                           .decays = range.decays,
                           .are_hidden_matrices = range.are_hidden_matrices};
  for (const std::vector<at::Tensor>& slot : tensors_) elements.slots.push_back(of_shard(slot[range.bucket]));
  return elements;
}

StateRecipe training_recipe(const OptimizerConfig& config, at::ScalarType compute_dtype) {
  const bool is_master = compute_dtype == master_dtype_of(compute_dtype);
  return state_recipe(config.kind, is_master ? DType::f32 : DType::bf16);
}

int64_t journal_bytes(const OptimizerConfig& config, const ModelDescription& model) {
  const std::vector<OptimizerSlot> slots = optimizer_slots(config.kind);
  int64_t at_once = UpdateJournal::piece_elements;
  if (!may_cut_anywhere(slots)) {
    for (const ParameterInfo& parameter : list_parameters(model)) at_once = std::max(at_once, parameter.num_elements());
  }
  return UpdateJournal::bytes(at_once, slots.size());
}

std::unique_ptr<Optimizer> make_optimizer(ParameterStore& parameters, const OptimizerConfig& config,
                                          const std::vector<BucketState>& state) {
  switch (config.kind) {
    case OptimizerKind::adamw:
      return std::make_unique<AdamW>(parameters, config, state);
    case OptimizerKind::signum:
      return std::make_unique<Signum>(parameters, config, state);
    case OptimizerKind::muon:
      return std::make_unique<Muon>(parameters, config, state);
  }
  fail_check("known optimizer", __FILE__, __LINE__, "");
}

std::vector<BucketState> state_of(const ParameterStore& parameters, const Optimizer& optimizer) {
  std::vector<BucketState> state;
  for (size_t b = 0; b < parameters.buckets().size(); ++b) {
    const Bucket& bucket = parameters.buckets()[b];
    BucketState& one = state.emplace_back();
    one = {.weight = bucket.kept_weight, .gradient = bucket.kept_gradient, .master = bucket.master, .slots = {}};
    for (size_t slot = 0; slot < optimizer.num_slots(); ++slot) one.slots.push_back(optimizer.slot_tensors(slot)[b]);
  }
  return state;
}

double clip_factor(double gradient_norm, double clip_norm) {
  return clip_norm > 0 && gradient_norm > clip_norm ? clip_norm / gradient_norm : 1;
}

}  // namespace copus
