// The properties of a training program on which time and memory depend: bytes per parameter and activation, recomputed
// operations, and overlap. Copus is one such program; others are described to compare predictions with their published
// measurements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/description/cluster_description.h"
#include "copus/description/layer_blocks.h"
#include "copus/description/model_description.h"
#include "copus/description/optimizer_kind.h"
#include "copus/description/parallel_strategy.h"
#include "copus/placement/stages.h"

namespace copus {

// The tensors of one decoder layer for one micro-batch: for each width, the number of tensors with one row per token.
// `hidden` counts the tensors that a layer of two blocks (attention, then feed-forward) keeps for the backward pass. A
// layer of one block, where both run in parallel, keeps half as many.
struct LayerTensors {
  double hidden = 0;        // hidden_size wide: on all tensor-parallel ranks; split by rows with sequence parallelism
  double gathered = 0;      // hidden_size wide: on all tensor-parallel ranks, also with sequence parallelism
  double query = 0;         // num_heads * head_dim wide; heads are split over the tensor-parallel ranks
  double key_value = 0;     // num_kv_heads * head_dim wide; heads are split, at least one per rank
  double feed_forward = 0;  // intermediate_size wide, split over the tensor-parallel ranks
  double feed_forward_inputs = 0;  // as wide as gate and up together, or as up alone; split
  double score_bytes = 0;          // bytes per attention score of a rank's heads if scores are in memory, otherwise 0

  bool operator==(const LayerTensors&) const = default;
};

// A training program's memory besides weights, gradients and optimizer state.
struct MemoryUse {
  LayerTensors kept;                     // from forward to backward, with Recompute::none
  LayerTensors kept_without_attention;   // with Recompute::attention; Recompute::full keeps only the input (hidden)
  LayerTensors kept_of_normed_heads;     // in addition to `kept`, with norms of queries and keys
  LayerTensors working;                  // in addition to kept ones, for the layer that a rank works on
  LayerTensors working_of_normed_heads;  // in addition to `working`, with norms of queries and keys
  LayerTensors waiting;                  // between B and W if W is deferred (zb-h1)
  // Number of additional hidden_size tensors in a layer's backward pass with sequence parallelism. They are not split:
  // gathered gradients of outputs, and gradients of inputs before their reduction.
  double gathered_working = 0;

  double logit_bytes = 0;       // per logit at the peak, including tensors derived from it
  int64_t logits_at_once = 0;   // number of a rank's logits in memory at once; 0: those of a whole micro-batch
  int64_t logit_pieces = 1;     // number of pieces into which the head splits a micro-batch's rows
  bool gathers_logits = false;  // whether every tensor-parallel rank holds the logits of the whole vocabulary
  double head_hidden = 0;       // number of hidden_size tensors that the head holds for one micro-batch
  // Whether attention's backward pass may write gradients of scores to memory, for a few sequences at a time
  // (placement/attention_workspace.h). Whether it does depends on device and build, which predictions do not know. So
  // they predict an upper bound.
  bool writes_score_gradients = false;

  // Bytes of one cosine or sine, if each row keeps its own position, cosines and sines (masked documents). 0: rows keep
  // none of them.
  double kept_rotation_bytes = 0;
  double gradient_copy_bytes = 0;       // per parameter, of a micro-batch's gradients before they are added to the sum
  bool separate_tied_gradient = false;  // whether a tied head's gradient has its own buffer
  double fixed_bytes = 0;               // device runtime, communicators and their buffers
  // Measured costs; if available they replace fixed_bytes. Without context_bytes the context counts as fixed_bytes.
  CommunicatorCosts communicators = {};

