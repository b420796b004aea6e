// KVCODEC_CLONES("avx2"): compiles a function once more with these instructions. The loader takes that form where the processor has them;
// under the sanitizer of threads there is one form only, because the loader would call it before the sanitizer's runtime has begun.
#pragma once

#ifdef __has_feature  // clang; GCC defines __SANITIZE_THREAD__
#if __has_feature(thread_sanitizer)
#define KVCODEC_ONE_FORM
#endif
#endif

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(KVCODEC_ONE_FORM)
#define KVCODEC_CLONES(wider) [[gnu::target_clones("default", wider)]]
#else
#define KVCODEC_CLONES(wider)
#endif
