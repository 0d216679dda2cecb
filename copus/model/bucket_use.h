// The interface through which a chunk reports the buckets that it uses while it computes. The listener may hold buckets
// only while they are in use (ZeRO-2 and 3), or reduce gradients as soon as they are complete.
#pragma once

#include <cstdint>

namespace copus {

class BucketUse {
 public:
  virtual ~BucketUse() = default;
  // This pass reads the bucket's weights only between these two calls.
  virtual void weights_begin(int64_t bucket) = 0;
  virtual void weights_end(int64_t bucket) = 0;
  // This pass adds to the bucket's gradients only between these two calls.
  virtual void gradient_begins(int64_t bucket) = 0;
  virtual void gradient_ends(int64_t bucket) = 0;
};

}  // namespace copus
