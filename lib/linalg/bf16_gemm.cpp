#include "lib/linalg/bf16_gemm.hpp"

#include "lib/core/error.hpp"

#ifdef KVCODEC_ONEDNN
#include <vector>

#include <dnnl.hpp>

#include "lib/linalg/blas_thread.hpp"
#endif

namespace kvcodec {

#ifdef KVCODEC_ONEDNN

namespace {

using dnnl::memory;

memory::desc strided(size_t rows, size_t cols, memory::data_type type, size_t row_step, size_t col_step) {
  const auto dim = [](size_t value) { return static_cast<memory::dim>(value); };
  return {{dim(rows), dim(cols)}, type, memory::dims{dim(row_step), dim(col_step)}};
}

const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::primitive_attr attributes(bool add) {
  dnnl::primitive_attr result;
  // Memory of our own: primitives of one shape share what they are made of between threads.
  result.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1);
    result.set_post_ops(sum);
  }
  return result;
}

/// oneDNN takes mutable memory for what it only reads.
memory memory_of(const memory::desc& desc, const void* data) {
  return {desc, cpu(), const_cast<void*>(data)};
}

}  // namespace

std::string why_no_bf16() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") ? "" : "this processor has neither AVX512-BF16 nor AMX";
}

void gemm_bf16(MatrixView<const uint16_t> x, MatrixView<const uint16_t> w, Transpose op, bool add,
               MatrixView<float> out) {
  const bool turned = op == Transpose::yes;
  const size_t inner = turned ? w.cols() : w.rows(), columns = turned ? w.rows() : w.cols();
  if (x.cols() == 0 || x.cols() != inner || out.rows() != x.rows() || out.cols() != columns)
    throw failed("product of ({}, {}) and {}({}, {}) to ({}, {})", x.rows(), x.cols(),
                 turned ? "the transpose of " : "", w.rows(), w.cols(), out.rows(), out.cols());
  if (const std::string reason = why_no_bf16(); !reason.empty())
    throw failed("a product in bf16, but {}", reason);
  if (out.rows() == 0 || out.cols() == 0) return;
  const OnThisThread on_this_thread;  // oneDNN takes threads as OpenBLAS does
  try {
    const auto of_x = strided(x.rows(), x.cols(), memory::data_type::bf16, x.stride(), 1),
               of_w = strided(inner, columns, memory::data_type::bf16, turned ? 1 : w.stride(),
                              turned ? w.stride() : 1),
               of_out = strided(out.rows(), out.cols(), memory::data_type::f32, out.stride(), 1);
    const dnnl::matmul::primitive_desc desc({of_x, of_w, of_out}, attributes(add), cpu());
    thread_local std::vector<std::byte> scratch;
    if (scratch.size() < desc.scratchpad_desc().get_size()) scratch.resize(desc.scratchpad_desc().get_size());
    dnnl::stream stream(cpu());
    dnnl::matmul(desc).execute(stream,
                               {{DNNL_ARG_SRC, memory_of(of_x, x.data())},
                                {DNNL_ARG_WEIGHTS, memory_of(of_w, w.data())},
                                {DNNL_ARG_DST, memory_of(of_out, out.data())},
                                {DNNL_ARG_SCRATCHPAD, memory_of(desc.scratchpad_desc(), scratch.data())}});
    stream.wait();
  } catch (const dnnl::error& error) {
    throw failed("oneDNN: {}", error.what());
  }
}

#else

std::string why_no_bf16() { return "this build has no oneDNN (libdnnl)"; }

void gemm_bf16(MatrixView<const uint16_t>, MatrixView<const uint16_t>, Transpose, bool, MatrixView<float>) {
  throw failed("a product in bf16, but {}", why_no_bf16());
}

#endif

}  // namespace kvcodec
