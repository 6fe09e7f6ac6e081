// Weighted sums of models: float32 terms added in float64, in order, each product and addition rounded once.
//
// PyTorch adds with fused multiply-add too, so the bits are its own. Levels without that instruction have no such
// function, and sums are PyTorch's there.

#pragma once

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

// total = from (null: zero) + the sum of c[t] * x[t], n numbers each; where rounded is given it gets the total in
// float32, and total is null. bad[t]: x[t] has a number that is not finite.
// A block of the total stays in the cache while all terms pass. Blocks are small, so that the processor goes on fetching
// every term ahead: with a page of each in turn it begins anew each time, and takes nearly twice as long.
extern "C" void espalier_weighted_sum(const float* const* x, const double* c, int64_t terms, const double* from,
                                      double* total, float* rounded, uint8_t* bad, int64_t n) {
  constexpr int64_t BLOCK = 256;
  constexpr uint32_t SIGNLESS = 0x7fffffffu, INFINITE = 0x7f800000u;
  double sum[BLOCK];
  std::fill(bad, bad + terms, uint8_t{0});
  for (int64_t at = 0; at < n; at += BLOCK) {
    const int64_t count = std::min(BLOCK, n - at);
    if (from)
      std::copy(from + at, from + at + count, sum);
    else
      std::fill(sum, sum + count, 0.0);
    for (int64_t t = 0; t < terms; ++t) {
      const float* values = x[t] + at;
      const double factor = c[t];
      uint32_t largest = 0;
      for (int64_t i = 0; i < count; ++i) {
        uint32_t bits;
        std::memcpy(&bits, values + i, sizeof bits);
        largest = std::max(largest, bits & SIGNLESS);
        sum[i] = std::fma(factor, static_cast<double>(values[i]), sum[i]);
      }
      bad[t] |= largest >= INFINITE;
    }
    if (rounded)
      for (int64_t i = 0; i < count; ++i) rounded[at + i] = static_cast<float>(sum[i]);
    else
      std::copy(sum, sum + count, total + at);
  }
}

#endif
