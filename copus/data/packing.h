// Documents packed into sequences of one length, and sequences collected into a batch.
#pragma once

#include <cstdint>

#include "copus/data/dataset.h"
#include "copus/data/token_source.h"

namespace copus {

// A part of a token stream, divided into samples of sequence_length positions L. Sample i reads the tokens [begin +
// i*L, begin + i*L + L]. That is one token more than it has positions, because the target of a position is the next
// token. So neighbouring samples share one token, and every token but the first is predicted once. Documents follow
// each other without padding. The object refers to the source for its whole life.
class PackedTokens {
 public:
  // Packs tokens [begin, end) of `source`. With mask_document_ends, the last token of a document has no target, because
  // the next token begins another document.
  PackedTokens(const TokenSource& source, int64_t begin, int64_t end, int64_t sequence_length, bool mask_document_ends);

  // The number of positions with a next token. The last sample may have fewer than sequence_length of them.
  int64_t num_positions() const { return num_positions_; }
  int64_t num_samples() const { return (num_positions_ + sequence_length_ - 1) / sequence_length_; }

  // Where to write a sample: sequence_length values each, with the meaning of the members of Batch.
  struct Sample {
    int64_t *tokens, *targets;
    int64_t* document_starts;  // null: not wanted
  };

  // Writes one sample and returns the number of targets that carry loss. Positions beyond the end of the part get token
  // 0, no loss, and a document of their own.
  int64_t read(int64_t sample, const Sample& to) const;

  // Returns whether any position carries loss, from the document ends alone.
  bool has_loss() const;

  // Returns the number that read() would return, from the document ends alone.
  int64_t loss_tokens(int64_t sample) const;

  // The sum of the squared lengths of the sample's documents, as far as they lie in it. Attention that ends at
  // documents does work in proportion.
  double squared_lengths(int64_t sample) const;

 private:
  int64_t sample_positions(int64_t sample) const;

  // Calls action(position) for every position of the sample that ends a document, counted from the sample's start.
  template <class Action>
  void for_each_document_end(int64_t sample, const Action& action) const;

  const TokenSource* source_;
  int64_t begin_;
  int64_t num_positions_;
  int64_t sequence_length_;
  bool mask_document_ends_;
};

// Collects exactly `count` samples into a Batch, with the starts of documents if they are wanted.
class BatchBuilder {
 public:
  BatchBuilder(int64_t count, int64_t sequence_length, bool with_document_starts);
  void append(const PackedTokens& packed, int64_t sample);
  Batch take();

 private:
  Batch batch_;
  int64_t sequence_length_;
  int64_t filled_ = 0;  // positions
};

}  // namespace copus
