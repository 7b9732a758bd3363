// Attention of one query token: the dense part, the sampled part, and what merges them.
#pragma once
#include "abi.h"
#include "rows.h"

namespace MP_NS {

constexpr int MAX_GROUP = 4;  // query heads handled together

// A part of one head's attention: out = acc / sum, log-sum-exp = top + log(sum), with the sampling statistics.
struct Part {
  float top, sum, sum_squares, selected, visited, largest;
  float a0, a2;  // see `attend_segment`
  float* acc;    // [head_dim]
  float* a1;     // [head_dim]
};

constexpr int PART_HEADER = 16;

static inline int64_t padded(int dim) { return ((int64_t)dim + 15) / 16 * 16; }

static inline Part part_at(float* partial, int dim, int64_t index) {
  float* p = partial + index * (PART_HEADER + 2 * padded(dim));
  return Part{p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p + PART_HEADER, p + PART_HEADER + padded(dim)};
}

static inline void write_part(float* partial, int dim, int64_t index, const Part& part) {
  float* p = partial + index * (PART_HEADER + 2 * padded(dim));
  p[0] = part.top, p[1] = part.sum, p[2] = part.sum_squares, p[3] = part.selected, p[4] = part.visited;
  p[5] = part.largest, p[6] = part.a0, p[7] = part.a2;
}

constexpr float NEGATIVE = -3.0e38f;

static inline Part empty_part(float* partial, int dim, int64_t index) {
  Part part = part_at(partial, dim, index);
  part.top = part.largest = NEGATIVE;
  part.sum = part.sum_squares = part.selected = part.visited = part.a0 = part.a2 = 0;
  std::memset(part.acc, 0, 2 * padded(dim) * sizeof(float));
  return part;
}

template <class T>
struct Query {
  const float* exact;
  int64_t stride;
  const uint16_t* rounded;  // the same in bfloat16 where that loses nothing, else null
};

template <class T, int G>
static inline void scores(const typename T::type* keys, int64_t stride, const int64_t* position, int count,
                          const Query<T>& q, int dim, float (*x)[BLOCK]) {
#if defined(__AVX512BF16__)
  if constexpr (__is_same(T, BF16))
    if (q.rounded && dim % 32 == 0)
      return dots_bf16<G>(keys, stride, position, count, q.rounded, padded(dim), dim, x);
#endif
  dots<T, G>(keys, stride, position, count, q.exact, q.stride, dim, x);
}

// Queries rounded to bfloat16 if that is exact; `storage` holds G * padded(dim).
template <class T>
static inline Query<T> make_query(const float* query, int64_t stride, int heads, int dim, uint16_t* storage) {
  Query<T> q{query, stride, nullptr};
#if defined(__AVX512BF16__)
  if constexpr (__is_same(T, BF16)) {
    for (int g = 0; g < heads; ++g)
      for (int j = 0; j < dim; ++j) {
        uint32_t bits;
        std::memcpy(&bits, query + g * stride + j, 4);
        if (bits & 0xffff) return q;
        storage[g * padded(dim) + j] = (uint16_t)(bits >> 16);
      }
    q.rounded = storage;
  }
#endif
  return q;
}

// Exact attention of G heads over up to BLOCK positions, with running maxima. `hidden[i]` marks keys to leave out.
template <class T, int G>
static inline void dense_block(const typename T::type* keys, int64_t key_stride, const typename T::type* values,
                               int64_t value_stride, const int64_t* position, int count, const Query<T>& q, int dim,
                               float scale, const uint8_t* hidden, Part* parts) {
  alignas(64) float x[G][BLOCK];
  float alpha[G];
  scores<T, G>(keys, key_stride, position, count, q, dim, x);
  for (int g = 0; g < G; ++g) {
    for (int i = 0; i < BLOCK; ++i) x[g][i] = i < count && !(hidden && hidden[i]) ? x[g][i] * scale : NEGATIVE;
    vf best = load(x[g]);
    for (int j = W; j < BLOCK; j += W) best = vmax(best, load(x[g] + j));
    float top = hmax(best);
    top = top > parts[g].top ? top : parts[g].top;
    alpha[g] = vexp(splat(parts[g].top - top))[0];
    vf total{};
    for (int j = 0; j < BLOCK; j += W) {
      vf z = load(x[g] + j);
      vf w = z <= NEGATIVE ? splat(0.0f) : vexp(z - top);  // NaN is no hidden key: it must reach the output
      store(x[g] + j, w);
      total += w;
    }
    parts[g].top = top;
    parts[g].sum = parts[g].sum * alpha[g] + hsum(total);
  }
  add_rows<T, G>(values, value_stride, position, count, x, alpha, parts[0].acc,
                 G > 1 ? parts[1].acc - parts[0].acc : 0, dim);
}

// Exact attention of `heads` heads over positions from `next`, a callable that fills up to BLOCK of them.
template <class T, class Next>
static void dense_positions(const typename T::type* keys, int64_t key_stride, const typename T::type* values,
                            int64_t value_stride, const float* query, int64_t query_stride, int heads, int dim,
                            float scale, const uint8_t* mask, uint16_t* storage, Part* parts, Next next) {
  Query<T> q = make_query<T>(query, query_stride, heads, dim, storage);
  int64_t position[BLOCK];
  uint8_t hidden[BLOCK];
  for (int count; (count = next(position)) > 0;) {
    for (int i = count; i < BLOCK; ++i) position[i] = position[count - 1];
    // Two streams for every thread, and turns at page ends, are more than the hardware follows by itself.
    const int bytes = dim * (int)sizeof(typename T::type);
    for (int i = 0; i < BLOCK; ++i) {
      prefetch_row((const char*)(keys + (position[i] + BLOCK) * key_stride), bytes);
      prefetch_row((const char*)(values + (position[i] + BLOCK) * value_stride), bytes);
    }
    if (mask)
      for (int i = 0; i < count; ++i) hidden[i] = !mask[position[i]];
    const uint8_t* hide = mask ? hidden : nullptr;
    switch (heads) {
      case 1: dense_block<T, 1>(keys, key_stride, values, value_stride, position, count, q, dim, scale, hide, parts); break;
      case 2: dense_block<T, 2>(keys, key_stride, values, value_stride, position, count, q, dim, scale, hide, parts); break;
      case 3: dense_block<T, 3>(keys, key_stride, values, value_stride, position, count, q, dim, scale, hide, parts); break;
      default: dense_block<T, 4>(keys, key_stride, values, value_stride, position, count, q, dim, scale, hide, parts);
    }
  }
}

// Count, for every key of a segment, the tables in which it shares the query's bucket; emit the keys with at least
// `min_hits` in rising order, and leave the counters zero. Returns the number of keys; `visited` gets the entries read.
static int64_t collect(const mp_segment& segment, int64_t group, int key_bits, int tables, int min_hits,
                       const uint16_t* codes, int64_t code_stride, uint8_t* counters, int32_t* selected,
                       float* visited) {
  const int64_t buckets = (1ll << key_bits) + 1;
  const uint16_t* ids = segment.ids + group * tables * segment.size;
  const uint16_t* offsets = segment.offsets + group * tables * buckets;
  int64_t entries = 0;
  if (min_hits == 0) {
    const int64_t count = offsets[buckets - 1];
    for (int64_t i = 0; i < count; ++i) counters[ids[i]] = 1;
    entries = count;
  } else {
    constexpr int FAR = 8, AHEAD = 4;
    for (int t = 0; t < tables; ++t) {
      if (t + FAR < tables) __builtin_prefetch(offsets + (t + FAR) * buckets + codes[(t + FAR) * code_stride]);
      if (t + AHEAD < tables) {
        const uint16_t* at = offsets + (t + AHEAD) * buckets + codes[(t + AHEAD) * code_stride];
        const char* first = (const char*)(ids + (t + AHEAD) * segment.size + at[0]);
        const char* last = (const char*)(ids + (t + AHEAD) * segment.size + at[1]);
        if (last - first > 1024) last = first + 1024;  // the hardware follows long runs itself
        for (const char* p = first; p < last; p += 64) __builtin_prefetch(p);
      }
      const uint16_t* at = offsets + t * buckets + codes[t * code_stride];
      const uint16_t* bucket = ids + t * segment.size;
      const int64_t begin = at[0], end = at[1];
      entries += end - begin;
      if (tables <= 255) {
        for (int64_t i = begin; i < end; ++i) ++counters[bucket[i]];
      } else {
        for (int64_t i = begin; i < end; ++i) counters[bucket[i]] += counters[bucket[i]] != 255;
      }
    }
  }
  *visited = (float)entries;
  const int threshold = min_hits > 1 ? min_hits : 1;
  int64_t count = 0;
  const int64_t limit = segment.limit, end = (segment.size + 63) / 64 * 64;
  for (int64_t i = 0; i < end; i += 64) {
    uint64_t found = 0;
#if defined(__AVX512BW__)
    __m512i c = _mm512_loadu_si512(counters + i);
    found = _mm512_cmpge_epu8_mask(c, _mm512_set1_epi8((char)threshold));
    _mm512_storeu_si512(counters + i, _mm512_setzero_si512());
#elif defined(__AVX2__)
    const __m256i bound = _mm256_set1_epi8((char)threshold);
    for (int half = 0; half < 2; ++half) {
      __m256i c = _mm256_loadu_si256((const __m256i*)(counters + i + 32 * half));
      uint32_t bits = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(c, bound), c));
      found |= (uint64_t)bits << (32 * half);
      _mm256_storeu_si256((__m256i*)(counters + i + 32 * half), _mm256_setzero_si256());
    }
#else
    for (int word = 0; word < 64; word += 8) {
      uint64_t eight;
      std::memcpy(&eight, counters + i + word, 8);
      if (!eight) continue;
      for (int j = 0; j < 8; ++j)
        if (counters[i + word + j] >= threshold) found |= 1ull << (word + j);
      std::memset(counters + i + word, 0, 8);
    }
#endif
    for (; found; found &= found - 1) {
      const int64_t id = i + __builtin_ctzll(found);
      if (id < limit) selected[count++] = (int32_t)id;
    }
  }
  return count;
}

