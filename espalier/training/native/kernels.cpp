// Small convolutions of many clients, each with its own images and weights, forward and backward,
// with ReLU and 2x2 max-pooling taken along where the caller asks for it.
//
// Plain C functions over float32 arrays, called through ctypes: no Python, no torch, no threads.
//
// How it computes. An image is copied into rows of width Wp with its padding, so that a whole plane is one flat
// line of numbers: the output at flat place p is the sum over (channel, i, j) of w * x[p + i * Wp + j]. Vectors of
// neighbouring places are then plain loads, whatever the image's width; the last kw - 1 places of every row are
// waste and are not copied out. A tile of outputs by vectors stays in registers over the whole sum.
//  - The gradient of the input is the same sum over the gradient's planes with the kernel turned round. Planes
//    have kw - 1 zeros at the end of each row, which are the padding of this row's right and the next row's left.
//  - The gradient of the weights is a sum along the line, a tile of outputs by a row of the kernel at a time.
// Every client is computed by itself in a fixed order: its bits do not depend on its neighbours.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#if defined(__AVX512F__)
constexpr int LANES = 16, OUTS = 8, REGISTERS = 24;
#elif defined(__AVX__)
constexpr int LANES = 8, OUTS = 4, REGISTERS = 12;
#else
constexpr int LANES = 4, OUTS = 4, REGISTERS = 12;
#endif

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t Mask __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));
typedef int64_t Int;

namespace {

struct Shape {
  Int clients, batch, in, height, width, out, kh, kw, ph, pw;
  Int rows() const { return height + 2 * ph - kh + 1; }    // of the output
  Int columns() const { return width + 2 * pw - kw + 1; }  // of the output
  Int line() const { return width + 2 * pw; }              // numbers from one row to the next, everywhere
};

inline Vector load(const float* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline void store(float* to, Vector v) { std::memcpy(to, &v, sizeof v); }

inline Vector spread(float value) { return value - Vector{}; }

inline float sum(Vector v) {
  float part[LANES];
  std::memcpy(part, &v, sizeof v);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) part[i] += part[i + half];
  return part[0];
}

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
  std::memcpy(&m, lanes + LANES - count, sizeof m);
  return m;
}

inline Vector keep(Vector v, Int count) { return count < LANES ? (Vector)((Mask)v & first(count)) : v; }

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

// A row into wider rows: zeros are written behind it, over what is written next.
inline void widen(const float* from, const float* end, float* to, Int count) {
  for (Int at = 0; at < count; at += LANES) store(to + at, keep(read<Vector>(from + at, end), count - at));
}

inline Int up(Int value, Int step) { return (value + step - 1) / step * step; }

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
  ~Scratch() { std::free(data_); }

 private:
  float* data_ = nullptr;
  Int size_ = 0;
};

thread_local Scratch images_, gradients_, flat_, packed_;

// ---- sums over (channel, i, j), a tile of OT outputs by VT vectors

template <int OT, int VT>
void tile(const float* source, Int plane, Int line, const float* kernel, const float* start, float* to, Int pitch,
          Int channels, Int kh, Int kw) {
  Vector total[OT][VT];
  for (int o = 0; o < OT; ++o)
    for (int v = 0; v < VT; ++v) total[o][v] = spread(start[o]);
  for (Int c = 0; c < channels; ++c)
    for (Int i = 0; i < kh; ++i) {
      const float* row = source + c * plane + i * line;
      for (Int j = 0; j < kw; ++j, ++row, kernel += OT) {
        Vector x[VT];
        for (int v = 0; v < VT; ++v) x[v] = load(row + v * LANES);
        for (int o = 0; o < OT; ++o) {
          const Vector w = spread(kernel[o]);
          for (int v = 0; v < VT; ++v) total[o][v] += w * x[v];
        }
      }
    }
  for (int o = 0; o < OT; ++o)
    for (int v = 0; v < VT; ++v) store(to + o * pitch + v * LANES, total[o][v]);
}

constexpr int WIDE = 4;  // vectors of a tile at most
typedef void (*Tile)(const float*, Int, Int, const float*, const float*, float*, Int, Int, Int, Int);

