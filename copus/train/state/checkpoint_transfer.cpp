#include "copus/train/state/checkpoint_transfer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/checkpoint/stored_layout.h"
#include "copus/model/kernels/kernels.h"
#include "copus/placement/state_parts.h"
#include "copus/train/state/state_transfer.h"

namespace copus {

namespace {

// The elements begin .. end of one parameter within a tensor of the plan.
struct Piece {
  int64_t tensor = 0, parameter = 0, begin = 0, end = 0;
};

// The content of a tensor of the plan: a kind of state (as index into state_in_order()), and parameters (by canonical
// index).
struct Content {
  size_t kind = 0;
  std::vector<int64_t> parameters;
  StoredTensor stored;  // how the file stores weights
  bool is_plain() const { return kind > 0 || stored.is_plain(); }
};

// Lists the contents of list_checkpoint_tensors' tensors.
std::vector<Content> contents_of(const RankModel& model) {
  const ModelDescription& description = model.parameters.model();
  std::map<std::string, int64_t> index;
  for (const ParameterInfo& parameter : list_parameters(description)) index.emplace(parameter.name, std::ssize(index));
  std::vector<Content> contents;
  for (StoredTensor& stored : list_stored_tensors(description)) {
    Content& content = contents.emplace_back();
    for (const ParameterInfo& parameter : stored.parameters) content.parameters.push_back(index.at(parameter.name));
    content.stored = std::move(stored);
  }
  for (size_t slot = 0; slot < model.optimizer->num_slots(); ++slot) {
    for (int64_t i = 0; i < std::ssize(index); ++i)
      contents.push_back({.kind = slot + 1, .parameters = {i}, .stored = {}});
  }
  return contents;
}

// Returns the elements of a part's box that lie in a piece. Box and piece are both row-major, so these elements are
// contiguous in the box.
Stretch inside(const StatePart& part, const std::vector<int64_t>& shape, const Piece& piece) {
  const int64_t row_stride = shape.back();
  const bool is_matrix = part.box.begin.size() == 2;
  const int64_t first_row = is_matrix ? part.box.begin.front() : 0;
  const int64_t first_column = part.box.begin.back(), width = part.box.shape.back();
  // The number of the box's elements that precede an element of the unsharded tensor.
  const auto before = [&](int64_t element) {
    const int64_t row = element / row_stride - first_row, column = element % row_stride - first_column;
    const int64_t num_rows = is_matrix ? part.box.shape.front() : 1;
    if (row < 0) return int64_t{0};
    if (row >= num_rows) return part.box.num_elements();
    return row * width + std::clamp<int64_t>(column, 0, width);
  };
  return {std::max(part.begin, before(piece.begin)), std::min(part.end, before(piece.end))};
}

// Returns the rank that sends a part: the writer itself if it holds the part, otherwise the holders in turn.
int64_t giver(const StatePart& part, int64_t writer) {
  if (std::ranges::binary_search(part.ranks, writer)) return writer;
  return part.ranks[writer % std::ssize(part.ranks)];
}

// Master weights, then the optimizer's slots; each by bucket.
std::vector<std::vector<at::Tensor>> state_in_order(const RankModel& model) {
  std::vector<std::vector<at::Tensor>> state = {master_weights(model.parameters)};
  for (size_t slot = 0; slot < model.optimizer->num_slots(); ++slot)
    state.push_back(model.optimizer->slot_tensors(slot));
  return state;
}

class Handover {
 public:
  Handover(RankModel& model, const CheckpointPlan& plan)
      : plan_(plan),
        everyone_(model.groups.everyone()),
        parameters_(model.parameters),
        infos_(list_parameters(model.parameters.model())),
        contents_(contents_of(model)),
        state_(state_in_order(model)),
        parts_(find_state_parts(model.parameters.model(), model.parameters.placement())),
        writers_(plan.writers()) {
    COPUS_CHECK(plan.tensors.size() == contents_.size(), plan.tensors.size());
    for (size_t i = 0; i < parameters_.parameters().size(); ++i) {
      const Parameter& parameter = parameters_.parameters()[i];
      if (!parameter.tied_copy) here_[parameter.info.name] = i;
    }
    for (const int64_t writer : writers_) {
      pieces_.push_back(cut(plan.tensors_of(writer)));
      num_rounds_ = std::max(num_rounds_, pieces_.back().size());
    }
  }

