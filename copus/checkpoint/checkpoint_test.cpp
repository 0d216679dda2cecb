#include "copus/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <span>
#include <thread>

#include "copus/base/testing/immovable_folder.h"
#include "copus/base/testing/test_support.h"
#include "copus/base/text/json_text.h"
#include "copus/checkpoint/checkpoint_files.h"
#include "copus/checkpoint/directory_lock.h"
#include "copus/checkpoint/hugging_face.h"
#include "copus/checkpoint/manifest.h"
#include "copus/checkpoint/testing/snapshot.h"
#include "copus/checkpoint/testing/test_model.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class CheckpointTest : public ::testing::Test {
 protected:
  void write(int64_t step, int64_t keep_last = 10, const CheckpointLimits& limits = {}, int64_t num_ranks = 1) {
    CheckpointWriter writer(root_, keep_last, limits, num_ranks);
    writer.write(make_test_snapshot(step));
    writer.finish();
  }

  std::filesystem::path step_path(int64_t step) const { return root_ / checkpoint_name(step); }

  std::string open_error(int64_t step) const {
    return user_error([&] { Checkpoint{step_path(step)}; });
  }

  std::string latest_error() const {
    return user_error([&] { latest_checkpoint(root_); });
  }

  // Names of the checkpoints and leftovers in the root, without the lock.
  std::vector<std::string> entries() const {
    std::vector<std::string> names = list_directory(root_);
    std::erase(names, ".lock");
    return names;
  }

  TemporaryFolder folder_;
  std::filesystem::path root_ = folder_.path() / "run" / "checkpoints";
};

TEST_F(CheckpointTest, ReadsWhatItWroteHoweverItWasCut) {
  const CheckpointLimits one_writer, small_files{.file_bytes = 1000}, single_tensors{.file_bytes = 1},
      many_writers{.file_bytes = 1000, .bytes_per_writer = 1};
  for (const auto& [limits, num_ranks] : {std::pair(one_writer, 4), std::pair(small_files, 1),
                                          std::pair(single_tensors, 1), std::pair(many_writers, 5)}) {
    write(100, 1, limits, num_ranks);
    const auto latest = latest_checkpoint(root_);
    ASSERT_EQ(latest, root_ / "step-00000100");
    const Checkpoint checkpoint(*latest);
    EXPECT_EQ(checkpoint.step(), 100);
    EXPECT_TRUE(is_test_checkpoint(checkpoint)) << limits.file_bytes << " " << num_ranks;
    EXPECT_EQ(checkpoint.weight("model.norm.weight").shape, (std::vector<int64_t>{8}));
    EXPECT_EQ(checkpoint.optimizer("exp_avg_sq.model.norm.weight").dtype, DType::f32);
  }
}

TEST_F(CheckpointTest, FolderHasTheDocumentedFiles) {
  write(100);
  EXPECT_THAT(list_directory(step_path(100)),
              ElementsAre("config.json", "config.toml", "manifest.json", "model.safetensors",
                          "optimizer-00001-of-00001.safetensors", "training_state.json"));
  write(200, 10, {.file_bytes = 1000});
  EXPECT_THAT(list_directory(step_path(200)),
              AllOf(Contains("model.safetensors.index.json"), Contains(StartsWith("model-00002-of-000")),
                    Contains(StartsWith("optimizer-00002-of-000"))));
}

TEST_F(CheckpointTest, IsItselfAHuggingFaceModel) {
  for (const CheckpointLimits& limits : {CheckpointLimits{.file_bytes = 1000}, CheckpointLimits()}) {
    write(5, 1, limits, 3);
    const HuggingFaceModel model = open_hugging_face(step_path(5));
    const TestModel expected = make_test_model(2, false, 5);
    EXPECT_EQ(model.description(), expected.description);
    for (const TensorView& view : expected.views()) EXPECT_EQ(to_float(model.weight(view.name)), to_float(view));
  }
}