template <int OT, int... V>
constexpr Tile tiles_of(int vectors, std::integer_sequence<int, V...>) {
  constexpr Tile table[] = {&tile<OT, V + 1>...};
  return table[vectors - 1];
}

template <int... O>
Tile tile_for(int outs, int vectors, std::integer_sequence<int, O...>) {
  typedef Tile (*Row)(int);
  constexpr Row rows[] = {+[](int v) { return tiles_of<O + 1>(v, std::make_integer_sequence<int, WIDE>()); }...};
  return rows[outs - 1](vectors);
}

// How `count` outputs are cut into tiles of nearly one size.
struct Cut {
  explicit Cut(Int count, Int most) : count(count), tiles((count + most - 1) / most) {}
  Int count, tiles;
  Int begin(Int t) const { return t * count / tiles; }
  Int size(Int t) const { return begin(t + 1) - begin(t); }
};

// All outputs of one image: planes of `to` are `pitch` apart and hold the flat places 0 ... places - 1 (and some waste).
void correlate(const float* source, Int plane, Int line, const float* kernel, const float* start, float* to, Int pitch,
               Int places, Int channels, Int outs, Int kh, Int kw) {
  const Cut cut(outs, OUTS);
  for (Int t = 0; t < cut.tiles; ++t) {
    const Int first = cut.begin(t), size = cut.size(t);
    const Int wide = std::min<Int>(WIDE, REGISTERS / size);
    for (Int p = 0; p < places; p += wide * LANES) {
      const Int vectors = std::min(wide, (places - p + LANES - 1) / LANES);
      tile_for(size, vectors, std::make_integer_sequence<int, OUTS>())(
          source + p, plane, line, kernel + first * channels * kh * kw, start + first, to + first * pitch + p, pitch,
          channels, kh, kw);
    }
  }
}

// Weights [out, in, kh, kw] in the order in which tiles read them: [tile][channel][i][j][output of the tile].
// Turned: outputs and channels change places, and the kernel is read backwards.
void pack(const float* w, float* to, const Shape& s, bool turned) {
  const Int window = s.kh * s.kw, outs = turned ? s.in : s.out, channels = turned ? s.out : s.in;
  const Cut cut(outs, OUTS);
  for (Int t = 0; t < cut.tiles; ++t)
    for (Int c = 0; c < channels; ++c)
      for (Int at = 0; at < window; ++at)
        for (Int o = cut.begin(t); o < cut.begin(t + 1); ++o)
          *to++ = turned ? w[(c * s.in + o) * window + window - 1 - at] : w[(o * s.in + c) * window + at];
}

// One image into planes with padding, which hold zeros there already.
void pad(const float* x, const float* end, float* to, Int plane, const Shape& s) {
  const Int line = s.line();
  for (Int c = 0; c < s.in; ++c, to += plane) {
    float* row = to + s.ph * line + s.pw;
    for (Int y = 0; y < s.height; ++y, row += line, x += s.width) widen(x, end, row, s.width);
  }
}

// ---- pooling: `where` says which of the four was the largest, 4 that none is above zero

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

typedef std::make_integer_sequence<int, LANES> Lanes;

void pool(const float* flat, const float* flat_end, Int line, float* y, const float* y_end, uint8_t* where, const uint8_t* where_end,
          Int rows, Int columns) {
  for (Int r = 0; r < rows; ++r, y += columns, where += columns) {
    const float *a = flat + 2 * r * line, *b = a + line;
    for (Int c = 0; c < columns; c += LANES) {
      const Vector a0 = read<Vector>(a + 2 * c, flat_end), a1 = read<Vector>(a + 2 * c + LANES, flat_end);
      const Vector b0 = read<Vector>(b + 2 * c, flat_end), b1 = read<Vector>(b + 2 * c + LANES, flat_end);
      Vector most = evens(a0, a1, Lanes());
      Mask at = {};
      // A number that is not one wins, as it does in torch: a failed training must not look sound.
      auto against = [&](Vector other, int index) {
        const Mask more = ~(other <= most) & (most == most);
        most = more ? other : most;
        at = more ? index - Mask{} : at;
      };
      against(odds(a0, a1, Lanes()), 1);
      against(evens(b0, b1, Lanes()), 2);
      against(odds(b0, b1, Lanes()), 3);
      const Mask dead = most <= Vector{};
      write(y + c, y_end, dead ? Vector{} : most);
      write(where + c, where_end, __builtin_convertvector(dead ? 4 - Mask{} : at, Bytes));
    }
  }
}