  void run(const TensorSink& sink) {
    for (size_t round = 0; round < num_rounds_; ++round) {
      for (size_t i = 0; i < writers_.size(); ++i) {
        if (round < pieces_[i].size()) add(writers_[i], pieces_[i][round]);
      }
      everyone_.exchange(outgoing_, incoming_);
      if (mine_) deliver(sink);
      outgoing_.clear();
      incoming_.clear();
      staged_ = 0;
    }
  }

 private:
  // A range of a part that this rank writes, and where its elements are in host memory.
  struct Source {
    const StatePart* part;
    Stretch stretch;
    const float* elements;
  };

  int64_t piece_elements() const { return piece_bytes(std::ssize(writers_)) / size_of(DType::f32); }

  std::vector<Piece> cut(const std::vector<int64_t>& tensors) const {
    std::vector<Piece> pieces;
    for (const int64_t tensor : tensors) {
      for (const int64_t parameter : contents_[tensor].parameters) {
        const int64_t elements = infos_[parameter].num_elements();
        for (int64_t begin = 0; begin < elements; begin += piece_elements()) {
          pieces.push_back({tensor, parameter, begin, std::min(elements, begin + piece_elements())});
        }
      }
    }
    return pieces;
  }

  // Records this rank's tasks for a writer's piece.
  void add(int64_t writer, const Piece& piece) {
    const std::vector<int64_t>& shape = infos_[piece.parameter].shape;
    const bool writes = writer == everyone_.rank();
    if (writes) mine_ = piece;
    int64_t received = 0;
    for (const StatePart& part : parts_[piece.parameter]) {
      const Stretch stretch = inside(part, shape, piece);
      if (stretch.size() <= 0) continue;
      const int64_t from = giver(part, writer);
      const bool gives = from == everyone_.rank();
      if (!gives && !writes) continue;
      const auto bytes = stretch.size() * size_of(DType::f32);
      if (gives) {
        float* const elements = on_host(piece, stretch);
        if (writes) {
          sources_.push_back({&part, stretch, elements});
        } else {
          outgoing_.push_back({writer, elements, bytes});
        }
      } else {
        float* const elements = buffer(received_, piece_elements()) + received;
        received += stretch.size();
        sources_.push_back({&part, stretch, elements});
        incoming_.push_back({from, elements, bytes});
      }
    }
  }

  // Returns elements that this rank holds, in host memory: in place, or copied from the device.
  float* on_host(const Piece& piece, const Stretch& stretch) {
    const Parameter& parameter = parameters_.parameters()[here_.at(infos_[piece.parameter].name)];
    const at::Tensor& shard = state_[contents_[piece.tensor].kind][parameter.bucket];
    COPUS_CHECK(shard.scalar_type() == at::kFloat);
    const int64_t begin = parameter.offset + stretch.begin - parameters_.buckets()[parameter.bucket].shard_begin;
    const at::Tensor elements = shard.narrow(0, begin, stretch.size());
    if (elements.device().is_cpu()) return elements.data_ptr<float>();
    // A round has at most one piece per writer.
    float* const copy = buffer(copied_, piece_elements() * std::ssize(writers_)) + staged_;
    staged_ += stretch.size();
    kernels::copy_to_host(elements, copy);
    return copy;
  }

  // Host memory for `elements` elements, which lives as long as this object.
  static float* buffer(at::Tensor& memory, int64_t elements) {
    if (!memory.defined()) memory = kernels::empty({elements}, at::kFloat, at::kCPU);
    return memory.data_ptr<float>();
  }

