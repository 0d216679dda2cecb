#include "copus/train/run/run_checkpoints.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/files/write_error.h"
#include "copus/train/step/step_agreement.h"
#include "copus/train/step/training_state.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds between_disk_polls(5);

fs::path nearest_folder(const fs::path& directory) {
  std::error_code ignored;
  for (fs::path path = fs::absolute(directory);; path = path.parent_path()) {
    if (fs::is_directory(path, ignored) || path == path.parent_path()) return path;
  }
}

// Writes file digests as text, one per line.
std::string to_text(const std::map<std::string, FileDigest>& files) {
  std::ostringstream text;
  for (const auto& [name, digest] : files) text << name << ' ' << digest.bytes << ' ' << digest.checksum << '\n';
  return text.str();
}

void add_files(const std::string& text, std::map<std::string, FileDigest>& files) {
  std::istringstream lines(text);
  std::string name;
  for (FileDigest digest; lines >> name >> digest.bytes >> digest.checksum;) files[name] = digest;
}

}  // namespace

void check_folder_is_shared(const fs::path& directory, const CheckpointPlan& plan, World& world) {
  if (plan.writers().size() <= 1) return;
  const fs::path folder = nearest_folder(directory);
  std::random_device random;
  int64_t number = random();
  const auto probe = [&] { return folder / concat(".copus-shared-", number); };
  const bool leads = world.rank() == 0;
  if (leads) write_file_durably(probe(), "");
  world.everyone().broadcast(&number, 1, DataType::int64, 0);
  std::error_code error;
  std::optional<Obstacle> obstacle;
  if (!fs::exists(probe(), error)) {
    obstacle = Obstacle{concat("in ", folder.string(), " it does not see what rank 0 has written there")};
  }
  obstacle = agree_on_obstacle(obstacle, 0, world.everyone());
  if (leads) fs::remove(probe(), error);
  if (!obstacle) return;
  throw UserError(concat(obstacle->reason, "; ranks write their parts of a checkpoint into one folder: give a run ",
                         "directory on a file system that all machines share"));
}

RunCheckpoints::RunCheckpoints(fs::path root, CheckpointFolder* folder, World& world, double wait_seconds,
                               std::function<bool()> gives_up, bool waits, const CheckpointLimits& limits)
    : root_(std::move(root)),
      folder_(folder),
      world_(world),
      wait_seconds_(wait_seconds),
      gives_up_(std::move(gives_up)),
      waits_(waits),
      limits_(limits) {}

bool RunCheckpoints::write(Trainer& trainer, const std::string& run_config, bool deletes_older) {
  if (!finish()) return false;
  begun_ = std::chrono::steady_clock::now();
  const CheckpointPlan plan = trainer.plan_checkpoint(limits_);
  const int64_t step = trainer.state().step;
  const std::string mine = folder_ != nullptr ? begin(step, plan.bytes(), deletes_older) : "";
  const std::string partial = broadcast_text(mine, 0, world_.everyone());
  if (partial.empty()) return false;
  if (folder_ != nullptr) {
    texts_ = {.model_config = to_hugging_face_config(trainer.parameters().model(), "float32"),
              .run_config = run_config,
              .training_state = to_json(trainer.state()),
              .model_index = plan.model_index()};
  }
  part_ = std::make_unique<CheckpointPart>(root_ / partial, plan, world_.rank());
  trainer.hand_over_state(plan, [this](std::span<const std::byte> bytes) { part_->write(bytes); });
  part_->finish();
  if (waits_) settle();
  return true;
}

// Creates the folder for a checkpoint's files and returns its name; empty if the folder of all checkpoints is gone.
std::string RunCheckpoints::begin(int64_t step, int64_t bytes, bool deletes_older) {
  std::string name;
  try {
    if (folder_->is_in_place()) name = folder_->begin(step, bytes, deletes_older).filename();
  } catch (const std::runtime_error&) {  // includes errors because the folder is gone
    if (folder_->is_in_place()) throw;
  }
  return folder_->has_begun() ? name : "";
}

void RunCheckpoints::poll() {
  if (part_ == nullptr) return;
  if (slowest_of_all(part_->is_done() ? DiskState::done : DiskState::works) == DiskState::done) settle();
}

