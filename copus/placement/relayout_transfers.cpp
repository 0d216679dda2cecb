#include "copus/placement/relayout_transfers.h"

#include <algorithm>
#include <utility>

namespace copus::relayout {

namespace {

// Appends the runs of one delivery to the runs of other deliveries from the same sender to the same buffer.
void add_runs(const StatePlacement& old_placement, const StatePlacement& new_placement, const Delivery& delivery,
              std::vector<CopyRun>& runs) {
  const ContentKind content = new_placement.kind_of(delivery.content);
  const BucketShape& old_shape = old_placement.shape(content, delivery.sender_tensor);
  const BucketShape& new_shape = new_placement.shape(content, delivery.receiver_tensor);
  for (const Need::Member& member : delivery.need->members) {
    const Entry& from = old_shape.entries[member.entry];
    const Entry& to = new_shape.entries[member.entry];
    const Stretch given = {std::max(delivery.from_stretch.begin, from.offset + member.part.begin),
                           std::min(delivery.from_stretch.end, from.offset + member.part.end)};
    for_overlaps(from.inside(given), to.inside(delivery.to_stretch), [&](const Rectangle& both) {
      CopyRun run{.from = from.position(both.row_begin, both.column_begin) - delivery.from_stretch.begin,
                  .to = to.position(both.row_begin, both.column_begin) - delivery.to_stretch.begin,
                  .count = both.columns()};
      if (both.columns() == from.box.columns() && both.columns() == to.box.columns()) {
        run.count *= both.rows();
      } else if (both.rows() > 1) {
        run.rows = both.rows();
        run.from_stride = from.box.columns();
        run.to_stride = to.box.columns();
      }
      runs.push_back(run);
    });
  }
}

// Sorts runs by position in the new buffer, and merges adjacent ones.
void put_in_order(std::vector<CopyRun>& runs) {
  std::sort(runs.begin(), runs.end(), [](const CopyRun& a, const CopyRun& b) { return a.to < b.to; });
  size_t last = 0;
  for (size_t i = 1; i < runs.size(); ++i) {
    CopyRun& before = runs[last];
    if (before.rows == 1 && runs[i].rows == 1 && before.from + before.count == runs[i].from &&
        before.to + before.count == runs[i].to) {
      before.count += runs[i].count;
    } else {
      runs[++last] = runs[i];
    }
  }
  runs.resize(std::min(runs.size(), last + 1));
}

}  // namespace

void Transfers::add(const Delivery& delivery) {
  Transfer& transfer = transfers_[{delivery.receiver, delivery.to_bucket, delivery.kind, delivery.sender}];
  transfer.sender = delivery.sender;
  transfer.receiver = delivery.receiver;
  transfer.kind = delivery.kind;
  transfer.from_bucket = delivery.from_bucket;
  transfer.to_bucket = delivery.to_bucket;
  add_runs(*from_, *to_, delivery, transfer.runs);
}

std::vector<Transfer> Transfers::take() {
  std::vector<Transfer> in_order;
  for (auto& [key, transfer] : transfers_) {
    put_in_order(transfer.runs);
    in_order.push_back(std::move(transfer));
  }
  return in_order;
}

}  // namespace copus::relayout
