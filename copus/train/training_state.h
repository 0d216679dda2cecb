// Progress of a run apart from its tensors: everything a checkpoint must hold beside weights and optimizer moments so
// that training continues bitwise.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "copus/description/parallel_strategy.h"
#include "copus/statistics/noise_scale.h"
#include "copus/train/optimizer_scalars.h"

namespace copus {

struct TrainingState {
  int64_t step = 0;              // steps tried, skipped ones included
  int64_t optimizer_steps = 0;   // updates made; bias corrections count these
  int64_t consumed_samples = 0;  // sequences read, those of skipped steps included
  int64_t consumed_tokens = 0;
  int64_t skipped_steps = 0;     // steps dropped for a loss or gradient that is not finite
  int64_t skipped_samples = 0;   // sequences of the skipped steps
  int64_t skipped_in_a_row = 0;  // skipped steps at the end of the run so far
  double elapsed_seconds = 0;    // of training: evaluation and checkpoints are not counted
  uint64_t seed = 0;             // of the run: weights and data order
  int64_t sequence_length = 0;   // length that the data were cut into
  bool byte_tokens = false;      // tokens are bytes of text
  std::string data_fingerprint;  // identifies the data; a resumed run must see the same unless other data are asked for
  int64_t data_begin = 0;        // consumed_samples when the run began to read these data
  std::string held_out_fingerprint;  // identifies what an evaluation reads
  NoiseAverage noise_average;        // of the steps so far: per sample, and so of any batch and layout
  // Value of consumed_samples - skipped_samples after the latest step whose norms were observed.
  int64_t observed_samples = 0;
  Configuration configuration;  // that the run was in
  double rate_factor = 1;       // factor on the schedule's learning rate for the batch
  OptimizerScalars optimizer;   // what the optimizer keeps beside its slots

  // The next sample of the data.
  uint64_t data_position() const { return static_cast<uint64_t>(consumed_samples - data_begin); }

  bool operator==(const TrainingState&) const = default;
};

// Writes one JSON object with the fields' names, noise_average and optimizer objects within it; numbers are written so
// that they read back to the same bits.
std::string to_json(const TrainingState& state);

// Reads it back. Throws UserError naming `source` and the field when the text is not such an object.
TrainingState parse_training_state(std::string_view json_text, const std::string& source);

}  // namespace copus