  bool operator==(const MemoryUse&) const = default;
};

// How a program splits layers into pipeline stages.
enum class StageCut {
  balanced,    // by balance_stages
  thresholds,  // a rank takes blocks until its pth part of the operations is reached; the head is the last block
  equal,       // the same number of layers everywhere
  even,        // the same number, if necessary counting embedding or head as a layer (even_ends)
  ends_count,  // the same number, counting embedding and head as a layer each
};

// Returns the memory use of Copus' own kernels on a CPU in fp32 (block.h, output_head.cpp).
MemoryUse copus_memory_use();

// The kind of processor. GPU kernels work on pieces of other sizes and need other memory.
enum class Processor { cpu, gpu };

struct TrainingSystem {
  std::string name = "copus";

  // Bytes per parameter. Gradients are accumulated ones; ZeRO-1 shards the optimizer state.
  double weight_bytes = 2;
  double gradient_bytes = 4;
  double optimizer_bytes = 12;                     // fp32 master weights and two moments
  OptimizerKind optimizer = OptimizerKind::adamw;  // only for Copus: decides which slots a re-layout moves
  // Work on unsharded hidden matrices (Muon); the parts of a matrix are on several ranks.
  struct WholeMatrices {
    bool are_exchanged = false;       // whether parts of matrices are exchanged between ranks
    int64_t newton_schulz_steps = 0;  // iterations per matrix and update
    double element_bytes = 0;         // bytes per element in these iterations
    bool operator==(const WholeMatrices&) const = default;
  };
  WholeMatrices whole_matrices = {};
  // Whether some steps measure noise in dual norms. Such a step copies the gradients of one group of hidden matrices
  // (description/muon.h), unsharded and in fp32.
  bool measures_dual_norms = false;
  double activation_bytes = 2;  // bytes per element

  // Memory traffic (reads plus writes) of all operations except matrix products, in elements per token of a layer.
  // Sequence parallelism splits only the traffic of the residual stream.
  struct Passes {
    double stream = 8;     // hidden_size wide: norms and additions of a layer with two blocks
    double attention = 2;  // as wide as queries, keys and values together: rotary embeddings
    // As wide as `attention`: norms of queries and keys, by head or over whole projections.
    double normed_heads = 2, normed_projections = 3;
    double feed_forward = 3;    // intermediate_size wide: the activation function of gate and up
    double normed_outputs = 2;  // added to `stream` if blocks' outputs are normalised: sum and norm are separate passes
    double normed_twice = 4;    // added to `stream` if blocks' inputs and outputs are normalised
    // Added to `stream` if blocks' outputs are multiplied before they are added (residual_multiplier).
    double multiplied_outputs = 4;
    double launches = 11;  // number of kernels of a layer with two blocks
    bool operator==(const Passes&) const = default;
  };
  Passes forward = {};
  Passes backward = {.stream = 8,
                     .attention = 2,
                     .normed_heads = 5,
                     .normed_projections = 8,
                     .feed_forward = 6,
                     .normed_outputs = 4,
                     .normed_twice = 6,
                     .launches = 19};
  double logit_bytes = 10;        // moved per logit by loss and gradient
  double accumulation_bytes = 8;  // moved per parameter and micro-batch to accumulate gradients
  // Memory traffic in bytes per embedding parameter, if adding the embedding's gradient touches the whole vocabulary; 0
  // if it touches only the rows that were looked up.
  double dense_embedding_bytes = 0;
  double optimizer_traffic = 38;  // bytes moved per updated parameter
  double gradient_traffic = 8;    // bytes moved per held parameter to compute its gradient's norm and to zero it
  // Host launches per tensor-parallel collective, and additional ones per member in pipelines across nodes.
  double collective_launches = 2;
  double pipelined_collective_launches = 0;
  // Elements that a rank copies into and out of a tensor-parallel collective, per element of the whole tensor.
  double collective_copies = 0;
  // If attention is limited to documents: the mean length of the document to which a token belongs, in tokens. 0:
  // attention is not limited.
  double document_length = 0;
  // Tokens per block, if attention within documents reads whole blocks of keys. Blocks begin at multiples of this
  // number. 0: attention reads only the document's keys.
  double attention_block = 0;
  double attention_matrix_bytes = 0;  // moved per attention score and pass, if scores are in memory

