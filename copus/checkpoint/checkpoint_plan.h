// Plans which rank writes which tensors of a checkpoint, and into which files. The plan is a pure function of its
// arguments: every rank computes the same plan by itself.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "copus/description/model_description.h"
#include "copus/placement/placed_tensors.h"

namespace copus {

// An unsharded fp32 tensor of a checkpoint.
struct CheckpointTensor {
  std::string name;
  std::vector<int64_t> shape;
  bool is_weight = true;  // otherwise a slot of the optimizer
  // The ranks that hold the largest part of the tensor; may be empty.
  std::vector<int64_t> at_hand = {};

  int64_t bytes() const;
};

// The name of an optimizer slot of a parameter in a checkpoint: <slot>.<parameter>, such as exp_avg.model.norm.weight.
std::string optimizer_tensor_name(const OptimizerSlot& slot, const std::string& parameter);

// Lists the tensors of a checkpoint: the weights in the form of list_stored_tensors(), then the optimizer's first slot
// (such as exp_avg) for every parameter in canonical order, then the second slot, and so on.
std::vector<CheckpointTensor> list_checkpoint_tensors(const ModelDescription& model,
                                                      const std::vector<OptimizerSlot>& slots);

// A safetensors file of a checkpoint.
struct CheckpointFile {
  std::string name;
  int64_t writer = 0;            // world rank
  std::vector<int64_t> tensors;  // indices into CheckpointPlan::tensors, in the order of their bytes in the file
};

struct CheckpointPlan {
  std::vector<CheckpointTensor> tensors;
  std::vector<CheckpointFile> files;  // files of weights first

  // Bytes of all tensors.
  int64_t bytes() const;
  // Ranks that write something, ascending.
  std::vector<int64_t> writers() const;
  // Tensors that a rank writes, in the order of writing.
  std::vector<int64_t> tensors_of(int64_t writer) const;
  // The text of the index of the weight files; empty for a single weight file, which has no index.
  std::string model_index() const;
};

struct CheckpointLimits {
  // A file holds at most this many bytes of tensors, or a single larger tensor.
  int64_t file_bytes = int64_t{1} << 30;
  // An additional writer must have at least this many bytes to write, because it costs two more files with a sync each.
  int64_t bytes_per_writer = int64_t{16} << 20;
};

// Assigns the tensors to writers, the largest first. A tensor goes to a writer that has it in memory, unless that
// writer would then get more than an equal share of all bytes. In that case it goes to the writer with the fewest bytes
// so far. So no rank writes more than an equal share plus one tensor.
CheckpointPlan plan_checkpoint(std::vector<CheckpointTensor> tensors, int64_t num_ranks,
                               const CheckpointLimits& limits = {});

}  // namespace copus
