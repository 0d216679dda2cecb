// What a chunk tells of its buckets while it computes, to whoever holds them only while they are in use (ZeRO-2 and 3)
// or reduces gradients as soon as they are complete.
#pragma once

#include <cstdint>

namespace copus {

class BucketUse {
 public:
  virtual ~BucketUse() = default;
  // The weights of a bucket are read from now on, and no more by this pass.
  virtual void weights_begin(int64_t bucket) = 0;
  virtual void weights_end(int64_t bucket) = 0;
  // Gradients are added to the bucket from now on, and no more by this pass.
  virtual void gradient_begins(int64_t bucket) = 0;
  virtual void gradient_ends(int64_t bucket) = 0;
};

}  // namespace copus
