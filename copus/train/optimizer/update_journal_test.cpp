// Tests that a process which continues an interrupted update completes the same update, wherever it was interrupted.
#include "copus/train/optimizer/update_journal.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "copus/train/optimizer/adamw.h"
#include "copus/train/testing/zero_slots.h"

namespace copus {
namespace {

constexpr int64_t num_pieces = 5;

// State in pieces of three parts each, and a journal, in memory that outlives the updating process.
struct Memory {
  std::array<std::array<uint32_t, 3>, num_pieces> state{};
  std::vector<std::byte> journal = std::vector<std::byte>(UpdateJournal::bytes(UpdateJournal::piece_elements, 2) + 64);

  UpdateJournal open() {
    return UpdateJournal(std::span<std::byte>(journal).subspan(-reinterpret_cast<intptr_t>(journal.data()) & 63));
  }
};

uint32_t changed(uint32_t value, int64_t update) { return value * 31 + static_cast<uint32_t>(update); }

// Makes an update, but ends after `ends_after` written words or journal calls.
void update(Memory& memory, int64_t number, int64_t ends_after) {
  const auto ends = [&] { return ends_after-- == 0; };
  UpdateJournal journal = memory.open();
  for (int64_t piece = journal.begin(number); piece < num_pieces; ++piece) {
    std::array<uint32_t, 3>& state = memory.state[piece];
    std::array<std::span<std::byte>, 3> parts;
    for (size_t part = 0; part < 3; ++part) parts[part] = std::as_writable_bytes(std::span(&state[part], 1));
    if (ends()) return;
    journal.protect(piece, parts);
    for (uint32_t& value : state) {
      if (ends()) return;
      value = changed(value, number);
    }
    if (ends()) return;
    journal.done(piece);
  }
}

TEST(UpdateJournal, AnUpdateThatWasInterruptedAnywhereAnyNumberOfTimesIsMadeOnce) {
  for (int64_t first = 0; first < 26; ++first) {
    for (int64_t second = 0; second < 26; ++second) {
      Memory memory;
      std::array<std::array<uint32_t, 3>, num_pieces> expected{};
      for (int64_t number = 7; number < 9; ++number) {
        update(memory, number, first);
        update(memory, number, second);
        update(memory, number, 1000);
        update(memory, number, 1000);  // already complete
        for (auto& piece : expected) {
          for (uint32_t& value : piece) value = changed(value, number);
        }
        ASSERT_EQ(memory.state, expected) << "interrupted after " << first << ", then after " << second;
      }
    }
  }
}

TEST(UpdateJournal, AStateAtRestIsNotUpdatedAgain) {
  Memory memory;
  memory.open().mark_complete(12);
  update(memory, 12, 1000);
  EXPECT_EQ(memory.state, Memory().state);
  update(memory, 13, 1000);
  EXPECT_NE(memory.state, Memory().state);
}

TEST(AdamW, WithAJournalUpdatesToTheSameBits) {
  ModelDescription model;
  model.vocab_size = 8192;  // buckets have several pieces
  model.hidden_size = 16;
  model.intermediate_size = 24;
  model.num_layers = 2;
  model.num_heads = 2;
  model.num_kv_heads = 1;
  model.head_dim = 8;
  ASSERT_GT(model.vocab_size * model.hidden_size, UpdateJournal::piece_elements);
  Memory memory;
  std::vector<std::vector<float>> weights;
  for (const bool has_journal : {false, true}) {
    ParameterStore store(model, at::kFloat, at::kCPU);
    store.initialize(7);
    AdamW optimizer(store, OptimizerConfig{}, zero_slots(store));
    UpdateJournal journal = memory.open();
    for (int64_t number = 1; number < 4; ++number) {
      for (const Bucket& bucket : store.buckets()) bucket.gradient.copy_(bucket.master).mul_(0.5).add_(number);
      optimizer.step({.number = number, .learning_rate = 1e-2}, has_journal ? &journal : nullptr);
    }
    std::vector<float>& all = weights.emplace_back();
    for (const Bucket& bucket : store.buckets()) {
      const auto* const first = static_cast<const float*>(bucket.master.data_ptr());
      all.insert(all.end(), first, first + bucket.master.numel());
    }
  }
  EXPECT_TRUE(weights[0] == weights[1]);
}

}  // namespace
}  // namespace copus