  // Communication:
  double reduced_bytes = 4;    // bytes of a gradient element in messages
  double agreement_bytes = 0;  // bytes that ranks sum once a step before they agree on the latest time
  struct Reduction {
    bool overlaps = true;  // whether reductions of gradients overlap with the last backward pass
    // Without ZeRO-2 and 3: the number of a rank's parameters per collective. 0: one collective each for every layer,
    // for the embedding and for the head.
    double bucket_parameters = 0;
    bool operator==(const Reduction&) const = default;
  };
  Reduction reduction_without_zero = {};
  Reduction reduction_with_zero = {};
  // Whether with ZeRO-1 and 2 the gathers of updated weights overlap with the next step's first forward pass.
  bool overlaps_gathers = true;
  bool scatters_gradients = true;  // whether ZeRO-1 uses a reduce-scatter; otherwise an all-reduce
  // Host launches to copy gathered weights into place, per layer and rank that shares it.
  double gather_launches = 0;
  // Number of ranks over which ZeRO-1 shards the optimizer state (with 2 and 3 also gradients and weights); 0: all
  // data-parallel ranks.
  int64_t optimizer_group = 0;
  bool overlaps_tensor_backward = true;  // whether backward collectives overlap with the layer's products
  // Whether weights with reshard=0 are freed after every backward pass, so that each micro-batch gathers them.
  bool frees_after_backward = false;
  // Whether the backward pass gathers inputs for the weight gradients that a recompute has already gathered.
  bool gathers_after_recompute = false;
  // Whether Recompute::full also repeats the feed-forward's last product, as a norm of its result always requires.
  bool recomputes_down_projection = false;
  StageCut stage_cut = StageCut::balanced;
  // In nanotron's published times some pipeline runs stall: every micro-batch takes stall_seconds longer on each
  // pipeline rank, counting at most four ranks. Pipelines that need more than this fraction of a device's memory are
  // predicted to stall. For other pipelines across nodes the stall only widens the predicted range.
  double crowded_memory = 0.9;
  double stall_seconds = 0;

  MemoryUse memory = copus_memory_use();

  const Reduction& reduction_of(const ParallelStrategy& strategy) const {
    return strategy.zero_stage == 0 ? reduction_without_zero : reduction_with_zero;
  }

  bool operator==(const TrainingSystem&) const = default;
};

// Return Copus with bf16 weights and activations, or all in fp32, where the weights are the master weights.
TrainingSystem copus_in_bf16(Processor processor = Processor::gpu, OptimizerKind optimizer = OptimizerKind::adamw);
TrainingSystem copus_in_fp32(Processor processor = Processor::cpu, OptimizerKind optimizer = OptimizerKind::adamw);

// Returns a tensor-parallel rank's elements per token in one block, over all of `tensors` except those of hidden_size.
double inner_elements(const LayerTensors& tensors, const BlockDescription& block, int64_t tensor_parallel);

// Returns the additional seconds of a step whose pipeline stalls.
double stalled_seconds(const TrainingSystem& system, const Configuration& configuration);

// Which ends of a model (embedding, head) count as a layer so that all stages have equally many.
struct CountedEnds {
  bool embedding = false, head = false;
  int64_t layers() const { return (embedding ? 1 : 0) + (head ? 1 : 0); }
  bool operator==(const CountedEnds&) const = default;
};

// Returns which ends of the model (head, embedding) must count as layers so that stages divide the layers evenly.
// Prefers as few ends as possible, and the head to the embedding. Empty if no choice works.
std::optional<CountedEnds> even_ends(int64_t num_layers, int64_t num_stages);

// Returns the layers of each stage in this system. Under rules other than `balanced` stages may be empty.
std::vector<LayerRange> cut_stages(const TrainingSystem& system, const ModelDescription& model, int64_t sequence_length,
                                   int64_t num_stages);

}  // namespace copus