struct Law {
  int key_bits, tables, min_hits;
  float binomial[9];  // C(tables, j), j <= min_hits
};

static inline Law make_law(int key_bits, int tables, int min_hits) {
  Law law{key_bits, tables, min_hits, {}};
  double c = 1;
  for (int j = 0; j <= min_hits; ++j) {
    law.binomial[j] = (float)c;
    c = c * (tables - j) / (j + 1);
  }
  return law;
}

// Probability that a key with this cosine to the query collides in at least `min_hits` tables, equation (1).
static inline vf selection_probability(vf cosine, const Law& law) {
  if (law.min_hits == 0) return splat(1.0f);
  const int m = law.min_hits, n = law.tables;
  const vf one = splat(1.0f);
  vf hit = vpow(vmax(1.0f - vacos(cosine) * 0.318309886183790672f, splat(0.0f)), law.key_bits);
  vf miss = 1.0f - hit;
  vf rest = vpow(miss, n - m);
  // 1 - P[fewer hits] cancels when the probability is small, which it is while far fewer than `m` hits are expected;
  // there the first terms of the other tail are summed.
  vf fewer{}, power = one;
  for (int j = 0; j < m; ++j) {
    fewer = fewer * miss + law.binomial[j] * power;
    power = power * hit;
  }
  vf complement = 1.0f - fewer * rest * miss;
  vf term = law.binomial[m] * power * rest, tail = term;
  vf odds = hit / vmax(miss, splat(1e-6f));
  for (int j = m; j < m + 7 && j < n; ++j) {
    term = term * odds * ((float)(n - j) / (float)(j + 1));
    tail += term;
  }
  return vmin(hit * (float)n < (m == 1 ? 0.3f : 0.4f * m) ? tail : complement, one);
}

