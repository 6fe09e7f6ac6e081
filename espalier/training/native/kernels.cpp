// Small convolutions of many clients, each with its own images and weights, forward and backward,
// with ReLU and 2x2 max-pooling taken along where the caller asks for it; linear layers are in linear.h, convolutions
// of images whose channels lie last in last.h, attention in attention.h.
//
// Plain C functions over arrays, called through ctypes: no Python, no torch, no threads.
//
// How it computes. A batch is cut into blocks of at most LANES images, and a block's images are laid side by side:
// [channel][row][column][image]. A row is then one line of numbers in which the next column lies `deep` numbers
// further, `deep` being the images of a block. Vectors run along this line whether a column ends inside them or not:
// only the line's end is waste, and in a full block every vector is one column and every load aligned.
//  - Forward, a tile of outputs by vectors of a line stays in registers over the sum over (channel, i, j).
//  - The gradient of the weights is a sum over all places: a tile of outputs by kernel rows stays in registers, and
//    so do the rows of the image while a vector goes down it, so that each is loaded once for all kernel rows.
//  - The gradient of the input: a few rows of the gradient, each times all rows of the kernel, are added into rows
//    of registers; columns of the kernel that would meet only what lies beside the image are left out.
// Every client is computed by itself in a fixed order: its bits do not depend on its neighbours.

#if defined(__AVX512BF16__)
#include <cpuid.h>
#endif

#include "attention.h"
#include "depthwise.h"
#include "last.h"
#include "layout.h"
#include "linear.h"
#include "norm.h"
#include "pooling.h"
#include "sums.h"
#include "vectors.h"

