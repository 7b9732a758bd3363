// The exported functions: choice of the instruction set, threads and their buffers.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "dispatch.h"

namespace baseline {
extern const mp_kernels kernels;
}
#if defined(MP_X86)
namespace avx2 {
extern const mp_kernels kernels;
}
namespace avx512 {
extern const mp_kernels kernels;
}
namespace avx512bf16 {
extern const mp_kernels kernels;
}
#endif

namespace {

constexpr int HASH_CHUNK = 96;  // a multiple of the six rows that share registers
constexpr int MAX_HEAD_DIM = 4096;

const mp_kernels& kernels_of(int isa) {
#if defined(MP_X86)
  switch (isa) {
    case MP_AVX512BF16: return avx512bf16::kernels;
    case MP_AVX512: return avx512::kernels;
    case MP_AVX2: return avx2::kernels;
  }
#endif
  (void)isa;
  return baseline::kernels;
}

struct Buffers {
  std::vector<float> rows, bounds;
  std::vector<uint8_t> counters;
  std::vector<int32_t> selected;
  std::vector<uint16_t> rounded;

  mp_scratch lend(int head_dim, bool hashing) {
    if (hashing) {
      rows.resize(std::max<size_t>(rows.size(), (size_t)HASH_CHUNK * head_dim));
      bounds.resize(HASH_CHUNK);
    } else {
      counters.resize(65536 + 64);
      selected.resize(65536 + 64);
      rounded.resize(std::max<size_t>(rounded.size(), 4 * ((size_t)head_dim + 16)));
    }
    return {rows.data(), bounds.data(), counters.data(), selected.data(), rounded.data()};
  }
};

thread_local Buffers buffers;

// GOMP_parallel of the OpenMP runtime that torch itself uses: its team is joined instead of starting a second one,
// whose waiting threads would compete with torch's for the cores.
typedef void (*TeamRunner)(void (*)(void*), void*, unsigned, unsigned);
TeamRunner team_runner = nullptr;

template <class Task>
struct Job {
  const Task& task;
  int64_t count;
  int head_dim;
  bool hashing;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};

  static void work(void* self) {
    Job& job = *static_cast<Job*>(self);
    try {
      mp_scratch scratch = job.lend();
      for (int64_t i; (i = job.next.fetch_add(1)) < job.count;) job.task(i, scratch);
    } catch (...) {
      job.failed = true;
    }
  }
  mp_scratch lend() { return buffers.lend(head_dim, hashing); }
};

// Run task(i, scratch) for all i below count. Returns 0, or -1 when memory ran out or no thread could be started.
template <class Task>
int parallel(int threads, int64_t count, int head_dim, bool hashing, const Task& task) {
  Job<Task> job{task, count, head_dim, hashing};
  const int team = (int)std::min<int64_t>(threads, count);
  if (team <= 1) {
    Job<Task>::work(&job);
  } else if (team_runner) {
    team_runner(Job<Task>::work, &job, (unsigned)team, 0);
  } else {
    // A thread that cannot be started fails the call, but those that were started use `job` and are waited for.
    std::vector<std::thread> helpers;
    try {
      helpers.reserve(team - 1);
      for (int i = 1; i < team; ++i) helpers.emplace_back(Job<Task>::work, &job);
    } catch (...) {
      job.failed = true;
    }
    if (!job.failed) Job<Task>::work(&job);
    for (auto& helper : helpers) helper.join();
  }
  return job.failed ? -1 : 0;
}

int hash_queries(const mp_attend_args& a) {
  const int64_t heads = (int64_t)a.kv_heads * a.group;
  const int per_panel = 64 / a.key_bits;
  const int64_t panels = (a.tables + per_panel - 1) / per_panel;
  if (a.panel_heads == 1) {
    mp_hash_args h{a.isa, a.threads, MP_F32, a.key_bits, a.tables, a.head_dim, a.batch * heads, a.head_dim,
                   a.query, nullptr, a.panels, a.plane_norm, a.codes, nullptr};
    const int64_t fair = (h.count + a.threads - 1) / a.threads, chunk = std::min<int64_t>(HASH_CHUNK, (fair + 5) / 6 * 6);
    return parallel(a.threads, (h.count + chunk - 1) / chunk, a.head_dim, true, [&](int64_t i, mp_scratch& s) {
      kernels_of(a.isa).hash(h, i * chunk, std::min(h.count, (i + 1) * chunk), s);
    });
  }
  // One set of planes for each kv head: its queries are gathered first.
  const int64_t rows = (int64_t)a.batch * a.group;
  std::vector<float> gathered((size_t)a.kv_heads * rows * a.head_dim);
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t kv = 0; kv < a.kv_heads; ++kv)
      std::memcpy(gathered.data() + (kv * rows + b * a.group) * a.head_dim,
                  a.query + (b * heads + kv * a.group) * a.head_dim, sizeof(float) * a.group * a.head_dim);
  return parallel(a.threads, a.kv_heads, a.head_dim, true, [&](int64_t kv, mp_scratch& s) {
    mp_hash_args h{a.isa, 1, MP_F32, a.key_bits, a.tables, a.head_dim, rows, a.head_dim,
                   gathered.data() + kv * rows * a.head_dim, nullptr, a.panels + kv * panels * a.head_dim * 64,
                   a.plane_norm, a.codes + kv * a.tables * rows, nullptr};
    for (int64_t i = 0; i < rows; i += HASH_CHUNK)
      kernels_of(a.isa).hash(h, i, std::min<int64_t>(rows, i + HASH_CHUNK), s);
  });
}

}  // namespace

MP_EXPORT int32_t mp_abi_version() { return 1; }

