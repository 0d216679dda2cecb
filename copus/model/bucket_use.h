// The interface through which a chunk reports its use of buckets while it computes. The listener can then hold a
// bucket's weights only while they are in use (ZeRO-2 and 3), and reduce gradients as soon as they are complete.
#pragma once

#include <cstdint>

namespace copus {

class BucketUse {
 public:
  virtual ~BucketUse() = default;
  // A pass reads the bucket's weights only between these two calls.
  virtual void weights_begin(int64_t bucket) = 0;
  virtual void weights_end(int64_t bucket) = 0;
  // A pass adds to the bucket's gradients only between these two calls.
  virtual void gradient_begins(int64_t bucket) = 0;
  virtual void gradient_ends(int64_t bucket) = 0;
};

}  // namespace copus