  // Assembles this round's piece.
  void deliver(const TensorSink& sink) {
    float* const piece = buffer(piece_, piece_elements());
    const std::vector<int64_t>& shape = infos_[mine_->parameter].shape;
    int64_t found = 0;
    for (const Source& source : sources_) {
      for_stretches(source.part->box, shape, source.stretch.begin, source.stretch.end,
                    [&](int64_t position, int64_t index, int64_t count) {
                      std::copy_n(source.elements + position - source.stretch.begin, count,
                                  piece + index - mine_->begin);
                    });
      found += source.stretch.size();
    }
    const int64_t size = mine_->end - mine_->begin;
    COPUS_CHECK(found == size, plan_.tensors[mine_->tensor].name, " has ", found, " of ", size, " elements");
    const std::span<const float> elements(piece, static_cast<size_t>(size));
    contents_[mine_->tensor].is_plain() ? sink(std::as_bytes(elements)) : gather(elements, sink);
    sources_.clear();
    mine_.reset();
  }

  // Collects the parameters of a tensor that files fuse or transpose. Delivers the tensor once it is complete.
  void gather(std::span<const float> elements, const TensorSink& sink) {
    gathered_.insert(gathered_.end(), elements.begin(), elements.end());
    if (std::ssize(gathered_) < count_elements(plan_.tensors[mine_->tensor].shape)) return;
    std::vector<TensorView> parameters;
    std::span<const std::byte> bytes = std::as_bytes(std::span<const float>(gathered_));
    for (const int64_t index : contents_[mine_->tensor].parameters) {
      const ParameterInfo& info = infos_[index];
      const auto size = static_cast<size_t>(info.num_elements() * size_of(DType::f32));
      parameters.push_back({.name = info.name, .dtype = DType::f32, .shape = info.shape, .bytes = bytes.first(size)});
      bytes = bytes.subspan(size);
    }
    sink(pack(contents_[mine_->tensor].stored, parameters).bytes);
    gathered_.clear();
  }

  const CheckpointPlan& plan_;
  Communicator& everyone_;
  const ParameterStore& parameters_;
  const std::vector<ParameterInfo> infos_;            // in canonical order
  const std::vector<Content> contents_;               // by tensor of the plan
  const std::vector<std::vector<at::Tensor>> state_;  // as state_in_order
  const std::vector<std::vector<StatePart>> parts_;   // by parameter, in canonical order
  const std::vector<int64_t> writers_;
  std::map<std::string, size_t> here_;      // index of each of this rank's parameters
  std::vector<std::vector<Piece>> pieces_;  // by writer
  size_t num_rounds_ = 0;

  // The state of the current round.
  std::optional<Piece> mine_;
  std::vector<Source> sources_;
  std::vector<Communicator::Message> outgoing_, incoming_;
  int64_t staged_ = 0;  // number of elements in copied_
  at::Tensor piece_, received_, copied_;
  std::vector<float> gathered_;
};

}  // namespace

int64_t piece_bytes(int64_t num_writers) {
  constexpr int64_t mebibyte = int64_t{1} << 20;
  return std::clamp(64 * mebibyte / num_writers, mebibyte, 4 * mebibyte);
}

CheckpointPlan plan_checkpoint_of(const RankModel& model, const CheckpointLimits& limits) {
  std::vector<CheckpointTensor> tensors = list_checkpoint_tensors(model.parameters.model(), model.optimizer->slots());
  const auto parts = find_state_parts(model.parameters.model(), model.parameters.placement());
  const std::vector<Content> contents = contents_of(model);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<StatePart>& parts_of_first = parts[contents[i].parameters.front()];
    int64_t most = 0;
    for (const StatePart& part : parts_of_first) most = std::max(most, part.end - part.begin);
    for (const StatePart& part : parts_of_first) {
      if (part.end - part.begin < most) continue;
      tensors[i].at_hand.insert(tensors[i].at_hand.end(), part.ranks.begin(), part.ranks.end());
    }
  }
  return plan_checkpoint(std::move(tensors), model.strategy().world_size(), limits);
}

void hand_over_state(RankModel& model, const CheckpointPlan& plan, const TensorSink& sink) {
  Handover(model, plan).run(sink);
}

}  // namespace copus
