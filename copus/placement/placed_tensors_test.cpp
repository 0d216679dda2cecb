#include "copus/placement/placed_tensors.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"
#include "copus/placement/state_parts.h"
#include "copus/placement/testing/relayout_requests.h"

namespace copus {
namespace {

using testing::ElementsAre;

using relayout_tests::sequence_length;

PlacedState place_on(const ModelDescription& model, const ParallelStrategy& strategy, const StateRecipe& recipe) {
  return place_state(model, strategy, balance_stages(model, sequence_length, strategy.num_stages()), recipe);
}

// ---- The list agrees with the descriptions of single ranks ----

std::vector<int64_t> numbers_of(const Box& box) {
  std::vector<int64_t> numbers = box.begin;
  numbers.insert(numbers.end(), box.shape.begin(), box.shape.end());
  return numbers;
}

std::string role_text(const PlacedTensor& tensor) {
  return tensor.role == TensorRole::weight ? "weight" : tensor.role == TensorRole::gradient ? "gradient" : tensor.slot;
}

// A parameter in one of a rank's buffers: name, whether it is the head's tied copy, role or slot, bucket, first element
// within the bucket, box, the elements of the box that the rank keeps, and the bytes of the whole buffer.
using Fact =
    std::tuple<std::string, bool, std::string, int64_t, int64_t, std::vector<int64_t>, int64_t, int64_t, int64_t>;

std::vector<Fact> facts_of_list(const PlacedState& state, const MeshCoordinates& at,
                                const std::vector<HeldTensor>& all_held) {
  std::vector<Fact> facts;
  for (const HeldTensor& held : all_held) {
    const PlacedTensor& tensor = *held.tensor;
    EXPECT_EQ(held.boxes.size(), 1);
    facts.emplace_back(tensor.parameter.name, tensor.tied_copy, role_text(tensor), held.bucket, held.offset,
                       numbers_of(held.boxes.front()), held.kept.begin, held.kept.end,
                       state.share(tensor, at).size() * size_of(tensor.dtype));
  }
  return facts;
}

struct Buffer {
  std::string role;
  Stretch stretch;  // of the tensor's bucket
  DType dtype;
};

std::vector<Buffer> buffers_of(const BucketOffsets& bucket, const StateRecipe& recipe) {
  const Buffer gradient{"gradient", bucket.kept_gradients, DType::f32};
  if (bucket.gradient_only) return {gradient};
  std::vector<Buffer> buffers = {{"weight", bucket.kept_weights, recipe.weight}, gradient};
  const Stretch shard{bucket.shard_begin, bucket.shard_end};
  if (recipe.keeps_master) buffers.push_back({"master", shard, DType::f32});
  for (const OptimizerSlot& slot : recipe.slots) buffers.push_back({slot.name, shard, DType::f32});
  return buffers;
}

std::vector<Fact> facts_of_rank(const ModelDescription& model, const Placement& placement, const StateRecipe& recipe) {
  std::vector<Fact> facts;
  const std::vector<LocalParameter> parameters = list_local_parameters(model, placement);
  int64_t index = 0;
  for (const BucketOffsets& bucket : arrange_buckets(parameters, placement)) {
    for (const BucketOffsets::Entry& entry : bucket.entries) {
      const LocalParameter& parameter = parameters[static_cast<size_t>(entry.parameter)];
      const int64_t elements = parameter.box.num_elements();
      for (const auto& [role, stretch, dtype] : buffers_of(bucket, recipe)) {
        facts.emplace_back(parameter.info.name, parameter.tied_copy, role, index, entry.offset,
                           numbers_of(parameter.box), std::clamp<int64_t>(stretch.begin - entry.offset, 0, elements),
                           std::clamp<int64_t>(stretch.end - entry.offset, 0, elements),
                           stretch.size() * size_of(dtype));
      }
    }
    ++index;
  }
  return facts;
}

void expect_same_facts(const std::vector<Fact>& of_list, const std::vector<Fact>& of_rank) {
  ASSERT_EQ(of_list.size(), of_rank.size());
  for (size_t i = 0; i < of_list.size(); ++i) ASSERT_EQ(of_list[i], of_rank[i]) << "tensor " << i << " of the rank";
}

int64_t tensor_parts(const PlacedTensor& tensor) {
  const std::vector<Segment>& segments = tensor.along(MeshAxis::tensor).segments;
  return segments.empty() ? 1 : segments.front().parts;
}

// By parameter, box and kept elements: the ranks that hold these second moments. Of tensor-parallel replicas only the
// first counts, of tied copies only the embedding.
using Owners = std::map<std::tuple<std::string, std::vector<int64_t>, int64_t, int64_t>, std::vector<int64_t>>;

void add_owner(Owners& owners, int64_t rank, int64_t tensor_rank, const std::vector<HeldTensor>& all_held) {
  for (const HeldTensor& held : all_held) {
    const PlacedTensor& tensor = *held.tensor;
    const int64_t replicas = tensor.along(MeshAxis::tensor).ranks / tensor_parts(tensor);
    if (tensor.slot != "exp_avg_sq" || tensor.tied_copy || tensor_rank % replicas != 0) continue;
    if (held.kept.size() == 0) continue;
    owners[{tensor.parameter.name, numbers_of(held.boxes.front()), held.kept.begin, held.kept.end}].push_back(rank);
  }
}

Owners owners_of_parts(const ModelDescription& model, const Placement& placement) {
  Owners owners;
  const std::vector<ParameterInfo> parameters = list_parameters(model);
  const std::vector<std::vector<StatePart>> parts = find_state_parts(model, placement);
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const StatePart& part : parts[i]) {
      owners[{parameters[i].name, numbers_of(part.box), part.begin, part.end}] = part.ranks;
    }
  }
  return owners;
}

