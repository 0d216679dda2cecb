// Properties of a training program that determine the time and memory of a configuration: the bytes for each parameter
// and activation, the operations that it computes twice, and the operations that it overlaps. Copus is one such
// program. Others are described to compare predictions with their published measurements.
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

// Tensors of one decoder layer held for one micro-batch: for each width, the number of tensors with one row per token.
// If a layer holds them from one pass to another, those of hidden_size count for a layer with two blocks, and a layer
// with one block has half as many.
struct LayerTensors {
  double hidden = 0;        // hidden_size wide: on every tensor-parallel rank, split by rows with sequence parallelism
  double gathered = 0;      // hidden_size wide: whole on every tensor-parallel rank, even with sequence parallelism
  double query = 0;         // num_heads * head_dim wide; split by heads over the tensor-parallel ranks
  double key_value = 0;     // num_kv_heads * head_dim wide; also split by heads (at least one head)
  double feed_forward = 0;  // intermediate_size wide, split over the tensor-parallel ranks
  double feed_forward_inputs = 0;  // as wide as gate and up together, or as up alone; also split
  double score_bytes = 0;          // bytes per attention score of a rank's heads, if the scores are written to memory

  bool operator==(const LayerTensors&) const = default;
};

// Memory of a training program other than weights, gradients and optimizer state.
struct MemoryUse {
  LayerTensors kept;                     // from forward to backward, with Recompute::none
  LayerTensors kept_without_attention;   // with Recompute::attention; Recompute::full keeps one hidden, the input
  LayerTensors kept_of_normed_heads;     // added to `kept` for models with norms of queries and keys
  LayerTensors working;                  // in addition to the kept ones, for the one layer that a rank works on
  LayerTensors working_of_normed_heads;  // added to `working` for such models
  LayerTensors waiting;                  // from B to W, if W is deferred (zb-h1)
  // With sequence parallelism: the number of further whole tensors of hidden_size in a layer's backward pass, which
  // gathers the gradient of its output and reduces the gradients of its inputs.
  double gathered_working = 0;

  double logit_bytes = 0;       // bytes per logit at the peak, including what is derived from it
  int64_t logits_at_once = 0;   // logits (of a rank) that the head works on at once; 0: those of a whole micro-batch
  int64_t logit_pieces = 1;     // pieces into which the head splits a micro-batch's rows, to process one after another
  bool gathers_logits = false;  // whether every tensor-parallel rank holds the logits of the whole vocabulary
  double head_hidden = 0;       // tensors, hidden_size wide, that the head holds for one micro-batch
  // Whether attention's backward pass may write the gradients of scores to memory, for some sequences at a time
  // (placement/attention_workspace.h). This depends on the device and the build, which a prediction does not know, so
  // it is an upper bound.
  bool writes_score_gradients = false;

  // Bytes of a cosine or sine of rotary embeddings, if those of every row are kept where documents stay apart, with the
  // row's position; 0: they are not kept.
  double kept_rotation_bytes = 0;
  double gradient_copy_bytes = 0;       // bytes per parameter of a micro-batch's own gradients, before they are added
  bool separate_tied_gradient = false;  // whether a tied head's gradient has a buffer of its own
  double fixed_bytes = 0;               // the device's runtime, communicators and their buffers
  // Measured, and used instead of fixed_bytes if available; without context_bytes the context counts as fixed_bytes.
  CommunicatorCosts communicators = {};

  bool operator==(const MemoryUse&) const = default;
};

// Rules by which a program splits the layers into pipeline stages.
enum class StageCut {
  balanced,    // by balance_stages
  thresholds,  // each rank takes blocks until they reach its pth part of the operations; the head is the last block
  equal,       // the same number of layers everywhere
  even,        // the same number, and the embedding or the head may count as a layer each (even_ends)
  ends_count,  // the same number, and the embedding and the head count as a layer each
};

// Returns the memory use of Copus with its own kernels, on a CPU in fp32: see block.h and output_head.cpp.
MemoryUse copus_memory_use();

// The kind of processor. GPU kernels work on pieces of other sizes, and need other memory in addition.
enum class Processor { cpu, gpu };

struct TrainingSystem {
  std::string name = "copus";

  // Bytes per parameter. Gradients are the accumulated ones; optimizer state is what ZeRO-1 shards.
  double weight_bytes = 2;
  double gradient_bytes = 4;
  double optimizer_bytes = 12;                     // fp32 master weights and two moments
  OptimizerKind optimizer = OptimizerKind::adamw;  // only for Copus: decides what moves in a re-layout
  // Work on whole hidden matrices, whose parts are on several ranks.
  struct WholeMatrices {
    bool are_exchanged = false;       // whether ranks exchange parts of matrices
    int64_t newton_schulz_steps = 0;  // iterations on every matrix in an update
    double element_bytes = 0;         // in these iterations
    bool operator==(const WholeMatrices&) const = default;
  };
  WholeMatrices whole_matrices = {};
  double activation_bytes = 2;  // bytes per element

