// Linear layers of many clients with small batches, y = x Wt + b, forward and backward.
//
// A weight is used only once per row of the batch, so the time goes into bringing it through the caches. It is read
// once forward; and once backward, where a tile of the weights is loaded, gives its part of the input's gradient,
// takes up its own gradient (in plain SGD that is its step) and is stored.
// Every client is computed by itself in a fixed order: its bits do not depend on its neighbours.
#pragma once

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "vectors.h"

namespace {

// Rows of a client's batch up to which this beats a library's batched product, forward and backward taken together.
// Measured on one core (Zen 4) against MKL. AVX-512: 1.0 to 2.1 times as fast up to 256 rows for 784 to 200, 3136 to
// 512 and 2048 to 2048, and at 512 rows for 784 to 200 and for 64 to 64 ... 192, whose forward pass alone is 0.8; at
// 1000 rows 0.9 for 3136 to 512. The same core with AVX2 kernels: 1.0 to 1.3 at 10 and 32 rows, 0.8 at 256. Elsewhere
// it was not measured.
#if defined(__AVX512F__)
constexpr int MOST_ROWS = 512;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int MOST_ROWS = 32;
#else
constexpr int MOST_ROWS = 0;
#endif

struct Layer {
  Int clients, batch, in, out;
};

// The lanes of a vector that are a row's own: what lies behind them is another row's, maybe another client's.
inline Vector load(const float* from, Mask there) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(_mm512_cmplt_epi32_mask((__m512i)there, __m512i{}), from);
#elif defined(__AVX__)
  return _mm256_maskload_ps(from, (__m256i)there);
#else
  Vector v = {};
  for (int l = 0; l < LANES; ++l)
    if (there[l]) v[l] = from[l];
  return v;
#endif
}

inline void store(float* to, Vector v, Mask there) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, _mm512_cmplt_epi32_mask((__m512i)there, __m512i{}), v);
#elif defined(__AVX__)
  _mm256_maskstore_ps(to, (__m256i)there, v);
#else
  for (int l = 0; l < LANES; ++l)
    if (there[l]) to[l] = v[l];
#endif
}

// In a register from here on: left alone, the compiler reads it from memory again at every use.
inline Vector held(Vector v) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(v));
#elif defined(__x86_64__)
  __asm__("" : "+x"(v));
#elif defined(__aarch64__)
  __asm__("" : "+w"(v));
#endif
  return v;
}

// ---- forward: NT rows of the weights by BT rows of the batch, vectors along the inputs, lanes summed at the end

constexpr int FOUR = 4, ITEMS = REGISTERS / FOUR;
typedef float Four __attribute__((vector_size(FOUR * sizeof(float))));

template <int... L>
inline Four folded(Vector v, std::integer_sequence<int, L...>) {
  Four total = {v[L]...};
  UNROLLED
  for (int l = FOUR; l < LANES; l += FOUR) total += Four{v[l + L]...};
  return total;
}

// Lane l of the result is the sum of vector l.
inline Four four(const Vector* v) {
  const Vector a = upper<1>(v[0], v[1], Lanes()) + lower<1>(v[0], v[1], Lanes());
  const Vector b = upper<1>(v[2], v[3], Lanes()) + lower<1>(v[2], v[3], Lanes());
  return folded(upper<2>(a, b, Lanes()) + lower<2>(a, b, Lanes()), std::make_integer_sequence<int, FOUR>());
}

template <int NT, int BT>
void dots(const float* x, const float* w, const float* bias, float* y, const Layer& s) {
  Vector total[BT][FOUR] = {};
  const auto step = [&](Int at, auto... there) {
    Vector near[BT];
    UNROLLED
    for (int b = 0; b < BT; ++b) near[b] = held(load(x + b * s.in + at, there...));
    UNROLLED
    for (int n = 0; n < NT; ++n) {
      const Vector one = load(w + n * s.in + at, there...);
      __builtin_prefetch(w + (NT + n) * s.in + at);  // the rows below, which come next
      UNROLLED
      for (int b = 0; b < BT; ++b) total[b][n] += one * near[b];
    }
  };
  Int at = 0;
  for (; at + LANES <= s.in; at += LANES) step(at);
  if (at < s.in) step(at, first(s.in - at));
  Four start = {};
  if (bias) std::memcpy(&start, bias, NT * sizeof(float));
  UNROLLED
  for (int b = 0; b < BT; ++b) {
    const Four result = four(total[b]) + start;
    std::memcpy(y + b * s.out, &result, NT * sizeof(float));
  }
}

void linear(const float* x, const float* w, const float* bias, float* y, const Layer& s) {
  const Cut rows(s.out, FOUR), items(s.batch, ITEMS);
  for (Int k = 0; k < s.clients; ++k, x += s.batch * s.in, w += s.out * s.in, y += s.batch * s.out)
    for (Int t = 0; t < rows.parts; ++t)
      for (Int u = 0; u < items.parts; ++u)
        choose<FOUR, ITEMS>([](auto rows, auto items) { return &dots<rows, items>; }, rows.size(t), items.size(u))(
            x + items.begin(u) * s.in, w + rows.begin(t) * s.in, bias ? bias + k * s.out + rows.begin(t) : bias,
            y + items.begin(u) * s.out + rows.begin(t), s);
}

// ---- backward: NT rows of the weights by VT vectors of the inputs