// Compares each parameter's sharding, `partial`, tied copies and stage.
void expect_same_shardings(const ModelDescription& model, const Placement& placement, const PlacedState& state) {
  const ParallelStrategy& strategy = placement.strategy;
  std::set<std::string> seen, tied;
  for (const PlacedTensor& tensor : state.tensors) {
    SCOPED_TRACE(concat(role_text(tensor), " of ", tensor.parameter.name));
    const Sharding sharding = shard(model, placement, tensor.parameter);
    const AxisPlacement &along_tensor = tensor.along(MeshAxis::tensor), &along_data = tensor.along(MeshAxis::data);
    const bool is_gradient = tensor.role == TensorRole::gradient;
    EXPECT_EQ(along_tensor.ranks, strategy.tensor_parallel);
    EXPECT_EQ(along_tensor.dimension, sharding.axis);
    EXPECT_EQ(tensor_parts(tensor), sharding.parts);
    EXPECT_EQ(along_tensor.partial, is_gradient && sharding.partial);
    EXPECT_EQ(along_data.ranks, strategy.data_parallel);
    EXPECT_EQ(along_data.partial, is_gradient && strategy.data_parallel > 1);
    EXPECT_EQ(state.buckets[static_cast<size_t>(tensor.bucket)].stage,
              tensor.tied_copy ? strategy.num_stages() - 1 : sharding.stage);
    EXPECT_TRUE(sharding.tied || !tensor.tied_copy);
    (tensor.tied_copy ? tied : seen).insert(tensor.parameter.name);
  }
  EXPECT_EQ(seen.size(), list_parameters(model).size());
  EXPECT_EQ(std::ssize(tied), model.tie_word_embeddings ? (model.learned_positions ? 2 : 1) : 0);
}

void expect_agreement(const ModelDescription& model, const ParallelStrategy& strategy, DType weight) {
  const StateRecipe recipe = state_recipe(OptimizerKind::adamw, weight);
  const PlacedState state = place_on(model, strategy, recipe);
  Placement placement = place(model, strategy, sequence_length, 0);
  expect_same_shardings(model, placement, state);
  Owners owners;
  for (int64_t rank = 0; rank < strategy.world_size(); ++rank) {
    SCOPED_TRACE(concat("rank ", rank));
    const MeshCoordinates at = placement.here = Mesh(strategy).coordinates(rank);
    const std::vector<HeldTensor> held = list_held(state, at);
    ASSERT_NO_FATAL_FAILURE(expect_same_facts(facts_of_list(state, at, held), facts_of_rank(model, placement, recipe)));
    add_owner(owners, rank, at.tensor, held);
  }
  ASSERT_EQ(owners, owners_of_parts(model, placement));
}

