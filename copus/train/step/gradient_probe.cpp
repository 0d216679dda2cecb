#include "copus/train/step/gradient_probe.h"

#include <algorithm>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/round_up.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/tensor_messages.h"

namespace copus {

namespace {

// Returns the pass that adds a parameter's gradient: B for norms, embedding and head; W for the decoder's linear layers
// (WeightGradients).
GradientPart part_of(const Parameter& parameter) {
  const bool is_linear = parameter.info.kind == ParameterKind::linear || parameter.info.kind == ParameterKind::bias;
  return is_linear && parameter.info.layer >= 0 ? GradientPart::weight_pass : GradientPart::input_pass;
}

// Both copies of a tied embedding also store learned positions, but these get a gradient only on the embedding's side.
bool is_tied_to_head(const Parameter& parameter) {
  return parameter.sharding.tied && parameter.info.name == token_embedding_name;
}

// Returns the next element at which a block of a squared norm may begin. With aligned blocks, a parameter's norm does
// not depend on the elements before the parameter.
int64_t next_block(int64_t element) { return round_up(element, kernels::squared_norm_block); }

void add_all(kernels::NormSum& sum, const at::Tensor& values) { sum.add(values.view({-1}), 0, values.numel()); }

}  // namespace

GradientProbe::GradientProbe(ParameterStore& parameters, RankGroups& groups, StepRecorder& recorder)
    : parameters_(parameters),
      groups_(groups),
      recorder_(recorder),
      sum_(parameters.device()),
      subtracted_(parameters.device()) {
  list_ranges();
  find_tied();
}

void GradientProbe::list_ranges() {
  prefix_ranges_.resize(parameters_.placement().strategy.virtual_stages);
  for (int64_t b = 0; b < std::ssize(parameters_.buckets()); ++b) {
    rank_ranges_.push_back(
        ranges_of(parameters_, b, [&](const Parameter& parameter) { return counts_here(parameters_, parameter); }));
    for (const GradientPart part : {GradientPart::input_pass, GradientPart::weight_pass}) {
      const std::vector<GradientRange> ranges = ranges_of(parameters_, b, [&](const Parameter& parameter) {
        return part_of(parameter) == part && !parameter.sharding.partial && !is_tied_to_head(parameter) &&
               counts_here(parameters_, parameter);
      });
      auto& of_part = prefix_ranges_[parameters_.buckets()[b].chunk][index(part)];
      of_part.insert(of_part.end(), ranges.begin(), ranges.end());
      list_partial(b, part);
    }
  }
  for (PartialVector& vector : partial_) {
    const PartialRange& last = vector.ranges.back();
    vector.values = kernels::zeros({next_block(last.to + last.from.end - last.from.begin)}, parameters_.master_dtype(),
                                   parameters_.device());
  }
}

void GradientProbe::list_partial(int64_t bucket, GradientPart part) {
  const Bucket& b = parameters_.buckets()[bucket];
  for (const int64_t index : b.parameters) {
    const Parameter& parameter = parameters_.parameters()[index];
    if (!parameter.sharding.partial || part_of(parameter) != part) continue;
    PartialVector& vector = partial_vector(parameter);
    int64_t to = 0;
    if (!vector.ranges.empty()) {
      const PartialRange& last = vector.ranges.back();
      to = next_block(last.to + last.from.end - last.from.begin);
    }
    const GradientRange from{bucket, parameter.offset, parameter.offset + parameter.box.num_elements()};
    vector.ranges.push_back({from, b.chunk, part, to});
  }
}

GradientProbe::PartialVector& GradientProbe::partial_vector(const Parameter& parameter) {
  Communicator* const group = &groups_.replicas(parameter.sharding);
  const auto found =
      std::find_if(partial_.begin(), partial_.end(), [&](const PartialVector& one) { return one.group == group; });
  if (found != partial_.end()) return *found;
  partial_.push_back({group, counts_here(parameters_, parameter), {}, {}, {}});
  return partial_.back();
}

void GradientProbe::find_tied() {
  for (const Parameter& parameter : parameters_.parameters()) {
    if (!is_tied_to_head(parameter)) continue;
    (parameter.tied_copy ? head_ : embedding_) = &parameter;
    is_row_.resize(parameter.box.shape.front());
  }
}

// Runs `read`, and records its time separately from the computation or wait that it interrupts.
template <class Read>
void GradientProbe::read(const Read& read) {
  recorder_.aside({.category = "statistics", .name = "probe", .part = StepPart::optimizer},
                  "squared norms of a smaller batch", read);
}

void GradientProbe::add(const GradientRange& range) {
  const at::Tensor& gradient = parameters_.buckets()[range.bucket].gradient;
  sum_.add(gradient, range.begin, range.end);
}

void GradientProbe::begin(ProbeSource source, const MicroBatch& first) {
  source_ = source;
  kept_before_partial_sums_ = source == ProbeSource::prefix;
  parts_to_come_ = num_parts * prefix_ranges_.size();
  if (reads_prefix() && !is_row_.empty()) read([&] { list_rows(first.host_tokens); });
}

void GradientProbe::keep(std::vector<int64_t> parameters) {
  kept_.clear();
  for (const int64_t parameter : parameters) kept_.push_back({parameter, {}});
}

int64_t GradientProbe::ranks_kept(ProbeSource source, int64_t data_parallel) {
  return source == ProbeSource::rank && data_parallel > 1 ? data_parallel / 2 : data_parallel;
}

// Copies the gradients of the kept parameters that meet the condition; zeros if this rank's small batch does not count.
template <class Condition>
void GradientProbe::copy_kept(const Condition& condition) {
  const bool counts = groups_.here().data < ranks_kept(source_, groups_.data().size());
  for (KeptGradient& kept : kept_) {
    const Parameter& parameter = parameters_.parameters()[kept.parameter];
    if (!condition(parameter)) continue;
    const at::Tensor gradient =
        parameters_.buckets()[parameter.bucket].gradient.narrow(0, parameter.offset, parameter.box.num_elements());
    kept.values = counts ? gradient.clone() : gradient.new_zeros(gradient.sizes());
  }
}

std::vector<at::Tensor> GradientProbe::take_kept() {
  std::vector<at::Tensor> gradients;
  for (const KeptGradient& kept : std::exchange(kept_, {})) {
    if (!kept.values.defined()) return {};  // the step had no source
    const auto add_up = [&](Communicator& group) {
      group.all_reduce(kept.values.data_ptr(), kept.values.numel(), data_type_of(kept.values));
    };
    const Sharding& sharding = parameters_.parameters()[kept.parameter].sharding;
    if (kept_before_partial_sums_ && sharding.partial) add_up(groups_.replicas(sharding));
    if (!parameters_.placement().strategy.cuts_optimizer()) {
      if (groups_.data().size() > 1) add_up(groups_.data());
    } else {  // with hybrid sharding the data-parallel group serves no collectives
      add_up(groups_.shards());
      if (groups_.copies().size() > 1) add_up(groups_.copies());
    }
    gradients.push_back(kept.values);
  }
  return gradients;
}

void GradientProbe::list_rows(const std::vector<int64_t>& tokens) {
  const Box& part = (embedding_ != nullptr ? embedding_ : head_)->box;
  std::fill(is_row_.begin(), is_row_.end(), uint8_t{0});
  for (const int64_t token : tokens) {
    const int64_t row = token - part.begin.front();
    if (row >= 0 && row < part.shape.front()) is_row_[row] = 1;
  }
  std::vector<int64_t> rows;
  for (size_t row = 0; row < is_row_.size(); ++row) {
    if (is_row_[row] != 0) rows.push_back(static_cast<int64_t>(row));
  }
  rows_ = kernels::from_host(rows.data(), {std::ssize(rows)}, parameters_.device());
}

void GradientProbe::first_micro_batch_done(int64_t chunk, GradientPart part) {
  if (source_ != ProbeSource::prefix) return;
  read([&] {
    for (const GradientRange& range : prefix_ranges_[chunk][index(part)]) add(range);
    copy_partial(chunk, part);
    if (part == GradientPart::weight_pass) {
      copy_kept([&](const Parameter& parameter) { return parameter.chunk == chunk; });
    }
    for (const Parameter* const copy : {embedding_, head_}) {
      if (copy != nullptr && copy->chunk == chunk && part == GradientPart::input_pass) read_tied(*copy);
    }
  });
  if (--parts_to_come_ == 0) start_partial();
}

// Copies the gradients before later micro-batches add to them.
void GradientProbe::copy_partial(int64_t chunk, GradientPart part) {
  for (const PartialVector& vector : partial_) {
    for (const PartialRange& range : vector.ranges) {
      if (range.chunk != chunk || range.part != part) continue;
      const int64_t count = range.from.end - range.from.begin;
      const at::Tensor& gradient = parameters_.buckets()[range.from.bucket].gradient;
      vector.values.narrow(0, range.to, count).copy_(gradient.narrow(0, range.from.begin, count));
    }
  }
}

// Starts the sums of the copied partial gradients. Their groups may also be used by reductions and passes, so all ranks
// of a group must start these sums at the same place in its sequence of operations. They do, because ranks of one
// pipeline stage execute the same actions and start the sums between the same two.
void GradientProbe::start_partial() {
  for (PartialVector& vector : partial_) {
    vector.work = vector.group->start_all_reduce(vector.values.data_ptr(), vector.values.numel(),
                                                 data_type_of(vector.values), Reduction::sum);
  }
}

// Reads the norm of a tied embedding's gradient a + c, where a is from the embedding's side and c from the head's. a is
// zero except in the rows of the tokens. With a' and c' for these rows, |a + c|^2 = |c|^2 + |a' + c'|^2 - |c'|^2, so
// only c' must be sent to the rank with a'.
void GradientProbe::read_tied(const Parameter& copy) {
  if (copy.tied_copy) add({copy.bucket, copy.offset, copy.offset + copy.box.num_elements()});
  (copy.tied_copy ? head_rows_ : embedding_rows_) = kernels::embedding(copy.gradient, rows_);
}

// Sends the rows of a tied embedding. They must be sent after the pipeline's messages: with two stages, the group of
// the two copies is also the pipeline's group, whose messages arrive in the order of sending.
void GradientProbe::schedule_done() {
  const bool has_both = embedding_ != nullptr && head_ != nullptr;
  if (!reads_prefix() || is_row_.empty() || has_both || rows_.numel() == 0) return;
  recorder_.wait_at("rows of the tied embedding");
  Communicator& tie = groups_.tie();
  if (head_ != nullptr) {
    sent_ = tie.start_send(head_rows_.data_ptr(), head_rows_.numel(), data_type_of(head_rows_), 0);
  } else {
    head_rows_ = kernels::empty(embedding_rows_.sizes(), embedding_rows_.scalar_type(), embedding_rows_.device());
    tie.receive(head_rows_.data_ptr(), head_rows_.numel(), data_type_of(head_rows_), 1);
  }
}

void GradientProbe::before_data_parallel(int64_t bucket) {
  if (source_ != ProbeSource::rank && source_ != ProbeSource::prefix_of_each_rank) return;
  if (!kept_.empty()) {
    read([&] { copy_kept([&](const Parameter& parameter) { return parameter.bucket == bucket; }); });
  }
  for (const Parameter* const copy : {embedding_, head_}) {
    const bool is_alone = source_ == ProbeSource::prefix_of_each_rank && copy != nullptr && copy->bucket == bucket;
    if (is_alone) return read([&] { read_tied(*copy); });
  }
  const std::vector<GradientRange>& ranges = rank_ranges_[bucket];
  if (ranges.empty()) return;
  read([&] {
    for (const GradientRange& range : ranges) add(range);
  });
}

void GradientProbe::finish() {
  if (source_ == ProbeSource::prefix) {
    COPUS_CHECK(parts_to_come_ == 0, parts_to_come_, " parts of the first micro-batch's gradients were never done");
    recorder_.wait_at("partial gradients of a smaller batch");
    for (PartialVector& vector : partial_) std::exchange(vector.work, {}).wait();
    read([&] {
      for (const PartialVector& vector : partial_) {
        if (vector.counts) add_all(sum_, vector.values);
      }
    });
  }
  if (reads_prefix()) {
    read([&] { add_tied(); });
    std::exchange(sent_, {}).wait();
    embedding_rows_.reset();
    head_rows_.reset();
  }
}

ExactSum GradientProbe::take() {
  if (std::exchange(source_, ProbeSource::none) == ProbeSource::none) return {};
  ExactSum sum = sum_.take();
  sum.subtract(subtracted_.take());
  return sum;
}

void GradientProbe::add_tied() {
  if (embedding_ == nullptr || rows_.numel() == 0) return;
  add_all(sum_, embedding_rows_.add_(head_rows_));
  add_all(subtracted_, head_rows_);
}

}  // namespace copus