void unpool(const float* g, const float* g_end, const uint8_t* where, const uint8_t* where_end, float* flat,
            const float* flat_end, Int line, Int rows, Int columns) {
  for (Int r = 0; r < rows; ++r, g += columns, where += columns) {
    float* row = flat + 2 * r * line;
    for (int half = 0; half < 2; ++half, row += line)
      for (Int c = 0; c < columns; c += LANES) {
        const Vector at = keep(read<Vector>(g + c, g_end), columns - c);
        const Mask which = __builtin_convertvector(read<Bytes>(where + c, where_end), Mask);
        const Vector even = which == 2 * half - Mask{} ? at : Vector{};
        const Vector odd = which == 2 * half + 1 - Mask{} ? at : Vector{};
        write(row + 2 * c, flat_end, zipped<0>(even, odd, Lanes()));
        write(row + 2 * c + LANES, flat_end, zipped<LANES / 2>(even, odd, Lanes()));
      }
  }
}

// ---- the weights' gradient: OT outputs by JT neighbouring places of the kernel, summed over a client's images

template <int OT, int JT>
void along(const float* g, Int g_plane, Int g_image, const float* x, Int x_image, Int vectors, Int batch, float* to,
           Int pitch) {
  Vector total[OT][JT] = {};
  for (Int b = 0; b < batch; ++b, g += g_image, x += x_image)
    for (Int v = 0; v < vectors; ++v) {
      Vector near[OT];
      for (int o = 0; o < OT; ++o) near[o] = load(g + o * g_plane + v * LANES);
      for (int j = 0; j < JT; ++j) {
        const Vector at = load(x + v * LANES + j);
        for (int o = 0; o < OT; ++o) total[o][j] += near[o] * at;
      }
    }
  for (int o = 0; o < OT; ++o)
    for (int j = 0; j < JT; ++j) to[o * pitch + j] = sum(total[o][j]);
}

constexpr int LONG = 5;  // neighbouring places at most
typedef void (*Along)(const float*, Int, Int, const float*, Int, Int, Int, float*, Int);

template <int OT, int... J>
constexpr Along alongs_of(int places, std::integer_sequence<int, J...>) {
  constexpr Along table[] = {&along<OT, J + 1>...};
  return table[places - 1];
}

template <int... O>
Along along_for(int outs, int places, std::integer_sequence<int, O...>) {
  typedef Along (*Row)(int);
  constexpr Row rows[] = {+[](int j) { return alongs_of<O + 1>(j, std::make_integer_sequence<int, LONG>()); }...};
  return rows[outs - 1](places);
}

Shape shape_of(const Int* n) { return {n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9]}; }