// The model of the layout matrix in copus/train, with a vocabulary that 2 or 4 ranks cannot split evenly.
ModelDescription matrix_model(int64_t kv_heads, bool tied, bool biases) {
  ModelDescription model;
  model.vocab_size = 257;
  model.hidden_size = 64;
  model.intermediate_size = 96;
  model.num_layers = 8;
  model.num_heads = 4;
  model.num_kv_heads = kv_heads;
  model.head_dim = 16;
  model.tie_word_embeddings = tied;
  model.qkv_bias = biases;
  return model;
}

struct MatrixEntry {
  ParallelStrategy strategy;
  ModelDescription model;
  DType weight;
};

// Lists the layouts of at most 16 ranks with the layout matrix's degrees (d, t, p and virtual stages) and every ZeRO
// stage. Other settings alternate between entries, with different periods.
std::vector<MatrixEntry> layout_matrix() {
  std::vector<MatrixEntry> matrix;
  size_t layouts = 0;
  for (const auto& [p, v] : {std::pair{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {8, 1}}) {
    for (const int64_t d : {1, 2, 4}) {
      for (const int64_t t : {1, 2, 4}) {
        if (d * t * p > 16) continue;
        for (const int64_t zero : {0, 1, 2, 3}) {
          const size_t turn = layouts + static_cast<size_t>(zero);
          const auto take = [&](size_t period, const std::vector<int64_t>& choices) {
            return choices[turn / period % choices.size()];
          };
          ParallelStrategy strategy{.data_parallel = d, .tensor_parallel = t, .pipeline_parallel = p};
          strategy.virtual_stages = v;
          if (v > 1) strategy.schedule = PipelineSchedule::interleaved_1f1b;
          strategy.sequence_parallel = t > 1 && take(2, {0, 1}) == 1;
          strategy.zero_stage = zero;
          if (zero > 0) strategy.zero_replicas = take(3, relayout_tests::divisors(d));
          const bool tied = take(1, {0, 1}) == 1, biases = take(1, {1, 0, 0, 1, 0}) == 1;
          matrix.push_back({.strategy = strategy,
                            .model = matrix_model(take(1, {1, 2, 4}), tied, biases),
                            .weight = take(5, {0, 1}) == 0 ? DType::f32 : DType::bf16});
        }
        ++layouts;
      }
    }
  }
  return matrix;
}

TEST(PlacedTensors, AgreeWithTheDescriptionsOfOneRankOverTheLayoutMatrix) {
  // The combinations of settings that influence each other; the list must contain all of them.
  std::set<std::tuple<int64_t, int64_t, int64_t, bool>> along_pipeline;
  std::set<std::tuple<int64_t, int64_t, bool>> along_tensor;
  std::set<std::tuple<int64_t, int64_t, int64_t>> along_data;
  int64_t number = 0;
  for (const auto& [strategy, model, weight] : layout_matrix()) {
    SCOPED_TRACE(concat("entry ", number++, ": ", to_string(strategy), ", ", model.num_kv_heads, " kv heads",
                        model.tie_word_embeddings ? ", tied, " : ", ", printed_name(weight)));
    const Configuration configuration{.strategy = strategy, .global_batch = 64, .micro_batch = 1};
    ASSERT_EQ(infeasible_reason(model, configuration, sequence_length), std::nullopt);
    ASSERT_NO_FATAL_FAILURE(expect_agreement(model, strategy, weight));
    if (HasFailure()) return;
    along_pipeline.emplace(strategy.pipeline_parallel, strategy.virtual_stages, strategy.zero_stage,
                           model.tie_word_embeddings);
    along_tensor.emplace(strategy.tensor_parallel, model.num_kv_heads, strategy.sequence_parallel);
    along_data.emplace(strategy.data_parallel, strategy.zero_stage, strategy.zero_replicas);
  }
  EXPECT_EQ(along_pipeline.size(), 6 * 4 * 2);
  EXPECT_EQ(along_tensor.size(), 3 + 2 * 3 * 2);                      // sequence parallelism needs two ranks
  EXPECT_EQ(along_data.size(), (1 + 3) + (1 + 3 * 2) + (1 + 3 * 3));  // replicas need ZeRO
}

TEST(PlacedTensorsProperty, AgreeWithTheDescriptionsOfOneRankInRandomLayouts) {
  for (uint64_t trial = 0; trial < 100; ++trial) {
    const RelayoutRequest request = relayout_tests::random_request(trial);
    SCOPED_TRACE(concat("random_request(", trial, "), from: ", relayout_tests::describe(request)));
    ASSERT_NO_FATAL_FAILURE(expect_agreement(request.model, request.from, request.recipe.weight));
    if (testing::Test::HasFailure()) return;
  }
}

// ---- What the descriptions of single ranks cannot express ----

TEST(PlacedTensors, AFusedProjectionIsShardedSegmentBySegment) {
  // 4 query heads, and 2 heads each of keys and values, with 3 rows per head, on 4 ranks.
  PlacedTensor fused{.parameter = {"qkv_proj.weight", {24, 5}, ParameterKind::linear, 0}};
  fused.axes.push_back({.axis = MeshAxis::tensor, .ranks = 4, .segments = {{0, 12, 4}, {12, 18, 2}, {18, 24, 2}}});
  std::vector<std::vector<int64_t>> first_rows;
  for (int64_t rank = 0; rank < 4; ++rank) {
    first_rows.emplace_back();
    for (const Box& box : fused.boxes(rank)) {
      first_rows.back().push_back(box.begin[0]);
      EXPECT_THAT(box.shape, ElementsAre(3, 5));
    }
  }
  EXPECT_THAT(first_rows, ElementsAre(ElementsAre(0, 12, 18), ElementsAre(3, 12, 18), ElementsAre(6, 15, 21),
                                      ElementsAre(9, 15, 21)));
}

TEST(PlacedTensors, MasterWeightsComeBeforeTheSlotsWhereWeightsAreRounded) {
  const auto slot_names = [](DType weight) {
    const PlacedState state = place_on(relayout_tests::small_model(), {}, state_recipe(OptimizerKind::adamw, weight));
    std::vector<std::string> names;
    for (const PlacedTensor& tensor : state.tensors) {
      if (tensor.parameter.name != state.tensors.front().parameter.name || tensor.tied_copy) continue;
      if (tensor.role == TensorRole::optimizer_slot) names.push_back(tensor.slot);
    }
    return names;
  };
  EXPECT_THAT(slot_names(DType::f32), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(slot_names(DType::bf16), ElementsAre("master", "exp_avg", "exp_avg_sq"));
}

// ---- The smallest piece of a split tensor ----

// Returns the error message for an optimizer whose only slot has this unit, or "no UserError".
std::string refusal(const ModelDescription& model, const ParallelStrategy& strategy, CutUnit unit) {
  const StateRecipe recipe{.slots = {{"momentum", DType::f32, unit}}};
  return user_error([&] { place_on(model, strategy, recipe); });
}

TEST(PlacedTensors, APlacementThatCutsBelowTheUnitIsRefusedByName) {
  const ModelDescription model = matrix_model(2, false, false);
  EXPECT_EQ(refusal(model, {.tensor_parallel = 2}, CutUnit::row),
            "parallel.tensor_parallel 2 cuts model.layers.0.self_attn.o_proj.weight between columns, but the "
            "optimizer's momentum needs whole rows; the nearest is 1");
  EXPECT_EQ(refusal(model, {.tensor_parallel = 2}, CutUnit::matrix),
            "parallel.tensor_parallel 2 cuts model.embed_tokens.weight between rows, but the optimizer's momentum "
            "needs whole matrices; the nearest is 1");
  EXPECT_EQ(refusal(model, {.data_parallel = 2, .zero_stage = 1}, CutUnit::matrix),
            "parallel.zero_stage 1 cuts model.embed_tokens.weight into flat shares, but the optimizer's momentum needs "
            "whole matrices; the nearest is 0");
}

TEST(PlacedTensors, FlatSharesMayEndBetweenRows) {
  // Shares are multiples of 64 elements. Rows have 64 elements too, except those of down_proj, which have 96. down_proj
  // is at elements 24576 .. 30720 of a layer's bucket. On 2 and 4 ranks shares have 15424 and 7744 elements, and none
  // ends within down_proj. On 8 ranks they have 3904, and the seventh ends 2752 = 28 * 96 + 64 elements into it.
  const ModelDescription model = matrix_model(2, false, false);
  for (const int64_t d : {2, 4}) {
    EXPECT_EQ(refusal(model, {.data_parallel = d, .zero_stage = 1}, CutUnit::row), "no UserError");
  }
  EXPECT_EQ(refusal(model, {.data_parallel = 8, .zero_stage = 1}, CutUnit::row),
            "parallel.zero_stage 1 cuts model.layers.0.mlp.down_proj.weight into flat shares, but the optimizer's "
            "momentum needs whole rows; the nearest is 0");
  EXPECT_EQ(refusal(model, {.data_parallel = 8, .zero_stage = 1, .zero_replicas = 8}, CutUnit::matrix), "no UserError");
}

// Finds the parameters of which some rank's optimizer holds only a part of a unit (a row or a whole matrix).
std::set<std::string> find_cut_parameters(const ModelDescription& model, const ParallelStrategy& strategy,
                                          CutUnit unit) {
  std::set<std::string> cut;
  Placement placement = place(model, strategy, sequence_length, 0);
  for (int64_t rank = 0; rank < strategy.world_size(); ++rank) {
    placement.here = Mesh(strategy).coordinates(rank);
    const std::vector<LocalParameter> parameters = list_local_parameters(model, placement);
    for (const BucketOffsets& bucket : arrange_buckets(parameters, placement)) {
      for (const auto& [index, offset] : bucket.entries) {
        const LocalParameter& parameter = parameters[static_cast<size_t>(index)];
        const std::vector<int64_t>& shape = parameter.info.shape;
        const int64_t elements = parameter.box.num_elements();
        const int64_t unit_size =
            unit == CutUnit::matrix ? parameter.info.num_elements() : parameter.info.num_elements() / shape.front();
        std::map<int64_t, int64_t> held;  // by unit of the whole parameter: number of elements held
        for_stretches(parameter.box, shape, std::clamp<int64_t>(bucket.shard_begin - offset, 0, elements),
                      std::clamp<int64_t>(bucket.shard_end - offset, 0, elements),
                      [&](int64_t /*position*/, int64_t first, int64_t count) {
                        for (const int64_t end = first + count; first < end;) {
                          const int64_t next = std::min(end, (first / unit_size + 1) * unit_size);
                          held[first / unit_size] += next - first;
                          first = next;
                        }
                      });
        for (const auto& [which, number] : held) {
          if (number < unit_size) cut.insert(parameter.info.name);
        }
      }
    }
  }
  return cut;
}

TEST(PlacedTensorsProperty, APlacementIsRefusedWhereSomeRankHoldsAPartOfAUnit) {
  std::map<std::pair<CutUnit, bool>, int64_t> seen;
  for (uint64_t trial = 0; trial < 100; ++trial) {
    const RelayoutRequest request = relayout_tests::random_request(trial);
    SCOPED_TRACE(concat("random_request(", trial, "), from: ", relayout_tests::describe(request)));
    for (const CutUnit unit : {CutUnit::row, CutUnit::matrix}) {
      const std::set<std::string> cut = find_cut_parameters(request.model, request.from, unit);
      const std::string message = refusal(request.model, request.from, unit);
      const auto is_named = [&](const std::string& name) {
        return message.find(concat(" cuts ", name, " ")) != std::string::npos;
      };
      ++seen[{unit, cut.empty()}];
      if (cut.empty()) {
        ASSERT_EQ(message, "no UserError") << to_string(unit);
      } else {
        ASSERT_TRUE(std::ranges::any_of(cut, is_named)) << to_string(unit) << ": " << message;
      }
    }
  }
  for (const CutUnit unit : {CutUnit::row, CutUnit::matrix}) {
    for (const bool is_allowed : {false, true}) EXPECT_GT((seen[{unit, is_allowed}]), 10) << to_string(unit);
  }
}

}  // namespace
}  // namespace copus
