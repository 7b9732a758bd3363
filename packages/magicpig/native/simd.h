// Vectors of MP_WIDTH floats through the compiler's vector extension; intrinsics only where it has no word for them.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define MP_WIDTH 16
#elif defined(__AVX2__)
#define MP_WIDTH 8
#else
#define MP_WIDTH 4
#endif

namespace MP_NS {

typedef float vf __attribute__((vector_size(MP_WIDTH * 4)));
typedef int32_t vi __attribute__((vector_size(MP_WIDTH * 4)));
typedef uint32_t vu __attribute__((vector_size(MP_WIDTH * 4)));
typedef uint16_t vh __attribute__((vector_size(MP_WIDTH * 2)));
constexpr int W = MP_WIDTH;
// Keys are handled in blocks of this many; every width divides it.
constexpr int BLOCK = 16;

static inline vf splat(float x) { return x - vf{}; }
static inline vf load(const float* p) {
  vf v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
static inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
static inline vf as_float(vi v) { return (vf)v; }
static inline vi as_int(vf v) { return (vi)v; }
static inline vf vmax(vf a, vf b) { return a > b ? a : b; }
static inline vf vmin(vf a, vf b) { return a < b ? a : b; }

static inline vf vsqrt(vf v) {
#if defined(__AVX512F__)
  return (vf)_mm512_sqrt_ps((__m512)v);
#elif defined(__AVX2__)
  return (vf)_mm256_sqrt_ps((__m256)v);
#elif defined(__SSE2__)
  return (vf)_mm_sqrt_ps((__m128)v);
#else
  for (int i = 0; i < W; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

static inline uint32_t bits_of(vi mask) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask((__m512i)mask);
#elif defined(__AVX2__)
  return (uint32_t)_mm256_movemask_ps((__m256)mask);
#elif defined(__SSE2__)
  return (uint32_t)_mm_movemask_ps((__m128)mask);
#else
  uint32_t bits = 0;
  for (int i = 0; i < W; ++i) bits |= (uint32_t)(mask[i] & 1) << i;
  return bits;
#endif
}

static inline float hmax(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float m = v[0];
  for (int i = 1; i < W; ++i) m = v[i] > m ? v[i] : m;
  return m;
#endif
}

static inline float hsum(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float s = v[0];
  for (int i = 1; i < W; ++i) s += v[i];
  return s;
#endif
}

// The sums of four vectors at once: a transposition costs less than four separate reductions.
static inline void hsum4(vf a, vf b, vf c, vf d, float* out) {
#if defined(__AVX512F__)
  __m512 A = (__m512)a, B = (__m512)b, C = (__m512)c, D = (__m512)d;
  __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(A, B), _mm512_unpackhi_ps(A, B));
  __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(C, D), _mm512_unpackhi_ps(C, D));
  __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif defined(__AVX2__)
  __m256 A = (__m256)a, B = (__m256)b, C = (__m256)c, D = (__m256)d;
  __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(A, B), _mm256_unpackhi_ps(A, B));
  __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(C, D), _mm256_unpackhi_ps(C, D));
  __m256 all = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#else
  out[0] = hsum(a), out[1] = hsum(b), out[2] = hsum(c), out[3] = hsum(d);
#endif
}

// exp for any float: zero below -87, clamped above 88, NaN for NaN. Cephes' polynomial, relative error about 1e-7.
static inline vf vexp(vf x) {
  vi underflow = x < -87.0f;
  vf y = vmin(splat(88.0f), vmax(splat(-87.0f), x));  // in this order a NaN passes
  vf n = y * 1.44269504088896341f;
  vi k = __builtin_convertvector(n + (n < 0.0f ? splat(-0.5f) : splat(0.5f)), vi);
  vf kf = __builtin_convertvector(k, vf);
  vf r = y - kf * 0.693359375f + kf * 2.12194440e-4f;
  vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  vf result = p * as_float((k + 127) << 23);
  return underflow ? splat(0.0f) : result;
}

// Natural logarithm of a positive normal float; relative error about 1e-7.
static inline vf vlog(vf x) {
  vi bits = as_int(x);
  vi exponent = (bits >> 23) - 126;
  vf m = as_float((bits & 0x007fffff) | 0x3f000000);
  vi low = m < 0.707106781186547524f;
  exponent += low;
  m = (low ? m + m : m) - 1.0f;
  vf e = __builtin_convertvector(exponent, vf);
  vf z = m * m;
  vf p = m * 7.0376836292e-2f + -1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m + -1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m + -1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m + -2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  return m + (p * m * z + e * -2.12194440e-4f - 0.5f * z) + e * 0.693359375f;
}

// Arc cosine on [-1, 1], absolute error 2e-8 before rounding (Abramowitz and Stegun 4.4.46).
static inline vf vacos(vf x) {
  vf a = vmax(x, -x);
  vf p = a * -0.0012624911f + 0.0066700901f;
  p = p * a + -0.0170881256f;
  p = p * a + 0.0308918810f;
  p = p * a + -0.0501743046f;
  p = p * a + 0.0889789874f;
  p = p * a + -0.2145988016f;
  p = p * a + 1.5707963050f;
  p = p * vsqrt(1.0f - a);
  return x < 0.0f ? 3.14159265358979f - p : p;
}

static inline vf vpow(vf base, int exponent) {
  vf result = splat(1.0f);
  for (; exponent > 0; exponent >>= 1, base = base * base)
    if (exponent & 1) result = result * base;
  return result;
}

struct F32 {
  typedef float type;
  static inline vf load_row(const float* p) { return load(p); }
  static inline float one(const float* p) { return *p; }
};

struct BF16 {
  typedef uint16_t type;
  static inline vf load_row(const uint16_t* p) {
    vh half;
    std::memcpy(&half, p, sizeof half);
    return (vf)(__builtin_convertvector(half, vu) << 16);
  }
  static inline float one(const uint16_t* p) {
    uint32_t bits = (uint32_t)*p << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  }
};

struct F16 {
  typedef uint16_t type;
  static inline float one(const uint16_t* p) {
    uint32_t sign = (uint32_t)(*p & 0x8000) << 16, rest = *p & 0x7fff, bits;
    if (rest >= 0x7c00) {
      bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
    } else if (rest >= 0x400) {
      bits = sign | ((rest << 13) + 0x38000000);
    } else {
      float tiny = (float)rest * 5.9604644775390625e-8f;  // 2^-24: subnormal
      std::memcpy(&bits, &tiny, 4);
      bits |= sign;
    }
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
  }
  static inline vf load_row(const uint16_t* p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
    vf v;
    for (int i = 0; i < W; ++i) v[i] = one(p + i);
    return v;
#endif
  }
};

// The last, partial vector of a row, zero beyond its end.
template <class T>
static inline vf load_part(const typename T::type* p, int count) {
  typename T::type padded[W] = {};
  std::memcpy(padded, p, count * sizeof *p);
  return T::load_row(padded);
}

}  // namespace MP_NS
