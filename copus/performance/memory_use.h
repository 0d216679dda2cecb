// What a training program keeps in memory beside weights, gradients and optimizer state: the memory side of a
// TrainingSystem.
#pragma once

#include <cstdint>

namespace copus {

// What is held of one decoder layer for one micro-batch, counted in tensors: for each width, how many tensors with one
// row per token.
struct LayerTensors {
  double hidden = 0;        // hidden_size wide: on every tensor-parallel rank, cut by rows with sequence parallelism
  double gathered = 0;      // hidden_size wide, on every tensor-parallel rank whatever the sequence parallelism
  double query = 0;         // num_heads * head_dim wide, each tensor-parallel rank has its heads
  double key_value = 0;     // num_kv_heads * head_dim wide, likewise (at least one head)
  double feed_forward = 0;  // intermediate_size wide, cut over the tensor-parallel ranks
  double score_bytes = 0;   // of each attention score of a rank's heads, where the scores are written to memory

  bool operator==(const LayerTensors&) const = default;
};

struct MemoryUse {
  LayerTensors kept;                    // from forward to backward, with Recompute::none
  LayerTensors kept_without_attention;  // Recompute::attention. Recompute::full keeps the layer's input, one hidden
  LayerTensors working;                 // beside those, of the one layer that a rank works on
  LayerTensors waiting;                 // from B to W where W is deferred (zb-h1)

  double logit_bytes = 0;       // at the peak, of one logit and what is derived from it
  int64_t logits_at_once = 0;   // the head works on this many at a time (of a rank); 0: on all of a micro-batch
  bool gathers_logits = false;  // every tensor-parallel rank holds those of the whole vocabulary
  double head_hidden = 0;       // tensors, hidden_size wide, that the head holds for one micro-batch

  double gradient_copy_bytes = 0;       // of a parameter: a micro-batch's own gradients, before they are added
  bool separate_tied_gradient = false;  // a tied head's gradient has its own buffer on the rank of the embedding
  double fixed_bytes = 0;               // the device's runtime, communicators and their buffers

  bool operator==(const MemoryUse&) const = default;
};

}  // namespace copus