constexpr int SIX = 6, ACROSS = REGISTERS / SIX;

// Where the gradients of x, w and the bias go (or null). Those of w and the bias are added to what is there if asked
// for, and gw may be the weights themselves.
struct Sinks {
  float *x, *w, *b;
  bool add_w, add_b;
};

// Of one tile: x, w and the sinks begin with its inputs, w and g with its outputs. The sums for gx begin at `top`.
// If `cut`, the last vector has only the lanes `there`. The next tile is `ahead` of this one.
template <int NT, int VT, bool cut>
void tile_back(const float* x, const float* w, const float* g, const Sinks& to, bool top, Mask there, Int ahead,
               const Layer& s) {
  Vector tile[NT][VT] = {};
  const auto get = [&](const float* from, int v) {
    return cut && v == VT - 1 ? load(from + v * LANES, there) : load(from + v * LANES);
  };
  const auto put = [&](float* row, int v, Vector value) {
    cut && v == VT - 1 ? store(row + v * LANES, value, there) : store(row + v * LANES, value);
  };
  const auto fill = [&](const float* from) {
    UNROLLED
    for (int n = 0; n < NT; ++n) {
      UNROLLED
      for (int v = 0; v < VT; ++v) {
        tile[n][v] = get(from + n * s.in, v);
        __builtin_prefetch(from + ahead + n * s.in + v * LANES, 1);
      }
    }
  };
  if (to.x) {
    fill(w);
    for (Int b = 0; b < s.batch; ++b) {
      Vector total[VT] = {};
      if (!top) {
        UNROLLED
        for (int v = 0; v < VT; ++v) total[v] = get(to.x + b * s.in, v);
      }
      UNROLLED
      for (int n = 0; n < NT; ++n) {
        const Vector one = spread(g[b * s.out + n]);
        UNROLLED
        for (int v = 0; v < VT; ++v) total[v] += one * tile[n][v];
      }
      UNROLLED
      for (int v = 0; v < VT; ++v) put(to.x + b * s.in, v, total[v]);
    }
  }
  if (!to.w) return;
  if (!to.add_w) {
    UNROLLED
    for (int n = 0; n < NT; ++n) {
      UNROLLED
      for (int v = 0; v < VT; ++v) tile[n][v] = Vector{};
    }
  } else if (!to.x || to.w != w) {
    fill(to.w);
  }
  for (Int b = 0; b < s.batch; ++b) {
    Vector near[VT];
    UNROLLED
    for (int v = 0; v < VT; ++v) near[v] = held(get(x + b * s.in, v));
    UNROLLED
    for (int n = 0; n < NT; ++n) {
      const Vector one = spread(g[b * s.out + n]);
      UNROLLED
      for (int v = 0; v < VT; ++v) tile[n][v] += one * near[v];
    }
  }
  UNROLLED
  for (int n = 0; n < NT; ++n) {
    UNROLLED
    for (int v = 0; v < VT; ++v) put(to.w + n * s.in, v, tile[n][v]);
  }
}

void bias_back(const float* g, float* gb, bool add, const Layer& s) {
  if (!add) std::memset(gb, 0, s.out * sizeof(float));
  for (Int b = 0; b < s.batch; ++b)
    for (Int n = 0; n < s.out; ++n) gb[n] += g[b * s.out + n];
}

// Rows times tiles whose x and gx stay in the first cache while the weights of these inputs pass by.
constexpr Int NEAR = 64;

void linear_back(const float* x, const float* w, const float* g, const Sinks& to, const Layer& s) {
  const Cut rows(s.out, SIX), wide((s.in + LANES - 1) / LANES, ACROSS);
  const Cut blocks(wide.parts, std::max<Int>(1, NEAR / std::max<Int>(1, s.batch)));
  const Mask there = first(s.in - (wide.count - 1) * LANES);
  const auto whole = [](auto rows, auto vectors) { return &tile_back<rows, vectors, false>; };
  const auto ragged = [](auto rows, auto vectors) { return &tile_back<rows, vectors, true>; };
  for (Int k = 0; k < s.clients; ++k) {
    const Int items = k * s.batch, outs = k * s.out;
    for (Int q = 0; q < blocks.parts; ++q)
      for (Int t = 0; t < rows.parts; ++t)
        for (Int u = blocks.begin(q), next; u < blocks.begin(q + 1); u = next) {
          next = u + 1;
          const Int row = rows.begin(t), at = wide.begin(u) * LANES, place = (outs + row) * s.in + at;
          const Int ahead = next < blocks.begin(q + 1) ? wide.size(u) * LANES
                                                       : rows.size(t) * s.in + wide.begin(blocks.begin(q)) * LANES - at;
          const bool cut = s.in % LANES && next == wide.parts;
          const Sinks own{to.x ? to.x + items * s.in + at : nullptr, to.w ? to.w + place : nullptr, nullptr, to.add_w,
                          false};
          (cut ? choose<SIX, ACROSS>(ragged, rows.size(t), wide.size(u))
               : choose<SIX, ACROSS>(whole, rows.size(t), wide.size(u)))(
              x + items * s.in + at, w + place, g + items * s.out + row, own, t == 0, there, ahead, s);
        }
    if (to.b) bias_back(g + items * s.out, to.b + outs, to.add_b, s);
  }
}

}  // namespace