// Polls instead of waiting for one message, because a disk may take longer than a rank may be silent.
bool RunCheckpoints::finish() {
  DiskWatch watch;
  while (true) {
    poll();
    if (part_ == nullptr && waits_) break;
    const DiskState slowest = slowest_of_all(state_of_disk(watch));
    if (part_ == nullptr && slowest == DiskState::done) break;
    if (slowest == DiskState::silent) complain_of_silence(watch);
    if (slowest == DiskState::given_up) {
      forget();
      return false;
    }
    std::this_thread::sleep_for(between_disk_polls);
  }
  if (folder_ != nullptr) folder_->finish();
  return true;
}

// Returns the state of what this rank waits for: its own files, then, on rank 0, the completion of the checkpoint.
RunCheckpoints::DiskState RunCheckpoints::state_of_disk(DiskWatch& watch) const {
  const bool is_done = part_ != nullptr ? part_->is_done() : folder_ == nullptr || folder_->is_idle();
  const int64_t files = part_ != nullptr ? part_->num_durable() : -1;
  const auto now = std::chrono::steady_clock::now();
  if (is_done || std::exchange(watch.files, files) != files) watch.since = now;
  const bool others_write = part_ != nullptr;
  if (folder_ != nullptr && (others_write || !is_done) && gives_up_ && gives_up_()) return DiskState::given_up;
  if (is_done) return DiskState::done;
  return now - watch.since < std::chrono::duration<double>(wait_seconds_) ? DiskState::works : DiskState::silent;
}

RunCheckpoints::DiskState RunCheckpoints::slowest_of_all(DiskState mine) {
  auto word = static_cast<int64_t>(mine);
  world_.everyone().all_reduce(&word, 1, DataType::int64, Reduction::maximum);
  return static_cast<DiskState>(word);
}

// Neither reads nor deletes anything on the disk first, because that might hang too.
void RunCheckpoints::complain_of_silence(DiskWatch& watch) {
  std::optional<Obstacle> silence;
  if (state_of_disk(watch) == DiskState::silent) silence = Obstacle{"the disk hangs"};
  const std::optional<Obstacle> agreed = agree_on_obstacle(silence, 0, world_.everyone());
  if (!agreed) return;  // it has answered after all
  forget();
  throw UserError(concat("cannot write a checkpoint into ", root_.string(), ": ", agreed->reason,
                         ", nothing of it has ", "become durable for ", wait_seconds_, " s (parallel.wait_limit)"));
}

void RunCheckpoints::forget() {
  part_.reset();
  if (folder_ != nullptr) folder_->forget();
}

bool RunCheckpoints::rank_zero_says(bool yes) {
  int64_t said = yes ? 1 : 0;
  world_.everyone().broadcast(&said, 1, DataType::int64, 0);
  return said != 0;
}

// Once all ranks have written their files, sends the lists of these files to rank 0.
void RunCheckpoints::settle() {
  const CheckpointPart::Outcome outcome = part_->outcome();
  part_.reset();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun_;
  longest_seconds_ = std::max(longest_seconds_, taken.count());
  std::optional<Obstacle> refusal;
  if (!outcome.error.empty()) refusal = Obstacle{outcome.error};
  if (const std::optional<Obstacle> agreed = agree_on_obstacle(refusal, 0, world_.everyone())) {
    const std::string& reason = world_.size() == 1 ? outcome.error : agreed->reason;
    const bool is_gone = rank_zero_says(folder_ != nullptr && !folder_->has_begun());
    if (is_gone && folder_ != nullptr) folder_->drop();
    if (is_gone) return;
    if (folder_ != nullptr) folder_->abandon(reason);
    throw WriteError(reason);
  }
  const std::vector<std::string> all = gather_bytes(to_text(outcome.files), world_);
  if (folder_ == nullptr) return;
  std::map<std::string, FileDigest> files;
  for (const std::string& text : all) add_files(text, files);
  if (folder_->has_begun()) {
    folder_->commit(std::move(texts_), std::move(files));
  } else {
    folder_->drop();
  }
}

}  // namespace copus
