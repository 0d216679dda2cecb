// The progress of a run. Checkpoints contain it, with weights and optimizer slots, so that training continues bitwise.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "copus/description/parallel_strategy.h"
#include "copus/statistics/dual_noise.h"
#include "copus/statistics/noise_scale.h"
#include "copus/train/optimizer/optimizer_scalars.h"

namespace copus {

struct TrainingState {
  int64_t step = 0;              // including skipped ones
  int64_t optimizer_steps = 0;   // updates made; bias corrections use this
  int64_t consumed_samples = 0;  // sequences read, including those of skipped steps
  int64_t consumed_tokens = 0;
  int64_t skipped_steps = 0;     // steps without finite loss or gradient
  int64_t skipped_samples = 0;   // sequences of skipped steps
  int64_t skipped_in_a_row = 0;  // consecutive skipped steps until now
  double elapsed_seconds = 0;    // of training, without evaluation and checkpoints
  double paused_seconds = 0;     // part of elapsed_seconds that switches, calibrations and healing took
  uint64_t seed = 0;             // of the run, for weights and data order
  int64_t sequence_length = 0;   // length of the samples
  bool byte_tokens = false;      // whether tokens are bytes of text
  // Identifies the data. A resumed run must have the same data unless the user asks for others.
  std::string data_fingerprint;
  int64_t data_begin = 0;            // consumed_samples when the run began to read these data
  std::string held_out_fingerprint;  // identifies what an evaluation reads
  NoiseAverage noise_average;        // of the steps so far; per sample, so it holds for any batch and layout
  DualNoiseAverage sign_noise, spectral_noise, preconditioned_noise;  // if noise in dual norms is measured
  // Value of consumed_samples - skipped_samples after the latest step whose norms were observed.
  int64_t observed_samples = 0;
  Configuration configuration;  // of the run at this point
  double rate_factor = 1;       // on the schedule's learning rate, for the batch
  OptimizerScalars optimizer;   // numbers that the optimizer keeps besides its slots

  // Returns the index of the next sample in the data.
  uint64_t data_position() const { return static_cast<uint64_t>(consumed_samples - data_begin); }

  // Adds a pause between two steps.
  void add_pause(double seconds) {
    elapsed_seconds += seconds;
    paused_seconds += seconds;
  }

  bool operator==(const TrainingState&) const = default;
};

// Writes a JSON object with one member per field; noise averages and optimizer are nested objects. Numbers parse to the
// same bits.
std::string to_json(const TrainingState& state);

// Parses the output of to_json. Throws UserError with `source` and the field if the text is not such an object.
TrainingState parse_training_state(std::string_view json_text, const std::string& source);

}  // namespace copus