TEST_F(CheckpointTest, IsNoModelWhenHalfWrittenOrDamaged) {
  write(5);
  const auto refusal = [](const std::filesystem::path& path) { return user_error([&] { open_hugging_face(path); }); };
  const auto partial = root_ / "step-00000006.partial";
  std::filesystem::copy(step_path(5), partial);
  std::filesystem::remove(partial / manifest_file_name);
  EXPECT_THAT(refusal(partial), HasSubstr("half-written"));
  std::filesystem::remove(partial / training_state_file_name);
  EXPECT_THAT(refusal(partial), HasSubstr("half-written"));
  EXPECT_THAT(refusal(partial / ""), HasSubstr("half-written"));

  std::string weights = read_text_file(step_path(5) / "model.safetensors");
  weights.back() ^= 1;
  write_file_durably(step_path(5) / "model.safetensors", weights);
  EXPECT_THAT(refusal(step_path(5)), AllOf(HasSubstr("damaged"), HasSubstr("model.safetensors")));
  std::filesystem::remove(step_path(5) / manifest_file_name);
  EXPECT_THAT(refusal(step_path(5)), HasSubstr("half-written"));
}

TEST_F(CheckpointTest, KeepsTheLast) {
  CheckpointWriter writer(root_, 2);
  EXPECT_EQ(writer.last_written(), std::nullopt);
  for (int64_t step : {10, 20, 30, 40}) writer.write(make_test_snapshot(step));
  writer.finish();
  EXPECT_EQ(writer.last_written(), step_path(40));
  EXPECT_THAT(entries(), ElementsAre("step-00000030", "step-00000040"));
}

TEST_F(CheckpointTest, ReplacesACheckpointOfTheSameStep) {
  write(10);
  write(10, 1, {.file_bytes = 1000});
  EXPECT_THAT(entries(), ElementsAre("step-00000010"));
  EXPECT_FALSE(std::filesystem::exists(step_path(10) / "model.safetensors"));
  EXPECT_TRUE(is_test_checkpoint(Checkpoint(step_path(10))));
}

TEST_F(CheckpointTest, DeletesOnlyItsOwnOlderCompleteOnes) {
  write(10);
  write(90);
  std::filesystem::create_directories(root_ / "step-00000005");  // no manifest
  std::filesystem::create_directories(root_ / "my-notes.partial");
  write(50, 1);
  EXPECT_THAT(entries(), ElementsAre("my-notes.partial", "step-00000005", "step-00000050", "step-00000090"));
}

TEST_F(CheckpointTest, ANewCheckpointIsCompleteEvenIfAnOldOneCannotBeDeleted) {
  write(10);
  CheckpointWriter writer(root_, 1);
  std::optional<ImmovableFolder> protection(step_path(10));
  writer.write(make_test_snapshot(20));
  EXPECT_NO_THROW(writer.finish());
  EXPECT_THAT(writer.deletion_failure(), HasSubstr(step_path(10).string()));
  EXPECT_THAT(entries(), ElementsAre("step-00000010", "step-00000020"));
  protection.reset();
  writer.write(make_test_snapshot(30));
  writer.finish();
  EXPECT_EQ(writer.deletion_failure(), "");
  EXPECT_THAT(entries(), ElementsAre("step-00000030"));
}

TEST_F(CheckpointTest, ACheckpointMayLeaveOlderOnes) {
  CheckpointWriter writer(root_, 1);
  writer.write(make_test_snapshot(10));
  writer.write(make_test_snapshot(20), /*deletes_older=*/false);
  writer.finish();
  EXPECT_THAT(entries(), ElementsAre("step-00000010", "step-00000020"));
}

TEST_F(CheckpointTest, ReleasedTensorsAreMappedNoMore) {
  write(10);
  Checkpoint checkpoint(step_path(10));
  EXPECT_THAT(read_text_file("/proc/self/maps"), HasSubstr(step_path(10).string()));
  checkpoint.release_tensors();
  EXPECT_THAT(read_text_file("/proc/self/maps"), Not(HasSubstr(step_path(10).string())));
  EXPECT_THAT(checkpoint.weights(), IsEmpty());
  EXPECT_EQ(checkpoint.step(), 10);
}

TEST_F(CheckpointTest, ACopyUnderAnotherStepsNameIsNotDeletedAsAnOldCheckpoint) {
  write(10);
  std::filesystem::copy(step_path(10), step_path(2));
  write(70, 1);
  EXPECT_THAT(entries(), ElementsAre("step-00000002", "step-00000070"));
}

