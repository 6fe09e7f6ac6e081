// Vectors of LANES floats in the compiler's own terms (GCC, Clang), and what the kernels build on them.
// Everything in these headers is for the one file that includes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

// What is kept in registers at a time, at most: vectors of sums; outputs and vectors of a tile; kernel rows of the
// weights' gradient; rows of the output's gradient, and kernel rows, of the input's gradient, and the kernel rows up
// to which it goes for two channels at once.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 24, OUTS = 8, WIDE = 4, LONG = 5, TALL = 12, HIGH = 5, PAIRED = 3;
#else
constexpr int REGISTERS = 12, OUTS = 4, WIDE = 4, LONG = 5, TALL = 10, HIGH = 3, PAIRED = 0;
#endif

// Arrays stay in registers only if every loop over them is unrolled.
#if defined(__clang__)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 24")
#endif

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t Mask __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));
typedef int64_t Int;
typedef std::make_integer_sequence<int, LANES> Lanes;

namespace {

inline Vector load(const float* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline void store(float* to, Vector v) { std::memcpy(to, &v, sizeof v); }

inline Vector spread(float value) { return value - Vector{}; }

// The first `count` lanes of a mask are set.
inline Mask first(Int count) {
  static const int32_t lanes[2 * LANES] = {-1, -1, -1, -1
#if defined(__AVX__)
                                           , -1, -1, -1, -1
#endif
#if defined(__AVX512F__)
                                           , -1, -1, -1, -1, -1, -1, -1, -1
#endif
  };
  Mask m;
  std::memcpy(&m, lanes + LANES - std::min<Int>(count, LANES), sizeof m);
  return m;
}

inline Vector keep(Vector v, Int count) { return (Vector)((Mask)v & first(count)); }

// Vectors are read and written whole as long as they stay before `end`; what lies behind a row is another row's.
template <class V, class T>
inline V read(const T* from, const T* end) {
  V v = {};
  if (from + LANES <= end)
    std::memcpy(&v, from, sizeof v);
  else if (from < end)
    std::memcpy(&v, from, (end - from) * sizeof(T));
  return v;
}

template <class V, class T>
inline void write(T* to, const T* end, V v) {
  if (to + LANES <= end)
    std::memcpy(to, &v, sizeof v);
  else if (to < end)
    std::memcpy(to, &v, (end - to) * sizeof(T));
}

// Between bytes and lanes: loops, which GCC turns into one instruction, and __builtin_convertvector into fifty.
inline Mask widened(Bytes bytes) {
  Mask m;
  for (int l = 0; l < LANES; ++l) m[l] = bytes[l];
  return m;
}

inline Bytes narrowed(Mask m) {
  Bytes bytes;
  for (int l = 0; l < LANES; ++l) bytes[l] = static_cast<uint8_t>(m[l]);
  return bytes;
}

// bfloat16 in memory: the upper half of a float, rounded to the nearest (to even in the middle).
typedef uint16_t Half;
typedef uint16_t Halves __attribute__((vector_size(LANES * sizeof(uint16_t))));

inline Vector load(const Half* from) {
  Halves h;
  std::memcpy(&h, from, sizeof h);
  Mask m;
  for (int l = 0; l < LANES; ++l) m[l] = h[l];
  return (Vector)(m << 16);
}

inline void store(Half* to, Vector v) {
  const Mask bits = (Mask)v, rounded = bits + 0x7fff + (bits >> 16 & 1);
  const Mask kept = v == v ? rounded >> 16 : 0x7fc0 - Mask{};
  Halves h;
  for (int l = 0; l < LANES; ++l) h[l] = static_cast<uint16_t>(kept[l]);
  std::memcpy(to, &h, sizeof h);
}

inline Half half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return value == value ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fc0;
}

inline float single(float value) { return value; }

inline float single(Half value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

inline Int up(Int value, Int step) { return (value + step - 1) / step * step; }

// Whole vectors for `count` numbers, and an odd number of them: rows an even distance apart share a cache's places.
inline Int odd(Int count) { return (up(count, LANES) / LANES | 1) * LANES; }

// How `count` things are cut into parts of nearly one size.
struct Cut {
  Cut(Int count, Int most) : count(count), parts((count + most - 1) / most) {}
  Int count, parts;
  Int begin(Int t) const { return t * count / parts; }
  Int size(Int t) const { return begin(t + 1) - begin(t); }
};

// The function that `pick` gives for the compile-time numbers a in 1 ... A and b in 1 ... B.
template <int B, class Pick, int... N>
inline auto chosen(Pick pick, Int a, Int b, std::integer_sequence<int, N...>) {
  constexpr decltype(pick(std::integral_constant<int, 1>(), std::integral_constant<int, 1>())) table[] = {
      pick(std::integral_constant<int, N / B + 1>(), std::integral_constant<int, N % B + 1>())...};
  return table[(a - 1) * B + b - 1];
}

template <int A, int B, class Pick>
inline auto choose(Pick pick, Int a, Int b) {
  return chosen<B>(pick, a, b, std::make_integer_sequence<int, A * B>());
}

// Memory that a thread keeps from call to call.
class Scratch {
 public:
  float* get(Int count) {
    if (count > size_) {
      std::free(data_);
      size_ = up(count, 1024);
      data_ = static_cast<float*>(std::aligned_alloc(64, size_ * sizeof(float)));
      if (!data_) {
        size_ = 0;
        throw std::bad_alloc();
      }
    }
    return data_;
  }
  float* zeros(Int count) { return static_cast<float*>(std::memset(get(count), 0, count * sizeof(float))); }
  ~Scratch() { std::free(data_); }

 private:
  float* data_ = nullptr;
  Int size_ = 0;
};

// ---- squares of LANES vectors, turned and summed: of two vectors, what stays in its half and what changes places

template <int step, int... L>
inline Vector upper(Vector a, Vector b, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(a, b, (L & step ? LANES + L - step : L)...);
}

template <int step, int... L>
inline Vector lower(Vector a, Vector b, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(a, b, (L & step ? LANES + L : L + step)...);
}

// Lane l of vector v becomes lane v of vector l.
template <int step = 1>
inline void turn(Vector* v) {
  UNROLLED
  for (int i = 0; i < LANES; ++i)
    if (!(i & step)) {
      const Vector a = v[i], b = v[i + step];
      v[i] = upper<step>(a, b, Lanes());
      v[i + step] = lower<step>(a, b, Lanes());
    }
  if constexpr (2 * step < LANES) turn<2 * step>(v);
}

// Lane l of the result is the sum of vector l.
template <int step = 1>
inline Vector sums(Vector* v) {
  UNROLLED
  for (int i = 0; i < LANES; i += 2 * step)
    v[i] = upper<step>(v[i], v[i + step], Lanes()) + lower<step>(v[i], v[i + step], Lanes());
  if constexpr (2 * step < LANES) return sums<2 * step>(v);
  return v[0];
}

inline float sum(Vector v) {
  float total = 0;
  for (int l = 0; l < LANES; ++l) total += v[l];
  return total;
}

}  // namespace