MP_EXPORT int32_t mp_best_isa() {
#if defined(MP_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return __builtin_cpu_supports("avx512bf16") ? MP_AVX512BF16 : MP_AVX512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return MP_AVX2;
#endif
  return MP_BASELINE;
}

MP_EXPORT void mp_use_team(void* gomp_parallel) { team_runner = (TeamRunner)gomp_parallel; }

MP_EXPORT int32_t mp_hash(const mp_hash_args* args) {
  const mp_hash_args& a = *args;
  if (a.head_dim > MAX_HEAD_DIM) return -1;
  return parallel(a.threads, (a.count + HASH_CHUNK - 1) / HASH_CHUNK, a.head_dim, true, [&](int64_t i, mp_scratch& s) {
    kernels_of(a.isa).hash(a, i * HASH_CHUNK, std::min<int64_t>(a.count, (i + 1) * HASH_CHUNK), s);
  });
}

// Counting sort of the keys of each table by their code; ids rise within a bucket.
MP_EXPORT int32_t mp_build_tables(const mp_table_args* args) {
  const mp_table_args& a = *args;
  const int64_t buckets = 1ll << a.key_bits;
  return parallel(a.threads, a.tables, 0, true, [&](int64_t t, mp_scratch&) {
    thread_local std::vector<int32_t> next;
    next.assign(buckets + 1, 0);
    const uint16_t* codes = a.codes + t * a.count;
    uint16_t* offsets = a.offsets + t * (buckets + 1);
    uint16_t* ids = a.ids + t * a.count;
    for (int64_t i = 0; i < a.count; ++i)
      if (!a.skip || !a.skip[i]) ++next[codes[i] + 1];
    for (int64_t b = 0; b < buckets; ++b) next[b + 1] += next[b];
    for (int64_t b = 0; b <= buckets; ++b) offsets[b] = (uint16_t)next[b];
    const int64_t used = next[buckets];
    for (int64_t i = 0; i < a.count; ++i)
      if (!a.skip || !a.skip[i]) ids[next[codes[i]]++] = (uint16_t)i;
    for (int64_t i = used; i < a.count; ++i) ids[i] = 0;
  });
}

// The inverse: codes of the keys that the tables hold; `skip` is set for the others.
MP_EXPORT int32_t mp_expand_tables(const mp_table_args* args, uint16_t* codes, uint8_t* skip) {
  const mp_table_args& a = *args;
  const int64_t buckets = 1ll << a.key_bits;
  std::memset(skip, 1, a.count);
  return parallel(a.threads, a.tables, 0, true, [&](int64_t t, mp_scratch&) {
    const uint16_t* offsets = a.offsets + t * (buckets + 1);
    const uint16_t* ids = a.ids + t * a.count;
    uint16_t* row = codes + t * a.count;
    std::memset(row, 0, a.count * sizeof *row);
    for (int64_t b = 0; b < buckets; ++b)
      for (int64_t i = offsets[b]; i < offsets[b + 1]; ++i) row[ids[i]] = (uint16_t)b;
    if (t == 0)
      for (int64_t i = 0; i < offsets[buckets]; ++i) skip[ids[i]] = 0;
  });
}

MP_EXPORT int64_t mp_partial_floats(int32_t head_dim) { return 16 + 2 * (((int64_t)head_dim + 15) / 16 * 16); }

MP_EXPORT int32_t mp_attend(const mp_attend_args* args) {
  const mp_attend_args& a = *args;
  if (a.head_dim > MAX_HEAD_DIM) return -1;
  const mp_kernels& kernels = kernels_of(a.isa);
  if (a.num_segments > 0 && a.min_hits > 0 && hash_queries(a) != 0) return -1;
  const int64_t rows = (int64_t)a.batch * a.kv_heads * a.group;
  const int64_t tasks = (int64_t)a.batch * a.kv_heads + rows * a.num_segments;
  if (parallel(a.threads, tasks, a.head_dim, false, [&](int64_t i, mp_scratch& s) { kernels.attend(a, i, s); }) != 0)
    return -1;
  for (int64_t row = 0; row < rows; ++row) kernels.attend_merge(a, row);
  return 0;
}

MP_EXPORT int32_t mp_select(const mp_select_args* args) {
  const mp_attend_args& a = args->attend;
  if (a.head_dim > MAX_HEAD_DIM) return -1;
  if (a.num_segments > 0 && a.min_hits > 0 && hash_queries(a) != 0) return -1;
  return parallel(a.threads, (int64_t)a.batch * a.kv_heads * a.group, a.head_dim, false,
                  [&](int64_t row, mp_scratch& s) { kernels_of(a.isa).select(*args, row, s); });
}

MP_EXPORT int32_t mp_dense(const mp_dense_args* args) {
  const mp_dense_args& a = *args;
  if (a.head_dim > MAX_HEAD_DIM) return -1;
  const mp_kernels& kernels = kernels_of(a.isa);
  const int64_t tasks = (int64_t)a.batch * a.kv_heads * a.num_chunks;
  if (parallel(a.threads, tasks, a.head_dim, false, [&](int64_t i, mp_scratch& s) { kernels.dense(a, i, s); }) != 0)
    return -1;
  for (int64_t row = 0; row < (int64_t)a.batch * a.kv_heads * a.group; ++row) kernels.dense_merge(a, row);
  return 0;
}

// Ask for large pages: rows gathered at random otherwise miss the address translation cache almost every time.
MP_EXPORT void mp_advise_large_pages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t page = 2u << 20, begin = ((uintptr_t)data + page - 1) / page * page;
  const uintptr_t end = ((uintptr_t)data + (uintptr_t)bytes) / page * page;
  if (end > begin) madvise((void*)begin, end - begin, MADV_HUGEPAGE);
#else
  (void)data, (void)bytes;
#endif
}