TEST_F(CheckpointTest, AReaderTriesAgainWhereTheNewestIsDeletedMeanwhile) {
  write(10);
  std::atomic<bool> is_over = false;
  std::thread run([&] {  // a run that keeps one checkpoint and writes them in fast succession
    for (int64_t step = 20; step < 400; step += 10) write(step, 1);
    is_over = true;
  });
  int64_t last = 0, reads = 0;
  while (!is_over || reads == 0) {
    const std::optional<Checkpoint> checkpoint = open_latest_checkpoint(root_);
    ASSERT_TRUE(checkpoint);
    EXPECT_GE(checkpoint->step(), last);
    last = checkpoint->step();
    EXPECT_TRUE(is_test_checkpoint(*checkpoint));
    ++reads;
  }
  run.join();
}

TEST_F(CheckpointTest, ARunThatGoesOnFromBeforeACheckpointIsRefused) {
  write(10);
  write(90);
  const CheckpointFolder folder(root_, 2);
  EXPECT_NO_THROW(folder.check_none_is_later_than(90));
  EXPECT_THAT(user_error([&] { folder.check_none_is_later_than(89); }),
              AllOf(HasSubstr(step_path(90).string()), HasSubstr("--resume")));
  // A damaged checkpoint cannot be resumed from, and is set aside before it is overwritten.
  std::filesystem::resize_file(step_path(90) / "manifest.json", 100);
  EXPECT_NO_THROW(folder.check_none_is_later_than(10));
  EXPECT_THROW(folder.check_none_is_later_than(9), UserError);
  std::filesystem::resize_file(step_path(10) / "manifest.json", 100);
  EXPECT_THAT(user_error([&] { folder.check_none_is_later_than(90); }), HasSubstr("step-00000090"));
}

TEST_F(CheckpointTest, LeftoversOfDeadWritersAreIgnoredAndThenDeleted) {
  write(10);
  std::filesystem::copy(step_path(10), root_ / "step-00000020.partial");
  EXPECT_EQ(latest_checkpoint(root_), step_path(10));
  const CheckpointWriter writer(root_, 2);
  EXPECT_THAT(entries(), ElementsAre("step-00000010"));
}

TEST_F(CheckpointTest, OneWriterAtATime) {
  auto first = std::make_unique<CheckpointWriter>(root_, 2);
  EXPECT_THAT(user_error([&] { CheckpointWriter(root_, 2); }),
              AllOf(HasSubstr("another process"), HasSubstr(root_.string())));
  first.reset();
  EXPECT_NO_THROW(CheckpointWriter(root_, 2));
}

TEST_F(CheckpointTest, NoCheckpointAtAll) {
  EXPECT_EQ(latest_checkpoint(root_), std::nullopt);
  std::filesystem::create_directories(root_);
  EXPECT_EQ(latest_checkpoint(root_), std::nullopt);
  EXPECT_THAT(open_error(10), HasSubstr("is not a folder"));
}

TEST_F(CheckpointTest, UnknownTensor) {
  write(10);
  const Checkpoint checkpoint(step_path(10));
  EXPECT_THAT(user_error([&] { checkpoint.weight("model.layers.9.mlp.up_proj.weight"); }),
              AllOf(HasSubstr("model.layers.9.mlp.up_proj.weight"), HasSubstr("another model")));
}

TEST_F(CheckpointTest, AFlippedBitInAnyFileIsReportedWithItsName) {
  write(10);
  write(20);
  for (const std::string& name : list_directory(step_path(20))) {
    if (name == manifest_file_name) continue;
    std::string content = read_text_file(step_path(20) / name);
    content[content.size() / 2] ^= 1;
    write_file_durably(step_path(20) / name, content);
    EXPECT_EQ(latest_checkpoint(root_), step_path(20));  // reported, not skipped
    EXPECT_THAT(open_error(20), AllOf(HasSubstr("damaged"), HasSubstr(name), HasSubstr("step-00000020")));
    content[content.size() / 2] ^= 1;
    write_file_durably(step_path(20) / name, content);
  }
  EXPECT_NO_THROW(Checkpoint{step_path(20)});
}

