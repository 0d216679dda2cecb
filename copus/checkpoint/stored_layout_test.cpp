// Parameters are recovered from the tensors of files that fuse and transpose them.
#include "copus/checkpoint/stored_layout.h"

#include <gmock/gmock.h>

#include <numeric>

#include "copus/base/testing/test_support.h"
#include "copus/checkpoint/hugging_face.h"
#include "copus/checkpoint/testing/test_model.h"

namespace copus {
namespace {

using testing::HasSubstr;

const ModelDescription& gpt2() {
  static const ModelDescription model = parse_model_description(
      R"({"model_type": "gpt2", "vocab_size": 11, "n_embd": 6, "n_layer": 2, "n_head": 2, "n_positions": 5})", "test");
  return model;
}

TEST(StoredLayout, TransposesAndStacksAlongOutputs) {
  const std::vector<ParameterInfo> parameters = {{"a", {2, 3}, ParameterKind::linear, 0},
                                                 {"b", {1, 3}, ParameterKind::linear, 0}};
  const StoredTensor stored{.name = "ab", .shape = {3, 3}, .parameters = parameters, .is_transposed = true};
  const std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {7, 8, 9};
  const auto view = [](const char* name, std::vector<int64_t> shape, const std::vector<float>& values) {
    return TensorView{
        .name = name, .dtype = DType::f32, .shape = std::move(shape), .bytes = std::as_bytes(std::span(values))};
  };
  const TensorView packed = pack(stored, std::vector{view("a", {2, 3}, a), view("b", {1, 3}, b)});
  EXPECT_EQ(packed.shape, (std::vector<int64_t>{3, 3}));
  EXPECT_THAT(to_float(packed), testing::ElementsAre(1, 4, 7, 2, 5, 8, 3, 6, 9));
  const std::vector<TensorView> unpacked = unpack(stored, packed);
  EXPECT_EQ(to_float(unpacked[0]), a);
  EXPECT_EQ(to_float(unpacked[1]), b);
}

// Two heads of two elements, and a bias.
TEST(StoredLayout, StacksSomeOutputsOfEachInTurn) {
  const std::vector<ParameterInfo> parameters = {{"q", {4, 2}, ParameterKind::linear, 0},
                                                 {"k", {4, 2}, ParameterKind::linear, 0}};
  const StoredTensor stored{.name = "qk", .shape = {8, 2}, .parameters = parameters, .outputs_in_turn = 2};
  const std::vector<float> q = {1, 2, 3, 4, 5, 6, 7, 8}, k = {11, 12, 13, 14, 15, 16, 17, 18};
  const auto view = [](const char* name, std::vector<int64_t> shape, const std::vector<float>& values) {
    return TensorView{
        .name = name, .dtype = DType::f32, .shape = std::move(shape), .bytes = std::as_bytes(std::span(values))};
  };
  const TensorView packed = pack(stored, std::vector{view("q", {4, 2}, q), view("k", {4, 2}, k)});
  EXPECT_THAT(to_float(packed), testing::ElementsAre(1, 2, 3, 4, 11, 12, 13, 14, 5, 6, 7, 8, 15, 16, 17, 18));
  EXPECT_EQ(to_float(unpack(stored, packed)[0]), q);
  EXPECT_EQ(to_float(unpack(stored, packed)[1]), k);

  const StoredTensor bias{.name = "b",
                          .shape = {8},
                          .parameters = {{"q", {4}, ParameterKind::bias, 0}, {"k", {4}, ParameterKind::bias, 0}},
                          .outputs_in_turn = 2};
  const std::vector<float> b = {1, 2, 3, 4}, c = {5, 6, 7, 8};
  const TensorView packed_bias = pack(bias, std::vector{view("q", {4}, b), view("k", {4}, c)});
  EXPECT_THAT(to_float(packed_bias), testing::ElementsAre(1, 2, 5, 6, 3, 4, 7, 8));
  EXPECT_EQ(to_float(unpack(bias, packed_bias)[1]), c);
}

std::vector<HostTensor> random_parameters(const ModelDescription& model) {
  std::vector<HostTensor> tensors;
  for (const ParameterInfo& parameter : list_parameters(model)) {
    tensors.push_back(make_test_tensor(parameter.name, parameter.shape, static_cast<int64_t>(tensors.size())));
  }
  return tensors;
}

// Includes a file that was saved without the head, whose names have no prefix and which has masks, as in old files.
TEST(StoredLayout, AnExportComesBackUnderOurNames) {
  const TemporaryFolder folder;
  const std::vector<HostTensor> parameters = random_parameters(gpt2());
  std::vector<TensorView> views;
  for (const HostTensor& tensor : parameters) views.push_back(tensor.view());
  write_hugging_face(folder.path() / "whole", gpt2(), views, DType::f32);
  const SafetensorsFile file(folder.path() / "whole" / "model.safetensors");
  EXPECT_EQ(file.find("transformer.h.0.attn.c_attn.weight")->shape, (std::vector<int64_t>{6, 18}));

  std::vector<TensorView> bare = file.tensors();
  for (TensorView& tensor : bare) tensor.name = tensor.name.substr(std::string("transformer.").size());
  bare.push_back(
      {.name = "h.0.attn.bias", .dtype = DType::f32, .shape = {1, 1, 1, 1}, .bytes = bare.front().bytes.first(4)});
  std::vector<TensorView> with_head = bare;  // which is a second copy of the embedding
  with_head.push_back(*std::ranges::find(bare, "wte.weight", &TensorView::name));
  with_head.back().name = "lm_head.weight";
  const HuggingFaceModel whole = open_hugging_face(folder.path() / "whole");
  for (const auto& found :
       {whole.weights(), read_parameters(gpt2(), bare, "bare"), read_parameters(gpt2(), with_head, "with a head")}) {
    ASSERT_EQ(found.size(), views.size());
    for (const TensorView& view : views) EXPECT_EQ(to_float(found.at(view.name)), to_float(view)) << view.name;
  }
  EXPECT_THAT(user_error([&] { read_parameters(gpt2(), std::span(file.tensors()).subspan(1), "files"); }),
              HasSubstr("1 missing (transformer."));
}

TEST(StoredLayout, ParametersAreFoundOneFileTensorAtATime) {
  const std::vector<HostTensor> parameters = random_parameters(gpt2());
  std::map<std::string, TensorView> files;
  for (const StoredTensor& stored : list_stored_tensors(gpt2())) {
    std::vector<TensorView> views;
    for (const ParameterInfo& info : stored.parameters) {
      views.push_back(std::ranges::find(parameters, info.name, &HostTensor::name)->view());
    }
    files.emplace(stored.name, pack(stored, views));
  }
  StoredParameters find(gpt2(), [&](const std::string& name) -> const TensorView& { return files.at(name); });
  for (const HostTensor& tensor : parameters) EXPECT_EQ(to_float(find(tensor.name)), to_float(tensor.view()));
}

}  // namespace
}  // namespace copus