void forward(const float* x, const float* w, const float* bias, float* y, uint8_t* where, const Shape& s) {
  const Int line = s.line(), plane = (s.height + 2 * s.ph) * line, rows = s.rows(), columns = s.columns();
  const Int places = (rows - 1) * line + columns, pitch = up(places, LANES) + (WIDE + 2) * LANES;
  const Int image = s.in * plane, window = s.kh * s.kw, slack = (WIDE + 2) * LANES + s.kw;
  const Int pixels = where ? (rows / 2) * (columns / 2) : rows * columns, images = s.clients * s.batch;
  const float *x_end = x + images * s.in * s.height * s.width, *y_end = y + images * s.out * pixels;
  const uint8_t* where_end = where + images * s.out * pixels;
  float* padded = images_.get(image + slack);
  float* flat = flat_.get(s.out * pitch);
  float* kernel = packed_.get(s.out * s.in * window + s.out);
  float* start = kernel + s.out * s.in * window;
  std::memset(padded, 0, (image + slack) * sizeof(float));
  std::memset(start, 0, s.out * sizeof(float));
  for (Int k = 0; k < s.clients; ++k) {
    pack(w + k * s.out * s.in * window, kernel, s, false);
    if (bias) std::memcpy(start, bias + k * s.out, s.out * sizeof(float));
    for (Int b = 0; b < s.batch; ++b, x += s.in * s.height * s.width) {
      pad(x, x_end, padded, plane, s);
      correlate(padded, plane, line, kernel, start, flat, pitch, places, s.in, s.out, s.kh, s.kw);
      for (Int o = 0; o < s.out; ++o, y += pixels) {
        if (where) {
          pool(flat + o * pitch, flat + s.out * pitch, line, y, y_end, where, where_end, rows / 2, columns / 2);
          where += pixels;
        } else {
          for (Int r = 0; r < rows; ++r)
            for (Int c = 0; c < columns; c += LANES)
              write(y + r * columns + c, y_end, load(flat + o * pitch + r * line + c));
        }
      }
    }
  }
}

void backward(const float* x, const float* w, const float* g, const uint8_t* where, float* gx, float* gw, float* gb,
              const Shape& s) {
  const Int line = s.line(), plane = (s.height + 2 * s.ph) * line, rows = s.rows(), columns = s.columns();
  const Int window = s.kh * s.kw, image = s.in * plane, images = s.clients * s.batch;
  const Int pixels = where ? (rows / 2) * (columns / 2) : rows * columns;
  const float *x_end = x + images * s.in * s.height * s.width, *g_end = g + images * s.out * pixels;
  const uint8_t* where_end = where + images * s.out * pixels;
  const float* gx_end = gx + images * s.in * s.height * s.width;
  // Planes of the gradient: zeros above and below only if the input's gradient is wanted.
  const Int above = gx ? s.kh - 1 - s.ph : 0, left = s.kw - 1 - s.pw, margin = up(left, LANES);
  const Int span = up(rows * line, LANES), g_plane = up((rows + 2 * above) * line, LANES), g_image = s.out * g_plane;
  const Int slack = (WIDE + 2) * LANES + s.kh * line + s.kw;
  float* padded = images_.get(s.batch * image + slack);
  float* gradient = gradients_.get(margin + s.batch * g_image + slack) + margin;
  const Int pitch = up(s.height * line, LANES) + (WIDE + 2) * LANES;
  float* flat = flat_.get(s.in * pitch);
  float* kernel = packed_.get(s.out * s.in * window + s.in);
  float* start = kernel + s.out * s.in * window;
  std::memset(start, 0, s.in * sizeof(float));
  std::memset(padded, 0, (s.batch * image + slack) * sizeof(float));
  std::memset(gradient - margin, 0, (margin + s.batch * g_image + slack) * sizeof(float));
  const Cut across(s.kw, LONG);
  const Cut cut(s.out, std::min<Int>(OUTS, std::max<Int>(1, (REGISTERS + 1) / across.size(across.tiles - 1))));
  for (Int k = 0; k < s.clients; ++k, w += s.out * s.in * window, gw += s.out * s.in * window) {
    for (Int b = 0; b < s.batch; ++b, x += s.in * s.height * s.width) pad(x, x_end, padded + b * image, plane, s);
    for (Int at = 0; at < s.batch * s.out; ++at, g += pixels) {
      float* to = gradient + at * g_plane + above * line;
      if (where) {
        unpool(g, g_end, where, where_end, to, gradient + s.batch * g_image + slack, line, rows / 2, columns / 2);
        where += pixels;
      } else {
        for (Int r = 0; r < rows; ++r) widen(g + r * columns, g_end, to + r * line, columns);
      }
    }
    if (gb)
      for (Int o = 0; o < s.out; ++o) {
        Vector total = {};
        for (Int b = 0; b < s.batch; ++b)
          for (Int v = 0; v < span; v += LANES) total += load(gradient + b * g_image + o * g_plane + above * line + v);
        *gb++ = sum(total);
      }
    for (Int t = 0; t < cut.tiles; ++t)
      for (Int c = 0; c < s.in; ++c)
        for (Int i = 0; i < s.kh; ++i)
          for (Int u = 0; u < across.tiles; ++u)
            along_for(cut.size(t), across.size(u), std::make_integer_sequence<int, OUTS>())(
                gradient + cut.begin(t) * g_plane + above * line, g_plane, g_image,
                padded + c * plane + i * line + across.begin(u), image, span / LANES, s.batch,
                gw + (cut.begin(t) * s.in + c) * window + i * s.kw + across.begin(u), s.in * window);
    if (!gx) continue;
    pack(w, kernel, s, true);
    for (Int b = 0; b < s.batch; ++b) {
      correlate(gradient + b * g_image - left, g_plane, line, kernel, start, flat, pitch,
                (s.height - 1) * line + s.width, s.out, s.in, s.kh, s.kw);
      for (Int c = 0; c < s.in; ++c)
        for (Int r = 0; r < s.height; ++r, gx += s.width)
          for (Int at = 0; at < s.width; at += LANES) write(gx + at, gx_end, load(flat + c * pitch + r * line + at));
    }
  }
}

}  // namespace