TEST_F(CheckpointTest, MissingAndTruncatedFiles) {
  write(10);
  const auto file = step_path(10) / "optimizer-00001-of-00001.safetensors";
  std::filesystem::resize_file(file, 100);
  EXPECT_THAT(open_error(10), AllOf(HasSubstr("optimizer-00001-of-00001.safetensors"), HasSubstr("100 bytes instead")));
  std::filesystem::remove(file);
  EXPECT_THAT(open_error(10), HasSubstr("optimizer-00001-of-00001.safetensors is missing"));
}

TEST_F(CheckpointTest, DamagedManifest) {
  write(10);
  write(20);
  const auto manifest = step_path(20) / manifest_file_name;
  const std::string text = read_text_file(manifest);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    write_file_durably(manifest, changed);
  };
  replaced("\"step\": 20", "\"step\": 21");
  EXPECT_THAT(open_error(20), AllOf(HasSubstr("manifest.json"), HasSubstr("wrong checksum")));

  replaced("\"version\": 1", "\"version\": 7");
  EXPECT_THAT(latest_error(), HasSubstr("format version 7"));
  EXPECT_THAT(user_error([&] { open_newest_usable(root_); }), HasSubstr("format version 7")) << "which is no damage";
  EXPECT_THAT(open_error(20), AllOf(HasSubstr("format version 7"), HasSubstr("reads version 1")));

  write_file_durably(manifest, text.substr(0, text.size() / 2));
  EXPECT_THAT(latest_error(), AllOf(HasSubstr("step-00000020"), HasSubstr("manifest.json is not a manifest")));
  EXPECT_THAT(open_error(20), HasSubstr("manifest.json is not a manifest"));

  std::filesystem::remove(manifest);
  EXPECT_THAT(latest_error(), HasSubstr("not a complete checkpoint"));
  EXPECT_THAT(open_error(20), HasSubstr("not a complete checkpoint"));
}

// A run resumes from the newest checkpoint whose files all have the right sizes, and names every later folder.
TEST_F(CheckpointTest, DamageIsNamedAndTheNewestUsableCheckpointIsOpened) {
  write(10);
  write(20);
  const std::filesystem::path whole = folder_.path() / "whole", others = folder_.path() / "others";
  std::filesystem::copy(step_path(20), whole);
  CheckpointWriter other_run(others, 1);
  Snapshot of_other_run = make_test_snapshot(20);
  of_other_run.run_config += "# of another run";
  of_other_run.training_state += " ";
  other_run.write(of_other_run);
  other_run.finish();
  const std::vector<std::string> names = list_directory(whole);
  ASSERT_THAT(names, Contains("training_state.json"));
  for (const std::string& name : names) {
    const std::string content = read_text_file(whole / name);
    std::string flipped = content;
    flipped[flipped.size() / 2] ^= 1;
    const std::vector<std::pair<const char*, std::optional<std::string>>> kinds{
        {"cut", content.substr(0, content.size() / 2)},
        {"emptied", ""},
        {"missing", std::nullopt},
        {"flipped", flipped},
        {"of another run", read_text_file(others / checkpoint_name(20) / name)}};
    for (const auto& [kind, damaged] : kinds) {
      // Only verify_tensors finds such damage.
      if (damaged && damaged->size() == content.size() && name.ends_with(".safetensors")) continue;
      if (damaged == content) continue;
      SCOPED_TRACE(concat(name, " ", kind));
      std::filesystem::remove(step_path(20) / name);
      if (damaged) write_file_durably(step_path(20) / name, *damaged);
      const UsableCheckpoint usable = open_newest_usable(root_);
      ASSERT_TRUE(usable.checkpoint);
      EXPECT_EQ(usable.checkpoint->step(), 10);
      // If the manifest is that of another checkpoint, the message names the first file that does not match it.
      const bool is_others = name == manifest_file_name && kind == std::string_view("of another run");
      EXPECT_THAT(usable.damage,
                  ElementsAre(AllOf(HasSubstr("step-00000020"), HasSubstr(is_others ? "config.toml" : name))));
      write_file_durably(step_path(20) / name, content);
    }
  }
  EXPECT_EQ(open_newest_usable(root_).checkpoint->step(), 20);
  EXPECT_THAT(open_newest_usable(root_).damage, IsEmpty());

  std::filesystem::remove_all(step_path(10));
  std::filesystem::resize_file(step_path(20) / manifest_file_name, 30);
  EXPECT_FALSE(open_newest_usable(root_).checkpoint);
  EXPECT_THAT(open_newest_usable(root_).damage, ElementsAre(HasSubstr("step-00000020")));
}

