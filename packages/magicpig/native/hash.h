// SimHash codes: a matrix product whose results are reduced to their signs while they are still in registers.
//
// The planes come in panels of 64 columns, [panel][head_dim][64]: as many whole tables as fit, then zeros. A code is
// the sign of the exact projection: where a float32 sum is within its rounding bound of zero it is repeated in
// double, so that neither the instruction set, the number of threads, nor the block a row falls in can change a bit.
#pragma once
#include "abi.h"
#include "simd.h"

namespace MP_NS {

constexpr int PANEL = 64;
constexpr int HASH_ROWS = 6;

// Signs and near-zero flags of `R` rows against one panel.
template <int R>
static void project(const float* rows, int dim, const float* panel, const float* bound, uint64_t* positive,
                    uint64_t* near) {
  constexpr int C = W == 16 ? 4 : 2;
  for (int r = 0; r < R; ++r) positive[r] = near[r] = 0;
  for (int column = 0; column < PANEL; column += C * W) {
    vf sum[R][C];
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) sum[r][c] = vf{};
    for (int j = 0; j < dim; ++j) {
      const float* plane = panel + (int64_t)j * PANEL + column;
      vf p[C];
      for (int c = 0; c < C; ++c) p[c] = load(plane + c * W);
      for (int r = 0; r < R; ++r) {
        vf x = splat(rows[(int64_t)r * dim + j]);
        for (int c = 0; c < C; ++c) sum[r][c] += x * p[c];
      }
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) {
        int shift = column + c * W;
        positive[r] |= (uint64_t)bits_of(sum[r][c] > 0.0f) << shift;
        near[r] |= (uint64_t)bits_of(vmax(sum[r][c], -sum[r][c]) <= bound[r]) << shift;
      }
  }
}

static inline void project_rows(int count, const float* rows, int dim, const float* panel, const float* bound,
                                uint64_t* positive, uint64_t* near) {
  switch (count) {
    case 1: return project<1>(rows, dim, panel, bound, positive, near);
    case 2: return project<2>(rows, dim, panel, bound, positive, near);
    case 3: return project<3>(rows, dim, panel, bound, positive, near);
    case 4: return project<4>(rows, dim, panel, bound, positive, near);
    case 5: return project<5>(rows, dim, panel, bound, positive, near);
    default: return project<6>(rows, dim, panel, bound, positive, near);
  }
}

template <class T>
static void centre_rows(const mp_hash_args& a, int64_t begin, int64_t end, float* rows, float* bound) {
  const int dim = a.head_dim;
  for (int64_t i = begin; i < end; ++i) {
    const auto* source = (const typename T::type*)a.rows + i * a.stride_row;
    float* row = rows + (i - begin) * dim;
    double square = 0;
    for (int j = 0; j < dim; ++j) {
      float x = T::one(source + j);
      if (a.mean) x -= a.mean[j];
      row[j] = x;
      square += (double)x * x;
    }
    float norm = (float)__builtin_sqrt(square);
    if (a.norms) a.norms[i] = norm;
    // Twice the bound on the rounding of a sum of `dim` products.
    bound[i - begin] = norm * a.plane_norm * (float)dim * 1.1920929e-7f;
  }
}

// Hash rows [begin, end); `rows` holds (end - begin) * head_dim floats, `bound` one for each row.
static void hash_rows(const mp_hash_args& a, int64_t begin, int64_t end, float* rows, float* bound) {
  const int dim = a.head_dim, bits = a.key_bits, per_panel = PANEL / bits;
  switch (a.dtype) {
    case MP_BF16: centre_rows<BF16>(a, begin, end, rows, bound); break;
    case MP_F16: centre_rows<F16>(a, begin, end, rows, bound); break;
    default: centre_rows<F32>(a, begin, end, rows, bound);
  }
  const uint64_t mask = (1ull << bits) - 1;
  for (int table = 0, p = 0; table < a.tables; table += per_panel, ++p) {
    const float* panel = a.panels + (int64_t)p * dim * PANEL;
    const int here = a.tables - table < per_panel ? a.tables - table : per_panel;
    const uint64_t used = here * bits == 64 ? ~0ull : (1ull << (here * bits)) - 1;
    for (int64_t i = begin; i < end; i += HASH_ROWS) {
      const int count = end - i < HASH_ROWS ? (int)(end - i) : HASH_ROWS;
      const float* block = rows + (i - begin) * dim;
      uint64_t positive[HASH_ROWS], near[HASH_ROWS];
      project_rows(count, block, dim, panel, bound + (i - begin), positive, near);
      for (int r = 0; r < count; ++r) {
        for (uint64_t left = near[r] & used; left; left &= left - 1) {
          const int column = __builtin_ctzll(left);
          double exact = 0;
          for (int j = 0; j < dim; ++j)
            exact += (double)block[(int64_t)r * dim + j] * (double)panel[(int64_t)j * PANEL + column];
          const uint64_t bit = 1ull << column;
          positive[r] = exact > 0 ? positive[r] | bit : positive[r] & ~bit;
        }
        for (int t = 0; t < here; ++t)
          a.codes[(int64_t)(table + t) * a.count + i + r] = (uint16_t)((positive[r] >> (t * bits)) & mask);
      }
    }
  }
}

}  // namespace MP_NS