namespace {

thread_local Scratch images_, gradients_, flat_, packed_;

// ---- forward: OT outputs by VT vectors, summed over channels, kernel rows from `low` to `high` and columns

template <int OT, int VT>
void tile(const float* x, const float* kernel, const float* start, float* to, Int pitch, Int low, Int high,
          const Shape& s) {
  Vector total[OT][VT];
  UNROLLED
  for (int o = 0; o < OT; ++o) {
    UNROLLED
    for (int v = 0; v < VT; ++v) total[o][v] = spread(start[o]);
  }
  for (Int c = 0; c < s.in; ++c)
    for (Int i = low; i < high; ++i) {
      const float *row = x + c * s.plane + i * s.line, *w = kernel + (c * s.kh + i) * s.kw * OT;
      for (Int j = 0; j < s.kw; ++j, row += s.deep, w += OT) {
        Vector at[VT];
        UNROLLED
        for (int v = 0; v < VT; ++v) at[v] = load(row + v * LANES);
        UNROLLED
        for (int o = 0; o < OT; ++o) {
          const Vector one = spread(w[o]);
          UNROLLED
          for (int v = 0; v < VT; ++v) total[o][v] += one * at[v];
        }
      }
    }
  UNROLLED
  for (int o = 0; o < OT; ++o) {
    UNROLLED
    for (int v = 0; v < VT; ++v) store(to + o * pitch + v * LANES, total[o][v]);
  }
}

// Row r of `size` outputs, which are `pitch` apart in `to`; kernel: [channel][i][j][output].
void tiles(const float* images, const float* kernel, const float* start, float* to, Int pitch, Int size, Int r,
           const Shape& s) {
  const Int low = std::max<Int>(0, s.ph - r), high = std::min(s.kh, s.ph + s.height - r);
  const Cut wide(s.vectors, std::min<Int>(WIDE, REGISTERS / size));
  for (Int u = 0; u < wide.parts; ++u)
    choose<OUTS, WIDE>(
        [](auto outs, auto vectors) { return &tile<outs, outs * vectors <= REGISTERS ? vectors : 1>; }, size,
        wide.size(u))(images + r * s.line + wide.begin(u) * LANES, kernel, start, to + wide.begin(u) * LANES, pitch,
                      low, high, s);
}

// ---- the gradients

// OT outputs by IT neighbouring rows of one column of the kernel, summed over a block and added to `to`.
template <int OT, int IT>
void along(const float* g, const float* x, float* to, const Shape& s) {
  constexpr int COUNT = (OT * IT + LANES - 1) / LANES * LANES;
  Vector total[COUNT] = {};
  for (Int v = 0; v < s.vectors; ++v, g += LANES, x += LANES) {
    const float *from = x, *at = g;
    Vector near[IT];
    UNROLLED
    for (int i = 1; i < IT; ++i, from += s.line) near[i] = load(from);
    for (Int r = 0; r < s.rows; ++r, from += s.line, at += s.g_line) {
      UNROLLED
      for (int i = 1; i < IT; ++i) near[i - 1] = near[i];
      near[IT - 1] = load(from);
      UNROLLED
      for (int o = 0; o < OT; ++o) {
        const Vector one = load(at + o * s.g_plane);
        UNROLLED
        for (int i = 0; i < IT; ++i) total[o * IT + i] += one * near[i];
      }
    }
  }
  float part[COUNT];
  UNROLLED
  for (int n = 0; n < COUNT; n += LANES) store(part + n, sums(total + n));
  for (int o = 0; o < OT; ++o)
    for (int i = 0; i < IT; ++i) to[o * s.in * s.window + i * s.kw] += part[o * IT + i];
}

// All weights of one client, from one block.
void weights(const float* gradient, const float* images, float* gw, const Shape& s) {
  const Cut high(s.kh, LONG), cut(s.out, std::min<Int>(OUTS, REGISTERS / high.size(high.parts - 1)));
  for (Int t = 0; t < cut.parts; ++t)
    for (Int c = 0; c < s.in; ++c)
      for (Int u = 0; u < high.parts; ++u)
        for (Int j = 0; j < s.kw; ++j)
          choose<OUTS, LONG>([](auto outs, auto rows) { return &along<outs * rows <= REGISTERS ? outs : 1, rows>; },
                             cut.size(t), high.size(u))(
              gradient + cut.begin(t) * s.g_plane, images + c * s.plane + high.begin(u) * s.line + j * s.deep,
              gw + (cut.begin(t) * s.in + c) * s.window + high.begin(u) * s.kw + j, s);
}

// RT rows of the gradient by IT rows of the kernel, its columns `from` to `till`, for CT channels: a vector of each of
// RT + IT - 1 rows of the input's gradient, from row `top` on, summed over the outputs and added to `to`.
template <int CT, int RT, int IT>
void back(const float* g, const float* kernel, Int from, Int till, float* to, Int top, const Shape& s) {
  Vector total[CT][RT + IT - 1] = {};
  for (Int o = 0; o < s.out; ++o)
    for (Int j = from; j < till; ++j) {
      const float *at = g + o * s.g_plane - j * s.deep, *w = kernel + (o * s.kw + j) * IT;
      Vector near[CT][IT];
      UNROLLED
      for (int c = 0; c < CT; ++c) {
        UNROLLED
        for (int i = 0; i < IT; ++i) near[c][i] = spread(w[c * s.out * s.window + i]);
      }
      UNROLLED
      for (int r = 0; r < RT; ++r) {
        const Vector one = load(at + r * s.g_line);
        UNROLLED
        for (int c = 0; c < CT; ++c) {
          UNROLLED
          for (int i = 0; i < IT; ++i) total[c][r + i] += one * near[c][i];
        }
      }
    }
  UNROLLED
  for (int c = 0; c < CT; ++c) {
    UNROLLED
    for (int r = 0; r < RT + IT - 1; ++r) {
      float* row = to + c * s.d_plane + (top + r) * s.d_line;
      if (0 <= top + r && top + r < s.height) store(row, load(row) + total[c][r]);
    }
  }
}

// Weights [out, in, kh, kw] in the order in which `back` reads them: [channel][part of the rows][output][j][i].
void pack_back(const float* w, float* to, const Shape& s) {
  const Cut high(s.kh, HIGH);
  for (Int c = 0; c < s.in; ++c)
    for (Int u = 0; u < high.parts; ++u)
      for (Int o = 0; o < s.out; ++o)
        for (Int j = 0; j < s.kw; ++j)
          for (Int i = high.begin(u); i < high.begin(u + 1); ++i) *to++ = w[(o * s.in + c) * s.window + i * s.kw + j];
}

// The gradient of a block's images, [channel][row][column][image].
void inputs(const float* gradient, const float* kernel, float* to, const Shape& s) {
  constexpr int LOW = TALL * 2 / 3;  // rows for which registers suffice if channels come in pairs
  const Cut high(s.kh, HIGH);
  const bool paired = high.size(high.parts - 1) <= PAIRED && s.in > 1;
  const Cut tall(s.rows, paired ? LOW : TALL);
  std::memset(to, 0, s.in * s.d_plane * sizeof(float));
  for (Int at = 0; at < s.width * s.deep; at += LANES) {
    // Column j of the kernel meets the numbers from p - j * deep on: some of them must be of the row.
    const Int p = at + s.pw * s.deep, over = p - s.columns * s.deep;
    const Int from = over < 0 ? 0 : over / s.deep + 1, till = std::min(s.kw, (p + LANES - 1) / s.deep + 1);
    for (Int q = 0; q < tall.parts; ++q)
      for (Int c = 0, pair; c < s.in; c += pair) {
        pair = paired && c + 1 < s.in ? 2 : 1;
        for (Int u = 0; u < high.parts; ++u) {
          const Int size = tall.size(q), part = high.size(u);
          const auto one = [](auto rows, auto part) { return &back<1, rows, part>; };
          const auto two = [](auto rows, auto part) {
            return &back<2, rows <= LOW ? rows : 1, part <= PAIRED ? part : 1>;
          };
          (pair == 2 ? choose<TALL, HIGH>(two, size, part) : choose<TALL, HIGH>(one, size, part))(
              gradient + tall.begin(q) * s.g_line + p, kernel + (c * s.window + high.begin(u) * s.kw) * s.out, from,
              till, to + c * s.d_plane + at, tall.begin(q) + high.begin(u) - s.ph, s);
        }
      }
  }
}

// ---- whole batches

// Weights [out, in, kh, kw] in the order in which tiles read them: [tile][channel][i][j][output of the tile].
void pack(const float* w, float* to, const Shape& s) {
  const Cut cut(s.out, OUTS);
  for (Int t = 0; t < cut.parts; ++t)
    for (Int c = 0; c < s.in; ++c)
      for (Int at = 0; at < s.window; ++at)
        for (Int o = cut.begin(t); o < cut.begin(t + 1); ++o) *to++ = w[(o * s.in + c) * s.window + at];
}

void forward(const float* x, const float* w, const float* bias, float* y, uint8_t* where, const Shape& s) {
  const Int pixels = s.pixels(where), half = s.columns / 2, x_image = s.in * s.height * s.width;
  const Int y_image = s.out * pixels, y_plane = pixels * s.deep + SLACK, pitch = s.vectors * LANES;
  const float* x_end = x + s.clients * s.batch * x_image;
  float* images = images_.zeros(s.in * s.plane + SLACK);
  float* result = gradients_.get(s.out * y_plane);     // [output][row][column][image], pooled if asked for
  float* lines = flat_.get(2 * OUTS * pitch + LANES);  // two rows of a tile's outputs before pooling
  float* start = packed_.zeros(s.out + s.out * s.in * s.window);
  float* kernel = start + s.out;
  const Cut cut(s.out, OUTS);
  for (Int k = 0; k < s.clients; ++k) {
    pack(w + k * s.out * s.in * s.window, kernel, s);
    if (bias) std::memcpy(start, bias + k * s.out, s.out * sizeof(float));
    for (Int b = 0, count; b < s.batch; b += count, x += count * x_image, y += count * y_image) {
      count = std::min(s.deep, s.batch - b);
      lay(x, x_end, count, images, s);
      for (Int r = 0; r < (where ? s.rows / 2 : s.rows); ++r)
        for (Int t = 0; t < cut.parts; ++t) {
          const Int first = cut.begin(t), size = cut.size(t);
          const float* own = kernel + first * s.in * s.window;
          if (!where) {
            tiles(images, own, start + first, result + first * y_plane + r * s.columns * s.deep, y_plane, size, r, s);
            continue;
          }
          tiles(images, own, start + first, lines, 2 * pitch, size, 2 * r, s);
          tiles(images, own, start + first, lines + pitch, 2 * pitch, size, 2 * r + 1, s);
          for (Int o = 0; o < size; ++o) {
            const float* line = lines + 2 * o * pitch;
            float* to = result + (first + o) * y_plane + r * half * s.deep;
            uint8_t *plane = where + (first + o) * pixels * count, *at = plane + r * half * count;
            if (s.deep == 1)
              pool(line, line + 2 * pitch, pitch, to, to + half, at, at + half, 1, half);
            else
              pool_lines(line, line + pitch, to, at, plane + pixels * count, half, s.deep, count);
          }
        }
      for (Int o = 0; o < s.out; ++o)
        scatter(result + o * y_plane, s.deep, pixels, y + o * pixels, y_image - o * pixels, y_image, count);
      if (where) where += count * y_image;
    }
  }
}

// The gradient of one output of a block into its lines; returns the sum of its numbers.
Vector lay_gradient(const float* g, const float* end, const float* pooled, const uint8_t* where,
                    const uint8_t* where_end, Int apart, Int images, float* to, const Shape& s) {
  Vector total = {};
  const Int half = s.columns / 2;
  if (where && s.deep > 1) {
    for (Int r = 0; r < s.rows / 2; ++r, where += half * images, pooled += half * s.deep, to += 2 * s.g_line)
      total += unpool_lines(pooled, where, where_end, to, to + s.g_line, half, s.deep, images);
    return total;
  }
  if (where)
    unpool(g, end, where, where_end, to, to + s.g_plane, s.g_line, s.rows / 2, half);
  else
    for (Int r = 0; r < s.rows; ++r)
      gather(g + r * s.columns, end, apart, images, s.columns, to + r * s.g_line, s.deep);
  for (Int r = 0; r < s.rows; ++r)
    for (Int v = 0; v < s.vectors; ++v) total += load(to + r * s.g_line + v * LANES);
  return total;
}

void backward(const float* x, const float* w, const float* g, const uint8_t* where, float* gx, float* gw, float* gb,
              const Shape& s) {
  const Int pixels = s.pixels(where), x_image = s.in * s.height * s.width, y_image = s.out * pixels;
  const Int filters = s.out * s.in * s.window, total = s.clients * s.batch;
  const float *x_end = x + total * x_image, *g_end = g + total * y_image;
  const uint8_t* where_end = where ? where + total * y_image : where;
  float* images = images_.zeros(s.in * s.plane + SLACK);
  float* gradient = gradients_.zeros(LANES + s.out * s.g_plane + SLACK) + LANES;
  float* flat = flat_.get(std::max(y_image * s.deep, s.in * s.d_plane) + SLACK);  // the one is used up before the other
  float* kernel = packed_.get(filters);
  std::memset(gw, 0, s.clients * filters * sizeof(float));
  if (gb) std::memset(gb, 0, s.clients * s.out * sizeof(float));
  for (Int k = 0; k < s.clients; ++k, w += filters, gw += filters) {
    if (gx) pack_back(w, kernel, s);
    for (Int b = 0, count; b < s.batch; b += count, x += count * x_image, g += count * y_image) {
      count = std::min(s.deep, s.batch - b);
      lay(x, x_end, count, images, s);
      if (where && s.deep > 1) gather(g, g_end, y_image, count, y_image, flat, s.deep);
      for (Int o = 0; o < s.out; ++o) {
        const Vector sum_o = lay_gradient(g + o * pixels, g_end, flat + o * pixels * s.deep,
                                          where ? where + o * pixels * count : where, where_end, y_image, count,
                                          gradient + o * s.g_plane, s);
        if (gb) gb[k * s.out + o] += sum(sum_o);
      }
      if (where) where += count * y_image;
      weights(gradient, images, gw, s);
      if (!gx) continue;
      inputs(gradient, kernel, flat, s);
      for (Int at = 0; at < s.in * s.height; ++at)
        scatter(flat + at * s.d_line, s.deep, s.width, gx + at * s.width, x_image - at * s.width, x_image, count);
      gx += count * x_image;
    }
  }
}

}  // namespace