TEST_F(CheckpointTest, ADamagedHeaderOfTensorsIsDamageOfTheCheckpoint) {
  for (const std::string name : {"model.safetensors", "optimizer-00001-of-00001.safetensors"}) {
    SCOPED_TRACE(name);
    write(10);
    write(20);
    std::string damaged = read_text_file(step_path(20) / name);
    damaged[8] = 'x';  // the first character of the header
    write_file_durably(step_path(20) / name, damaged);
    const UsableCheckpoint usable = open_newest_usable(root_);
    ASSERT_TRUE(usable.checkpoint);
    EXPECT_EQ(usable.checkpoint->step(), 10);
    EXPECT_THAT(usable.damage, ElementsAre(AllOf(HasSubstr("step-00000020 is damaged"), HasSubstr(name))));
    write(20);
    EXPECT_TRUE(is_test_checkpoint(Checkpoint(step_path(20))));
    const std::filesystem::path aside = step_path(20).string() + ".set-aside";
    EXPECT_EQ(read_text_file(aside / name), damaged);
    std::filesystem::remove_all(aside);
  }
}

// A user may still repair a damaged checkpoint, so it is moved aside before a checkpoint of the same step replaces it.
TEST_F(CheckpointTest, NothingThatIsDamagedIsWrittenOver) {
  for (const std::string name : {"config.json", "config.toml", "manifest.json", "training_state.json"}) {
    SCOPED_TRACE(name);
    write(20);
    const std::filesystem::path aside = step_path(20).string() + ".set-aside";
    std::string flipped = read_text_file(step_path(20) / name);
    flipped[flipped.size() / 2] ^= 1;
    write_file_durably(step_path(20) / name, flipped);
    write(20);
    EXPECT_TRUE(is_test_checkpoint(Checkpoint(step_path(20))));
    EXPECT_EQ(read_text_file(aside / name), flipped);
    std::filesystem::remove_all(aside);
  }
}

TEST_F(CheckpointTest, AFolderWithAnotherStepsNameIsNotTakenForTheNewest) {
  write(10);
  std::filesystem::copy(step_path(10), step_path(50));
  std::filesystem::create_directories(step_path(60));
  EXPECT_THAT(latest_error(), HasSubstr("step-00000060"));
  const UsableCheckpoint usable = open_newest_usable(root_);
  EXPECT_EQ(usable.checkpoint->directory(), step_path(10));
  EXPECT_THAT(usable.damage, ElementsAre(HasSubstr("step-00000060"),
                                         AllOf(HasSubstr("step-00000050"), HasSubstr("manifest.json is of step 10"))));
  std::filesystem::remove(step_path(60));
  EXPECT_THAT(latest_error(), HasSubstr("manifest.json is of step 10"));
}

TEST_F(CheckpointTest, WhatIsDamagedDoesNotCountAmongThoseThatAreKept) {
  for (const int64_t step : {10, 20, 30}) write(step);
  std::filesystem::resize_file(step_path(30) / "model.safetensors", 100);
  write(40, 2);
  EXPECT_THAT(entries(), ElementsAre("step-00000020", "step-00000030", "step-00000040"));
}

TEST_F(CheckpointTest, WhatIsDamagedIsSetAsideAndNotOverwritten) {
  write(10);
  for (const char* aside : {"step-00000010.set-aside", "step-00000010.set-aside-2"}) {
    std::filesystem::resize_file(step_path(10) / "model.safetensors", 100);
    write(10);
    EXPECT_TRUE(is_test_checkpoint(Checkpoint(step_path(10))));
    EXPECT_EQ(std::filesystem::file_size(root_ / aside / "model.safetensors"), 100);
  }
}

TEST_F(CheckpointTest, AManifestNamesNoFileElsewhere) {
  write(10);
  const Manifest manifest = read_manifest(step_path(10));
  for (const std::string name : {"../step-00000010/config.json", "/etc/hostname", "..", "a/b", ""}) {
    Manifest leading_away = manifest;
    leading_away.files[name] = manifest.files.at(model_config_file_name);
    write_file_durably(step_path(10) / manifest_file_name, to_json(leading_away));
    EXPECT_THAT(open_error(10), AllOf(HasSubstr("manifest.json names \"" + name + "\""), HasSubstr("files beside it")));
  }
}

