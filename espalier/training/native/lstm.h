// What an LSTM does between its products, element by element: one step of many rows, forward and backward.
// Gates are in PyTorch's order: input, forget, cell, output.
#pragma once

#include "vectors.h"

namespace {

// e to the x, to the last bits of a float: 2^n times the series of what is left, at most ln 2 / 2.
inline Vector power(Vector x) {
  const Vector low = spread(-87.0f), high = spread(88.0f), magic = spread(12582912.0f);  // 1.5 * 2^23: lets n round
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Vector shifted = x * 1.44269504f + magic, n = shifted - magic;
  const Vector r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vector series = r / 5040 + 1.0f / 720;
  series = series * r + 1.0f / 120;
  series = series * r + 1.0f / 24;
  series = series * r + 1.0f / 6;
  series = series * r + 0.5f;
  series = (series * r + 1.0f) * r + 1.0f;
  return series * (Vector)(((Mask)shifted - (Mask)magic + 127) << 23);
}

inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + power(-x)); }
inline Vector tanh_of(Vector x) { return 1.0f - 2.0f / (1.0f + power(2.0f * x)); }

// gates [rows][4 * size] become what they let through; states' rows are `pitch` apart.
void lstm_step(float* gates, const float* before, float* cell, float* shown, float* hidden, Int rows, Int size,
               Int pitch) {
  for (Int r = 0; r < rows; ++r, gates += 4 * size, before += pitch, cell += pitch, shown += pitch, hidden += pitch)
    for (Int at = 0; at < size; at += LANES) {
      const auto gate = [&](int which, auto function) {
        float* from = gates + which * size;
        const Vector v = function(read<Vector>(from + at, from + size));
        write(from + at, from + size, v);
        return v;
      };
      const Vector in = gate(0, sigmoid), forget = gate(1, sigmoid), fresh = gate(2, tanh_of), out = gate(3, sigmoid);
      const Vector now = forget * read<Vector>(before + at, before + size) + in * fresh, seen = tanh_of(now);
      write(cell + at, cell + size, now);
      write(shown + at, shown + size, seen);
      write(hidden + at, hidden + size, out * seen);
    }
}

// From the gradient of the hidden state to those of the gates; that of the cell [rows][size] goes one step back.
void lstm_step_back(const float* gates, const float* before, const float* shown, const float* g_hidden, float* g_cell,
                    float* g_gates, Int rows, Int size, Int pitch) {
  for (Int r = 0; r < rows; ++r, gates += 4 * size, g_gates += 4 * size, before += pitch, shown += pitch,
           g_hidden += size, g_cell += size)
    for (Int at = 0; at < size; at += LANES) {
      const auto gate = [&](int which) {
        return read<Vector>(gates + which * size + at, gates + (which + 1) * size);
      };
      const auto put = [&](int which, Vector v) {
        float* to = g_gates + which * size;
        write(to + at, to + size, v);
      };
      const Vector in = gate(0), forget = gate(1), fresh = gate(2), out = gate(3);
      const Vector seen = read<Vector>(shown + at, shown + size), g = read<Vector>(g_hidden + at, g_hidden + size);
      const Vector down = read<Vector>(g_cell + at, g_cell + size) + g * out * (1.0f - seen * seen);
      put(3, g * seen * out * (1.0f - out));
      put(0, down * fresh * in * (1.0f - in));
      put(1, down * read<Vector>(before + at, before + size) * forget * (1.0f - forget));
      put(2, down * in * (1.0f - fresh * fresh));
      write(g_cell + at, g_cell + size, down * forget);
    }
}

}  // namespace
