// Dot products with, and weighted sums of, key and value rows at given positions, for several query heads at once.
#pragma once
#include "simd.h"

namespace MP_NS {

static inline void prefetch_row(const char* p, int bytes) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

// x[g][i] = query[g] . row(position[i]) for `G` heads; positions are padded to BLOCK by the caller.
template <class T, int G>
static inline void dots(const typename T::type* base, int64_t stride, const int64_t* position, int count,
                        const float* query, int64_t query_stride, int dim, float (*x)[BLOCK]) {
  const int full = dim / W, rest = dim % W;
  for (int i = 0; i < count; i += 4) {
    const typename T::type* row[4];
    for (int k = 0; k < 4; ++k) row[k] = base + position[i + k] * stride;
    vf sum[G][4];
    for (int g = 0; g < G; ++g)
      for (int k = 0; k < 4; ++k) sum[g][k] = vf{};
    for (int j = 0; j < full; ++j) {
      vf r[4];
      for (int k = 0; k < 4; ++k) r[k] = T::load_row(row[k] + j * W);
      for (int g = 0; g < G; ++g) {
        vf q = load(query + g * query_stride + j * W);
        for (int k = 0; k < 4; ++k) sum[g][k] += q * r[k];
      }
    }
    if (rest) {
      for (int k = 0; k < 4; ++k) {
        vf r = load_part<T>(row[k] + full * W, rest);
        for (int g = 0; g < G; ++g) sum[g][k] += load_part<F32>(query + g * query_stride + full * W, rest) * r;
      }
    }
    for (int g = 0; g < G; ++g) hsum4(sum[g][0], sum[g][1], sum[g][2], sum[g][3], x[g] + i);
  }
}

#if defined(__AVX512BF16__)
// The same for queries that are bfloat16 themselves: pairs of products in one instruction, no conversion.
template <int G>
static inline void dots_bf16(const uint16_t* base, int64_t stride, const int64_t* position, int count,
                             const uint16_t* query, int64_t query_stride, int dim, float (*x)[BLOCK]) {
  for (int i = 0; i < count; i += 4) {
    __m512 sum[G][4];
    for (int g = 0; g < G; ++g)
      for (int k = 0; k < 4; ++k) sum[g][k] = _mm512_setzero_ps();
    for (int j = 0; j < dim; j += 32) {
      __m512bh r[4];
      for (int k = 0; k < 4; ++k) r[k] = (__m512bh)_mm512_loadu_si512(base + position[i + k] * stride + j);
      for (int g = 0; g < G; ++g) {
        __m512bh q = (__m512bh)_mm512_loadu_si512(query + g * query_stride + j);
        for (int k = 0; k < 4; ++k) sum[g][k] = _mm512_dpbf16_ps(sum[g][k], r[k], q);
      }
    }
    for (int g = 0; g < G; ++g) hsum4((vf)sum[g][0], (vf)sum[g][1], (vf)sum[g][2], (vf)sum[g][3], x[g] + i);
  }
}
#endif

// acc[g] = alpha[g] * acc[g] + sum_i weight[g][i] * row(position[i]); `V` vectors of the row at a time.
template <class T, int G, int V>
static inline void add_rows_tile(const typename T::type* base, int64_t stride, const int64_t* position, int count,
                                 const float (*weight)[BLOCK], const float* alpha, float* acc, int64_t acc_stride) {
  vf sum[G][V];
  for (int g = 0; g < G; ++g)
    for (int v = 0; v < V; ++v) sum[g][v] = load(acc + g * acc_stride + v * W) * alpha[g];
  for (int i = 0; i < count; ++i) {
    const typename T::type* row = base + position[i] * stride;
    vf r[V];
    for (int v = 0; v < V; ++v) r[v] = T::load_row(row + v * W);
    for (int g = 0; g < G; ++g) {
      vf w = splat(weight[g][i]);
      for (int v = 0; v < V; ++v) sum[g][v] += w * r[v];
    }
  }
  for (int g = 0; g < G; ++g)
    for (int v = 0; v < V; ++v) store(acc + g * acc_stride + v * W, sum[g][v]);
}

template <class T, int G>
static inline void add_rows(const typename T::type* base, int64_t stride, const int64_t* position, int count,
                            const float (*weight)[BLOCK], const float* alpha, float* acc, int64_t acc_stride,
                            int dim) {
  int j = 0;
  for (; j + 8 * W <= dim; j += 8 * W)
    add_rows_tile<T, G, 8>(base + j, stride, position, count, weight, alpha, acc + j, acc_stride);
  for (; j + 4 * W <= dim; j += 4 * W)
    add_rows_tile<T, G, 4>(base + j, stride, position, count, weight, alpha, acc + j, acc_stride);
  for (; j + W <= dim; j += W)
    add_rows_tile<T, G, 1>(base + j, stride, position, count, weight, alpha, acc + j, acc_stride);
  if (j < dim)
    for (int g = 0; g < G; ++g)
      for (int c = j; c < dim; ++c) {
        float sum = acc[g * acc_stride + c] * alpha[g];
        for (int i = 0; i < count; ++i) sum += weight[g][i] * T::one(base + position[i] * stride + c);
        acc[g * acc_stride + c] = sum;
      }
}

}  // namespace MP_NS