  // Memory traffic of all operations except matrix products, in elements per token of a layer, reads and writes
  // together. Sequence parallelism splits only the traffic of the residual stream.
  struct Passes {
    double stream = 8;     // hidden_size wide: norms and additions, in a layer with two blocks
    double attention = 2;  // as wide as queries, keys and values together: rotary embedding
    // As wide as `attention`: norms of queries and keys, by head or over projections.
    double normed_heads = 2, normed_projections = 3;
    double feed_forward = 3;    // intermediate_size wide: the activation function of gate and up
    double normed_outputs = 2;  // added to `stream` if norms apply to outputs of blocks: a sum separate from its norm
    double normed_twice = 4;    // added to `stream` if norms apply to inputs and outputs of blocks
    // Added to `stream` if the outputs of blocks are multiplied before they are added (residual_multiplier).
    double multiplied_outputs = 4;
    double launches = 11;  // number of kernels, in a layer with two blocks
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
  double logit_bytes = 10;        // moved per logit by the loss and its gradient
  double accumulation_bytes = 8;  // moved per parameter and micro-batch to add its gradient
  // Bytes moved per parameter of the embedding to add its gradient, if it is computed for the whole vocabulary; 0 if it
  // is computed only for the rows that were looked up.
  double dense_embedding_bytes = 0;
  double optimizer_traffic = 38;  // bytes moved per updated parameter
  double gradient_traffic = 8;    // bytes moved per held parameter, to compute its gradient's norm and to zero it
  // Launches by the host for one tensor-parallel collective, and further ones per member in pipelines across nodes.
  double collective_launches = 2;
  double pipelined_collective_launches = 0;
  // Elements that a rank copies to and from a tensor-parallel collective, per element of the whole tensor.
  double collective_copies = 0;
  // The length of the document that a token is in, averaged over tokens, if attention ends at documents; 0: it does
  // not.
  double document_length = 0;
  // The tokens of a block of queries or keys, if attention that ends at documents reads whole blocks, which begin at
  // multiples of it; 0: it reads the keys of the document alone.
  double attention_block = 0;
  double attention_matrix_bytes = 0;  // moved per attention score and pass, if the scores are written to memory

  // Communication:
  double reduced_bytes = 4;    // bytes of a gradient element in messages
  double agreement_bytes = 0;  // bytes that the ranks sum once a step, before they agree on the latest time
  struct Reduction {
    bool overlaps = true;  // whether reductions of gradients overlap with the last backward pass
    // The number of a rank's parameters that one collective reduces or gathers, without ZeRO-2 and 3. 0: the parameters
    // of a layer, of the embedding or of the head.
    double bucket_parameters = 0;
    bool operator==(const Reduction&) const = default;
  };
  Reduction reduction_without_zero = {};
  Reduction reduction_with_zero = {};
  // Whether with ZeRO-1 and 2 the gathers of updated weights overlap with the next step's first forward pass.
  bool overlaps_gathers = true;
  bool scatters_gradients = true;  // whether ZeRO-1 uses a reduce-scatter; otherwise an all-reduce
  // Launches by the host, for each layer and each rank that shares its weights, to copy gathered weights into place.
  double gather_launches = 0;
  // Number of ranks that shard an optimizer state with ZeRO-1 (and gradients and weights with 2 and 3); 0: the
  // data-parallel ranks.
  int64_t optimizer_group = 0;
  bool overlaps_tensor_backward = true;  // whether collectives of backward passes overlap with the layer's products
  // Whether weights with reshard=0 are freed after every backward pass, so that each micro-batch gathers them.
  bool frees_after_backward = false;
  // Whether inputs that a recompute has gathered are gathered again for the weight gradients.
  bool gathers_after_recompute = false;
  // Whether Recompute::full also repeats the feed-forward's last product; a norm of its result needs that in any case.
  bool recomputes_down_projection = false;
  StageCut stage_cut = StageCut::balanced;
  // An effect in nanotron's published times: in some pipeline runs, every micro-batch stalls each pipeline rank for
  // these seconds, up to four ranks in turn. A pipeline that needs more than this fraction of a device's memory is
  // predicted to stall. Other pipelines across nodes may stall or not, so there it affects only the range of the
  // prediction.
  double crowded_memory = 0.9;
  double stall_seconds = 0;

  MemoryUse memory = copus_memory_use();

  const Reduction& reduction_of(const ParallelStrategy& strategy) const {
    return strategy.zero_stage == 0 ? reduction_without_zero : reduction_with_zero;
  }

  bool operator==(const TrainingSystem&) const = default;
};

// Return Copus with bf16 weights and activations, or with everything in fp32 (weights are then their own masters).
TrainingSystem copus_in_bf16(Processor processor = Processor::gpu, OptimizerKind optimizer = OptimizerKind::adamw);
TrainingSystem copus_in_fp32(Processor processor = Processor::cpu, OptimizerKind optimizer = OptimizerKind::adamw);

// Returns the number of elements of these tensors for one token that a tensor-parallel rank holds of a block, apart
// from those that are hidden_size wide.
double inner_elements(const LayerTensors& tensors, const BlockDescription& block, int64_t tensor_parallel);

// Returns how much longer a step takes if its pipeline stalls.
double stalled_seconds(const TrainingSystem& system, const Configuration& configuration);

// The ends of a model that count as a layer each, if that gives every stage the same number.
struct CountedEnds {
  bool embedding = false, head = false;
  int64_t layers() const { return (embedding ? 1 : 0) + (head ? 1 : 0); }
  bool operator==(const CountedEnds&) const = default;
};

// Returns the smallest number of ends (head and embedding) with which the layers can be divided evenly by the stages;
// the head counts before the embedding. Empty if no choice of ends divides evenly.
std::optional<CountedEnds> even_ends(int64_t num_layers, int64_t num_stages);

// Returns the layers of each stage under this system. Stages may be empty under rules other than `balanced`.
std::vector<LayerRange> cut_stages(const TrainingSystem& system, const ModelDescription& model, int64_t sequence_length,
                                   int64_t num_stages);

}  // namespace copus