// Attention over the selected keys of a segment with weights exp(s) / (u + eps): equation (2) before the division.
//
// With `with_error`, a_i = (1 - u_i) w_i^2 and sums a0 = sum a_i, a1 = sum a_i v_i, a2 = sum a_i |v_i|^2 are kept: the
// variance of the self-normalised estimate about its value o is a2 - 2 a1.o + a0 |o|^2 over the squared total weight.
template <class T>
static void attend_segment(const mp_attend_args& a, const mp_segment& segment, int64_t batch, int64_t kv_head,
                           const float* query, const Law& law, const int32_t* selected, int64_t count,
                           uint16_t* storage, Part& part) {
  typedef typename T::type E;
  const int dim = a.head_dim;
  const int64_t group = batch * a.kv_heads + kv_head;
  const E* keys = (const E*)a.keys.data + batch * a.keys.stride_batch + kv_head * a.keys.stride_head +
                  segment.start * a.keys.stride_row;
  const E* values = (const E*)a.values.data + batch * a.values.stride_batch + kv_head * a.values.stride_head +
                    segment.start * a.values.stride_row;
  const float* norms = a.norms + group * a.norm_stride + segment.start;
  const float* mean = a.mean + group * dim;
  double shift = 0, square = 0;
  for (int j = 0; j < dim; ++j) {
    shift += (double)query[j] * mean[j];
    square += (double)query[j] * query[j];
  }
  const float query_mean = (float)shift, query_norm = (float)__builtin_sqrt(square);
  Query<T> q = make_query<T>(query, 0, 1, dim, storage);
  const int bytes = dim * (int)sizeof(E);
  const int warm = count < BLOCK ? (int)count : BLOCK;
  for (int i = 0; i < warm; ++i) {
    prefetch_row((const char*)(keys + selected[i] * a.keys.stride_row), bytes);
    prefetch_row((const char*)(values + selected[i] * a.values.stride_row), bytes);
    __builtin_prefetch(norms + selected[i]);
  }
  for (int64_t begin = 0; begin < count; begin += BLOCK) {
    const int here = count - begin < BLOCK ? (int)(count - begin) : BLOCK;
    int64_t position[BLOCK];
    alignas(64) float x[1][BLOCK], norm[BLOCK], weight[1][BLOCK], spread[1][BLOCK];
    for (int i = 0; i < BLOCK; ++i) position[i] = selected[begin + (i < here ? i : here - 1)];
    for (int i = 0; i < BLOCK; ++i) norm[i] = norms[position[i]];
    // A few rows of the next block before each four of this one: all at once would exceed the misses in flight.
    for (int i = 0; i < BLOCK; i += 4) {
      for (int64_t ahead = begin + BLOCK + i; ahead < begin + BLOCK + i + 4 && ahead < count; ++ahead) {
        prefetch_row((const char*)(keys + selected[ahead] * a.keys.stride_row), bytes);
        prefetch_row((const char*)(values + selected[ahead] * a.values.stride_row), bytes);
        __builtin_prefetch(norms + selected[ahead]);
      }
      if (i < here) {
        float four[1][BLOCK];
        scores<T, 1>(keys, a.keys.stride_row, position + i, 4, q, dim, four);
        std::memcpy(x[0] + i, four[0], 4 * sizeof(float));
      }
    }
    for (int i = here; i < BLOCK; ++i) x[0][i] = 0;
    vf best = splat(NEGATIVE);
    for (int j = 0; j < BLOCK; j += W) {
      vf dot = load(x[0] + j), length = query_norm * load(norm + j);
      vi degenerate = length <= 1e-30f;
      vf cosine = degenerate ? splat(0.0f) : (dot - query_mean) / (degenerate ? splat(1.0f) : length);
      cosine = vmin(vmax(cosine, splat(-1.0f)), splat(1.0f));
      vf u = selection_probability(cosine, law);
      vf z = dot * a.scale;
      if (law.min_hits > 0) z -= vlog(vmax(u + a.weight_eps, splat(1e-30f)));
      for (int i = 0; i < W; ++i)
        if (j + i >= here) z[i] = NEGATIVE;
      store(x[0] + j, z);
      store(spread[0] + j, 1.0f - u);
      best = vmax(best, z);
    }
    float top = hmax(best);
    part.largest = top > part.largest ? top : part.largest;
    top = top > part.top ? top : part.top;
    const float alpha[1] = {vexp(splat(part.top - top))[0]}, alpha_square[1] = {alpha[0] * alpha[0]};
    vf total{}, squares{}, variance{};
    for (int j = 0; j < BLOCK; j += W) {
      vf z = load(x[0] + j);
      vf w = z <= NEGATIVE ? splat(0.0f) : vexp(z - top);
      store(weight[0] + j, w);
      vf s = w * w * load(spread[0] + j);
      store(spread[0] + j, s);
      total += w, squares += w * w, variance += s;
    }
    part.top = top;
    part.sum = part.sum * alpha[0] + hsum(total);
    part.sum_squares = part.sum_squares * alpha_square[0] + hsum(squares);
    add_rows<T, 1>(values, a.values.stride_row, position, here, weight, alpha, part.acc, 0, dim);
    if (a.with_error) {
      add_rows<T, 1>(values, a.values.stride_row, position, here, spread, alpha_square, part.a1, 0, dim);
      float a2 = 0;
      for (int i = 0; i < here; ++i) {
        const E* row = values + position[i] * a.values.stride_row;
        vf norm2{};
        int j = 0;
        for (; j + W <= dim; j += W) {
          vf v = T::load_row(row + j);
          norm2 += v * v;
        }
        float length2 = hsum(norm2);
        for (; j < dim; ++j) length2 += T::one(row + j) * T::one(row + j);
        a2 += spread[0][i] * length2;
      }
      part.a0 = part.a0 * alpha_square[0] + hsum(variance);
      part.a2 = part.a2 * alpha_square[0] + a2;
    }
  }
}