TEST_F(CheckpointTest, WhatIsNoFileIsRefusedAtOnce) {
  write(10);
  const auto file = step_path(10) / "optimizer-00001-of-00001.safetensors";
  std::filesystem::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_THAT(open_error(10), HasSubstr("optimizer-00001-of-00001.safetensors is no file"));
  std::filesystem::remove(step_path(10) / manifest_file_name);
  ASSERT_EQ(::mkfifo((step_path(10) / manifest_file_name).c_str(), 0600), 0);
  EXPECT_THAT(latest_error(), HasSubstr("manifest.json: it is a pipe"));
  EXPECT_THAT(open_error(10), HasSubstr("manifest.json: it is a pipe"));

  std::filesystem::remove(root_ / ".lock");
  ASSERT_EQ(::mkfifo((root_ / ".lock").c_str(), 0600), 0);
  EXPECT_THAT(user_error([&] { CheckpointFolder(root_, 2); }), HasSubstr(".lock: it is a pipe"));
  EXPECT_FALSE(is_locked(root_));
}

TEST_F(CheckpointTest, LinksAreNotFollowedWhereFilesAreMade) {
  const std::filesystem::path elsewhere = folder_.path() / "elsewhere";
  std::filesystem::create_directories(root_);
  std::filesystem::create_directories(elsewhere);
  write_file_durably(elsewhere / "letter.txt", "of the user");
  std::filesystem::create_symlink(elsewhere, root_ / "step-00000010.partial");
  write(10);
  EXPECT_TRUE(is_test_checkpoint(Checkpoint(step_path(10))));
  EXPECT_THAT(list_directory(elsewhere), ElementsAre("letter.txt"));

  std::filesystem::remove(root_ / ".lock");
  std::filesystem::create_symlink(elsewhere / "lock", root_ / ".lock");
  EXPECT_THAT(user_error([&] { CheckpointFolder(root_, 2); }), HasSubstr("cannot create"));
  EXPECT_THAT(list_directory(elsewhere), ElementsAre("letter.txt"));
}

TEST_F(CheckpointTest, AFolderThatIsDeletedIsPutBackAndNothingIsWrittenBefore) {
  const Snapshot snapshot = make_test_snapshot(10);
  const CheckpointPlan plan = plan_of(snapshot, 1, {});
  const auto write_files = [&](const std::filesystem::path& partial) {
    CheckpointPart part(partial, plan, 0);
    write_part(part, plan, 0, snapshot);
    return part.outcome().files;
  };
  CheckpointFolder folder(root_, 2);
  const std::map<std::string, FileDigest> files = write_files(folder.begin(10, plan.bytes()));
  EXPECT_TRUE(folder.is_in_place() && folder.has_begun());
  std::filesystem::remove_all(root_.parent_path());
  EXPECT_FALSE(folder.is_in_place() || folder.has_begun());
  folder.commit(texts_of(snapshot, plan), files);
  EXPECT_NO_THROW(folder.finish());
  EXPECT_EQ(latest_checkpoint(root_), std::nullopt);
  EXPECT_THAT(user_error([&] { folder.begin(20, plan.bytes()); }), HasSubstr("cannot create the folder"));
  EXPECT_FALSE(std::filesystem::exists(root_.parent_path())) << "what --resume would not find";

  folder.put_back();
  EXPECT_TRUE(folder.is_in_place());
  EXPECT_TRUE(is_locked(root_));
  EXPECT_FALSE(folder.has_begun());
  const auto again = write_files(folder.begin(10, plan.bytes()));
  folder.commit(texts_of(snapshot, plan), again);
  folder.finish();
  EXPECT_EQ(latest_checkpoint(root_), step_path(10));
}

TEST_F(CheckpointTest, AFolderThatIsNowAnothersIsLeftToIt) {
  CheckpointFolder folder(root_, 2);
  folder.begin(10, 100);
  std::filesystem::rename(root_, folder_.path() / "moved");
  {
    CheckpointFolder another(root_, 2);
    another.begin(10, 100);
    EXPECT_THAT(user_error([&] { folder.put_back(); }), HasSubstr("another process is writing"));
    EXPECT_FALSE(folder.is_in_place());
    folder.drop();
    EXPECT_THAT(entries(), ElementsAre(AllOf(StartsWith("step-00000010."), EndsWith(".partial"))));
  }
  folder.put_back();
  EXPECT_TRUE(folder.is_in_place());
}

