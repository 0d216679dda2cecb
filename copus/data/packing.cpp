#include "copus/data/packing.h"

#include <algorithm>
#include <utility>

#include "copus/base/error.h"

namespace copus {

PackedTokens::PackedTokens(const TokenSource& source, int64_t begin, int64_t end, int64_t sequence_length,
                           bool mask_document_ends)
    : source_(&source),
      begin_(begin),
      num_positions_(std::max<int64_t>(0, end - begin - 1)),
      sequence_length_(sequence_length),
      mask_document_ends_(mask_document_ends) {
  COPUS_CHECK(begin >= 0 && begin <= end && end <= source.size(), "tokens ", begin, " .. ", end, " of ", source.size());
}

int64_t PackedTokens::sample_positions(int64_t sample) const {
  COPUS_CHECK(sample >= 0 && sample < num_samples(), "sample ", sample, " of ", num_samples());
  return std::min(sequence_length_, num_positions_ - sample * sequence_length_);
}

template <class Action>
void PackedTokens::for_each_document_end(int64_t sample, const Action& action) const {
  const int64_t first = begin_ + sample * sequence_length_;
  const int64_t end = first + sample_positions(sample);
  int64_t previous = first;
  for (int64_t document = source_->document_at(first); document < source_->num_documents(); ++document) {
    const int64_t document_end = source_->document_end(document);
    if (document_end > end) break;
    // An empty document ends where the previous one did.
    if (document_end > previous) action(document_end - 1 - first);
    previous = document_end;
  }
}

int64_t PackedTokens::read(int64_t sample, const Sample& to) const {
  const auto& [tokens, targets, document_starts] = to;
  const int64_t positions = sample_positions(sample);
  source_->read(begin_ + sample * sequence_length_, positions, tokens);
  std::copy(tokens + 1, tokens + positions, targets);
  source_->read(begin_ + sample * sequence_length_ + positions, 1, targets + positions - 1);
  std::fill(tokens + positions, tokens + sequence_length_, 0);
  std::fill(targets + positions, targets + sequence_length_, ignored_target);
  int64_t with_loss = positions, start = 0;
  const auto begin_document = [&, starts = document_starts](int64_t next) {
    if (starts) std::fill(starts + start, starts + next, start);
    start = next;
  };
  if (mask_document_ends_ || document_starts) {
    for_each_document_end(sample, [&, ignored = targets](int64_t position) {
      begin_document(position + 1);
      if (!mask_document_ends_) return;
      ignored[position] = ignored_target;
      --with_loss;
    });
  }
  begin_document(positions);
  begin_document(sequence_length_);
  return with_loss;
}

// Each document end removes the loss of at most one position, so for most corpora the counts alone decide.
bool PackedTokens::has_loss() const {
  if (num_positions_ == 0 || !mask_document_ends_) return num_positions_ > 0;
  const int64_t last = begin_ + num_positions_ - 1;
  if (source_->document_at(last) - source_->document_at(begin_) + 1 < num_positions_) return true;
  for (int64_t sample = 0; sample < num_samples(); ++sample) {
    if (loss_tokens(sample) > 0) return true;
  }
  return false;
}

int64_t PackedTokens::loss_tokens(int64_t sample) const {
  int64_t with_loss = sample_positions(sample);
  if (mask_document_ends_) for_each_document_end(sample, [&](int64_t) { --with_loss; });
  return with_loss;
}

double PackedTokens::squared_lengths(int64_t sample) const {
  double sum = 0;
  int64_t start = 0;
  const auto end_document = [&](int64_t end) {
    const auto length = static_cast<double>(end - start);
    sum += length * length;
    start = end;
  };
  for_each_document_end(sample, [&](int64_t position) { end_document(position + 1); });
  end_document(sample_positions(sample));
  end_document(sequence_length_);
  return sum;
}

BatchBuilder::BatchBuilder(int64_t count, int64_t sequence_length, bool with_document_starts)
    : sequence_length_(sequence_length) {
  COPUS_CHECK(count >= 0, "count ", count);
  batch_.tokens.resize(static_cast<std::size_t>(count * sequence_length));
  batch_.targets.resize(batch_.tokens.size());
  if (with_document_starts) batch_.document_starts.resize(batch_.tokens.size());
}

void BatchBuilder::append(const PackedTokens& packed, int64_t sample) {
  COPUS_CHECK(filled_ + sequence_length_ <= static_cast<int64_t>(batch_.tokens.size()), "the batch is full");
  std::vector<int64_t>& starts = batch_.document_starts;
  batch_.loss_tokens += packed.read(sample, {.tokens = batch_.tokens.data() + filled_,
                                             .targets = batch_.targets.data() + filled_,
                                             .document_starts = starts.empty() ? nullptr : starts.data() + filled_});
  filled_ += sequence_length_;
}

Batch BatchBuilder::take() {
  COPUS_CHECK(filled_ == static_cast<int64_t>(batch_.tokens.size()), filled_, " positions of ", batch_.tokens.size());
  return std::move(batch_);
}

}  // namespace copus
