// For tests: possible bugs in moves between layouts, as damage to each rank's state after a correct move. Gradients are
// not covered, because each step zeroes or overwrites them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/comm/communicator.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/tensor_messages.h"
#include "copus/placement/relayout_plan.h"
#include "copus/train/step/rank_model.h"
#include "copus/train/step/training_state.h"
#include "copus/train/switch/relayout_messages.h"

namespace copus::state_damage {

// A rank's values besides its tensors.
struct Counters {
  TrainingState state;
  int64_t updates = 0;  // updates that its optimizer has counted
  bool operator==(const Counters&) const = default;
};

// One class of damage. Every rank calls `strike`, which does nothing if the layout has no such state.
struct Damage {
  std::string name;
  // Whether it damages compute weights, after they have been derived and gathered; otherwise it strikes before that.
  bool is_after_publishing;
  std::function<void(RankModel&, Counters&)> strike;
};

constexpr StateKind exp_avg = slot_kind(0), exp_avg_sq = slot_kind(1);  // of AdamW
constexpr StateKind kinds_that_move[] = {StateKind::master, exp_avg, exp_avg_sq};

// Returns a parameter's elements that this rank updates, flat; may be empty.
inline at::Tensor updated(const RankModel& model, const Parameter& parameter, StateKind kind) {
  const Bucket& bucket = model.parameters.buckets()[parameter.bucket];
  const at::Tensor shard = buffer_of(model.state()[parameter.bucket], kind);
  if (!shard.defined()) return kernels::empty({0}, at::kFloat, model.parameters.device());
  const int64_t from = std::clamp<int64_t>(parameter.offset - bucket.shard_begin, 0, shard.numel());
  const int64_t to =
      std::clamp<int64_t>(parameter.offset + parameter.box.num_elements() - bucket.shard_begin, 0, shard.numel());
  return shard.narrow(0, from, to - from);
}

// Calls visit(elements) for the elements that this rank updates of parameters whose name ends with `ending`.
template <class Visit>
void for_parameters(const RankModel& model, std::string_view ending, StateKind kind, const Visit& visit) {
  for (const Parameter& parameter : model.parameters.parameters()) {
    if (!parameter.info.name.ends_with(ending)) continue;
    if (const at::Tensor values = updated(model, parameter, kind); values.numel() > 0) visit(values);
  }
}

inline void swap_values(const at::Tensor& a, const at::Tensor& b) {
  const int64_t count = std::min(a.numel(), b.numel());
  const at::Tensor kept = a.narrow(0, 0, count).clone();
  a.narrow(0, 0, count).copy_(b.narrow(0, 0, count));
  b.narrow(0, 0, count).copy_(kept);
}

// Swaps the first `count` elements of two parameters of each layer, in master weights and moments.
inline void swap_in_layers(const RankModel& model, std::string_view one, std::string_view other, int64_t count) {
  for (const Parameter& parameter : model.parameters.parameters()) {
    if (!parameter.info.name.ends_with(one)) continue;
    const std::string layer = parameter.info.name.substr(0, parameter.info.name.size() - one.size());
    const Parameter& partner = model.parameters.find(layer + std::string(other));
    for (const StateKind kind : kinds_that_move) {
      const at::Tensor a = updated(model, parameter, kind), b = updated(model, partner, kind);
      swap_values(a.narrow(0, 0, std::min(count, a.numel())), b.narrow(0, 0, std::min(count, b.numel())));
    }
  }
}

// Gives each member the elements of member `from(member)`.
inline void take_from(const at::Tensor& values, Communicator& group, const std::function<int64_t(int64_t)>& from) {
  int64_t count = -values.numel();
  group.all_reduce(&count, 1, DataType::int64, Reduction::maximum);
  count = -count;  // the smallest number of any member
  if (group.size() == 1 || count == 0) return;
  const at::Tensor mine = values.narrow(0, 0, count).clone();
  const at::Tensor all = kernels::empty({count * group.size()}, values.scalar_type(), values.device());
  group.all_gather(mine.data_ptr(), all.data_ptr(), std::vector<int64_t>(group.size(), count), data_type_of(values));
  values.narrow(0, 0, count).copy_(all.narrow(0, from(group.rank()) * count, count));
}

inline std::function<int64_t(int64_t)> next_of(const Communicator& group) {
  return [size = group.size()](int64_t member) { return (member + 1) % size; };
}

// Returns the tensors of all buckets on this rank.
inline std::vector<at::Tensor> shards(const RankModel& model, StateKind kind) {
  std::vector<at::Tensor> all;
  for (const BucketState& bucket : model.state()) {
    if (bucket.weight.defined()) all.push_back(buffer_of(bucket, kind));
  }
  return all;
}

// Changes a tensor's first element by the smallest possible amount.
inline void change_a_bit(const at::Tensor& values) {
  if (values.numel() == 0) return;
  const at::Tensor element = values.narrow(0, 0, 1);
  float value = 0;
  kernels::copy_to_host(element, &value);
  value = std::nextafter(value, 2 * value + 1);
  kernels::copy_from_host(&value, element);
}

inline bool is_last(const Communicator& group) { return group.rank() + 1 == group.size(); }

inline std::vector<Damage> all_damages() {
  const auto tensors = [](std::string name, std::function<void(RankModel&)> strike) {
    return Damage{std::move(name), false, [strike = std::move(strike)](RankModel& model, Counters&) { strike(model); }};
  };
  const auto weights = [](std::string name, std::function<void(RankModel&)> strike) {
    return Damage{std::move(name), true, [strike = std::move(strike)](RankModel& model, Counters&) { strike(model); }};
  };
  const auto counters = [](std::string name, std::function<void(RankModel&, Counters&)> strike) {
    return Damage{std::move(name), false, std::move(strike)};
  };
  return {
      // Queries, keys and values may be stored by head or by role, and their joint matrix's shape does not show which.
      tensors("rows of queries and keys in another order",
              [](RankModel& model) {
                const ModelDescription& of = model.parameters.model();
                swap_in_layers(model, "q_proj.weight", "k_proj.weight", of.head_dim * of.hidden_size);
              }),
      // Both orders of the two halves are in use, and the halves have the same shape.
      tensors("gate and up interchanged",
              [](RankModel& model) { swap_in_layers(model, "gate_proj.weight", "up_proj.weight", int64_t{1} << 40); }),
      // Ranks and shards are numbered differently, so a file or message goes to the wrong owner.
      tensors("exp_avg of another data-parallel rank's shard",
              [](RankModel& model) {
                Communicator& group = model.groups.shards();
                for (const at::Tensor& values : shards(model, exp_avg)) {
                  take_from(values, group, next_of(group));
                }
              }),
      tensors("master weights of another data-parallel rank's shard",
              [](RankModel& model) {
                Communicator& group = model.groups.shards();
                for (const at::Tensor& values : shards(model, StateKind::master)) {
                  take_from(values, group, next_of(group));
                }
              }),
      // Writer and reader have differently ordered lists of state.
      tensors("both moments interchanged",
              [](RankModel& model) {
                const auto first = shards(model, exp_avg), second = shards(model, exp_avg_sq);
                for (size_t i = 0; i < first.size(); ++i) swap_values(first[i], second[i]);
              }),
      // Only weights arrive, because moments are not among a module's parameters.
      tensors("moments begun anew",
              [](RankModel& model) {
                for (const at::Tensor& values : shards(model, exp_avg)) values.zero_();
                for (const at::Tensor& values : shards(model, exp_avg_sq)) values.zero_();
              }),
      // The list of shared parameters names only one of two, and the other stays a step behind.
      tensors("a tied head that is a step behind its embedding",
              [](RankModel& model) {
                const Parameter* const head = model.parameters.find_tied_copy();
                if (head != nullptr) updated(model, *head, StateKind::master).mul_(1 - 1e-3);
              }),
      // One side rounds shard boundaries up, the other down.
      tensors("elements shifted by one",
              [](RankModel& model) {
                for_parameters(model, "down_proj.weight", StateKind::master, [](const at::Tensor& values) {
                  values.narrow(0, 1, values.numel() - 1).copy_(values.narrow(0, 0, values.numel() - 1).clone());
                });
              }),
      // Reused memory is not cleared between parameters.
      tensors("padding that is not zero",
              [](RankModel& model) {
                for (const Parameter& norm : model.parameters.parameters()) {
                  if (!norm.info.name.ends_with("input_layernorm.weight")) continue;
                  const Bucket& bucket = model.parameters.buckets()[norm.bucket];
                  const int64_t behind = norm.offset + norm.box.num_elements() - bucket.shard_begin;
                  if (behind >= 0 && behind < bucket.master.numel()) bucket.master.narrow(0, behind, 1).fill_(1);
                }
              }),
      // Stages number their layers from zero, and the stage's offset is added twice or never.
      tensors("two layers interchanged",
              [](RankModel& model) {
                for (const StateKind kind : kinds_that_move) {
                  std::vector<at::Tensor> layers;
                  for_parameters(model, "o_proj.weight", kind,
                                 [&](const at::Tensor& values) { layers.push_back(values); });
                  if (layers.size() > 1) swap_values(layers[0], layers[1]);
                }
              }),
      // Only the first copy reaches all ranks, or one rank's memory is faulty.
      tensors("a data-parallel copy that differs in a bit of its master weights",
              [](RankModel& model) {
                Communicator& group = model.groups.data();
                if (is_last(group) && group.size() > 1) change_a_bit(shards(model, StateKind::master).back());
              }),
      tensors("a data-parallel copy that differs in a bit of exp_avg_sq",
              [](RankModel& model) {
                Communicator& group = model.groups.data();
                if (is_last(group) && group.size() > 1) change_a_bit(shards(model, exp_avg_sq).front());
              }),
      // Only some code paths reduce the parameters that tensor-parallel ranks share.
      tensors("a norm that differs on one of the tensor-parallel ranks",
              [](RankModel& model) {
                Communicator& group = model.groups.tensor();
                if (!is_last(group) || group.size() == 1) return;
                for_parameters(model, "input_layernorm.weight", StateKind::master, change_a_bit);
              }),
      tensors("keys that differ on one of the tensor-parallel ranks",
              [](RankModel& model) {
                Communicator& group = model.groups.tensor();
                if (!is_last(group) || group.size() == 1) return;
                for_parameters(model, "k_proj.weight", exp_avg, change_a_bit);
              }),
      // Groups list their ranks in another order than the mesh.
      tensors("parts of tensor-parallel ranks in the reverse order",
              [](RankModel& model) {
                Communicator& group = model.groups.tensor();
                for (const Parameter& parameter : model.parameters.parameters()) {
                  if (!parameter.info.name.ends_with("o_proj.weight")) continue;
                  take_from(updated(model, parameter, StateKind::master), group,
                            [&](int64_t member) { return group.size() - 1 - member; });
                }
              }),
      // A part is split along the other axis, or a layer stores its matrix transposed.
      tensors("a part of a matrix transposed",
              [](RankModel& model) {
                for (const Parameter& parameter : model.parameters.parameters()) {
                  const at::Tensor values = updated(model, parameter, StateKind::master);
                  const std::vector<int64_t>& shape = parameter.box.shape;
                  if (!parameter.info.name.ends_with("up_proj.weight") || values.numel() < parameter.box.num_elements())
                    continue;
                  values.copy_(values.view(shape).t().reshape({-1}).clone());
                }
              }),
      // A bf16 run is loaded from compute weights, which have lost bits by rounding.
      tensors("master weights made of compute weights",
              [](RankModel& model) {
                for (const Bucket& bucket : model.parameters.buckets()) {
                  if (bucket.master.defined()) bucket.master.copy_(bucket.weight_shard.clone());
                }
              }),
      // On one rank the master weights move, but passes still read the old compute weights.
      weights("compute weights that are not derived again",
              [](RankModel& model) {
                if (!is_last(model.groups.everyone())) return;
                for (const Bucket& bucket : model.parameters.buckets()) {
                  if (bucket.kept_weight.defined() && model.parameters.compute_dtype() != at::kFloat) {
                    bucket.kept_weight.mul_(1.25);
                  }
                }
              }),
      // With ZeRO-1 and 2, weights that other ranks update are not gathered after master weights have moved.
      weights("weights that others update are not gathered",
              [](RankModel& model) {
                if (!model.strategy().cuts_optimizer() || model.strategy().cuts_weights()) return;
                for (const Bucket& bucket : model.parameters.buckets()) {
                  if (!bucket.weight.defined()) continue;
                  bucket.weight.narrow(0, 0, bucket.shard_begin).zero_();
                  bucket.weight.narrow(0, bucket.shard_end, bucket.size() - bucket.shard_end).zero_();
                }
              }),
      // The optimizer is constructed anew, and its bias correction starts again.
      counters("the optimizer's number of updates not moved", [](RankModel&, Counters& all) { all.updates = 0; }),
      counters("the product of beta2 not moved",
               [](RankModel&, Counters& all) { all.state.optimizer.set("beta2_product", 1); }),
      // The data loader is constructed anew, on all ranks or on new ones.
      counters("the position in the data not moved", [](RankModel&, Counters& all) { all.state.consumed_samples = 0; }),
      counters("the position in the data not moved on one rank",
               [](RankModel& model, Counters& all) {
                 if (is_last(model.groups.everyone())) all.state.consumed_samples = 0;
               }),
      // Running averages belong to no module, and are lost or kept only on rank 0.
      counters("the averages of the noise scale not moved",
               [](RankModel&, Counters& all) { all.state.noise_average = {}; }),
      counters("the averages of the noise scale on rank 0 alone",
               [](RankModel& model, Counters& all) {
                 if (model.groups.everyone().rank() > 0) all.state.noise_average = {};
               }),
  };
}

}  // namespace copus::state_damage