// Copying or writing deeply nested JSON would overflow the stack, because the library recurses.
TEST_F(CheckpointTest, DeepManifest) {
  write(10);
  write(20);
  const auto manifest = step_path(20) / manifest_file_name;
  for (const char* field : {"\"format\": ", "\"format\": \"copus-checkpoint\", \"version\": "}) {
    write_file_durably(manifest, concat("{", field, deep_json(), "}"));
    EXPECT_THAT(latest_error(), HasSubstr("manifest.json is not a manifest"));
    EXPECT_THAT(open_error(20), HasSubstr("manifest.json is not a manifest"));
  }
}

TEST_F(CheckpointTest, ManifestWithNumbersThatAreNone) {
  write(10);
  const auto manifest = step_path(10) / manifest_file_name;
  const std::string checksum(32, '0');
  for (const char* bytes : {"-1", "1.5", "1e300", "true", "18446744073709551615"}) {
    const std::string content = concat(R"({"files":{"a":{"bytes":)", bytes, R"(,"xxh3_128":")", checksum,
                                       R"("}},"format":"copus-checkpoint","step":10,"version":1)");
    // The checksum covers the object as nlohmann writes it.
    const std::string canonical = parse_json(content + "}").dump();
    const std::string right = hash_hex(std::as_bytes(std::span(canonical)));
    write_file_durably(manifest, concat(content, R"(,"xxh3_128":")", right, "\"}"));
    EXPECT_THAT(open_error(10), AllOf(HasSubstr("\"bytes\""), HasSubstr("no whole number"))) << bytes;
  }
}

TEST_F(CheckpointTest, ErrorsOfTheBackgroundArriveWithTheNextCall) {
  const Snapshot snapshot = make_test_snapshot(10);
  const CheckpointPlan plan = plan_of(snapshot, 1, {});
  CheckpointFolder folder(root_, 2);
  const std::filesystem::path partial = folder.begin(10, plan.bytes());
  CheckpointPart part(partial, plan, 0);
  write_part(part, plan, 0, snapshot);
  std::map<std::string, FileDigest> files = part.outcome().files;
  std::filesystem::create_directories(partial / manifest_file_name / "in the way");
  folder.commit(texts_of(snapshot, plan), files);
  EXPECT_THAT(user_error([&] { folder.begin(20, plan.bytes()); }),
              AllOf(HasSubstr("step-00000010"), HasSubstr(manifest_file_name), HasSubstr("Nothing of it was kept")));
  EXPECT_NO_THROW(folder.finish());
  EXPECT_EQ(latest_checkpoint(root_), std::nullopt);
  EXPECT_THAT(entries(), ElementsAre());
}

TEST_F(CheckpointTest, AFolderThatIsNotSharedIsNoticed) {
  const Snapshot snapshot = make_test_snapshot(10);
  const CheckpointPlan plan = plan_of(snapshot, 2, {.bytes_per_writer = 1});
  CheckpointFolder folder(root_, 2);
  std::map<std::string, FileDigest> files;
  const std::filesystem::path partial = folder.begin(10, plan.bytes()), elsewhere = folder_.path() / "elsewhere";
  std::filesystem::create_directories(elsewhere);
  for (const int64_t rank : {0, 1}) {
    CheckpointPart part(rank == 0 ? partial : elsewhere, plan, rank);
    write_part(part, plan, rank, snapshot);
    for (const auto& file : part.outcome().files) files.insert(file);
  }
  folder.commit(texts_of(snapshot, plan), files);
  EXPECT_THAT(
      user_error([&] { folder.finish(); }),
      AllOf(HasSubstr("is missing, which another rank says it has written"), HasSubstr("model-00002-of-00002")));
  EXPECT_EQ(latest_checkpoint(root_), std::nullopt);
}