#include "chain.h"

extern "C" {

// Raised whenever a signature changes: a library of another number is not used.
int espalier_version() { return 10; }

// The best level of kernels that this processor has: 0 baseline, 1 AVX2, 2 AVX-512. Asked of the baseline's library,
// which runs everywhere.
int espalier_processor() {
#if defined(__x86_64__)
  const bool three = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool four = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
  return three ? four ? 2 : 1 : 0;
#else
  return 0;
#endif
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

// x [K, B, in, H, W], w [K, out, in, kh, kw], bias [K, out] or null -> y [K, B, out, h, w]; padding is smaller than the
// kernel. With `where`: ReLU and 2x2 max-pooling follow; y and where are [K, B, out, h / 2, w / 2].
// `shape`: K, B, in, H, W, out, kh, kw, rows and columns of padding, stride (1), whether channels lie last, whether
// images are bfloat16, whether every channel is convolved by itself (w is [K, out, 1, kh, kw]). If channels lie last, x is
// [K, B, H, W, in] and y [K, B, h, w, out], `out` is a multiple of the lanes unless kernels are of one weight and nothing
// is pooled or left out, and any stride. In bfloat16 they do, and `in` is even; see espalier_conv_half. So they do where
// every channel is by itself; nothing is pooled then.
// Returns 0, or 1 if there was no memory.
int espalier_conv_forward(const void* x, const float* w, const float* bias, void* y, uint8_t* where,
                          const int64_t* shape) {
  const auto* from = static_cast<const float*>(x);
  auto* to = static_cast<float*>(y);
  try {
    if (shape[13]) {
      const auto alone = [&](auto* result) {
        typedef std::remove_pointer_t<decltype(result)> T;
        Depthwise<T>(Last(shape, false)).forward(static_cast<const T*>(x), w, bias, result);
      };
      shape[12] ? alone(static_cast<Half*>(y)) : alone(to);
      return 0;
    }
#if defined(__AVX512BF16__)
    if (shape[12]) {
      forward_last<Pair>(static_cast<const Half*>(x), w, bias, static_cast<Half*>(y), where,
                         Last(shape, where));
      return 0;
    }
#endif
    shape[11] ? forward_last<Single>(from, w, bias, to, where, Last(shape, where))
              : forward(from, w, bias, to, where, Shape(shape));
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// g is y's gradient; gx (or null), gw, gb (or null) are overwritten with those of x, w, bias. If channels lie last, gw may
// be null, and where gx is wanted `in` is a multiple of the lanes where `out` must be. g and gx are stored as x is.
int espalier_conv_backward(const void* x, const float* w, const void* g, const uint8_t* where, void* gx, float* gw,
                           float* gb, const int64_t* shape) {
  const auto *from = static_cast<const float*>(x), *slope = static_cast<const float*>(g);
  auto* to = static_cast<float*>(gx);
  try {
    if (shape[13]) {
      const auto alone = [&](auto* back) {
        typedef std::remove_pointer_t<decltype(back)> T;
        Depthwise<T>(Last(shape, false)).backward(static_cast<const T*>(x), w, static_cast<const T*>(g), back, gw, gb);
      };
      shape[12] ? alone(static_cast<Half*>(gx)) : alone(to);
      return 0;
    }
#if defined(__AVX512BF16__)
    if (shape[12]) {
      backward_last<Pair>(static_cast<const Half*>(x), w, static_cast<const Half*>(g), where, static_cast<Half*>(gx), gw,
                          gb, Last(shape, where));
      return 0;
    }
#endif
    shape[11] ? backward_last<Single>(from, w, slope, where, to, gw, gb, Last(shape, where))
              : backward(from, w, slope, where, to, gw, gb, Shape(shape));
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// Whether convolutions take images in bfloat16: whether this level knows the instructions, and the processor has them.
int espalier_conv_half() {
#if defined(__AVX512BF16__)
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 5 & 1;
#else
  return 0;
#endif
}

// The weights of a layer up to which convolutions of images with channels last should come here.
int espalier_last_weights() { return MOST_WEIGHTS; }

// The rows of a batch up to which linear layers should come here.
int espalier_linear_rows() { return MOST_ROWS; }

// x [K, B, in], w [K, out, in], bias [K, out] or null -> y [K, B, out].
void espalier_linear_forward(const float* x, const float* w, const float* bias, float* y, int64_t clients,
                             int64_t batch, int64_t in, int64_t out) {
  linear(x, w, bias, y, Layer{clients, batch, in, out});
}

// g is y's gradient; gx (or null) is overwritten with that of x. Those of w and bias overwrite gw and gb (or null),
// or are added to them; gw may be w itself: gx is then by the weights as they were.
void espalier_linear_backward(const float* x, const float* w, const float* g, float* gx, float* gw, float* gb,
                              int add_w, int add_b, int64_t clients, int64_t batch, int64_t in, int64_t out) {
  linear_back(x, w, g, Sinks{gx, gw, gb, add_w != 0, add_b != 0}, Layer{clients, batch, in, out});
}

// The channels of a normalisation must be a multiple of this.
int espalier_lanes() { return LANES; }

// x [K, B, places, channels], w and bias [K, channels] -> y like x, stats [K, B, groups, 2]; sizes: clients, images of
// each, places, channels, groups. x and y are bfloat16 if `half`. Returns 0, or 1 if there was no memory.
int espalier_norm_forward(const void* x, const float* w, const float* bias, void* y, float* stats,
                          const int64_t* sizes, double eps, int relu, int half) {
  const Norm s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], eps, relu != 0};
  const auto run = [&](auto* to) {
    typedef std::remove_pointer_t<decltype(to)> T;
    Normaliser<T>(s).forward(static_cast<const T*>(x), w, bias, to, stats);
  };
  try {
    half ? run(static_cast<Half*>(y)) : run(static_cast<float*>(y));
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// g is y's gradient; gx (or null), gw and gb are overwritten with those of x, w and bias.
int espalier_norm_backward(const void* x, const float* w, const float* bias, const void* g, const float* stats,
                           void* gx, float* gw, float* gb, const int64_t* sizes, int relu, int half) {
  const Norm s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], 0, relu != 0};
  const auto run = [&](auto* to) {
    typedef std::remove_pointer_t<decltype(to)> T;
    Normaliser<T>(s).backward(static_cast<const T*>(x), w, bias, static_cast<const T*>(g), stats, to, gw, gb);
  };
  try {
    half ? run(static_cast<Half*>(gx)) : run(static_cast<float*>(gx));
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// The scores of a head (queries times keys) up to which attention should come here.
int espalier_attention_scores() { return MOST_SCORES; }

// y = softmax(scale * q kt + mask) v of every sample and head; sizes: samples, heads, queries, keys, numbers of a head;
// q, k, v, mask (or one at null) and y in that order; stats: see Attending. Returns 0, or 1 if there was no memory.
int espalier_attention_forward(const Strided* tensors, float* stats, const int64_t* sizes, double scale) {
  const Attention s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], scale};
  try {
    Attending(s, tensors[3]).forward(tensors[0], tensors[1], tensors[2], tensors[4], stats);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// q, k, v, mask, y's gradient, and the gradients of q, k and v, which are overwritten.
int espalier_attention_backward(const Strided* tensors, const float* stats, const int64_t* sizes, double scale) {
  const Attention s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], scale};
  try {
    Attending(s, tensors[3]).backward(tensors[0], tensors[1], tensors[2], tensors[4], stats, tensors[5], tensors[6],
                                      tensors[7]);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// All steps of one client; see Training. Returns 0, 1 if there was no memory, 2 if a label is no class.
int espalier_train(Training* training) {
  try {
    return Trainee(*training).run() ? 0 : 2;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // extern "C"