// Merge the parts of one head by their log-sum-exp (section 2.6); part `dense` is the exact one, or -1.
static void merge(float* partial, int dim, int64_t first, int64_t count, int64_t dense, float* out, float* lse,
                  float* stats) {
  float top = NEGATIVE;
  for (int64_t p = 0; p < count; ++p) {
    Part part = part_at(partial, dim, first + p);
    if (part.sum != 0 && part.top > top) top = part.top;
  }
  double total = 0, sampled = 0, squares = 0;
  float selected = 0, visited = 0, largest = NEGATIVE;
  std::memset(out, 0, dim * sizeof(float));
  for (int64_t p = 0; p < count; ++p) {
    Part part = part_at(partial, dim, first + p);
    selected += part.selected, visited += part.visited;
    if (part.sum == 0) continue;
    const float factor = vexp(splat(part.top - top))[0];
    total += (double)part.sum * factor;
    for (int j = 0; j < dim; ++j) out[j] += part.acc[j] * factor;
    if (p == dense) continue;
    sampled += (double)part.sum * factor;
    squares += (double)part.sum_squares * factor * factor;
    largest = part.largest > largest ? part.largest : largest;
  }
  // An empty sum has the logarithm -inf; one that is not a number stays so.
  auto log_sum = [top](double sum) {
    return sum > 0 ? top + vlog(splat((float)sum))[0] : sum == 0 ? -__builtin_inff() : __builtin_nanf("");
  };
  *lse = log_sum(total);
  const float inverse = total == 0 ? 0.0f : (float)(1.0 / total);
  for (int j = 0; j < dim; ++j) out[j] *= inverse;
  if (!stats) return;
  stats[MP_SELECTED] = selected;
  stats[MP_VISITED] = visited;
  stats[MP_MAX_SHARE] = largest > NEGATIVE ? vexp(splat(largest - *lse))[0] : 0.0f;
  stats[MP_ESS] = squares > 0 ? (float)(sampled * sampled / squares) : 0.0f;
  stats[MP_LSE_SAMPLED] = log_sum(sampled);
  double error = 0, size = 0;
  for (int j = 0; j < dim; ++j) size += (double)out[j] * out[j];
  for (int64_t p = 0; p < count; ++p) {
    Part part = part_at(partial, dim, first + p);
    if (p == dense || part.sum == 0) continue;
    const double factor = vexp(splat(part.top - top))[0] * inverse;
    double cross = 0;
    for (int j = 0; j < dim; ++j) cross += (double)part.a1[j] * out[j];
    error += factor * factor * (part.a2 - 2 * cross + part.a0 * size);
  }
  stats[MP_ERROR] = error < 0 ? 0.0f : (float)__builtin_sqrt(error);
}

}  // namespace MP_NS