extern "C" {

// Raised whenever a signature changes: a library of another number is not used.
int espalier_version() { return 1; }

// Whether this processor has what the library was compiled for.
int espalier_runs_here() {
#if defined(__x86_64__)
#if defined(__AVX512F__)
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl")) return 0;
#endif
#if defined(__AVX2__)
  if (!__builtin_cpu_supports("avx2")) return 0;
#endif
#if defined(__FMA__)
  if (!__builtin_cpu_supports("fma")) return 0;
#endif
#endif
  return 1;
}

// x [planes, H, W] -> ReLU and 2x2 max-pooling: y and where are [planes, H / 2, W / 2].
void espalier_pool_forward(const float* x, float* y, uint8_t* where, int64_t planes, int64_t height, int64_t width) {
  const Int rows = height / 2, columns = width / 2, pixels = rows * columns;
  const float* x_end = x + planes * height * width;
  const float* y_end = y + planes * pixels;
  const uint8_t* where_end = where + planes * pixels;
  for (Int p = 0; p < planes; ++p)
    pool(x + p * height * width, x_end, width, y + p * pixels, y_end, where + p * pixels, where_end, rows, columns);
}

// g is y's gradient; gx is overwritten with that of x.
void espalier_pool_backward(const float* g, const uint8_t* where, float* gx, int64_t planes, int64_t height,
                            int64_t width) {
  const Int rows = height / 2, columns = width / 2, pixels = rows * columns;
  const float *g_end = g + planes * pixels, *gx_end = gx + planes * height * width;
  const uint8_t* where_end = where + planes * pixels;
  for (Int p = 0; p < planes; ++p) {
    float* plane = gx + p * height * width;
    unpool(g + p * pixels, g_end, where + p * pixels, where_end, plane, gx_end, width, rows, columns);
    if (width % 2)
      for (Int r = 0; r < height; ++r) plane[(r + 1) * width - 1] = 0;
    if (height % 2) std::memset(plane + (height - 1) * width, 0, width * sizeof(float));
  }
}

// x [K, B, in, H, W], w [K, out, in, kh, kw], bias [K, out] or null -> y [K, B, out, h, w].
// With `where`: ReLU and 2x2 max-pooling follow; y and where are [K, B, out, h / 2, w / 2].
// Returns 0, or 1 if there was no memory.
int espalier_conv_forward(const float* x, const float* w, const float* bias, float* y, uint8_t* where,
                          const int64_t* shape) {
  try {
    forward(x, w, bias, y, where, shape_of(shape));
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// g is y's gradient; gx (or null), gw, gb (or null) are overwritten with those of x, w, bias.
int espalier_conv_backward(const float* x, const float* w, const float* g, const uint8_t* where, float* gx, float* gw,
                           float* gb, const int64_t* shape) {
  try {
    backward(x, w, g, where, gx, gw, gb, shape_of(shape));
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // extern "C"