TEST_F(CheckpointTest, APartTakesExactlyItsBytes) {
  const Snapshot snapshot = make_test_snapshot(10);
  const CheckpointPlan plan = plan_of(snapshot, 1, {});
  const std::span<const std::byte> first = snapshot.weights.front().view().bytes;
  CheckpointPart part(folder_.path(), plan, 0);
  EXPECT_THROW(part.finish(), InternalError);
  part.write(first.first(8));  // in several calls
  EXPECT_THROW(part.write(std::vector<std::byte>(1 << 20)), InternalError);
}

TEST_F(CheckpointTest, TensorsOfOneNameAreRefused) {
  Snapshot twice = make_test_snapshot(1);
  twice.weights.push_back(twice.weights.front());
  EXPECT_THROW(plan_of(twice, 1, {}), InternalError);
}

TEST_F(CheckpointTest, AFullDiskOnAnyRankKeepsThePreviousCheckpoint) {
  write(10);
  for (const int64_t num_ranks : {1, 3}) {
    const auto attempt = [&] {
      const FileSizeLimit limit(4000 / num_ranks);
      CheckpointWriter writer(root_, 1, {.bytes_per_writer = 1}, num_ranks);
      std::cerr << user_error([&] { writer.write(make_test_snapshot(20)); });
      std::_Exit(0);
    };
    EXPECT_EXIT(attempt(), ::testing::ExitedWithCode(0),
                "cannot write .*step-00000020 .[0-9]+ bytes of tensors in all.*model.*safetensors: File too large; the "
                "file needs [0-9]+ bytes, and files of this process may have [0-9]+ .ulimit -f");
    EXPECT_THAT(entries(), ElementsAre("step-00000010"));
    EXPECT_TRUE(is_test_checkpoint(Checkpoint(step_path(10))));
  }
}

// A rank whose disk is full must still accept bytes, because other ranks wait for it to receive them.
TEST_F(CheckpointTest, APartWhoseDiskIsFullGoesOnTakingBytes) {
  const Snapshot snapshot = make_test_snapshot(20);
  const CheckpointPlan plan = plan_of(snapshot, 1, {.file_bytes = 1000});
  const auto attempt = [&] {
    const FileSizeLimit limit(1300);
    CheckpointPart part(folder_.path(), plan, 0);
    write_part(part, plan, 0, snapshot);
    std::cerr << part.is_done() << " " << part.outcome().error << " " << part.outcome().files.size();
    std::_Exit(static_cast<int>(list_directory(folder_.path()).size()));
  };
  EXPECT_EXIT(attempt(), ::testing::ExitedWithCode(0), "1 cannot write .*safetensors: File too large.* 0");
}

TEST_F(CheckpointTest, RanksThatReadTogetherFindDamageInAnyFileOnce) {
  write(10, 1, {.file_bytes = 1000, .bytes_per_writer = 1}, 3);
  constexpr int64_t num_parts = 3;
  for (const std::string& name : list_directory(step_path(10))) {
    if (name == manifest_file_name) continue;
    std::string content = read_text_file(step_path(10) / name);
    content.back() ^= 1;
    write_file_durably(step_path(10) / name, content);
    int64_t found = 0;
    if (name.ends_with(".safetensors")) {
      const Checkpoint checkpoint(step_path(10), Checkpoint::Check::texts);
      for (int64_t part = 0; part < num_parts; ++part) {
        const std::string error = user_error([&] { checkpoint.verify_tensors(part, num_parts); });
        found += error.find(name) != std::string::npos ? 1 : 0;
        EXPECT_THAT(error, ::testing::AnyOf("no UserError", HasSubstr("checksum of " + name)));
      }
    } else {
      EXPECT_THAT(user_error([&] { Checkpoint(step_path(10), Checkpoint::Check::texts); }), HasSubstr(name));
      found = 1;
    }
    EXPECT_EQ(found, 1) << name;
    content.back() ^= 1;
    write_file_durably(step_path(10) / name, content);
  }
}

TEST(CheckpointName, ParsesOnlyWhatItWrites) {
  for (int64_t step : {int64_t{0}, int64_t{100}, int64_t{123456789012}}) {
    EXPECT_EQ(parse_checkpoint_name(checkpoint_name(step)), step);
  }
  for (const char* name : {"step-100", "step-00000100.partial", "step-", "step--0000001", "step-0000010x", "other"}) {
    EXPECT_EQ(parse_checkpoint_name(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace copus
