// ReLU and 2x2 max-pooling, of images as they come and of blocks of them side by side.
// `where` says which of the four was the largest, 4 that none is above zero.
#pragma once

#include "vectors.h"

namespace {

struct Largest {
  Vector most;
  Mask at = {};
  // A number that is not one wins, as it does in torch: a failed training must not look sound.
  void against(Vector other, int index) {
    const Mask more = ~(other <= most) & (most == most);
    most = more ? other : most;
    at = more ? index - Mask{} : at;
  }
  Vector value() const { return most <= Vector{} ? Vector{} : most; }
  Bytes where() const { return narrowed(most <= Vector{} ? 4 - Mask{} : at); }
  void out(float* y, const float* y_end, uint8_t* to, const uint8_t* to_end) const {
    write(y, y_end, value());
    write(to, to_end, where());
  }
};

inline Vector where_is(int index, Mask which, Vector v) { return which == index - Mask{} ? v : Vector{}; }

template <int... L>
inline Vector evens(Vector a, Vector b, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(a, b, (2 * L)...);
}

template <int... L>
inline Vector odds(Vector a, Vector b, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(a, b, (2 * L + 1)...);
}

// Lanes a0 b0 a1 b1 ... from lane `from` on.
template <int from, int... L>
inline Vector zipped(Vector a, Vector b, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(a, b, (from + L / 2 + L % 2 * LANES)...);
}

// One image.
void pool(const float* x, const float* x_end, Int line, float* y, const float* y_end, uint8_t* where,
          const uint8_t* where_end, Int rows, Int columns) {
  for (Int r = 0; r < rows; ++r, y += columns, where += columns) {
    const float *a = x + 2 * r * line, *b = a + line;
    for (Int c = 0; c < columns; c += LANES) {
      const Vector a0 = read<Vector>(a + 2 * c, x_end), a1 = read<Vector>(a + 2 * c + LANES, x_end);
      const Vector b0 = read<Vector>(b + 2 * c, x_end), b1 = read<Vector>(b + 2 * c + LANES, x_end);
      Largest found{evens(a0, a1, Lanes())};
      found.against(odds(a0, a1, Lanes()), 1);
      found.against(evens(b0, b1, Lanes()), 2);
      found.against(odds(b0, b1, Lanes()), 3);
      found.out(y + c, y_end, where + c, where_end);
    }
  }
}

void unpool(const float* g, const float* g_end, const uint8_t* where, const uint8_t* where_end, float* gx,
            const float* gx_end, Int line, Int rows, Int columns) {
  for (Int r = 0; r < rows; ++r, g += columns, where += columns) {
    float* to = gx + 2 * r * line;
    for (int half = 0; half < 2; ++half, to += line)
      for (Int c = 0; c < columns; c += LANES) {
        const Vector at = keep(read<Vector>(g + c, g_end), columns - c);
        const Mask which = widened(read<Bytes>(where + c, where_end));
        const Vector even = where_is(2 * half, which, at), odd = where_is(2 * half + 1, which, at);
        write(to + 2 * c, gx_end, zipped<0>(even, odd, Lanes()));
        write(to + 2 * c + LANES, gx_end, zipped<LANES / 2>(even, odd, Lanes()));
      }
  }
}

// Two lines a and b of a block; `where` holds [column][image], without the lanes of images that are not there.
void pool_lines(const float* a, const float* b, float* y, uint8_t* where, const uint8_t* where_end, Int columns,
                Int deep, Int images) {
  for (Int c = 0; c < columns; ++c, a += 2 * deep, b += 2 * deep, y += deep, where += images) {
    Largest found{load(a)};
    found.against(load(a + deep), 1);
    found.against(load(b), 2);
    found.against(load(b + deep), 3);
    found.out(y, y + LANES, where, where_end);
  }
}

// Returns the sum of what flows on.
Vector unpool_lines(const float* g, const uint8_t* where, const uint8_t* where_end, float* a, float* b, Int columns,
                    Int deep, Int images) {
  Vector total = {};
  for (Int c = 0; c < columns; ++c, a += 2 * deep, b += 2 * deep, g += deep, where += images) {
    const Vector at = keep(load(g), images);
    const Mask which = widened(read<Bytes>(where, where_end));
    store(a, where_is(0, which, at));
    store(a + deep, where_is(1, which, at));
    store(b, where_is(2, which, at));
    store(b + deep, where_is(3, which, at));
    total += which == 4 - Mask{} ? Vector{} : at;
  }
  return total;
}

}  // namespace
